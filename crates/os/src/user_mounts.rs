//! Mounts that an ordinary user may have made in a tree of others.
//!
//! Everybody who may open `/dev/fuse` can mount a file system over a directory of his own. He answers the requests to it: others
//! get an error, or, where that is allowed, whatever he likes, or nothing at all. What must hold: nothing here asks him.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use crate::bounded::{self, SMALL_FILE_BYTES_MAX};
use crate::process_user::own_uid;

/// Limit of the list of mounts: 4,096 bytes for each of the 100,000 that Linux allows by default.
const MOUNTS_BYTES_MAX: u64 = 400 << 20;

/// Whether the file system of `file`, which may be opened with `O_PATH`, is one that another user than root serves, and than
/// whom this process runs as.
///
/// # Errors
/// If `/proc` cannot be read, or has more than can be there.
pub fn is_served_by_another_user(file: impl AsFd) -> io::Result<bool> {
    let about = format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd());
    let about = bounded::read_to_string(Path::new(&about), SMALL_FILE_BYTES_MAX)?;
    let mount = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
    let Some(mount) = mount else { return Ok(false) };
    let mounts = bounded::read(Path::new("/proc/self/mountinfo"), MOUNTS_BYTES_MAX)?;
    let mounts = String::from_utf8_lossy(&mounts);
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount));
    Ok(line.and_then(user_of).is_some_and(|user| user != 0 && user != own_uid()))
}

/// The user who serves the file system of a line of `mountinfo`; `None` if the kernel does.
fn user_of(line: &str) -> Option<u32> {
    let (_, system) = line.split_once(" - ")?;
    let mut words = system.split(' ');
    let kind = words.next()?;
    if kind != "fuse" && kind != "fuseblk" && !kind.starts_with("fuse.") {
        return None;
    }
    let options = words.next_back()?;
    options.split(',').find_map(|option| option.strip_prefix("user_id="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_serves_a_mount_is_in_its_options() {
        let line = |end: &str| format!("98 25 0:52 / /m rw,nosuid shared:1 - {end}");
        for (end, user) in [
            ("fuse.sshfs a:/b rw,user_id=1000,group_id=1000", Some(1000)),
            ("fuse x rw,user_id=7,group_id=7", Some(7)),
            ("fuseblk /dev/sdb1 rw,user_id=0,group_id=0,allow_other", Some(0)),
            ("tmpfs user_id=7 rw,size=1k", None),
            ("ext4 /dev/sda1 rw", None),
        ] {
            assert_eq!(user_of(&line(end)), user, "{end}");
        }
        assert!(!is_served_by_another_user(std::fs::File::open("/").unwrap()).unwrap());
    }
}
