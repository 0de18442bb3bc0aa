//! The machine's memory, as the kernel accounts for it.

use std::path::Path;

use crate::bounded::{self, SMALL_FILE_BYTES_MAX};

/// What `/proc/meminfo` said.
#[derive(Debug)]
pub struct MemoryInfo(String);

impl MemoryInfo {
    /// As it is now; `None` if the system does not tell.
    #[must_use]
    pub fn now() -> Option<Self> {
        bounded::read_to_string(Path::new("/proc/meminfo"), SMALL_FILE_BYTES_MAX).ok().map(Self)
    }

    /// The bytes of a field, such as `MemAvailable`; `None` if there is no such field.
    #[must_use]
    pub fn bytes(&self, field: &str) -> Option<u64> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        let kibibytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
        kibibytes.checked_mul(1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_bytes() {
        let info = MemoryInfo("MemTotal:  8 kB\nMemFree: x kB\nMem:  1\n".to_owned());
        assert_eq!(info.bytes("MemTotal"), Some(8192));
        assert_eq!(["MemFree", "Mem", "Total"].map(|field| info.bytes(field)), [None; 3]);
        assert!(MemoryInfo::now().unwrap().bytes("MemTotal").unwrap() > 1 << 20);
    }
}
