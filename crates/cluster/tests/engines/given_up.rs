//! What nodes hold back of a file beside its bytes.

use std::time::{Duration, UNIX_EPOCH};

use halocline_api::control::Controlled;
use halocline_vfs::{Engine, SetAttr, SetTime};

use super::{Cluster, ME, without_rebuild};

/// Regression: the time that a program of one node gave a file was replaced, when another node brought to the origin what
/// it had written before, by the time of that write.
#[test]
fn a_time_that_a_program_sets_stays_whatever_other_nodes_wrote_before() {
    let cluster = Cluster::with(2, &without_rebuild());
    let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
    let wanted = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let first = one.open(libc::O_RDWR);
    one.engine.write(&first, 0, &[1; 10_000], ME).unwrap();
    assert_eq!(one.engine.status().dirty_bytes, 10_000);
    let name = std::ffi::OsStr::new("file");
    let (vnode, _) = other.engine.lookup(&other.engine.root(), name).unwrap();
    let change = SetAttr { mtime: Some(SetTime::At(wanted)), ..SetAttr::default() };
    other.engine.set_attr(&vnode, None, &change, ME).unwrap();
    drop(first);
    for flushed in [false, true] {
        if flushed {
            one.flush();
        }
        for seen_by in [one, other] {
            let (_, stat) = seen_by.engine.lookup(&seen_by.engine.root(), name).unwrap();
            assert_eq!(stat.raw.st_mtime, 1_000_000_000, "flushed: {flushed}");
        }
    }
}
