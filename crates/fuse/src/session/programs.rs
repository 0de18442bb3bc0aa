//! Which programs have files open on a mount, found in `/proc`: also on a detached mount, which has no path.

use std::fs;
use std::path::Path;

use halocline_os::bounded;

/// How many programs are named at most.
const NAMED_MAX: usize = 5;
/// Limit for reading the description of a descriptor, in bytes.
const FDINFO_BYTES_MAX: u64 = 4096;

/// Names and numbers of programs that have something open on the mount `number`, as far as this process may see them.
pub(super) fn programs_on(number: u64) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let numeric = processes.flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    });
    let users =
        numeric.filter(|(pid, process)| *pid != std::process::id() && has_open(process, number));
    let named = users.map(|(pid, process)| {
        let name = bounded::read(&process.join("comm"), FDINFO_BYTES_MAX).unwrap_or_default();
        format!("process {pid} ({})", String::from_utf8_lossy(&name).trim())
    });
    named.take(NAMED_MAX).collect()
}

/// Whether a process has something open on the mount, judged by the kernel's description of its descriptors, not by the
/// files, whose servers may not respond.
fn has_open(process: &Path, number: u64) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fdinfo")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let info = bounded::read(&descriptor.path(), FDINFO_BYTES_MAX).unwrap_or_default();
        mount_in(&info) == Some(number)
    })
}

/// The mount that a description of a descriptor names.
fn mount_in(info: &[u8]) -> Option<u64> {
    let info = String::from_utf8_lossy(info);
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    mount.and_then(|id| id.trim().parse().ok())
}

/// Descriptors of any program, some of which say more: part of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::mount_in;

    /// A description: what comes behind the mount changes nothing.
    pub(crate) fn descriptor(bytes: &[u8]) {
        let _ = mount_in(bytes);
        let more = [b"pos:\t0\nflags:\t02\nmnt_id:\t31\n", bytes].concat();
        assert_eq!(mount_in(&more), Some(31));
    }
}
