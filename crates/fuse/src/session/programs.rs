//! Which programs have files open or mapped on a mount, found in `/proc`: also on a detached mount, which has no path.

use std::fs;
use std::path::Path;

use halocline_os::bounded;

/// How many programs are named at most.
const NAMED_MAX: usize = 5;
/// Limit for reading the description of a descriptor, in bytes.
const FDINFO_BYTES_MAX: u64 = 4096;
/// The same for the list of what a process has mapped.
const MAPS_BYTES_MAX: u64 = 4 << 20;

/// A device, as its major and minor number.
type Device = (u64, u64);

/// Names and numbers of programs that have something open on the mount `number`, as far as this process may see them; if
/// there are none, of those that have something of its file system mapped.
pub(super) fn programs_on(number: u64, device: Option<Device>) -> Vec<String> {
    let users = programs_that(&|process| has_open(process, number));
    match device {
        // The kernel may let us wait for a process whose mappings we list, if its own threads wait for a server.
        Some(device) if users.is_empty() => programs_that(&|process| has_mapped(process, device)),
        _ => users,
    }
}

/// The first programs of which this is so.
fn programs_that(is_so: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let numeric = processes.flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    });
    let users = numeric.filter(|(pid, process)| *pid != std::process::id() && is_so(process));
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

/// Whether a process has something of a file system mapped: a mapping keeps the mount in use when its file is closed.
fn has_mapped(process: &Path, device: Device) -> bool {
    let maps = bounded::read(&process.join("maps"), MAPS_BYTES_MAX).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').any(|line| device_in(line) == Some(device))
}

/// The device in a line of that list: `ADDRESSES PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`.
fn device_in(line: &[u8]) -> Option<Device> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(words.nth(3)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    Some((u64::from_str_radix(major, 16).ok()?, u64::from_str_radix(minor, 16).ok()?))
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
    use super::{device_in, mount_in};

    /// A description: what comes behind the mount changes nothing.
    pub(crate) fn descriptor(bytes: &[u8]) {
        let _ = mount_in(bytes);
        let more = [b"pos:\t0\nflags:\t02\nmnt_id:\t31\n", bytes].concat();
        assert_eq!(mount_in(&more), Some(31));
        let _ = device_in(bytes);
        let more = [b"7f00-7f01 r--s 00000000 00:27 9                          ", bytes].concat();
        assert_eq!(device_in(&more), Some((0, 0x27)));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Regression: `umount --force` waited for such a program and could not name it.
    #[test]
    fn a_program_that_has_only_mapped_something_is_found() {
        let own = Path::new("/proc/self");
        let executable = fs::metadata("/proc/self/exe").unwrap().dev();
        let device = (libc::major(executable).into(), libc::minor(executable).into());
        assert!(has_mapped(own, device), "its own executable");
        assert!(!has_mapped(own, (4095, 77)));
    }
}
