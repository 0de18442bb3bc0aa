use std::fmt::Write as _;
use std::path::Path;

use super::*;

fn servers(text: &str) -> ServerSet {
    ServerSet::parse(text, Path::new("servers.toml")).unwrap()
}

/// `count` servers whose requests take 1 ms and 1 us a byte; what continues a stream has no startup.
fn slow(count: usize, capacity: u64) -> ServerSet {
    let mut text = String::from(
        "[profile.x]\nread = { startup_sequential_ps = 0, startup_random_ps = 1000000000, per_byte_ps = 1000000 }\n\
         write = { startup_sequential_ps = 0, startup_random_ps = 1000000000, per_byte_ps = 1000000 }\n",
    );
    for number in 0..count {
        text += "[[server]]\nprofile = \"x\"\n";
        let _ = writeln!(text, "name = \"s{number}\"\ncapacity = {capacity}");
    }
    servers(&text)
}

fn request(process: u32, start_ns: u64, offset: u64, length: u64) -> Request {
    Request { start_ns, duration_ns: Some(1000), process, file: 0, op: Op::Write, offset, length }
}

fn run(set: &ServerSet, layout: &FileLayout, requests: &[Request], pace: Pace) -> Outcome {
    let options = Options { seed: 1, pace };
    replay(requests.iter().copied(), set, |_| layout, &options).unwrap()
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-9
}

const CLOSED: Pace = Pace::ClosedLoop { think: false };

#[test]
fn a_request_takes_as_long_as_its_slowest_part() {
    let (set, layout) = (slow(2, 1 << 40), FileLayout::uniform(vec![1000, 3000]).unwrap());
    let outcome = run(&set, &layout, &[request(0, 5, 0, 4000)], CLOSED);
    assert!(close(outcome.seconds, 0.004), "{outcome:?}");
    assert!(close(outcome.servers[0].busy_seconds, 0.002));
    assert_eq!((outcome.servers[0].written_bytes, outcome.servers[1].written_bytes), (1000, 3000));
    assert_eq!((outcome.write.requests, outcome.read.requests, outcome.bytes), (1, 0, 4000));
    assert!(close(outcome.mb_per_s, 1.0));
}

#[test]
fn a_closed_loop_waits_for_each_request_and_servers_work_in_parallel() {
    let (set, layout) = (slow(2, 1 << 40), FileLayout::uniform(vec![1000, 1000]).unwrap());
    // Process 0 writes to server 0 twice, process 1 to server 1 twice; all at one time in the trace.
    let requests = [
        request(0, 0, 0, 1000),
        request(1, 0, 1000, 1000),
        request(0, 0, 2000, 1000),
        request(1, 0, 3000, 1000),
    ];
    let outcome = run(&set, &layout, &requests, CLOSED);
    assert!(close(outcome.seconds, 0.003), "2 ms and, in stream, 1 ms: {outcome:?}");
    // One process alone takes as long as the sum.
    let alone = requests.map(|request| Request { process: 0, ..request });
    assert!(close(run(&set, &layout, &alone, CLOSED).seconds, 0.006));
}

#[test]
fn think_times_pass_if_they_shall() {
    let (set, layout) = (slow(1, 1 << 40), FileLayout::uniform(vec![1]).unwrap());
    // Recorded: 1 us each, and 5 ms between end and start.
    let requests = [request(0, 7, 0, 1000), request(0, 5_001_007, 5000, 1000)];
    assert!(close(run(&set, &layout, &requests, CLOSED).seconds, 0.004));
    let thinking = run(&set, &layout, &requests, Pace::ClosedLoop { think: true });
    assert!(close(thinking.seconds, 0.009), "{thinking:?}");
    let open = run(&set, &layout, &requests, Pace::OpenLoop);
    assert!(close(open.seconds, 0.007_001), "{open:?}");
}

#[test]
fn an_open_loop_queues() {
    let (set, layout) = (slow(1, 1 << 40), FileLayout::uniform(vec![1]).unwrap());
    let requests: Vec<_> = (0..10).map(|at| request(0, at, at * 2000, 1000)).collect();
    let outcome = run(&set, &layout, &requests, Pace::OpenLoop);
    assert!(close(outcome.seconds, 0.02));
    assert!(outcome.write.longest_seconds > 0.0199);
}

#[test]
fn the_time_when_a_server_is_full_is_told() {
    // In whole blocks: two are more than there is room for.
    let (set, layout) = (slow(2, 8100), FileLayout::uniform(vec![4000, 500]).unwrap());
    let requests = [request(0, 0, 0, 4500), request(0, 0, 4500, 4500), request(0, 0, 0, 4500)];
    let outcome = run(&set, &layout, &requests, CLOSED);
    assert_eq!(outcome.servers[0].held_bytes, 8000);
    assert!(close(outcome.servers[0].full_at_seconds.unwrap(), 0.009));
    assert_eq!(outcome.servers[1].full_at_seconds, None);
}

#[test]
fn the_network_is_a_queue_before_the_device() {
    let text = "network = { connect_us = 1000.0, ns_per_byte = 2000.0 }\n\
        [profile.x]\nread = { startup_sequential_ps = 0, startup_random_ps = 0, per_byte_ps = 1000000 }\n\
        write = { startup_sequential_ps = 0, startup_random_ps = 0, per_byte_ps = 1000000 }\n\
        [[server]]\nname = \"s\"\nprofile = \"x\"\ncapacity = 100000\n";
    let (set, layout) = (servers(text), FileLayout::uniform(vec![1]).unwrap());
    let two = [request(0, 0, 0, 1000), request(1, 0, 1000, 1000)];
    // 1 ms and 2 ms on the wire each, one after the other; the last then 1 ms on the device.
    assert!(close(run(&set, &layout, &two, CLOSED).seconds, 0.007));
    // Reads: connected at 1 and 2 ms, read at 2 and 3, sent at 4 and 6.
    let reads = two.map(|request| Request { op: Op::Read, ..request });
    assert!(close(run(&set, &layout, &reads, CLOSED).seconds, 0.006));
}

/// An SSD behind a network without connections, of 1 ns a byte.
fn behind_a_link(kind: &str) -> ServerSet {
    servers(&format!(
        "network = {{ connect_us = 0.0, ns_per_byte = 1.0 }}\n\
         [[server]]\nname = \"s\"\nprofile = \"{kind}\"\ncapacity = \"1T\"\n"
    ))
}

/// Regression: read bytes left a server in the order of the requests, so that 4 KiB waited behind 10 MB that the device had
/// not read yet, while the link was idle.
#[test]
fn what_a_device_has_read_first_leaves_first() {
    let layout = FileLayout::uniform(vec![1]).unwrap();
    let read = |process, file, length| Request {
        file,
        op: Op::Read,
        ..request(process, u64::from(process), 0, length)
    };
    let two = [read(0, 0, 10_000_000), read(1, 1, 4096)];
    let set = behind_a_link("ssd");
    let outcome = run(&set, &layout, &two, CLOSED);
    // 60 us, 5.4 ns a byte of one channel, 1 ns a byte of the link.
    let alone = |bytes: f64| 60e-6 + bytes * (4.0 / 740e6 + 1e-9);
    assert!((outcome.seconds - alone(1e7)).abs() < 1e-8, "{outcome:?}");
    let mean = f64::midpoint(alone(1e7), alone(4096.0));
    assert!((outcome.read.mean_seconds - mean).abs() < 1e-8, "{outcome:?}");
    // A process that reads large pieces, and seven that read small ones: these are done long before.
    let many: Vec<_> = (0..7 * 50_u32)
        .map(|at| read(1 + at % 7, 1, 4096))
        .chain([read(0, 0, 4_000_000)])
        .map(|request| Request { start_ns: 0, ..request })
        .collect();
    let outcome = run(&set, &layout, &many, CLOSED);
    assert!(outcome.seconds < 1.05 * alone(4e6), "{outcome:?}");
    // One after the other from one device, nothing changes.
    let outcome = run(&behind_a_link("hdd"), &layout, &two, CLOSED);
    assert!(outcome.read.mean_seconds > 0.08, "{outcome:?}");
}

/// The same for replays that know when a request completes before others are issued.
#[test]
fn a_cache_and_a_tier_do_not_let_small_reads_wait_either() {
    let set = behind_a_link("ssd");
    let mut stations: Vec<Station> = set.servers().iter().map(Station::new).collect();
    let layout = FileLayout::uniform(vec![1]).unwrap();
    let mut read = |now_ns, length| {
        let range = ByteRange::new(0, length);
        station::serve_all(&mut stations, (&layout, 1), now_ns, range, Direction::Read)
    };
    assert!(read(0, 10_000_000) > 60_000_000);
    assert!(read(0, 4096) < 100_000);
    assert!(read(200_000, 4096) < 300_000);
}

/// Regression: the bytes of a request counted from the end of it, but in the order of the issues: two writes at once, of
/// which the second one ends first, made a server full then.
#[test]
fn a_server_is_full_when_the_bytes_are_there() {
    let set = servers("[[server]]\nname = \"s\"\nprofile = \"ssd\"\ncapacity = 1000000\n");
    let layout = FileLayout::uniform(vec![1]).unwrap();
    let two = [request(0, 0, 0, 1_000_000), Request { file: 1, ..request(1, 0, 0, 4096) }];
    let outcome = run(&set, &layout, &two, CLOSED);
    assert_eq!(outcome.servers[0].held_bytes, 1_004_096);
    assert_eq!(outcome.servers[0].full_at_seconds, Some(outcome.seconds), "{outcome:?}");
}

/// Regression: processes that the trace has one after the other were issued one after the other, and nothing said so.
#[test]
fn requests_that_are_too_far_ahead_are_told() {
    let layout = FileLayout::uniform(vec![1]).unwrap();
    let set = servers("[[server]]\nname = \"s\"\nprofile = \"ssd\"\ncapacity = \"1T\"\n");
    let both = |each: u64| -> Vec<Request> {
        (0..2 * each).map(|at| request(u32::from(at >= each), at, at * 4096, 4096)).collect()
    };
    let near = run(&set, &layout, &both(60_000), CLOSED);
    assert_eq!(near.late, Late::default());
    let far = run(&set, &layout, &both(140_000), CLOSED);
    assert_eq!(far.late.late_requests, 1, "then it is in step");
    let alone = far.seconds - far.late.late_seconds;
    assert!((alone - 140.0 / 60.0 * near.seconds).abs() < 1e-3 * far.seconds, "{far:?} {near:?}");
}

/// Regression: without durations, the processes' first requests kept their recorded times.
#[test]
fn without_durations_no_pause_is_kept() {
    let (set, layout) = (slow(1, 1 << 40), FileLayout::uniform(vec![1]).unwrap());
    let think = Pace::ClosedLoop { think: true };
    let two = [request(0, 0, 0, 1000), request(1, 9_000_000, 5000, 1000)];
    assert!(close(run(&set, &layout, &two, think).seconds, 0.011));
    let untimed = two.map(|request| Request { duration_ns: None, ..request });
    assert!(close(run(&set, &layout, &untimed, think).seconds, 0.004));
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let text = "[[server]]\nname = \"a\"\nprofile = \"hdd\"\ncapacity = \"1T\"\n\
        [[server]]\nname = \"b\"\nprofile = \"ssd\"\ncapacity = \"1T\"\n";
    let (set, layout) = (servers(text), FileLayout::uniform(vec![65536, 65536]).unwrap());
    let requests: Vec<_> = (0..3000u64)
        .map(|at| {
            let noise = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            Request {
                file: (at % 3) as u32,
                op: if at % 2 == 0 { Op::Read } else { Op::Write },
                ..request((at % 7) as u32, at, noise * 4096, 1 + noise % 300_000)
            }
        })
        .collect();
    let outcome = |seed| {
        let options = Options { seed, pace: CLOSED };
        replay(requests.iter().copied(), &set, |_| &layout, &options).unwrap()
    };
    assert_eq!(outcome(1), outcome(1));
    assert!(!close(outcome(1).seconds, outcome(2).seconds), "files lie elsewhere");
}

#[test]
fn bad_input_is_refused() {
    let (set, layout) = (slow(2, 1), FileLayout::uniform(vec![1]).unwrap());
    let run = |layout, requests: &[Request]| {
        replay(requests.iter().copied(), &set, |_| layout, &Options::default())
    };
    assert!(run(&layout, &[request(0, 0, 0, 1)]).unwrap_err().contains("1 servers"));
    let layout = FileLayout::uniform(vec![1, 1]).unwrap();
    let backwards = [request(0, 5, 0, 1), request(0, 4, 0, 1)];
    assert!(run(&layout, &backwards).unwrap_err().contains("request 2"));
    assert!(run(&layout, &[request(0, 0, 0, 0)]).unwrap_err().contains("no bytes"));
    let empty = run(&layout, &[]).unwrap();
    assert!(close(empty.seconds, 0.0) && empty.requests == 0);
}

/// One replay is its own mean; of several the times are means, and what does not depend on the placement stays.
#[test]
fn the_mean_of_replays_is_of_their_times() {
    let set = servers("[[server]]\nname = \"a\"\nprofile = \"hdd\"\ncapacity = 5000\n");
    let layout = FileLayout::uniform(vec![4096]).unwrap();
    let requests: Vec<_> = (0..40)
        .map(|n| Request { file: u32::try_from(n % 2).unwrap(), ..request(0, n, n * 4096, 4096) })
        .collect();
    let replayed = |seed| {
        let options = Options { seed, pace: CLOSED };
        replay(requests.iter().copied(), &set, |_| &layout, &options).unwrap()
    };
    let [one, other] = [0, 1].map(replayed);
    assert!(!close(one.seconds, other.seconds));
    assert_eq!(Outcome::mean(std::slice::from_ref(&one)), one);
    let mean = Outcome::mean(&[one.clone(), other.clone()]);
    let half = |a: f64, b: f64| f64::midpoint(a, b);
    assert!(close(mean.seconds, half(one.seconds, other.seconds)), "{mean:?}");
    assert!(close(mean.write.mean_seconds, half(one.write.mean_seconds, other.write.mean_seconds)));
    let busy = |it: &Outcome| it.servers[0].busy_seconds;
    assert!(close(busy(&mean), half(busy(&one), busy(&other))));
    let full = |it: &Outcome| it.servers[0].full_at_seconds.unwrap();
    assert!(close(full(&mean), half(full(&one), full(&other))));
    assert!(close(mean.mb_per_s * mean.seconds, one.mb_per_s * one.seconds));
    assert_eq!((mean.bytes, mean.servers[0].held_bytes), (one.bytes, one.servers[0].held_bytes));
}
