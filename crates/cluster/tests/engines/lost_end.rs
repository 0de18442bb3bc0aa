//! An origin that loses the end of a file which a dead node has dirty bytes of.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use halocline_api::control::Controlled;
use halocline_cache::ExtentEngine;
use halocline_cache::coherence::Coherence;
use halocline_cluster::alone::Alone;
use halocline_vfs::Engine;

use super::{ME, without_rebuild};

fn engine(origin: &Path, cache: &Path) -> ExtentEngine {
    let alone: Arc<dyn Coherence> = Arc::new(Alone);
    super::engine(origin, cache, &alone, &without_rebuild())
}

/// Regression: in a cluster such bytes were dropped, and nobody was told.
#[test]
fn i4_dirty_bytes_past_an_end_that_the_origin_lost_are_saved_and_told_of() {
    let [origin, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let path = origin.path().join("file");
    fs::write(&path, [0; 8192]).unwrap();
    let first = engine(origin.path(), cache.path());
    let (vnode, _) = first.lookup(&first.root(), OsStr::new("file")).unwrap();
    let handle = first.open(&vnode, libc::O_RDWR, ME).unwrap();
    first.write(&handle, 0, &[1; 8192], ME).unwrap();
    drop((handle, vnode));
    assert_eq!(first.status().dirty_bytes, 8192);
    // As a kill would.
    drop(first);
    // The server of the origin starts anew, with the file as it was synced last.
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();

    let second = engine(origin.path(), cache.path());
    let status = second.status();
    assert_eq!(status.dirty_bytes, 4096, "the rest is as it was");
    let told = status.notes.join("\n");
    assert!(told.contains("the origin lost the end of the file"), "{told}");
    let saved: Vec<_> = fs::read_dir(cache.path().join("conflicts")).unwrap().collect();
    let saved = saved.into_iter().map(|entry| entry.unwrap().path());
    let saved = saved.filter(|path| path.extension().is_none()).collect::<Vec<_>>();
    let mut found = [0; 4096];
    File::open(&saved[0]).unwrap().read_exact_at(&mut found, 4096).unwrap();
    assert_eq!((saved.len(), found), (1, [1; 4096]));
}
