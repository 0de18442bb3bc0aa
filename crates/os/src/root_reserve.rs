//! What the kernel keeps for the administrator of a machine, which a mount must not hand to others.
//!
//! With `CAP_SYS_RESOURCE` a write passes hard quotas. A mount that root runs writes for everybody who
//! uses it: with the capability, they all would (docs/decisions/0027-reserves.md).

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::error::Result;

/// Gives `CAP_SYS_RESOURCE` up in the calling thread and those that it starts from here on. A program
/// that they execute as root has it again: the bounding set stays.
pub fn leave_to_root() -> Result<()> {
    let mut sets = capabilities(None)?;
    if sets.permitted.contains(CapabilitySet::SYS_RESOURCE) {
        for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
            set.remove(CapabilitySet::SYS_RESOURCE);
        }
        set_capabilities(None, sets)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_started_later_are_without_the_capability() {
        // In a thread of its own: there is no way back.
        let left = std::thread::spawn(|| {
            leave_to_root().unwrap();
            std::thread::spawn(|| capabilities(None).unwrap()).join().unwrap()
        });
        let left = left.join().unwrap();
        assert!(!(left.effective | left.permitted).contains(CapabilitySet::SYS_RESOURCE));
    }
}
