//! Whether a process could write to a directory; claims of others count only then.
//!
//! This is judged by owner, mode and ACL, and by the groups that the process has now. If the kernel hides the processes
//! of others, members of a group or an ACL cannot be distinguished from other users, and count as permitted: safe data
//! matters more than a refusal that someone provoked.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use halocline_os::posix_acl::{self, Entry, tag};
use halocline_os::process_status::ProcessStatus;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::net::UCred;
use rustix::process::{geteuid, test_kill_process};

/// The attributes of a directory that decide about access.
struct Directory {
    uid: u32,
    gid: u32,
    mode: u32,
    /// The entries of its ACL.
    acl: Vec<Entry>,
}

/// Whether the process could change the contents of a directory that it claims: the last one of `way`, which leads up
/// to it from the wanted directory.
///
/// The right to create names in a directory above extends to everything below, unless only owners may rename and remove
/// there (the sticky bit, as on `/tmp`): otherwise anyone could claim `/tmp`, and with it everybody's directories
/// there.
pub(super) fn may_change<'a>(peer: &UCred, mut way: impl Iterator<Item = &'a Path>) -> bool {
    let may = |path: &Path, of_all: bool| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty());
        dir.is_ok_and(|dir| Directory::read(&dir).is_some_and(|dir| dir.may_be_used(peer, of_all)))
    };
    way.next().is_some_and(|wanted| may(wanted, false)) || way.any(|above| may(above, true))
}

/// Whether it could write to `inside`, below the directory `path` that it named itself.
pub(super) fn may_write_below(peer: &UCred, path: &Path, inside: &Path) -> bool {
    if inside.as_os_str().is_empty() {
        return false;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = open(path, flags, Mode::empty())
        .and_then(|dir| openat2(&dir, inside, flags, Mode::empty(), beneath));
    found.is_ok_and(|dir| Directory::read(&dir).is_some_and(|dir| dir.may_be_used(peer, false)))
}

impl Directory {
    /// Whether the process could create names in it; with `of_all`, also change names that others created.
    fn may_be_used(&self, peer: &UCred, of_all: bool) -> bool {
        let uid = peer.uid;
        if uid.is_root() || uid == geteuid() || uid.as_raw() == self.uid {
            return true;
        }
        let only_owners = self.mode & libc::S_ISVTX != 0;
        !(of_all && only_owners) && self.lets_in(uid.as_raw(), |gid| is_member(peer, gid))
    }

    fn read(dir: &OwnedFd) -> Option<Self> {
        use std::os::fd::AsRawFd;
        // The attributes of an `O_PATH` descriptor are read by its name in /proc.
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let seen = fs::metadata(&path).ok()?;
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(&path, posix_acl::ACCESS, &mut value[..]).unwrap_or(0);
        let acl = posix_acl::decode(&value[..len]).unwrap_or_default();
        Some(Self { uid: seen.uid(), gid: seen.gid(), mode: seen.mode(), acl })
    }

    /// Whether a user who is not the owner may write to the directory. Masks and denying entries of the ACL are
    /// ignored: in case of doubt it counts as permitted.
    fn lets_in(&self, uid: u32, is_member: impl Fn(u32) -> bool) -> bool {
        if self.mode & 0o002 != 0 || (self.mode & 0o020 != 0 && is_member(self.gid)) {
            return true;
        }
        let mut writing = self.acl.iter().filter(|entry| entry.bits & posix_acl::WRITE != 0);
        writing.any(|entry| match entry.tag {
            tag::USER => entry.id == uid,
            tag::GROUP => is_member(entry.id),
            tag::OWNING_GROUP => is_member(self.gid),
            _ => false,
        })
    }
}

/// Whether the claiming process is in a group. It lives as long as its claim does: a name that someone keeps for a
/// process that has ended does not count.
fn is_member(peer: &UCred, gid: u32) -> bool {
    let Ok(status) = ProcessStatus::of(peer.pid.as_raw_nonzero().get().unsigned_abs()) else {
        return test_kill_process(peer.pid) != Err(rustix::io::Errno::SRCH);
    };
    let is_owner = status.numbers("Uid").any(|uid| uid == peer.uid.as_raw());
    is_owner && status.numbers("Gid").chain(status.numbers("Groups")).any(|group| group == gid)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, getegid};

    use super::*;

    /// A process chooses its name: one that is no text made it a member of every group.
    #[test]
    fn no_name_makes_a_process_a_member_of_a_group() {
        for name in ["plain", "\\377", "Groups:\\t4242"] {
            let script = format!("printf '{name}' > /proc/$$/comm && echo ready && read -r _");
            let mut program = Command::new("sh");
            program.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = program.spawn().unwrap();
            let mut ready = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
            assert_eq!(ready, "ready\n");
            let (uid, gid) = (geteuid(), getegid());
            let peer = UCred { pid: Pid::from_child(&child), uid, gid };
            assert!(is_member(&peer, gid.as_raw()), "{name}");
            assert!(!is_member(&peer, 4_242), "{name}");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn mode_and_acl_say_who_may_write() {
        let dir = |mode, acl: &[(u16, u16, u32)]| {
            let entry = |&(tag, bits, id)| Entry { tag, bits, id };
            Directory { uid: 1, gid: 50, mode, acl: acl.iter().map(entry).collect() }
        };
        let lets_in =
            |dir: Directory, uid, groups: &[u32]| dir.lets_in(uid, |gid| groups.contains(&gid));
        assert!(!lets_in(dir(0o755, &[]), 7, &[50]));
        assert!(lets_in(dir(0o757, &[]), 7, &[]));
        assert!(lets_in(dir(0o775, &[]), 7, &[50]));
        assert!(!lets_in(dir(0o775, &[]), 7, &[51]));
        assert!(lets_in(dir(0o750, &[(tag::USER, 7, 7)]), 7, &[]));
        assert!(!lets_in(dir(0o750, &[(tag::USER, 5, 7)]), 7, &[]));
        assert!(lets_in(dir(0o750, &[(tag::GROUP, 7, 60)]), 7, &[60]));
        assert!(!lets_in(dir(0o750, &[(tag::GROUP, 7, 60)]), 7, &[50]));
    }
}
