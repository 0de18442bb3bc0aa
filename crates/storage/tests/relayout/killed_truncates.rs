//! Truncates of striped files that died at each of their steps: on each set of servers, and before and after what the namespace
//! file shows of them. Then moves that died, too, and growth by each way there is. Every byte is compared.

use halocline_model::request::ByteRange;
use halocline_storage::device::fault::{Effect, Faults, FaultyDevice, Operation, When};
use halocline_vfs::Allocate;

use super::*;

const MARK: &str = "user.halocline.cut";
/// Inside the first run of data, and inside the second.
const LENGTHS: [u64; 3] = [0, 9_000, 71_234];

/// A file that is truncated to `len` while the servers whose bits are set in `dead` cut nothing, as if the process had been killed
/// before they did.
fn died_on(dead: usize, len: u64) -> tempfile::TempDir {
    let scratch = tempfile::tempdir().unwrap();
    drop(volume(scratch.path()));
    let faults = Arc::new(Faults::default());
    faults.set(Some(Operation::Truncate), Effect::Errno(libc::EIO), When::Always);
    let decorate = |at: usize, below: Arc<dyn Device>| -> Arc<dyn Device> {
        let is_dead = dead >> at & 1 == 1;
        if is_dead { Arc::new(FaultyDevice::new(below, Arc::clone(&faults))) } else { below }
    };
    let origin = Origin::open_or_create(scratch.path(), SHAPE, &decorate).unwrap();
    let file = open(&origin, "file");
    // So little is cut when the file grows, which is the same for who is killed in between.
    file.truncate(len).unwrap();
    assert_eq!(read(&origin, "file"), wanted(len), "{dead:b}");
    // While the server cannot be cut, nothing of what was cut off comes back.
    for growth in 0..GROWTHS {
        grow(&file, growth).unwrap_err();
        assert_eq!(read(&origin, "file"), wanted(len), "{dead:b}, {growth}");
    }
    scratch
}

fn wanted(len: u64) -> Vec<u8> {
    content()[..usize::try_from(len).unwrap()].to_vec()
}

const GROWTHS: u32 = 4;
const GROWN: u64 = 99_000;

/// Makes the file `GROWN` bytes long; the first of the ways writes its last byte, a 7.
fn grow(file: &OriginFile, way: u32) -> std::io::Result<()> {
    match way {
        0 => file.write_at(GROWN - 1, &[7]),
        1 => file.truncate(GROWN),
        2 => file.prepare_growth(GROWN),
        _ => file.allocate(ByteRange::new(GROWN - 1, GROWN), Allocate::Zero { keep_size: false }),
    }
}

/// Whether the file still says that it is being cut.
fn is_marked(dir: &Path) -> bool {
    let file = File::open(dir.join("namespace/file")).unwrap();
    rustix::fs::fgetxattr(file, MARK, &mut [0_u8; 8]).is_ok()
}

fn check_grown(dir: &Path, len: u64, way: u32) {
    let origin = mounted(dir);
    assert_eq!(read(&origin, "file"), wanted(len));
    grow(&open(&origin, "file"), way).unwrap();
    let mut want = wanted(len);
    want.resize(usize::try_from(GROWN).unwrap(), 0);
    *want.last_mut().unwrap() = if way == 0 { 7 } else { 0 };
    assert!(read(&origin, "file") == want, "{len} bytes, grown by way {way}");
}

/// Regression: the servers were cut before the file got its size. After a kill between two servers the file had its old length and
/// zeros in the stripes of one server; clean bytes on a cache hid them until a move of the file made it drop these.
#[test]
fn a_truncate_that_died_has_happened_and_nothing_cut_off_comes_back() {
    for dead in 1..8 {
        for (len, way) in
            LENGTHS.into_iter().flat_map(|len| (0..GROWTHS).map(move |way| (len, way)))
        {
            let scratch = died_on(dead, len);
            assert!(is_marked(scratch.path()));
            check_grown(scratch.path(), len, way);
            assert!(!is_marked(scratch.path()), "{dead:b}, {len}, {way}");
        }
    }
}

#[test]
fn a_truncate_that_died_before_the_file_had_its_size_has_not_happened() {
    let scratch = tempfile::tempdir().unwrap();
    let origin = volume(scratch.path());
    let path = origin.namespace_dir().join("file");
    rustix::fs::setxattr(path, MARK, b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(read(&origin, "file"), content());
    open(&origin, "file").write_at(120_000, &[1]).unwrap();
    let mut want = content();
    want.resize(120_000, 0);
    want.push(1);
    assert!(read(&origin, "file") == want);
}

#[test]
fn a_file_whose_truncate_died_moves_and_so_it_does_after_moves_that_died() {
    for stop in STEPS {
        for (way, dead) in (0..GROWTHS).zip([1, 2, 4, 7]) {
            let scratch = died_on(dead, 71_234);
            let dir = scratch.path();
            killed_before(stop, dir, &two_parts());
            assert_eq!(read(&mounted(dir), "file"), wanted(71_234), "{stop:?}");
            if way % 2 == 0 {
                assert!(moved(dir, &two_parts()).agrees());
                assert!(
                    !is_marked(dir) || [Step::Settle, Step::Remove, Step::Forget].contains(&stop)
                );
            }
            check_grown(dir, 71_234, way);
        }
    }
}

/// Who must free space has a file system without room for the mark.
#[test]
fn a_file_that_takes_no_mark_can_be_truncated() {
    let scratch = tempfile::tempdir().unwrap();
    let origin = volume(scratch.path());
    let path = origin.namespace_dir().join("file");
    // All that an ext4 keeps for attributes of a file; others have room for more.
    let filled = (0..200).map(|at| format!("user.{at:0100}"));
    let full = filled.map(|name| rustix::fs::setxattr(&path, name, &[1; 900], XattrFlags::CREATE));
    let _ = full.take_while(Result::is_ok).count();
    open(&origin, "file").truncate(9_000).unwrap();
    assert_eq!(read(&origin, "file"), wanted(9_000));
    open(&origin, "file").truncate(GROWN).unwrap();
    let mut want = wanted(9_000);
    want.resize(usize::try_from(GROWN).unwrap(), 0);
    assert!(read(&origin, "file") == want);
}
