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

/// The seconds of everything on the servers of each class, and on each server, in several stripes.
fn fastest_alone(servers: &Servers, workload: &Workload) -> f64 {
    let requests: Vec<Request> = workload.sample.iter().flatten().copied().collect();
    let classes = servers.classes().iter().map(|class| class.members.clone());
    let each = classes.chain((0..servers.count()).map(|server| vec![server]));
    let seconds = |(members, stripe): (Vec<usize>, u64)| {
        let mut widths = vec![0; servers.count()];
        members.iter().for_each(|server| widths[*server] = stripe);
        let mut placer = Placer::new(servers.room());
        let file = &workload.files[0];
        let parts = placer.place(0, file.bytes, &[&widths]).ok()?;
        let files = [(file.number, assemble(parts))].into_iter().collect();
        let layouts = Layouts { files, default: Layout::simple(widths) };
        Some(Queues::new(servers).seconds(&requests, &layouts) * workload.scale())
    };
    let size = workload.files[0].size();
    let tried = each.flat_map(|members| [size, 64 * K].map(|stripe| (members.clone(), stripe)));
    tried.filter_map(seconds).fold(f64::INFINITY, f64::min)
}

fn compare(what: &str, servers: &Servers, requests: &[Request]) {
    let (workload, outcome) = planned(servers, requests);
    let ours = outcome.of(Name::Ours).expect("ours");
    let alone = fastest_alone(servers, &workload);
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
