//! Files and parts of them on servers of their own.

use super::*;

/// As many requests one after the other to each of these files as its length says, all processes in turn: file `n` is of
/// process `n`.
fn in_turn(lengths: &[u64], size: u64) -> Vec<Request> {
    let most = lengths.iter().copied().max().unwrap_or(0);
    let mut all = Vec::new();
    for step in 0..most {
        for (number, _) in lengths.iter().enumerate().filter(|(_, length)| step < **length) {
            let number = u32::try_from(number).expect("few");
            let start_ns = all.len() as u64;
            let (offset, op) = (step * size, Op::Write);
            all.push(Request {
                start_ns,
                duration_ns: None,
                process: number,
                file: number,
                op,
                offset,
                length: size,
            });
        }
    }
    all
}

/// Each file on each server, in every way: the fastest with room.
fn fastest_apart(servers: &Servers, workload: &Workload, requests: &[Request]) -> f64 {
    let (files, count) = (workload.files.len(), servers.count());
    let ways = count.pow(u32::try_from(files).expect("few"));
    let mut fastest = f64::INFINITY;
    for way in 0..ways {
        let mut placer = Placer::new(servers.room());
        let default = Layout::simple(vec![64 * K; count]);
        let mut layouts = Layouts { files: HashMap::new().into_iter().collect(), default };
        let mut left = way;
        let fits = workload.files.iter().all(|file| {
            let mut widths = vec![0; count];
            widths[left % count] = 64 * K;
            left /= count;
            let Ok(parts) = placer.place(0, file.bytes, &[&widths]) else { return false };
            let is_one = parts.iter().all(|part| part.widths == widths);
            layouts.files.insert(file.number, assemble(parts));
            is_one
        });
        if fits {
            fastest = fastest.min(Queues::new(servers).seconds(requests, &layouts));
        }
    }
    fastest
}

/// Servers of a class had equal widths always: four files on four disks took 16 times as long as with a disk for each.
#[test]
fn files_that_are_used_at_once_get_a_disk_each() {
    for count in [2_u32, 4, 8] {
        let servers = servers(&[(count.into(), DeviceProfile::hdd_7200(), None)]);
        let requests = in_turn(&vec![64; count as usize], 64 * K);
        let (_, outcome) = planned(&servers, &requests);
        assert_eq!(outcome.chosen, Name::Ours, "{count}");
        let mut disks: Vec<usize> = (0..count)
            .map(|file| {
                let bytes = outcome.choice().layouts.of(file).bytes(64 * 64 * K);
                bytes.iter().position(|bytes| *bytes == 64 * 64 * K).expect("one disk")
            })
            .collect();
        disks.sort_unstable();
        assert_eq!(disks, (0..count as usize).collect::<Vec<_>>());
    }
}

/// Seconds with the first files on a disk each, and the others in stripes over all disks: the least of some widths.
fn some_alone(servers: &Servers, workload: &Workload, requests: &[Request], alone: usize) -> f64 {
    let count = servers.count();
    let seconds = |width: u64| {
        let default = Layout::simple(vec![width; count]);
        let mut layouts = Layouts { files: HashMap::new().into_iter().collect(), default };
        for (rank, file) in workload.files.iter().enumerate() {
            let mut widths = vec![width; count];
            if rank < alone {
                widths = vec![0; count];
                widths[rank % count] = 64 * K;
            }
            layouts.files.insert(file.number, Layout::simple(widths));
        }
        Queues::new(servers).seconds(requests, &layouts)
    };
    [64 * K, 256 * K, 1024 * K].map(seconds).into_iter().fold(f64::INFINITY, f64::min)
}

/// Regression: with more files than disks nothing was recommended, where as many files as there are disks on one each, and the
/// others on all of them, gained up to 500 %.
#[test]
fn of_more_files_than_disks_some_are_alone_and_the_others_everywhere() {
    for (disks, files) in [(4, 5), (4, 6), (3, 4), (3, 5), (2, 3), (2, 5)] {
        let servers = servers(&[(disks, DeviceProfile::hdd_7200(), None)]);
        let requests = in_turn(&vec![64; files], 64 * K);
        let (workload, outcome) = planned(&servers, &requests);
        let by_hand = (1..files).map(|alone| some_alone(&servers, &workload, &requests, alone));
        let by_hand = by_hand.fold(f64::INFINITY, f64::min);
        let ours = outcome.of(Name::Ours).expect("ours").simulated_seconds;
        assert!(ours <= by_hand * 1.01, "{files} files, {disks} disks: {ours}, {by_hand} by hand");
    }
}

/// Of a shared file each process has a stretch: these are on disks of their own as files are.
#[test]
fn what_processes_have_of_a_shared_file_gets_a_disk_each() {
    let requests: Vec<Request> = in_turn(&[64, 64], 64 * K)
        .into_iter()
        .map(|request| Request {
            file: 0,
            offset: request.offset + u64::from(request.file) * 64 * 64 * K,
            ..request
        })
        .collect();
    let servers = servers(&[
        (2, DeviceProfile::hdd_7200(), None),
        (1, DeviceProfile::ssd_generic(), Some(64 * K)),
    ]);
    let (_, outcome) = planned(&servers, &requests);
    let bytes = |from: u64| {
        let mut used = vec![0; 3];
        let layout = &outcome.choice().layouts.files[&0];
        layout.pieces(from, from + 64 * 64 * K, |piece| used[piece.server] += piece.length);
        used
    };
    let (first, second) = (bytes(0), bytes(64 * 64 * K));
    assert!(first[0].max(first[1]) >= 62 * 64 * K, "{first:?}");
    assert!(second[0].max(second[1]) >= 62 * 64 * K, "{second:?}");
    assert_ne!(first[0] > first[1], second[0] > second[1]);
}

/// Within a hundredth of the best of all ways to put each file on one server, with disks and SSDs and room for some files.
#[test]
fn on_random_small_cases_ours_is_within_a_hundredth_of_any_server_for_each_file() {
    let mut state = 0x5EED_u64;
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for case in 0..12 {
        let files = 2 + next(4);
        let lengths: Vec<u64> = (0..files).map(|_| 16 + next(64)).collect();
        let size = [4 * K, 64 * K, 256 * K][usize::try_from(next(3)).expect("few")];
        let ssds = next(2);
        let servers = servers(&[
            (2 + next(2), DeviceProfile::hdd_7200(), None),
            (ssds, DeviceProfile::ssd_generic(), Some((10 + next(90)) * size)),
        ]);
        let requests = in_turn(&lengths, size);
        let (workload, outcome) = planned(&servers, &requests);
        let ours = outcome.of(Name::Ours).expect("ours").simulated_seconds;
        let best = fastest_apart(&servers, &workload, &requests);
        assert!(ours <= best * 1.01, "case {case}: {ours} {best} {lengths:?} {size}");
    }
}

/// A judge for which only the ends of files count: on the SSD, behind what is on the disks.
struct Ends;

impl Judge for Ends {
    fn seconds_noting(&mut self, _: &[Request], layouts: &Layouts, _: Note<'_>) -> f64 {
        let parts = layouts.of(0).parts();
        let [first, last] = [&parts[0], &parts[parts.len() - 1]];
        if first.widths[2] == 0 && last.widths[..2] == [0, 0] { 1.0 } else { 2.0 }
    }
}

/// Regions took the SSDs from their beginnings on, or not at all: of a trace of BTIO the same stripes were a third slower.
#[test]
fn the_ends_of_files_on_the_ssds_are_among_the_candidates() {
    let servers = hybrid(2, 1, 8 << 20);
    let requests = requests(512, 4, 64 * K, Op::Write, |n| n);
    let workload = seen(&requests);
    let outcome = plan(&servers, &workload, &mut Ends, 1.0).expect("a plan");
    within_room(&servers, &workload, &outcome);
    let ours = outcome.of(Name::Ours).expect("ours");
    assert!((ours.simulated_seconds - 1.0).abs() < 1e-9, "{}", ours.simulated_seconds);
    let bytes = ours.layouts.of(0).bytes(32 << 20);
    assert!(bytes[2] > 7 << 20, "{bytes:?}");
}
