use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::replay;
use crate::workload::{Ior, Workload};
use crate::{FileLayout, Pace};

fn servers() -> ServerSet {
    servers_of(2, 1)
}

fn servers_of(disks: usize, ssds: usize) -> ServerSet {
    let mut text = String::new();
    let kinds = [("hdd", disks), ("ssd", ssds)];
    for (number, kind) in kinds.iter().flat_map(|(kind, count)| (0..*count).map(move |n| (n, kind)))
    {
        let name = [kind, number.to_string().as_str()].concat();
        text += &["\n[[server]]\nname = \"", &name, "\"\nprofile = \"", kind, "\"\n"].concat();
        text += "capacity = \"1T\"\n";
    }
    ServerSet::parse(&text, Path::new("servers.toml")).unwrap()
}

fn cached(requests: &[Request], capacity: u64, policy: &str) -> CacheOutcome {
    let requests = requests.iter().copied();
    replay_cached(requests, &servers(), capacity, policy, &Options::default()).unwrap()
}

fn request(at: u64, process: u32, op: Op, offset: u64, length: u64) -> Request {
    Request { start_ns: at, duration_ns: None, process, file: 0, op, offset, length }
}

#[test]
fn the_second_miss_is_the_last_where_everything_fits_and_comes() {
    let pass = |n: u64| (0..64).map(move |at| (n * 64 + at, at * 65_536));
    let passes = (0..4).flat_map(pass);
    let requests: Vec<_> =
        passes.map(|(at, offset)| request(at, 0, Op::Read, offset, 65_536)).collect();
    let always = cached(&requests, 1 << 30, "always");
    let pass = 64 * 65_536;
    assert_eq!((always.origin_read_bytes, always.cache_read_bytes), (2 * pass, 2 * pass));
    assert_eq!((always.filled_bytes, always.evicted_bytes), (pass, 0));
}

#[test]
fn random_writes_are_admitted_and_written_back() {
    let ior = Ior::new(4, 4 << 20, 64 << 10, 1).unwrap().random(1);
    let requests: Vec<_> = ior.requests().collect();
    let never = cached(&requests, 64 << 20, "never");
    let adaptive = cached(&requests, 64 << 20, "adaptive");
    assert_eq!(adaptive.cache_written_bytes, adaptive.written_back_bytes, "{adaptive:?}");
    assert!(adaptive.cache_written_bytes > adaptive.bytes / 2, "{adaptive:?}");
    assert!(adaptive.foreground_seconds < never.foreground_seconds / 2.0, "{adaptive:?} {never:?}");
    assert!(adaptive.total_seconds > adaptive.foreground_seconds);
}

#[test]
fn disks_and_not_one_channel_of_an_ssd_say_how_long_a_flush_takes() {
    let ior = Ior::new(1, 64 << 20, 256 << 10, 1).unwrap();
    let requests: Vec<_> = ior.requests().collect();
    let text = servers_of(6, 1);
    let done = replay_cached(requests.into_iter(), &text, 1 << 30, "always", &Options::default());
    let always = done.unwrap();
    assert_eq!(always.written_back_bytes, 64 << 20);
    let flushed_seconds = always.total_seconds - always.foreground_seconds;
    // Six disks of 120 MB/s are as fast as the SSD, of which a flush uses more than one of four channels.
    let on_disks = f64::from(64 << 20) / 720e6;
    assert!((on_disks..on_disks * 2.0).contains(&flushed_seconds), "{flushed_seconds}, {on_disks}");
}

#[test]
fn a_layout_on_one_of_two_ssds_makes_no_flush_twice_as_long() {
    let ior = Ior::new(8, 64 << 20, 256 << 10, 1).unwrap();
    let requests: Vec<_> = ior.requests().collect();
    let total = |policy: &str| {
        let requests = requests.iter().copied();
        let done = replay_cached(requests, &servers_of(6, 2), 1 << 30, policy, &Options::default());
        done.unwrap().total_seconds
    };
    // Eight first requests, which `adaptive` takes for the beginnings of streams, go to the origin.
    let (adaptive, always) = (total("adaptive"), total("always"));
    assert!(adaptive < always * 1.1, "{adaptive} {always}");
}

#[test]
fn what_cannot_be_a_cache_is_refused() {
    let run = |set: &ServerSet, capacity, policy: &str| {
        replay_cached(std::iter::empty(), set, capacity, policy, &Options::default()).unwrap_err()
    };
    let all = servers();
    assert!(run(&all, 2 << 40, "always").contains("hold"));
    assert!(run(&all, 1, "sometimes").contains("sometimes"));
    let text = "[[server]]\nname = \"a\"\nprofile = \"hdd\"\ncapacity = \"1T\"\n";
    let one = ServerSet::parse(text, Path::new("s")).unwrap();
    assert!(run(&one, 1, "always").contains("one class"));
}

/// Regression: a write of an open loop that waited for room ended the simulation with a panic. Several of one process may wait,
/// each as long as one alone.
#[test]
fn writes_of_an_open_loop_wait_for_room() {
    let options = Options { pace: Pace::OpenLoop, ..Options::default() };
    let write = |at: u64| request(at * 1_000_000, 0, Op::Write, at * 3 * 65_536, 65_536);
    let requests: Vec<_> = (0..60).map(write).collect();
    for policy in admit::POLICIES {
        let all = requests.iter().copied();
        let done = replay_cached(all, &servers(), 1 << 20, policy.name, &options).unwrap();
        let written = done.cache_written_bytes + done.origin_written_bytes;
        assert_eq!((done.requests, written), (60, 60 * 65_536), "{}", policy.name);
    }
}

proptest! {
    #[test]
    fn bytes_are_conserved_and_no_cache_is_no_cache(
        picks in proptest::collection::vec((0u32..4, any::<bool>(), 0u64..64, 1u64..40), 1..120),
        blocks in 0u64..80,
    ) {
        let requests: Vec<_> = picks.iter().enumerate().map(|(at, (process, read, block, length))| {
            let op = if *read { Op::Read } else { Op::Write };
            request(at as u64, *process, op, block * 16_384, length * 4096)
        }).collect();
        let set = servers();
        let layout = FileLayout::uniform(vec![STRIPE, STRIPE, 0]).unwrap();
        let all = requests.iter().copied();
        let bare = replay(all, &set, |_| &layout, &Options::default()).unwrap();
        for row in admit::POLICIES {
            for capacity in [0, blocks * 16_384, 1 << 30] {
                let done = cached(&requests, capacity, row.name);
                let reads = done.cache_read_bytes + done.origin_read_bytes;
                let writes = done.cache_written_bytes + done.origin_written_bytes;
                prop_assert_eq!((reads, writes), (bare.read.bytes, bare.write.bytes));
                let open = Options { pace: Pace::OpenLoop, ..Options::default() };
                let all = requests.iter().copied();
                let open = replay_cached(all, &set, capacity, row.name, &open).unwrap();
                let reads = open.cache_read_bytes + open.origin_read_bytes;
                let writes = open.cache_written_bytes + open.origin_written_bytes;
                prop_assert_eq!((reads, writes), (bare.read.bytes, bare.write.bytes));
                prop_assert!(done.most_used_bytes <= capacity);
                // Bytes that are written again before a flush are written back once. What is written to while it
                // is flushed goes to the origin again as a whole extent: at most a longest request at both ends.
                let again = if capacity == 1 << 30 { 0 } else { requests.len() as u64 * 2 * 40 * 4096 };
                prop_assert!(done.written_back_bytes <= done.cache_written_bytes + again);
                prop_assert!(done.evicted_bytes <= done.cache_written_bytes + done.filled_bytes);
                prop_assert_eq!(&done, &cached(&requests, capacity, row.name));
                if capacity == 0 || row.name == "never" {
                    prop_assert!((done.foreground_seconds - bare.seconds).abs() < 1e-12);
                    prop_assert!((done.total_seconds - bare.seconds).abs() < 1e-12);
                }
            }
        }
    }
}
