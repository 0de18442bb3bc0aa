//! A file for each of many processes, and SSDs that do not hold them all.

use super::*;

/// The least seconds of the same stripes for all files, continued on the disks alone where the SSDs are full, and these
/// stripes.
fn fastest_uniform(servers: &Servers, workload: &Workload) -> (f64, [u64; 2]) {
    let requests: Vec<Request> = workload.sample.iter().flatten().copied().collect();
    let sizes = [0, 16 * K, 64 * K, 128 * K, 256 * K, 512 * K, 1024 * K, 4096 * K];
    let pairs = sizes.iter().flat_map(|h| sizes.iter().map(move |s| [*h, *s]));
    let mut best = (f64::INFINITY, [0; 2]);
    for pair in pairs.filter(|[h, s]| h + s > 0) {
        let (first, rest) = (servers.widths(&pair), servers.widths(&[64 * K]));
        let mut placer = Placer::new(servers.room());
        let mut place = |bytes| Some(assemble(placer.place(0, bytes, &[&first, &rest]).ok()?));
        let files = workload.files.iter().map(|file| Some((file.number, place(file.bytes)?)));
        let Some(files) = files.collect() else { continue };
        let layouts = Layouts { files, default: Layout::simple(first.clone()) };
        let seconds = Queues::new(servers).seconds(&requests, &layouts) * workload.scale();
        if seconds < best.0 {
            best = (seconds, pair);
        }
    }
    best
}

/// Regression: the widths of one file after the other were changed, and the slowest of the others decided; ours was up to
/// 89 times as slow as one layout for all.
#[test]
fn with_a_file_for_each_process_ours_is_no_slower_than_one_layout_for_all() {
    for (disks, ssds, size, processes, share) in
        [(6, 2, 64 * K, 16, 2), (2, 4, 16 * K, 32, 3), (8, 1, 128 * K, 8, 2), (1, 1, 8 * K, 32, 4)]
    {
        let each = 512 / processes;
        let servers = hybrid(disks, ssds, 512 * size / share / ssds);
        let mut all = requests(512, processes, size, Op::Write, |n| n / processes * 7 % each);
        for request in &mut all {
            request.file = request.process;
        }
        let (workload, outcome) = planned(&servers, &all);
        assert_eq!(workload.files.len() as u64, processes);
        let ours = outcome.of(Name::Ours).expect("ours");
        let (best, pair) = fastest_uniform(&servers, &workload);
        let (seconds, layout) = (ours.simulated_seconds, ours.layouts.of(0).parts());
        let what = format!("{processes} files, {disks} disks, {ssds} SSDs");
        assert!(seconds <= best * 1.01, "{what}: {seconds} {layout:?}; {pair:?} {best}");
    }
}

/// Regression: of 1024 processes with a file each, 768 kept the default stripes, whose room came first.
#[test]
fn all_files_that_are_alike_get_layouts() {
    let servers = hybrid(6, 2, 8 << 20);
    let mut all = requests(8192, 1024, 16 * K, Op::Write, |n| n / 1024);
    for request in &mut all {
        request.file = request.process;
    }
    let (workload, outcome) = planned(&servers, &all);
    assert_eq!((workload.files.len(), workload.other_files.len()), (1024, 0));
    let [def, ours] = [Name::Def, Name::Ours].map(|name| outcome.of(name).expect("a layout"));
    assert!(ours.layouts.files.len() == 1024 && outcome.chosen == Name::Ours);
    let gain = def.simulated_seconds / ours.simulated_seconds - 1.0;
    assert!(gain > 0.5, "{gain}");
}

/// A plan filled its servers to the last block, and `apply` had no room for the layouts of the files.
#[test]
fn the_layouts_of_files_have_room_beside_these() {
    let size = 16 * K;
    let mut all = requests(1024, 64, size, Op::Read, |n| n / 64 * 7 % 2);
    for request in &mut all {
        request.file = request.process;
    }
    // 2 MiB in 64 files.
    for (spare, has_room) in [(128 * K, false), (512 * K, true)] {
        let (ssd, disk) = (DeviceProfile::ssd_revodrive_x2(), DeviceProfile::hdd_7200());
        let servers = servers(&[(1, disk, Some((1 << 20) + spare)), (1, ssd, Some(1 << 20))]);
        let (workload, outcome) = planned(&servers, &all);
        assert_eq!(workload.files.len(), 64);
        let [def, ours] = [Name::Def, Name::Ours].map(|name| outcome.of(name).expect("a layout"));
        assert_eq!(def.layouts != ours.layouts, has_room, "{spare}");
    }
}
