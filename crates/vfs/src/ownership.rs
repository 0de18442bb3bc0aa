//! Whether a caller may do what otherwise only the owner of a file may, as the kernel decides it.
//!
//! The kernel has compared the owner before it asks for a change, but with the one that it saw last, or of what the name
//! led to just before. Where others change files and names without its knowledge, the comparison is repeated at the
//! change.

use std::io;
use std::os::unix::fs::MetadataExt;

use halocline_os::bounded;
use halocline_os::process_status::ProcessStatus;

use crate::Caller;

/// `CAP_CHOWN`, as a set.
pub const CHOWN: u64 = 1;
/// `CAP_DAC_OVERRIDE`, as a set.
const DAC_OVERRIDE: u64 = 1 << 1;
/// `CAP_FOWNER`, as a set.
pub const FOWNER: u64 = 1 << 3;

/// Limit of the maps of a user namespace in bytes: they have at most 340 lines.
const MAP_BYTES_MAX: u64 = 64 << 10;

/// A file's owner and group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Whether the caller is that owner, or has one of these capabilities over that owner's files.
#[must_use]
pub fn acts_for(caller: Caller, owner: Owner, capabilities: u64) -> bool {
    caller.uid == owner.uid || has_over(caller.pid, owner, capabilities).unwrap_or(false)
}

/// Whether the caller's process has the group, including its supplementary groups, or counts as if: root. Reads what the kernel
/// tells of the process, unless the group is the caller's first one.
#[must_use]
pub fn is_in_group(caller: Caller, gid: u32) -> bool {
    if caller.uid == 0 || caller.gid == gid {
        return true;
    }
    let status = ProcessStatus::of(caller.pid);
    status.is_ok_and(|status| status.numbers("Groups").any(|group| group == gid))
}

/// Whether it is certain that a caller may open a regular file with these permission bits and `flags` of `open(2)`:
/// as its owner, or by a capability. Who else may is decided by groups and ACLs, which only the kernel compares.
#[must_use]
pub fn may_certainly_open(caller: Caller, (mode, owner): (u32, Owner), flags: i32) -> bool {
    let (read, write) = (libc::S_IRUSR, libc::S_IWUSR);
    let mut needed = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => read,
        libc::O_WRONLY => write,
        _ => read | write,
    };
    if flags & libc::O_TRUNC != 0 {
        needed |= write;
    }
    let is_owner = caller.uid == owner.uid;
    let is_allowed = is_owner && mode & needed == needed;
    // Only an owner, or somebody with another capability, may leave the time of access as it is.
    let is_open_to_others = is_owner || flags & libc::O_NOATIME == 0;
    is_allowed || is_open_to_others && has_over(caller.pid, owner, DAC_OVERRIDE).unwrap_or(false)
}

/// Whether a thread has one of these capabilities over an owner's files. In a user namespace of its own anybody has all
/// capabilities, but only over the files of users and groups that the namespace has.
fn has_over(thread: u32, owner: Owner, capabilities: u64) -> io::Result<bool> {
    if ProcessStatus::of(thread)?.signals("CapEff") & capabilities == 0 {
        return Ok(false);
    }
    let namespace = |of: &str| {
        let found = std::fs::metadata(format!("/proc/{of}/ns/user"))?;
        Ok::<_, io::Error>((found.dev(), found.ino()))
    };
    if namespace(&thread.to_string())? == namespace("self")? {
        return Ok(true);
    }
    let map = |kind: &str| {
        let path = format!("/proc/{thread}/{kind}_map");
        bounded::read(path.as_ref(), MAP_BYTES_MAX)
    };
    Ok(has(&map("uid")?, owner.uid) && has(&map("gid")?, owner.gid))
}

/// Whether the map of a user namespace has an id that is outside of it. Each line has the first id inside, the first one
/// outside, and how many there are.
fn has(map: &[u8], id: u32) -> bool {
    String::from_utf8_lossy(map).lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(_)), Some(Ok(first)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_users_of_a_namespace_are_its_roots_to_act_for() {
        let map = b"         0       1000          1\n         1     100000      65536\n";
        for (id, is_there) in [
            (0, false),
            (1000, true),
            (1001, false),
            (100_000, true),
            (165_535, true),
            (165_536, false),
        ] {
            assert_eq!(has(map, id), is_there, "{id}");
        }
        assert!(has(b"0 0 4294967295\n", 0) && !has(b"", 0) && !has(b"0 x 1\n", 0));
    }

    #[test]
    fn an_owner_opens_what_the_mode_allows_and_others_need_the_capability() {
        let own = Caller { uid: 7, gid: 7, pid: 0 };
        let (ours, other) = (Owner { uid: 7, gid: 7 }, Owner { uid: 8, gid: 7 });
        let (read, write, both) = (libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR);
        for (mode, flags, may) in [
            (0o600, both, true),
            (0o400, read, true),
            (0o400, read | libc::O_TRUNC, false),
            (0o400, write, false),
            (0o200, write | libc::O_TRUNC, true),
            (0o200, both, false),
            (0o077, read, false),
            (0o400, read | libc::O_NOATIME, true),
        ] {
            assert_eq!(may_certainly_open(own, (mode, ours), flags), may, "{mode:o} {flags:o}");
            assert!(!may_certainly_open(own, (mode, other), flags), "{mode:o} {flags:o}");
        }
        let is_root = rustix::process::geteuid().is_root();
        let this = Caller { pid: std::process::id(), ..own };
        assert_eq!(may_certainly_open(this, (0, other), both), is_root);
        assert!(!may_certainly_open(this, (0, other), read | libc::O_NOATIME));
    }

    #[test]
    fn whoever_is_no_owner_needs_the_capability() {
        let own = Caller { uid: 7, gid: 7, pid: std::process::id() };
        let is_root = rustix::process::geteuid().is_root();
        assert!(acts_for(own, Owner { uid: 7, gid: 1 }, 0));
        assert!(!acts_for(own, Owner { uid: 8, gid: 7 }, 0));
        assert_eq!(acts_for(own, Owner { uid: 8, gid: 7 }, FOWNER), is_root);
        let nobody = Caller { pid: 0, ..own };
        assert!(!acts_for(nobody, Owner { uid: 8, gid: 7 }, FOWNER | CHOWN));
    }
}
