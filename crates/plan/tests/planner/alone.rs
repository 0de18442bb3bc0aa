//! What anybody would try first: everything on one class of servers, or on one server.

use super::*;

fn server(number: u64, times: [u64; 3], capacity: Option<u64>) -> Server {
    let [startup_sequential_ps, startup_random_ps, per_byte_ps] = times;
    let service = ServiceProfile { startup_sequential_ps, startup_random_ps, per_byte_ps };
    Server {
        name: format!("s{number}"),
        directory: None,
        capacity,
        channels: 1,
        profile: DeviceProfile { read: service, write: service },
        network: Network::default(),
    }
}

/// Numbers from a seed.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    }
}

/// The least seconds of everything on the servers of each class, and on each server, in each of some stripes.
fn fastest_alone(servers: &Servers, workload: &Workload, stripes: &[u64]) -> (f64, Vec<u64>) {
    let requests: Vec<Request> = workload.sample.iter().flatten().copied().collect();
    let classes = servers.classes().iter().map(|class| class.members.clone());
    let each = classes.chain((0..servers.count()).map(|server| vec![server]));
    let seconds = |(members, stripe): (Vec<usize>, u64)| {
        let mut widths = vec![0; servers.count()];
        for server in members {
            widths[server] = stripe;
        }
        let mut placer = Placer::new(servers.room());
        let file = &workload.files[0];
        let parts = placer.place(0, file.bytes, &[&widths]).ok()?;
        let files = [(file.number, assemble(parts))].into_iter().collect();
        let layouts = Layouts { files, default: Layout::simple(widths.clone()) };
        let seconds = Queues::new(servers).seconds(&requests, &layouts) * workload.scale();
        Some((seconds, widths))
    };
    let tried = each.flat_map(|members| stripes.iter().map(move |s| (members.clone(), *s)));
    let all = tried.filter_map(seconds);
    all.min_by(|a, b| a.0.total_cmp(&b.0)).expect("one that fits")
}

fn compare(what: &str, servers: &Servers, requests: &[Request]) {
    let (workload, outcome) = planned(servers, requests);
    let ours = outcome.of(Name::Ours).expect("ours");
    let (alone, _) = fastest_alone(servers, &workload, &[workload.files[0].size(), 64 * K]);
    let (seconds, layouts) = (ours.simulated_seconds, &ours.layouts);
    assert!(seconds <= alone * 1.0001, "{what}: {seconds} {layouts:?}, alone {alone}");
}

/// Regression: of a file whose regions differ by chance, those on the SSD alone were too few for the search to go on from.
#[test]
fn reads_and_writes_in_any_order_are_no_slower_than_on_the_ssd_alone() {
    let disk = [97_356_050, 1_271_680_983, 10_657];
    let ssd = [62_527_319, 62_527_319, 2472];
    let all = vec![server(0, disk, None), server(1, disk, None), server(2, ssd, None)];
    let servers = Servers::new(all).expect("servers");
    for seed in 1..=8 {
        let mut number = numbers(seed);
        let mut requests = requests(256, 1, 32 * K, Op::Read, |n| n);
        for request in &mut requests {
            request.op = [Op::Read, Op::Write][usize::try_from(number(2)).expect("few")];
        }
        compare(&format!("seed {seed}"), &servers, &requests);
    }
}

/// How much slower ours is than the fastest layout of the whole file on one class or one server, with stripes of whole
/// requests or of a multiple of 4 KiB.
fn slower_than_uniform(what: &str, servers: &Servers, requests: &[Request]) {
    let (workload, outcome) = planned(servers, requests);
    let ours = outcome.of(Name::Ours).expect("ours");
    let mut stripes: Vec<u64> = (1..=64).map(|number| number * 4 * K).collect();
    stripes.push(workload.files[0].size());
    let (alone, widths) = fastest_alone(servers, &workload, &stripes);
    let (seconds, layouts) = (ours.simulated_seconds, &ours.layouts);
    assert!(seconds <= alone * 1.01, "{what}: {seconds} {layouts:?}, {widths:?} {alone}");
}

/// Requests in order, of which `parts` stretches are written and read in turn.
fn in_turns(count: u64, processes: u64, size: u64, parts: u64) -> Vec<Request> {
    let mut all = requests(count, processes, size, Op::Read, |n| n);
    for (n, request) in all.iter_mut().enumerate() {
        let part = n as u64 * parts / count;
        request.op = if part.is_multiple_of(2) { Op::Write } else { Op::Read };
    }
    all
}

/// Regression: the rounds of each region began anew, also where all had the same stripes, and what begins on the same server
/// in each is not what anybody would try first.
#[test]
fn a_file_with_regions_is_no_slower_than_in_one_layout_for_all_of_it() {
    let ssd = DeviceProfile::ssd_generic();
    let servers = servers(&[(1, DeviceProfile::hdd_7200(), None), (3, ssd, None)]);
    for (count, parts) in [(1024, 8), (256, 4), (64, 2)] {
        let requests = in_turns(count, 8, 24 * K, parts);
        slower_than_uniform(&format!("{count} requests"), &servers, &requests);
    }
}

/// `HALOCLINE_PLANNER_CASES=300` for more of them, in a release build.
#[test]
fn on_random_small_cases_ours_is_no_slower_than_one_layout_for_all_of_a_file() {
    let cases = std::env::var("HALOCLINE_PLANNER_CASES");
    let cases: u64 = cases.map_or(6, |cases| cases.parse().expect("a number of cases"));
    for case in 1..=cases {
        let mut number = numbers(case);
        let (disks, ssds) = (1 + number(3), 2 + number(3));
        let ssd = DeviceProfile::ssd_generic();
        let servers = servers(&[(disks, DeviceProfile::hdd_7200(), None), (ssds, ssd, None)]);
        let (count, processes) = (64 << number(4), 1 << number(4));
        let size = [4 * K, 12 * K, 24 * K, 40 * K, 96 * K, 256 * K];
        let size = size[usize::try_from(number(6)).expect("few")];
        let mut requests = in_turns(count, processes, size, 1 + number(8));
        if number(3) == 0 {
            let order = number(count) | 1;
            for request in &mut requests {
                request.offset = request.offset / size * order % count * size;
            }
        }
        let what = format!("case {case}: {count} of {size} by {processes}, {disks} and {ssds}");
        slower_than_uniform(&what, &servers, &requests);
    }
}

/// `HALOCLINE_PLANNER_CASES=300` for more of them, in a release build.
#[test]
fn on_random_small_cases_ours_is_no_slower_than_one_class_or_one_server() {
    let cases = std::env::var("HALOCLINE_PLANNER_CASES");
    let cases: u64 = cases.map_or(24, |cases| cases.parse().expect("a number of cases"));
    for case in 1..=cases {
        let mut number = numbers(case);
        let kinds = 2 + number(2);
        let mut all = Vec::new();
        for kind in 0..kinds {
            let sequential = 20_000_000 + number(100_000_000);
            let random = sequential * (1 + number(16));
            let times = [sequential, random, 1_000 + number(12_000)];
            let capacity = (kind > 0 && number(3) == 0).then_some(2 << 20);
            for _ in 0..=number(2) {
                all.push(server(all.len() as u64, times, capacity));
            }
        }
        let servers = Servers::new(all).expect("servers");
        let (processes, size) = (1 + number(4), (4 * K) << number(5));
        let order = number(3);
        let mut requests = requests(128, processes, size, Op::Read, |n| match order {
            0 => n,
            1 => mixed(n, 7),
            _ => n * 5 % 128,
        });
        for request in &mut requests {
            request.op = [Op::Read, Op::Write][usize::try_from(number(2)).expect("few")];
        }
        compare(&format!("case {case}"), &servers, &requests);
    }
}
