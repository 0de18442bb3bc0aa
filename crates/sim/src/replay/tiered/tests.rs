use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::FileLayout;
use crate::replay;
use crate::replay::sides::STRIPE;

fn servers() -> ServerSet {
    let mut text = String::new();
    for (name, kind) in [("h0", "hdd"), ("h1", "hdd"), ("s0", "ssd")] {
        text += &["\n[[server]]\nname = \"", name, "\"\nprofile = \"", kind, "\"\n"].concat();
        text += "capacity = \"1T\"\n";
    }
    ServerSet::parse(&text, Path::new("servers.toml")).unwrap()
}

fn tiered(requests: &[Request], capacity: u64, policy: &str) -> TierOutcome {
    let mut files = TracedFiles::default();
    for request in requests {
        files.push(request);
    }
    let requests = requests.iter().copied();
    replay_tiered(requests, &files, &servers(), capacity, policy, &Options::default()).unwrap()
}

fn request(at: u64, file: u32, op: Op, offset: u64, length: u64) -> Request {
    Request { start_ns: at, duration_ns: None, process: 0, file, op, offset, length }
}

/// Reads `files` files of 1 MiB whole, in 16 requests each, in this order.
fn reads(files: &[u32]) -> Vec<Request> {
    let of = |(turn, file): (usize, &u32)| {
        let file = *file;
        (0..16)
            .map(move |part| request(turn as u64 * 16 + part, file, Op::Read, part << 16, 1 << 16))
    };
    files.iter().enumerate().flat_map(of).collect()
}

#[test]
fn a_file_comes_once_and_is_read_from_the_ssd() {
    let requests = reads(&[0, 0, 0]);
    let done = tiered(&requests, 1 << 30, "lru");
    assert_eq!((done.ssd_read_bytes, done.disk_read_bytes), (3 << 20, 0));
    assert_eq!((done.promoted_bytes, done.demoted_bytes), (1 << 20, 0));
    assert_eq!((done.uses, done.uses_on_ssd, done.most_used_bytes), (3, 2, 1 << 20));
}

/// Each piece was written before the next one was read: 0.68 s.
#[test]
fn a_piece_is_read_while_the_one_before_it_is_written() {
    let last = request(0, 0, Op::Read, (64 << 20) - 4096, 4096);
    let done = tiered(&[last], 1 << 30, "lru");
    assert_eq!((done.promoted_bytes, done.ssd_read_bytes), (64 << 20, 4096));
    // The first of 8 pieces from two disks of 120 MB/s; then each takes longer to one of the SSD's four channels, of
    // 175 MB/s, than the next one from the disks.
    let piece = f64::from(8 << 20);
    let expected = piece / 240e6 + 8.0 * piece / 175e6;
    assert!((done.foreground_seconds - expected).abs() < 0.03, "{}", done.foreground_seconds);
}

#[test]
fn who_was_used_least_recently_leaves_for_another() {
    let done = tiered(&reads(&[0, 1, 0, 2, 0, 1]), 5 << 19, "lru");
    assert_eq!((done.uses, done.uses_on_ssd), (6, 2));
    assert_eq!((done.promoted_bytes, done.demoted_bytes), (4 << 20, 2 << 20));
    assert_eq!(done.most_used_bytes, 2 << 20);
}

/// Regression: only files that grew were followed by a look, while those that came filled the SSD for good.
#[test]
fn an_ssd_that_promotions_have_filled_is_emptied_to_the_low_watermark() {
    let done = tiered(&reads(&[0, 1, 0]), 2 << 20, "lru");
    assert_eq!((done.promoted_bytes, done.demoted_bytes), (2 << 20, 1 << 20));
    assert_eq!((done.uses_on_ssd, done.most_used_bytes), (1, 2 << 20));
}

#[test]
fn a_file_that_outgrows_the_ssd_goes_on_on_the_disk() {
    let requests: Vec<_> = (0..16).map(|at| request(at, 0, Op::Write, at << 20, 1 << 20)).collect();
    let done = tiered(&requests, 4 << 20, "foresight");
    assert_eq!(done.ssd_written_bytes + done.disk_written_bytes, 16 << 20);
    assert!(done.disk_written_bytes >= 12 << 20 && done.ssd_written_bytes > 0, "{done:?}");
    assert!(done.demoted_bytes > 0 && done.most_used_bytes <= 4 << 20, "{done:?}");
}

#[test]
fn files_leave_before_the_ssd_is_full() {
    // One file a second, so that there is time for what leaves in the background.
    let one = |at: u32| Request {
        duration_ns: Some(1),
        ..request(u64::from(at) * 1_000_000_000, at, Op::Write, 0, 1 << 20)
    };
    let requests: Vec<_> = (0..40).map(one).collect();
    let mut files = TracedFiles::default();
    for request in &requests {
        files.push(request);
    }
    let options = Options { seed: 0, pace: Pace::ClosedLoop { think: true } };
    let requests = requests.into_iter();
    let run = replay_tiered(requests, &files, &servers(), 20 << 20, "foresight", &options);
    let done = run.unwrap();
    assert_eq!((done.ssd_written_bytes, done.disk_written_bytes), (40 << 20, 0));
    assert!(done.demoted_bytes >= 20 << 20, "{done:?}");
}

#[test]
fn what_cannot_be_a_tier_is_refused() {
    let run = |set: &ServerSet, capacity, policy: &str, pace| {
        let files = TracedFiles::default();
        let options = Options { seed: 0, pace };
        replay_tiered(std::iter::empty(), &files, set, capacity, policy, &options).unwrap_err()
    };
    let closed = Pace::ClosedLoop { think: false };
    assert!(run(&servers(), 2 << 40, "lru", closed).contains("hold"));
    assert!(run(&servers(), 1, "sometimes", closed).contains("sometimes"));
    assert!(run(&servers(), 1, "lru", Pace::OpenLoop).contains("open loop"));
}

proptest! {
    #[test]
    fn bytes_are_conserved_and_a_tier_without_room_is_its_disk(
        picks in proptest::collection::vec((0u32..4, 0u32..6, any::<bool>(), 0u64..16, 1u64..40), 1..120),
        blocks in 0u64..300,
    ) {
        let one = |(at, pick): (usize, &(u32, u32, bool, u64, u64))| {
            let (process, file, read, block, length) = *pick;
            let op = if read { Op::Read } else { Op::Write };
            Request { process, ..request(at as u64, file, op, block * 16_384, length * 4096) }
        };
        let requests: Vec<_> = picks.iter().enumerate().map(one).collect();
        let alone = |widths| {
            let layout = FileLayout::uniform(widths).unwrap();
            let all = requests.iter().copied();
            replay(all, &servers(), |_| &layout, &Options::default()).unwrap()
        };
        let disk = alone(vec![STRIPE, STRIPE, 0]);
        for row in tier::POLICIES {
            for capacity in [0, blocks * 4096, 1 << 40] {
                let done = tiered(&requests, capacity, row.name);
                let reads = done.ssd_read_bytes + done.disk_read_bytes;
                let writes = done.ssd_written_bytes + done.disk_written_bytes;
                prop_assert_eq!((reads, writes), (disk.read.bytes, disk.write.bytes));
                prop_assert_eq!(done.requests, requests.len() as u64);
                prop_assert!(done.most_used_bytes <= capacity);
                prop_assert_eq!(&done, &tiered(&requests, capacity, row.name));
                if capacity == 0 {
                    prop_assert!((done.total_seconds - disk.seconds).abs() < 1e-12);
                } else if capacity == 1 << 40 {
                    prop_assert_eq!(done.disk_read_bytes + done.disk_written_bytes, 0);
                    prop_assert_eq!(done.demoted_bytes, 0);
                }
            }
        }
    }
}

#[test]
fn a_file_that_is_read_beyond_what_was_written_was_there_before() {
    let there = |requests: &[Request]| {
        let mut files = TracedFiles::default();
        for request in requests {
            files.push(request);
        }
        files.there_before().collect::<Vec<_>>()
    };
    let written = request(0, 0, Op::Write, 0, 1 << 20);
    assert_eq!(there(&[written, request(1, 0, Op::Read, 0, 1 << 20)]), []);
    let beyond = request(1, 0, Op::Read, 1 << 20, 4096);
    assert_eq!(there(&[written, beyond]), [(0, (1 << 20) + 4096)]);
    // Reads and writes at random of a file that does not fit: it stays on the disk, as on a tier.
    let mixed = |at: u64| {
        let op = if at.is_multiple_of(3) { Op::Write } else { Op::Read };
        request(at, 0, op, (at * 37 % 64) << 16, 1 << 16)
    };
    let done = tiered(&(0..128).map(mixed).collect::<Vec<_>>(), 1 << 20, "foresight");
    assert_eq!((done.ssd_read_bytes, done.ssd_written_bytes, done.demoted_bytes), (0, 0, 0));
}
