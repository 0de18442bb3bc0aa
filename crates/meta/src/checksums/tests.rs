use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use halocline_model::layout::Layout;
use tempfile::TempDir;

use super::*;

const PLACE: Placement = Placement { layout: Layout::OneDh, group: 0 };
const FILE: FileId = FileId(3);

struct Bench {
    dir: TempDir,
    object: File,
    bytes: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        let object = tempfile::tempfile().unwrap();
        Self { dir: TempDir::new().unwrap(), object, bytes: Arc::default() }
    }

    fn open_where(
        &self,
        last_shutdown: Shutdown,
        boot_id: &str,
        mapped: &dyn Fn(ByteRange) -> bool,
    ) -> Checksums {
        let setting = Setting {
            dir: &PrivateDir::open(self.dir.path()).unwrap(),
            boot_id,
            last_shutdown,
            limit_bytes: 64 << 20,
            bytes: &self.bytes,
        };
        Checksums::open(&setting, &|_, _, range| mapped(range)).unwrap()
    }

    fn open(&self, last_shutdown: Shutdown, boot_id: &str) -> Checksums {
        self.open_where(last_shutdown, boot_id, &|_| true)
    }

    fn write(&self, sums: &Checksums, offset: u64, data: &[u8]) {
        sums.forget(FILE, PLACE, ByteRange::at(offset, data.len() as u64));
        self.object.write_all_at(data, offset).unwrap();
        sums.note(FILE, PLACE, offset, data);
    }

    fn flip(&self, offset: u64) {
        let mut byte = [0];
        self.object.read_exact_at(&mut byte, offset).unwrap();
        self.object.write_all_at(&[byte[0] ^ 4], offset).unwrap();
    }

    fn check(&self, sums: &Checksums, range: ByteRange) -> Checked {
        let mut data = vec![0; usize::try_from(range.len()).unwrap()];
        self.object.read_exact_at(&mut data, range.start).unwrap();
        let mut read = |at: u64, buf: &mut [u8]| self.object.read_exact_at(buf, at);
        sums.check((FILE, PLACE), range.start, &data, &mut read).unwrap()
    }
}

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at * 37).to_le_bytes()[1]).collect()
}

const ALL: ByteRange = ByteRange::new(0, 200_000);

#[test]
fn every_flip_is_found_where_it_is() {
    let bench = Bench::new();
    let sums = bench.open(Shutdown::Never, "b");
    bench.write(&sums, 0, &pattern(ALL.end));
    assert_eq!(bench.check(&sums, ALL), Checked { known_bytes: ALL.end, damaged: vec![] });
    for at in [0, 4095, 4096, 40_000, 131_071, 199_999] {
        bench.flip(at);
        let block = ByteRange::at(at, 1).widen_to(BLOCK).intersect(ALL).unwrap();
        assert_eq!(bench.check(&sums, ALL).damaged, [block], "at {at}");
        // A reader of a few bytes is told, too, even if these were not flipped.
        let few = ByteRange::at(block.start + 10, 20);
        assert_eq!(bench.check(&sums, few).damaged, [block]);
        bench.flip(at);
    }
}

#[test]
fn i4_sums_outlive_a_kill_and_a_close_and_no_power_loss() {
    let bench = Bench::new();
    let known = |left, boot: &str| bench.check(&bench.open(left, boot), ALL).known_bytes;
    let sums = bench.open(Shutdown::Never, "one");
    bench.write(&sums, 0, &pattern(ALL.end));
    drop(sums);
    assert_eq!(known(Shutdown::Crashed, "one"), ALL.end);
    let sums = bench.open(Shutdown::Crashed, "one");
    sums.close().unwrap();
    drop(sums);
    assert_eq!(known(Shutdown::Closed, "two"), ALL.end);
    // The previous session was killed, and the machine lost power.
    assert_eq!(known(Shutdown::PowerLost, "three"), 0);
    assert_eq!(known(Shutdown::Crashed, "three"), 0);
}

#[test]
fn i4_after_a_power_loss_sums_are_not_believed_whatever_opens_in_between() {
    let bench = Bench::new();
    let sums = bench.open(Shutdown::Never, "one");
    bench.write(&sums, 0, &pattern(ALL.end));
    sums.close().unwrap();
    drop(sums);
    let old = std::fs::read(bench.dir.path().join(NAME)).unwrap();
    drop(bench.open(Shutdown::Closed, "one"));
    // The header of the second session never reached the disk, and the third was killed before it opened the sums.
    std::fs::write(bench.dir.path().join(NAME), old).unwrap();
    assert_eq!(bench.check(&bench.open(Shutdown::Crashed, "three"), ALL).known_bytes, 0);
}

#[test]
fn what_is_not_mapped_is_forgotten_for_good() {
    let bench = Bench::new();
    let sums = bench.open(Shutdown::Never, "b");
    bench.write(&sums, 0, &pattern(ALL.end));
    drop(sums);
    let first = ByteRange::new(0, slot::GROUP);
    let sums = bench.open_where(Shutdown::Crashed, "b", &|range| range != first);
    assert_eq!(bench.check(&sums, ALL).known_bytes, ALL.end - first.end);
    drop(sums);
    assert_eq!(bench.check(&bench.open(Shutdown::Crashed, "b"), first).known_bytes, 0);
}

#[test]
fn a_slot_is_given_back_and_used_again() {
    let bench = Bench::new();
    let sums = bench.open(Shutdown::Never, "b");
    let range = ByteRange::new(0, 8 << 20);
    let data = pattern(range.end);
    bench.write(&sums, 0, &data);
    let bytes = bench.bytes.load(Relaxed);
    for _ in 0..5 {
        sums.drop_range(FILE, PLACE, range);
        assert_eq!(bench.check(&sums, range).known_bytes, 0);
        bench.write(&sums, 0, &data);
    }
    assert_eq!(bench.bytes.load(Relaxed), bytes, "no new slots were needed");
    let file = File::open(bench.dir.path().join(NAME)).unwrap().metadata().unwrap();
    assert!(std::os::unix::fs::MetadataExt::blocks(&file) * 512 <= bytes, "I5: more than counted");
}

#[test]
fn d11_a_file_that_is_cut_under_us_is_no_end_and_no_damage() {
    let bench = Bench::new();
    let sums = bench.open(Shutdown::Never, "b");
    bench.write(&sums, 0, &pattern(ALL.end));
    File::options().write(true).open(bench.dir.path().join(NAME)).unwrap().set_len(0).unwrap();
    bench.flip(0);
    assert_eq!(bench.check(&sums, ALL).damaged, []);
    bench.write(&sums, 0, &pattern(ALL.end));
    drop(sums);
    assert_eq!(bench.check(&bench.open(Shutdown::Crashed, "b"), ALL).known_bytes, 0);
}

#[test]
fn i4_a_file_torn_anywhere_says_nothing_wrong() {
    let bench = Bench::new();
    let sums = bench.open(Shutdown::Never, "b");
    bench.write(&sums, 0, &pattern(ALL.end));
    drop(sums);
    let path = bench.dir.path().join(NAME);
    let whole = std::fs::read(&path).unwrap();
    for at in (4096..4096 + 64 * 7).step_by(5) {
        let mut torn = whole.clone();
        torn[at] ^= 0x40;
        std::fs::write(&path, torn).unwrap();
        let checked = bench.check(&bench.open(Shutdown::Crashed, "b"), ALL);
        assert_eq!(checked.damaged, [], "byte {at}");
        assert!(checked.known_bytes < ALL.end && checked.known_bytes > ALL.end - 2 * slot::GROUP);
    }
}

/// Writers of neighbouring bytes, and concurrent readers: bytes being changed are never reported as damaged.
#[test]
fn i1_bytes_that_are_changed_beside_a_reader_are_no_damage() {
    let bench = Bench::new();
    let sums = bench.open(Shutdown::Never, "b");
    bench.write(&sums, 0, &pattern(8192));
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            let (bench, sums) = (&bench, &sums);
            scope.spawn(move || {
                for turn in 0..3000_u64 {
                    let len = 1 + (turn * 37 + writer) % 2000;
                    bench.write(
                        sums,
                        2048 + writer * 3000,
                        &vec![turn.to_le_bytes()[0]; index(len)],
                    );
                }
            });
        }
        for _ in 0..3000 {
            assert_eq!(bench.check(&sums, ByteRange::new(1000, 2048)).damaged, []);
            assert_eq!(bench.check(&sums, ByteRange::new(0, 100)).damaged, []);
        }
    });
    assert_eq!(bench.check(&sums, ByteRange::new(0, 8192)).damaged, []);
}
