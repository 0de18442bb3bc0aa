//! Requests, servers and classes of servers as long, slow and many as there may be.

use halocline_plan::Error;
use halocline_plan::workload::File;

use super::*;

/// Regression: others' traces may have requests that are longer than any stripe may be; then planning ended with a panic.
#[test]
fn requests_that_are_longer_than_any_stripe_are_planned() {
    let disk = DeviceProfile::hdd_7200();
    let ssd = DeviceProfile::ssd_generic();
    let servers = servers(&[(2, disk, Some(1 << 60)), (2, ssd, Some(1 << 60))]);
    for size in [(1 << 41) + K, 1 << 61] {
        let workload = seen(&requests(70, 2, size, Op::Read, |_| 0));
        let outcome = plan(&servers, &workload, &mut Queues::new(&servers), 1.0).expect("a plan");
        let layout = outcome.choice().layouts.of(0);
        let widest = layout.parts().iter().flat_map(|part| &part.widths).max();
        assert!(widest.is_some_and(|width| *width <= 1 << 40), "{widest:?}");
    }
}

/// Regression: each of 256 files kept half a million pairs, which took gigabytes.
#[test]
fn of_many_ties_the_last_are_kept() {
    // Nothing fits on the SSD, so it makes no difference what would be there.
    let (_, outcome) = planned(&hybrid(1, 1, 1024), &requests(70, 2, 8 << 20, Op::Read, |n| n));
    let ties = &outcome.ties[0];
    // In steps of 4 KiB from 4 MiB on, and the disk alone.
    assert_eq!((ties.pairs, ties.candidates.len()), (1025, TIES_MAX));
    let choice = ties.candidates.last().map(|pair| (pair.h, pair.s));
    assert_eq!(choice, Some((8 << 20, 0)));
}

/// Notes how far each step is.
struct Watching<'a> {
    queues: Queues<'a>,
    told: HashMap<Step, Vec<(usize, usize)>>,
}

impl Judge for Watching<'_> {
    fn seconds_noting(&mut self, requests: &[Request], layouts: &Layouts, note: Note<'_>) -> f64 {
        self.queues.seconds_noting(requests, layouts, note)
    }

    fn advanced(&mut self, step: Step, done: usize, all: usize) {
        self.told.entry(step).or_default().push((done, all));
    }
}

/// Regression: of many regions on thousands of servers nothing was said for minutes, until the first replay; nor while the
/// layouts of the paper were found, of which each file may have half a million.
#[test]
fn progress_is_told_of_all_steps_without_replays() {
    let servers = hybrid(1, 1, 1 << 40);
    let mut all = requests(60, 2, 16 * K, Op::Read, |n| n);
    for (number, request) in (0..).zip(&mut all) {
        request.file = number % 3;
    }
    let workload = seen(&all);
    let mut judge = Watching { queues: Queues::new(&servers), told: HashMap::new() };
    let outcome = plan(&servers, &workload, &mut judge, 1.0).expect("a plan");
    let regions = workload.files.iter().map(|file| file.regions.len()).sum();
    let files = workload.files.len();
    assert!(files == 3 && regions >= 3, "{files} {regions}");
    // DEF, PA and PSA; then these and what the search found, if that is better.
    let of_search = usize::from(outcome.best == Name::Ours);
    for (step, parts, times) in [
        (Step::PaperLayouts, files, 3),
        (Step::Prediction, files, 3 + of_search),
        (Step::Candidates, regions, 1),
    ] {
        let once = (0..parts).map(|done| (done, parts));
        let expected: Vec<_> = (0..times).flat_map(|_| once.clone()).collect();
        assert_eq!(judge.told[&step], expected, "{step:?}");
    }
}

/// Regression: where there are too many widths to try them all, their number overflowed.
#[test]
fn the_slowest_servers_and_any_number_of_classes_are_planned_for() {
    let service = |startup_random_ps| ServiceProfile {
        startup_sequential_ps: startup_random_ps,
        startup_random_ps,
        per_byte_ps: 1 << 32,
    };
    for (classes, size, startup_ps) in [
        (10, 512 * K, 1 << 30),
        (4, 1 << 30, 1 << 40),
        (3, 32 << 30, 1 << 59),
        (40, 4 * K, 1 << 50),
    ] {
        let of = |number: u64| Server {
            name: number.to_string(),
            directory: None,
            capacity: Some(1 << 50),
            channels: 1,
            profile: {
                let service = service(startup_ps + startup_ps / 40 * number);
                DeviceProfile { read: service, write: service }
            },
            network: Network { connect_ps: 60_000_000_000_000, per_byte_ps: 1_000_000_000 },
        };
        let servers = Servers::new((0..classes).map(of).collect()).expect("servers");
        assert_eq!(servers.classes().len() as u64, classes);
        planned(&servers, &requests(64, 4, size, Op::Write, |n| n));
    }
}

/// Of 300 files eight requests to each, and one more that makes them all differ.
fn of_300_that_differ() -> Vec<Request> {
    let mut all = requests(300 * 9, 4, 64 * K, Op::Read, |n| mixed(n / 300, 3));
    for (number, request) in (0..).zip(&mut all) {
        request.file = number % 300;
        if number >= 300 * 8 {
            (request.offset, request.length) = (0, 128 * u64::from(1 + number % 300));
        }
    }
    all
}

/// Regression: 256 files have layouts, and took the space of all others, which lie on every server.
#[test]
fn files_without_a_layout_keep_their_room() {
    let workload = seen(&of_300_that_differ());
    assert_eq!((workload.files.len(), workload.other_files.len()), (256, 44));
    // A third of the bytes of all files, as by default, and a little.
    let servers = hybrid(2, 1, 60 << 20);
    let outcome = plan(&servers, &workload, &mut Queues::new(&servers), 1.0).expect("a plan");
    let by_default = Layout::simple(vec![64 * K; 3]);
    let others: u64 = workload.other_files.iter().map(|(_, end)| by_default.bytes(*end)[2]).sum();
    assert!(others > 5 << 20, "{others}");
    for name in Name::ALL {
        let judged = outcome.of(name).expect("a layout");
        let of = |file: &File| judged.layouts.of(file.number).bytes(file.bytes)[2];
        let planned: u64 = workload.files.iter().map(of).sum();
        assert!(planned + others <= 60 << 20, "{}: {planned} and {others}", name.text());
    }
    assert_eq!(outcome.chosen, Name::Ours);
    // The others alone do not fit.
    let small = servers_of(&[(1, 2 << 20), (1, 1 << 20)]);
    let error = plan(&small, &workload, &mut Queues::new(&small), 1.0).expect_err("no room");
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
}

/// Disks and SSDs with so many bytes each.
fn servers_of(kinds: &[(u64, u64); 2]) -> Servers {
    let profiles = [DeviceProfile::hdd_7200(), DeviceProfile::ssd_generic()];
    let of = |((count, bytes), profile): (&(u64, u64), _)| (*count, profile, Some(*bytes));
    servers(&kinds.iter().zip(profiles).map(of).collect::<Vec<_>>())
}

/// Sees to it that no replay has more bytes of files on a server than it holds.
struct Holding<'a> {
    queues: Queues<'a>,
    servers: &'a Servers,
    files: Vec<(u32, u64)>,
}

impl Judge for Holding<'_> {
    fn seconds_noting(&mut self, requests: &[Request], layouts: &Layouts, note: Note<'_>) -> f64 {
        let mut held = vec![0; self.servers.count()];
        for (file, bytes) in &self.files {
            let on = layouts.of(*file).bytes(*bytes);
            held.iter_mut().zip(on).for_each(|(held, bytes)| *held += bytes);
        }
        let room = self.servers.room();
        assert!(held.iter().zip(&room).all(|(held, room)| held <= room), "{held:?} {room:?}");
        self.queues.seconds_noting(requests, layouts, note)
    }
}

/// Regression: of 300 files those without a layout were replayed on SSDs that had no room for them. A plan promised 222 %
/// and gained nothing.
#[test]
fn files_without_a_layout_are_replayed_where_there_is_room() {
    let workload = seen(&of_300_that_differ());
    let sizes = workload.files.iter().map(|file| (file.number, file.bytes));
    let files: Vec<_> = sizes.chain(workload.other_files.iter().copied()).collect();
    assert_eq!(files.len(), 300);
    for ssd_bytes in [2 << 20, 8 << 20, 1 << 30] {
        let servers = hybrid(2, 1, ssd_bytes);
        let queues = Queues::new(&servers);
        let mut judge = Holding { queues, servers: &servers, files: files.clone() };
        let outcome = plan(&servers, &workload, &mut judge, 1.0).expect("a plan");
        within_room(&servers, &workload, &outcome);
    }
}
