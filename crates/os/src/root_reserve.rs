//! Reserves that the kernel keeps for the administrator of a machine, which a mount must not give to others.
//!
//! With `CAP_SYS_RESOURCE` a write may exceed hard quotas. A mount that root runs writes for all of its users: with the
//! capability, they all could (docs/decisions/0027-reserves.md).

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::error::Result;

/// Drops `CAP_SYS_RESOURCE` in the calling thread and those that it starts from now on. A program that they execute as
/// root has it again, because the bounding set stays.
pub fn drop_resource_capability() -> Result<()> {
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
        // In a thread of its own, because this cannot be undone.
        let sets = std::thread::spawn(|| {
            drop_resource_capability().unwrap();
            std::thread::spawn(|| capabilities(None).unwrap()).join().unwrap()
        });
        let sets = sets.join().unwrap();
        assert!(!(sets.effective | sets.permitted).contains(CapabilitySet::SYS_RESOURCE));
    }
}
