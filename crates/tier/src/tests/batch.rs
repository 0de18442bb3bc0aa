//! Many small files moved together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::inode::Inode;

/// Files of the tests.
const COUNT: usize = 40;

fn names() -> Vec<String> {
    (0..COUNT).map(|number| format!("file{number:02}")).collect()
}

/// A tier with some files on the SSD.
fn with_files(limit: u64) -> Fixture {
    let quick = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let fixture = Fixture::within(quick, &["ssd", "hdd"], limited(limit));
    for name in names() {
        fixture.write(&name, name.as_bytes());
    }
    fixture
}

impl Fixture {
    fn batch(&self, names: &[String], tier: usize) -> Vec<bool> {
        self.batch_told(names, tier, &|_, _| true)
    }

    /// Which of some files moved as a batch.
    fn batch_told(
        &self,
        names: &[String],
        tier: usize,
        told: &(dyn Fn(usize, u64) -> bool + Sync),
    ) -> Vec<bool> {
        let nodes: Vec<Node> = names.iter().map(|name| self.node(name).unwrap()).collect();
        let inodes: Vec<&Arc<Inode>> = nodes.iter().map(|node| &node.0).collect();
        let outcomes = self.tier().core.batches.migrate_batch(&inodes, tier, told);
        outcomes.iter().map(|outcome| matches!(outcome, Some(Ok(_)))).collect()
    }
}

#[test]
fn i10_a_batch_moves_each_file_whole() {
    let fixture = with_files(4 << 20);
    for tier in [1, 0, 1] {
        assert_eq!(fixture.batch(&names(), tier), [true; COUNT], "to {tier}");
        for name in names() {
            assert_eq!(fixture.where_is(&name), tier);
            assert_eq!(fixture.content(&name).unwrap(), name.as_bytes());
        }
        assert!(fixture.tier().core.owed.is_empty(), "all is durable");
        fixture.check_places();
    }
}

/// A file that somebody else moves, that changes while it is copied, that has other names, that is
/// large or whose place is taken: none of them keeps the others.
#[test]
fn i10_a_file_that_a_batch_cannot_move_leaves_it_alone() {
    let fixture = with_files(4 << 20);
    let root = fixture.tier().root();
    let linked = fixture.node("file00").unwrap();
    fixture.tier().link(&linked, &root, "twin".as_ref()).unwrap();
    fixture.write("file01", &vec![1; 2 << 20]);
    fs::write(fixture.hdd("file02"), "somebody's").unwrap();
    let moved = fixture.node("file03").unwrap();
    let guard = moved.0.moving.lock();
    let busy = fixture.open_file("file04", libc::O_WRONLY);
    let told = |at: usize, _| {
        if at == 4 {
            fixture.tier().write(&busy, 0, b"FILE", CALLER).unwrap();
        }
        true
    };
    let outcomes = fixture.batch_told(&names(), 1, &told);
    drop(guard);
    assert_eq!(outcomes[..5], [false; 5]);
    assert_eq!(outcomes[5..], [true; COUNT - 5]);
    assert_eq!(fixture.content("file04").unwrap(), b"FILE04");
    assert_eq!(fs::read(fixture.hdd("file02")).unwrap(), b"somebody's");
    fs::remove_file(fixture.hdd("file02")).unwrap();
    fixture.check_places();
    // A command moves them all the same, one by one.
    assert_eq!(fixture.demote("").files, 5);
    fixture.check_places();
}

/// The program that is told of each file ends a command within its batch.
#[test]
fn a_batch_tells_of_each_file_and_is_stopped() {
    let fixture = with_files(4 << 20);
    let told = AtomicUsize::new(0);
    let report = fixture.tier().evict(Path::new(""), false, &mut |now| {
        told.fetch_add(1, Ordering::Relaxed);
        assert_eq!(now.total_bytes, 6 * COUNT as u64);
        ControlFlow::Continue(())
    });
    assert_eq!((report.unwrap().files, told.into_inner()), (COUNT as u64, COUNT));
    let stop = &mut |_| ControlFlow::Break(());
    let report = fixture.tier().warm(&[PathBuf::new()], false, stop).unwrap();
    assert!(report.files < COUNT as u64 && report.skipped.is_empty(), "{report:?}");
    fixture.check_places();
}

/// I5: room on the SSD is reserved for each file of a batch.
#[test]
fn i5_a_batch_brings_no_more_than_fits() {
    let mut fixture = with_files(4 << 20);
    assert_eq!(fixture.demote("").files, COUNT as u64);
    let limit = 128 << 10;
    fixture.options = limited(limit);
    fixture.open();
    let moved = fixture.batch(&names(), 0).into_iter().filter(|moved| *moved).count();
    let residents = &fixture.tier().core.residents;
    assert!(moved > 0 && moved < COUNT && residents.used() <= limit, "{moved}");
    fixture.check_places();
}

/// The background has room made in batches, too, and writes that are synchronous are durable with
/// the move that went before.
#[test]
fn i4_a_batch_owes_nothing_to_synchronous_writes() {
    let fixture = with_files(4 << 20);
    let handle = fixture.open_file("file07", libc::O_WRONLY | libc::O_DSYNC);
    assert!(fixture.tier().core.executor.free_up(4 << 20, u64::MAX));
    assert_eq!(fixture.where_is("file07"), 1);
    let inode = fixture.node("file07").unwrap().0;
    let dir = fixture.tier().root().0.entry();
    // As between the switch and the end of a batch.
    fixture.tier().core.owed.add(inode.number, dir);
    fixture.tier().write(&handle, 0, b"FILE", CALLER).unwrap();
    assert!(fixture.tier().core.owed.is_empty(), "the move is durable with the write");
    fixture.check_places();
}
