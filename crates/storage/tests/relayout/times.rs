//! The change times that files had before moves, marks and gifts, for caches that may have newer bytes of them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::earlier_times::EarlierTimes;
use halocline_storage::volume::origin::marking::{Evidence, mark_servers};
use halocline_testkit::skipping::skip;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};

use super::*;

const MARK: &str = "user.halocline.dirty.0123456789abcdef";
const TIMES: &str = "user.halocline.times";

/// What a file of a volume notes of its times.
fn noted_times(path: &Path) -> Option<EarlierTimes> {
    let mut value = [0; 512];
    let len = getxattr(path, TIMES, &mut value).ok()?;
    EarlierTimes::parse(&value[..len])
}

fn change_time(path: &Path) -> (u64, i64, i64) {
    let found = fs::metadata(path).unwrap();
    let time_ns = |(seconds, nanoseconds)| seconds * 1_000_000_000 + nanoseconds;
    let changed_ns = time_ns((found.ctime(), found.ctime_nsec()));
    (found.len(), time_ns((found.mtime(), found.mtime_nsec())), changed_ns)
}

/// Regression: after a power loss of the origin a cache took what a move had done for a change by others, because the file was no
/// longer older than recorded. Where no cache has newer bytes nothing is noted.
#[test]
fn a_file_of_which_a_cache_may_have_newer_bytes_keeps_its_change_time_whatever_stops() {
    for (is_marked, stop) in STEPS.into_iter().flat_map(|stop| [(true, stop), (false, stop)]) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        drop(volume(dir));
        if is_marked {
            setxattr(dir, MARK, b"{}", XattrFlags::empty()).unwrap();
        }
        let path = dir.join("namespace/file");
        let (size, mtime_ns, before_ns) = change_time(&path);
        let known = || noted_times(&path)?.changed_ns((size, mtime_ns), before_ns - 1);
        killed_before(stop, dir, &two_parts());
        if is_marked && stop > Step::Note {
            assert_eq!(known(), Some(before_ns), "{stop:?}");
        } else {
            assert_eq!(known(), None, "{stop:?}");
        }
        moved(dir, &two_parts());
        assert_eq!(known(), is_marked.then_some(before_ns), "{stop:?}");
        let (.., now_ns) = change_time(&path);
        assert!(now_ns > before_ns);
        let later = noted_times(&path).and_then(|it| it.changed_ns((size, mtime_ns), now_ns));
        assert_eq!(later, None, "who has recorded it since knows it as it is");
        assert_eq!(read(&mounted(dir), "file"), content());
    }
}

/// The same where its reference is attested, and where it is given an object.
#[test]
fn a_file_that_is_marked_or_given_its_object_keeps_its_change_time() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    let path = dir.join("namespace/file");
    if removexattr(&path, "trusted.halocline.object").is_err() {
        return skip("only root attests files");
    }
    setxattr(dir, MARK, b"{}", XattrFlags::empty()).unwrap();
    let (size, mtime_ns, before_ns) = change_time(&path);
    let known = || noted_times(&path)?.changed_ns((size, mtime_ns), before_ns - 1);
    assert_eq!(mark_servers(dir, Evidence::Contents).unwrap().files, Some(1));
    assert_eq!(known(), Some(before_ns));
    let object = local_files(dir, "objects").remove(0);
    let name = object.file_name().unwrap().to_str().unwrap().to_owned();
    removexattr(&path, TIMES).unwrap();
    let (size, mtime_ns, before_ns) = change_time(&path);
    let alone = Origin::open_alone(dir).unwrap().unwrap();
    alone.give_objects(&[(name, "file".into())]).unwrap();
    drop(alone);
    let given = noted_times(&path).unwrap().changed_ns((size, mtime_ns), before_ns - 1);
    assert_eq!(given, Some(before_ns));
    assert_eq!(read(&mounted(dir), "file"), content());
}

/// What cannot be noted would be lost: the file stays as it is.
#[test]
fn a_file_that_takes_no_note_is_not_moved_while_a_cache_may_have_newer_bytes() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    let path = dir.join("namespace/file");
    let mut names = 0..1000;
    // On many file systems all attributes are in one block.
    let fill = |bytes: usize, names: &mut std::ops::Range<u32>| {
        names.find(|name| {
            let name = format!("user.{name}");
            setxattr(&path, name, &vec![b'x'; bytes], XattrFlags::empty()).is_err()
        })
    };
    if [400, 20, 1].into_iter().any(|bytes| fill(bytes, &mut names).is_none()) {
        return skip("the file system takes too many attributes");
    }
    setxattr(dir, MARK, b"{}", XattrFlags::empty()).unwrap();
    let before = change_time(&path);
    let error = apply(dir, &two_parts(), &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("mount the volume with that cache first"), "{error}");
    assert_eq!(change_time(&path), before);
    assert_eq!(read(&mounted(dir), "file"), content());
    removexattr(dir, MARK).unwrap();
    assert!(moved(dir, &two_parts()).agrees(), "the number has the room that it had");
}
