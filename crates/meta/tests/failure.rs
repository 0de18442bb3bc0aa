//! A metadata store whose disk refuses a write: what was acknowledged stays, what was not is not
//! shown, nothing is accepted after it. The one test of its program: the limit is the process's.

use std::path::Path;

use halocline_meta::table::{ExtentTable, Options};
use halocline_meta::{BLOCK, Extent, FileId, OriginKey};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;
use halocline_os::error::Error;
use halocline_testkit::copying::copy;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };
const WHOLE: ByteRange = ByteRange::new(0, 1 << 40);

fn open(dir: &Path) -> ExtentTable {
    let options = Options::new(1 << 30, Box::<Lru>::default(), 8);
    ExtentTable::open(dir, options).unwrap().0
}

/// No file of this process may grow beyond `bytes` any more.
fn limit_files(bytes: Option<u64>) {
    // SAFETY: ignoring a signal installs no handler that could run.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
}

fn map(table: &ExtentTable, file: FileId, number: u64) -> Result<(), Error> {
    let range = ByteRange::at(number * 2 * BLOCK, BLOCK);
    assert!(table.blocks().reserve(file, range, HERE));
    table
        .changes()
        .map(file, range, HERE, true)
        .inspect_err(|_| table.blocks().release(file, range, HERE))
}

fn is_refused<T>(answer: Result<T, Error>) {
    assert!(matches!(answer.err(), Some(Error::Store { .. })));
}

#[test]
fn i4_a_failed_write_is_not_shown_and_the_last_one_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let table = open(dir.path());
    let file = table.files().register(OriginKey { inode: 1, born_ns: 1 }, Path::new("a")).unwrap();
    // A clean extent that is recorded as dirty, because one of its blocks is.
    let marked =
        table.files().register(OriginKey { inode: 3, born_ns: 1 }, Path::new("m")).unwrap();
    let block = |first: u64, count: u64| ByteRange::at(first * BLOCK, count * BLOCK);
    assert!(table.blocks().reserve(marked, block(0, 8), HERE));
    table.changes().map(marked, block(0, 8), HERE, false).unwrap();
    table.changes().mark_dirty(marked, block(3, 1)).unwrap();
    limit_files(Some(1 << 16));
    let accepted = (0..100_000).take_while(|&number| map(&table, file, number).is_ok()).count();
    limit_files(None);
    assert!((10..100_000).contains(&accepted), "{accepted} were accepted");

    // The disk works again, but what lies on it is no longer known.
    let before = table.index().extents(file);
    let dirty: Vec<_> = before.iter().map(|extent| (extent.range, extent.generation)).collect();
    assert_eq!(before.len(), accepted);
    is_refused(map(&table, file, 200_000));
    is_refused(table.changes().unmap(file, WHOLE));
    is_refused(table.changes().mark_clean(file, &dirty));
    is_refused(table.barrier());
    is_refused(table.files().rename(Path::new("a"), Path::new("b")));
    is_refused(table.files().register(OriginKey { inode: 2, born_ns: 1 }, Path::new("c")));
    is_refused(table.close());
    assert_eq!(table.index().extents(file), before, "lookups go on and show what was acknowledged");
    assert_eq!(table.index().usage().dirty, (accepted + 1) as u64 * BLOCK);
    // Nothing is to be recorded for a write to a dirty extent: it stays possible.
    table.changes().mark_dirty(file, before[0].range).unwrap();
    table.changes().mark_dirty(marked, block(5, 1)).unwrap();
    // What is clean here but not in the store must not come back, wherever it is given up.
    table.untrusted().abandon(marked, block(0, 2)).unwrap();
    table.untrusted().abandon(marked, block(6, 1)).unwrap();

    // Neither what `kill -9` leaves here nor what is there after the end has the refused ones.
    drop(table);
    let image = tempfile::tempdir().unwrap();
    copy(dir.path(), image.path());
    let table = open(image.path());
    let after = table.index().extents(file);
    let same = |(a, b): (&Extent, &Extent)| a.range == b.range && a.dirty == b.dirty;
    assert_eq!(after.len(), before.len(), "what was refused came back");
    assert!(after.iter().zip(&before).all(same));
    assert_eq!(table.files().record(file).unwrap().path, Path::new("a"));
    let after: Vec<_> = table.index().extents(marked).iter().map(|e| (e.range, e.dirty)).collect();
    assert_eq!(after, [(block(2, 4), true), (block(7, 1), true)], "I1: given up, and back");
    map(&table, file, 200_000).unwrap();
}
