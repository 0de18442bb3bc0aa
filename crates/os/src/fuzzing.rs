//! Bodies of this crate's fuzz targets (`fuzz/`). They are called by cargo-fuzz, and by the tests below over the same
//! seeds (docs/TESTING.md, fuzz targets).

use crate::process_status::ProcessStatus;

/// What the kernel says of a process, or the name that one has chosen, which changes nothing else.
pub fn process_status(bytes: &[u8]) {
    let status = ProcessStatus::parse(bytes);
    for field in ["Name", "Uid", "Groups", "SigPnd", ""] {
        assert_eq!(status.field(field).trim(), status.field(field));
        assert!(status.numbers(field).count() <= bytes.len());
        let _ = status.signals(field);
    }
    // As the kernel shows names.
    let shown: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != b'\n').collect();
    let rest = b"\nTgid:\t7\nGroups:\t4 24 \nSigPnd:\t0000000000000100\n";
    let status = ProcessStatus::parse(&[b"Name:\t", &shown[..], rest].concat());
    assert_eq!(status.numbers("Tgid").collect::<Vec<_>>(), [7]);
    assert_eq!(status.numbers("Groups").collect::<Vec<_>>(), [4, 24]);
    assert_eq!(status.signals("SigPnd"), 0x100);
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;

    #[test]
    fn hostile_processes() {
        let status = "Name:\ta b\nUmask:\t0022\nTgid:\t12\nUid:\t0\t0\t0\t0\nGroups:\t4 24 27 \n\
            SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";
        let seeds = [("status", status.into()), ("name", b"Gid:\xff".to_vec())];
        run("os_process_status", &seeds, 10_000, process_status);
    }
}
