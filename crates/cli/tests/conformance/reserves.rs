//! What a mount that root runs must not do for its users: pass their quotas.

use std::fs;

use crate::mount::{self, Mount};
use crate::programs;

/// With it the kernel does not look at hard quotas (`CAP_SYS_RESOURCE`).
const SYS_RESOURCE: u64 = 1 << 24;

fn without_the_capability(mount: &Mount) {
    let pid = mount.status()["pid"].as_u64().expect("a process");
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("threads") {
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task.expect("a thread").path().join("status")) else {
            continue;
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:"] {
            let bits = status.lines().find_map(|line| line.strip_prefix(set)).expect("a set");
            let bits = u64::from_str_radix(bits.trim(), 16).expect("hexadecimal");
            assert_eq!(bits & SYS_RESOURCE, 0, "{status}");
        }
        threads += 1;
    }
    assert!(threads > 1, "{threads} threads");
}

/// No thread: a flush in the background writes users' bytes, too.
#[test]
fn no_thread_of_a_mount_passes_quotas() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    without_the_capability(&Mount::new(&[]));
    without_the_capability(&Mount::tier(&[]));
}
