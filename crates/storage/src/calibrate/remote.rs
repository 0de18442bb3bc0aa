//! Detects directories on another machine, whose times include the network.

use std::path::Path;

use halocline_os::error::{Error, Result};

/// `f_type` of file systems whose data is on other machines (statfs(2), linux/magic.h, and the clients' own sources).
/// One in user space may be remote.
const REMOTE: [u32; 10] = [
    0x6969,      // NFS
    0xfe53_4d42, // SMB2
    0xff53_4d42, // CIFS
    0x0bd0_0bd0, // Lustre
    0x00c3_6400, // Ceph
    0x2003_0528, // OrangeFS
    0x1983_0326, // BeeGFS
    0x4750_4653, // GPFS
    0x0102_1997, // 9P
    0x6573_5546, // FUSE: GlusterFS, SSHFS
];

/// Whether `path` may be on another machine.
///
/// # Errors
/// If the file system does not report its type.
pub fn is_remote(path: &Path) -> Result<bool> {
    let about = rustix::fs::statfs(path).map_err(std::io::Error::from);
    let kind = about.map_err(Error::at(path, "ask which file system is below"))?.f_type;
    // The kernel's numbers have 32 bits, sign-extended or not.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
    let kind = kind as u32;
    Ok(REMOTE.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_here() {
        assert!(!is_remote(Path::new("/proc")).unwrap());
        assert!(is_remote(Path::new("/no/such/path")).is_err());
    }
}
