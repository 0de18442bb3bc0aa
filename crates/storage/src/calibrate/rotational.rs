//! Disk or flash, according to the kernel: the default until a server is calibrated.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether the device below `path` rotates; `None` if the kernel does not know, as for network file systems.
pub fn rotational(path: &Path) -> Option<bool> {
    let device = path.metadata().ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let block = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue of its own; that of its disk is one directory up.
    let flag = fs::read_to_string(format!("{block}/queue/rotational"))
        .or_else(|_| fs::read_to_string(format!("{block}/../queue/rotational")));
    match flag.ok()?.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_missing_paths_are_unknown() {
        assert_eq!(rotational(Path::new("/proc")), None);
        assert_eq!(rotational(Path::new("/no/such/path")), None);
    }
}
