//! More files than the mount may have open, or should remember.

use std::fs;

use crate::mount::{self, Mount};
use crate::programs;

const FILES: u32 = 3000;

fn content(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(1024)
}

/// Each file with dirty bytes kept one of the origin's files open: programs got EMFILE.
#[test]
fn programs_can_open_files_however_many_are_dirty() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let options = ["--policy", "always", "--size", "256M", "--max-dirty-age", "1h"];
    let mut mount = Mount::with_open_files(1000, &options);
    let path = |number: u32| mount.path().join(number.to_string());
    for number in 0..FILES {
        fs::write(path(number), content(number)).unwrap();
    }
    for number in 0..FILES {
        assert!(fs::read(path(number)).unwrap() == content(number), "{number}");
    }
    let status = mount.status();
    assert_eq!(status["health"]["state"], "ok", "{status}");
    assert!(status["report"]["admitted"]["requests"].as_u64() > Some(50), "{status}");
    mount.unmount();
    for number in 0..FILES {
        let path = mount.origin().join(number.to_string());
        assert!(fs::read(path).unwrap() == content(number), "{number} on the origin");
    }
}
