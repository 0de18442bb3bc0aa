//! The planner on small cases: by hand, against an exhaustive search, and where nothing is to be gained.

mod alone;
mod apart;
mod default;
mod limits;
mod many_files;
mod placements;
mod recommended;

use std::collections::HashMap;

use halocline_model::profile::{DeviceProfile, ServiceProfile};
use halocline_plan::gain_range::gain;
use halocline_plan::judge::{Judge, Layouts, Note, Queues, Step};
use halocline_plan::layout::{Layout, Placer, assemble};
use halocline_plan::paper::TIES_MAX;
use halocline_plan::planner::{Judged, Name, Outcome, RestOfDefault, plan};
use halocline_plan::servers::{Network, Server, Servers};
use halocline_plan::workload::Workload;
use halocline_trace::{Op, Request};

const K: u64 = 1024;

fn servers(kinds: &[(u64, DeviceProfile, Option<u64>)]) -> Servers {
    let mut all = Vec::new();
    for (count, profile, capacity) in kinds {
        for _ in 0..*count {
            let name = format!("s{}", all.len());
            all.push(Server {
                name,
                directory: None,
                capacity: *capacity,
                channels: 1,
                profile: *profile,
                network: Network { connect_ps: 50_000_000, per_byte_ps: 1_000 },
            });
        }
    }
    Servers::new(all).expect("servers")
}

fn seen(requests: &[Request]) -> Workload {
    Workload::of(requests, 2)
}

/// `count` requests of `size` bytes by `processes` in turn, at offsets in units of `size`.
fn requests(
    count: u64,
    processes: u64,
    size: u64,
    op: Op,
    offset: impl Fn(u64) -> u64,
) -> Vec<Request> {
    let request = |n: u64| Request {
        start_ns: n * 1_000_000,
        duration_ns: None,
        process: u32::try_from(n % processes).expect("few"),
        file: 0,
        op,
        offset: offset(n) * size,
        length: size,
    };
    (0..count).map(request).collect()
}

/// A permutation of `0..2^bits`.
fn mixed(n: u64, bits: u32) -> u64 {
    (n.wrapping_mul(0x9E37_79B9_7F4A_7C15 | 1) ^ (n << 3)) % (1 << bits)
}

fn planned(servers: &Servers, requests: &[Request]) -> (Workload, Outcome) {
    let workload = seen(requests);
    let outcome = plan(servers, &workload, &mut Queues::new(servers), 1.0).expect("a plan");
    never_worse(&outcome);
    within_room(servers, &workload, &outcome);
    (workload, outcome)
}

fn never_worse(outcome: &Outcome) {
    let ours = outcome.of(Name::Ours).expect("ours").simulated_seconds;
    for name in [Name::Def, Name::Pa, Name::Psa] {
        if let Ok(other) = outcome.of(name) {
            assert!(ours <= other.simulated_seconds * 1.02, "{}", name.text());
        }
    }
}

fn within_room(servers: &Servers, workload: &Workload, outcome: &Outcome) {
    for name in Name::ALL {
        let Ok(judged) = outcome.of(name) else { continue };
        let mut used = vec![0; servers.count()];
        for file in &workload.files {
            let bytes = judged.layouts.of(file.number).bytes(file.bytes);
            used.iter_mut().zip(bytes).for_each(|(used, bytes)| *used += bytes);
        }
        let mut free = 0_u64;
        for (used, room) in used.iter().zip(servers.room()) {
            assert!(*used <= room, "{}: {used} of {room}", name.text());
            free = free.saturating_add((room - used) / (4 * K));
        }
        // `apply` puts the layout of each file on the first server that has room for it, beside the note about the move.
        let has_layouts = outcome.of(Name::Def).is_ok_and(|def| def.layouts != judged.layouts);
        let needed = workload.files.len() as u64 + 1;
        assert!(!has_layouts || free >= needed, "{}: {free} blocks of {needed}", name.text());
    }
}

fn hybrid(disks: u64, ssds: u64, ssd_bytes: u64) -> Servers {
    servers(&[
        (disks, DeviceProfile::hdd_7200(), None),
        (ssds, DeviceProfile::ssd_revodrive_x2(), Some(ssd_bytes)),
    ])
}

#[test]
fn a_file_that_fits_goes_to_the_ssd_and_half_a_file_gets_two_parts() {
    let random = requests(512, 4, 64 * K, Op::Read, |n| mixed(n, 9));
    let (_, roomy) = planned(&hybrid(2, 2, 1 << 30), &random);
    assert_eq!(roomy.chosen, Name::Ours);
    let ours = &roomy.choice().layouts.files[&0];
    assert_eq!(ours.bytes(32 << 20)[..2], [0, 0], "{:?}", ours.parts());
    // Half of 32 MiB fits on the SSDs.
    let (_, tight) = planned(&hybrid(2, 2, 8 << 20), &random);
    let bytes = tight.choice().layouts.files[&0].bytes(32 << 20);
    assert!(bytes[2] + bytes[3] > 14 << 20, "{bytes:?}");
    let gains = (roomy.gain_over_def, tight.gain_over_def);
    assert!(gains.0 > gains.1, "{gains:?}");
}

/// It was when the first request went past what fits, in the times of the trace: at once, where requests are at random, and
/// after microseconds where the trace was made. Then it was a share of the requests: of four processes with a server each,
/// those with an SSD fill it in no time.
#[test]
fn ssds_are_full_when_the_last_byte_that_fits_came_there() {
    let servers = hybrid(2, 2, 4 << 20);
    for (order, processes, least, most) in [(0, 1, 0.1, 0.6), (1, 1, 0.8, 1.0), (0, 4, 0.0, 0.01)] {
        let offset = |n: u64| if order == 0 { n } else { n * 151 % 512 };
        let (_, outcome) = planned(&servers, &requests(512, processes, 64 * K, Op::Write, offset));
        let def = outcome.of(Name::Def).expect("def");
        let share = def.full_after_seconds.expect("8 of 32 MiB fit") / def.simulated_seconds;
        assert!((least..=most).contains(&share), "{order}: {share}");
    }
    let (_, roomy) = planned(&hybrid(2, 2, 1 << 30), &requests(64, 4, 64 * K, Op::Write, |n| n));
    assert_eq!(roomy.of(Name::Def).expect("def").full_after_seconds, None);
}

#[test]
fn default_layouts_stay_where_servers_are_equal_and_requests_are_theirs() {
    let equal = servers(&[(4, DeviceProfile::ssd_generic(), None)]);
    let (_, outcome) = planned(&equal, &requests(1024, 8, 256 * K, Op::Write, |n| n));
    let why = outcome.of(Name::Psa).expect_err("one kind of servers");
    assert_eq!(why, "all servers are of one kind");
    assert!(outcome.chosen == Name::Def || outcome.gains.is_sure());
    if outcome.chosen == Name::Def {
        assert!(outcome.gain_over_def.abs() < 1e-12);
    }
}

#[test]
fn a_trace_without_trust_recommends_nothing() {
    let workload = seen(&requests(512, 4, 64 * K, Op::Read, |n| mixed(n, 9)));
    let servers = hybrid(2, 2, 1 << 30);
    let outcome = plan(&servers, &workload, &mut Queues::new(&servers), 0.0).expect("a plan");
    assert_eq!((outcome.chosen, outcome.gain_over_def.abs() < 1e-12), (Name::Def, true));
    assert!(outcome.best_gain > 0.5);
}

#[test]
fn three_classes_of_servers_are_used_by_what_they_can() {
    let middle = ServiceProfile {
        startup_sequential_ps: 500_000_000,
        startup_random_ps: 500_000_000,
        per_byte_ps: 4_000,
    };
    let servers = servers(&[
        (2, DeviceProfile::hdd_7200(), None),
        (2, DeviceProfile { read: middle, write: middle }, None),
        (1, DeviceProfile::ssd_revodrive_x2(), Some(4 << 20)),
    ]);
    let random = requests(1024, 8, 128 * K, Op::Write, |n| mixed(n, 10));
    let (_, outcome) = planned(&servers, &random);
    assert_eq!(outcome.chosen, Name::Ours);
    let best_of_three = [Name::Def, Name::Pa, Name::Psa]
        .into_iter()
        .filter_map(|name| outcome.of(name).ok().map(|judged| judged.simulated_seconds))
        .fold(f64::INFINITY, f64::min);
    assert!(outcome.choice().simulated_seconds < best_of_three);
}

#[test]
fn a_file_with_two_phases_gets_a_layout_for_each() {
    let mut both = requests(1024, 4, 16 * K, Op::Write, |n| mixed(n, 10));
    let large = requests(64, 4, 1024 * K, Op::Write, |n| 16 + n);
    both.extend(large.iter().map(|r| Request { start_ns: r.start_ns + 2_000_000_000, ..*r }));
    let servers = hybrid(4, 2, 12 << 20);
    let (workload, outcome) = planned(&servers, &both);
    assert_eq!(workload.files[0].regions.len(), 2);
    assert_eq!(outcome.chosen, Name::Ours);
    let parts = outcome.choice().layouts.files[&0].parts();
    assert!(parts.len() >= 2, "{parts:?}");
}

#[test]
fn no_layout_has_stripes_that_no_volume_has() {
    for size in [40, 120, 1000, 8000] {
        // Twice as many bytes as the SSDs hold, so that there is a part on the disks, too.
        let servers = hybrid(6, 2, 128 * size);
        let requests = requests(512, 4, size, Op::Write, |n| mixed(n, 9));
        let (_, outcome) = planned(&servers, &requests);
        for name in Name::ALL {
            let Ok(judged) = outcome.of(name) else { continue };
            let layouts = judged.layouts.files.values().flat_map(Layout::parts);
            for part in layouts {
                let narrow = part.widths.iter().any(|width| (1..512).contains(width));
                assert!(!narrow, "{}, requests of {size}: {part:?}", name.text());
            }
        }
    }
}

#[test]
fn what_fits_nowhere_and_what_is_empty_is_refused() {
    let small = servers(&[(2, DeviceProfile::hdd_7200(), Some(1 << 20))]);
    let workload = seen(&requests(64, 1, 64 * K, Op::Write, |n| n));
    let error = plan(&small, &workload, &mut Queues::new(&small), 1.0).unwrap_err();
    assert!(error.to_string().contains("fit on no server"), "{error}");
    let error = plan(&small, &seen(&[]), &mut Queues::new(&small), 1.0).unwrap_err();
    assert!(error.to_string().contains("no requests"), "{error}");
}

/// Seconds of the best of all pairs of widths in steps of 4 KiB, for where there is room and where there is none.
fn exhaustive(servers: &Servers, workload: &Workload, most: u64) -> (f64, [u64; 3]) {
    let requests: Vec<Request> = workload.sample.iter().flatten().copied().collect();
    let steps = || (0..=most / (4 * K)).map(|n| n * 4 * K);
    let mut best = (f64::INFINITY, [0; 3]);
    let file = &workload.files[0];
    for h in steps() {
        for s in steps().filter(|s| h + s > 0) {
            for rest in steps().filter(|rest| *rest > 0) {
                let (first, rest) = (servers.widths(&[h, s]), servers.widths(&[rest, 0]));
                let mut placer = Placer::new(servers.room());
                let Ok(parts) = placer.place(0, file.bytes, &[&first, &rest]) else { continue };
                let one_part = parts.len() == 1;
                let files = [(file.number, assemble(parts))].into_iter().collect();
                let layouts =
                    Layouts { files, default: halocline_plan::layout::Layout::simple(first) };
                let seconds = Queues::new(servers).seconds(&requests, &layouts);
                if seconds < best.0 {
                    best = (seconds, [h, s, rest[0]]);
                }
                if one_part {
                    break;
                }
            }
        }
    }
    (best.0 * workload.scale(), best.1)
}

#[test]
fn on_small_cases_ours_is_within_a_hundredth_of_an_exhaustive_search() {
    let cases: [(&str, Servers, Vec<Request>); 4] = [
        ("random reads", hybrid(2, 1, 1 << 20), requests(96, 3, 16 * K, Op::Read, |n| mixed(n, 7))),
        ("sequential", hybrid(2, 1, 1 << 20), requests(96, 2, 32 * K, Op::Write, |n| n)),
        ("roomy", hybrid(3, 1, 1 << 30), requests(96, 4, 32 * K, Op::Write, |n| mixed(n, 7))),
        ("one process", hybrid(1, 1, 1 << 20), requests(64, 1, 32 * K, Op::Read, |n| n * 3 % 64)),
    ];
    for (name, servers, requests) in cases {
        let (workload, outcome) = planned(&servers, &requests);
        let ours = outcome.of(Name::Ours).expect("ours").simulated_seconds;
        let (best, widths) = exhaustive(&servers, &workload, 64 * K);
        let parts = &outcome.of(Name::Ours).expect("ours").layouts;
        assert!(ours <= best * 1.01, "{name}: {ours} {parts:?}, the best {best} {widths:?}");
    }
}

/// Small cases of all kinds, from numbers.
fn small_case(picks: [u64; 7]) -> (Servers, Vec<Request>) {
    let [disks, ssds, size, processes, order, op, room] = picks;
    let size = (4 * K) << (size % 4);
    let offset = move |n: u64| match order % 3 {
        0 => n,
        1 => mixed(n, 6),
        _ => n * 5 % 64,
    };
    let op = if op % 2 == 0 { Op::Read } else { Op::Write };
    let ssd_bytes = [8 * size, 24 * size, 1 << 30][usize::try_from(room % 3).expect("few")];
    let servers = hybrid(1 + disks % 3, 1 + ssds % 2, ssd_bytes);
    (servers, requests(64, 1 + processes % 4, size, op, offset))
}

/// `HALOCLINE_PLANNER_CASES=300` for more of them, in a release build.
#[test]
fn on_random_small_cases_ours_is_within_a_hundredth_of_an_exhaustive_search() {
    let cases = std::env::var("HALOCLINE_PLANNER_CASES");
    let cases: u64 = cases.map_or(24, |cases| cases.parse().expect("a number of cases"));
    for case in (0..cases).chain([39, 84, 186, 223]) {
        let picks = std::array::from_fn(|at| mixed(case * 7 + at as u64 + 1, 16) >> 3);
        let (servers, requests) = small_case(picks);
        let (workload, outcome) = planned(&servers, &requests);
        let ours = outcome.of(Name::Ours).expect("ours");
        let (best, widths) = exhaustive(&servers, &workload, 32 * K);
        let (seconds, layouts) = (ours.simulated_seconds, &ours.layouts);
        assert!(
            seconds <= best * 1.01,
            "case {case}, {picks:?}: {seconds} {layouts:?}, the best {best} {widths:?}"
        );
    }
}

/// Throughput of ours over that of the best of the paper's layouts.
fn over_the_papers(servers: &Servers, requests: &[Request]) -> f64 {
    let (_, outcome) = planned(servers, requests);
    let seconds = |name| outcome.of(name).map_or(f64::INFINITY, |it| it.simulated_seconds);
    let papers = [Name::Def, Name::Pa, Name::Psa].map(seconds).into_iter().fold(f64::MAX, f64::min);
    papers / seconds(Name::Ours)
}

#[test]
fn ours_is_better_where_there_are_seeks_mixed_sizes_phases_or_unequal_servers() {
    let joined = |parts: [Vec<Request>; 2]| {
        let mut all = parts.concat();
        for (n, request) in (0..).zip(&mut all) {
            request.start_ns = n * 1_000_000;
        }
        all
    };
    let random = |size, op| requests(256, 4, size, op, |n| mixed(n, 8));
    let shifted = |mut all: Vec<Request>, by: u64| {
        for request in &mut all {
            request.offset += by;
        }
        all
    };
    let (quick, slow) = (DeviceProfile::ssd_revodrive_x2(), DeviceProfile::ssd_generic());
    let unequal = servers(&[
        (2, DeviceProfile::hdd_7200(), None),
        (1, slow, Some(1 << 22)),
        (1, quick, Some(1 << 24)),
    ]);
    let mixed_sizes = random(16 * K, Op::Read)
        .into_iter()
        .zip(shifted(random(256 * K, Op::Read), 4 << 20))
        .flat_map(|(small, large)| [small, large])
        .collect();
    for (what, servers, requests) in [
        ("seeks", hybrid(4, 2, 1 << 22), random(64 * K, Op::Read)),
        ("mixed sizes", hybrid(4, 2, 1 << 23), joined([mixed_sizes, Vec::new()])),
        (
            "phases",
            hybrid(4, 2, 1 << 22),
            joined([
                requests(256, 4, 512 * K, Op::Write, |n| n),
                shifted(random(16 * K, Op::Read), 256 << 20),
            ]),
        ),
        ("unequal servers", unequal, random(64 * K, Op::Write)),
    ] {
        let ratio = over_the_papers(&servers, &requests);
        assert!(ratio > 1.02, "{what}: {ratio}");
    }
}

/// The search went on for as long as nothing was better than no time at all.
#[test]
fn a_server_that_takes_no_time_ends_the_search() {
    let none = ServiceProfile { startup_sequential_ps: 0, startup_random_ps: 0, per_byte_ps: 0 };
    let instant = Server {
        name: "s0".to_owned(),
        directory: None,
        capacity: None,
        channels: 1,
        profile: DeviceProfile { read: none, write: none },
        network: Network::default(),
    };
    let servers = Servers::new(vec![instant]).expect("servers");
    let workload = seen(&requests(64, 4, 64 * K, Op::Write, |n| n));
    let outcome = plan(&servers, &workload, &mut Queues::new(&servers), 1.0).expect("a plan");
    assert_eq!(outcome.chosen, Name::Def, "nothing is to be gained");
}

/// Knows that all requests together take otherwise than a sample says.
struct AllDiffer<'a> {
    sample: Queues<'a>,
    replays_of_all: usize,
}

impl Judge for AllDiffer<'_> {
    fn seconds_noting(&mut self, requests: &[Request], layouts: &Layouts, note: Note<'_>) -> f64 {
        self.sample.seconds_noting(requests, layouts, note)
    }

    fn seconds_of_all(&mut self, layouts: &Layouts, _note: Note<'_>) -> Option<f64> {
        self.replays_of_all += 1;
        let default = Layout::simple(vec![64 * K; layouts.default.parts()[0].widths.len()]);
        Some(if layouts.of(0) == &default { 1.0 } else { 7.0 })
    }
}

/// By the sample of a long sequential trace a layout was recommended that took seven times as long as the default.
#[test]
fn of_a_long_trace_all_requests_decide() {
    let servers = hybrid(1, 1, 1 << 40);
    let workload = seen(&requests(1_300_000, 2, 16 * K, Op::Read, |n| n));
    assert!(workload.sampled() < 40_000);
    let mut judge = AllDiffer { sample: Queues::new(&servers), replays_of_all: 0 };
    let outcome = plan(&servers, &workload, &mut judge, 1.0).expect("a plan");
    never_worse(&outcome);
    assert_eq!((outcome.chosen, outcome.best), (Name::Def, Name::Def));
    let seconds = outcome.of(Name::Psa).expect("psa").simulated_seconds;
    assert!((seconds - 7.0).abs() < 1e-9, "{seconds}");
    // Four layouts, and everything on the disk or on the SSD.
    assert!(judge.replays_of_all <= 6, "{} replays of a long trace", judge.replays_of_all);
    // Of a shorter one there is time for more than the fastest by the sample.
    let workload = seen(&requests(100_000, 2, 16 * K, Op::Read, |n| n));
    judge.replays_of_all = 0;
    plan(&servers, &workload, &mut judge, 1.0).expect("a plan");
    assert!((7..=12).contains(&judge.replays_of_all), "{} replays", judge.replays_of_all);
}
