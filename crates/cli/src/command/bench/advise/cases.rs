//! The workloads by which advice is judged: of different kinds, with servers and an SSD for each.

use std::fmt::Write as _;
use std::path::Path;

use halocline_os::counted::counted;
use halocline_sim::ServerSet;
use halocline_sim::workload::{Btio, Class, Hpio, Ior, Order, Sweeps, Variant, Workload};
use halocline_trace::{Op, Request};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What a process computes between two requests: anything up to twice as much. Without it, processes that begin
/// together would stay in step for ever, as real ones never do, and which of them comes first would be chance.
const COMPUTE_NS: u64 = 100_000;
/// How long everybody computes between two bursts of writes.
const BETWEEN_BURSTS_NS: u64 = 2_000_000_000;
/// A program that mostly computes takes this many times as long for it.
const MOSTLY: u64 = 1000;

/// A workload with the servers on which it runs.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) what: String,
    /// In the order of their start, with the time that processes compute between them.
    pub(super) requests: Vec<Request>,
    pub(super) disks: u64,
    pub(super) ssds: u64,
    /// Bytes on all SSDs together.
    pub(super) ssd_bytes: u64,
}

impl Case {
    /// `percent` is how much of the touched bytes the SSDs hold.
    fn new(
        name: &'static str,
        what: &str,
        mut requests: Vec<Request>,
        (disks, ssds, percent): (u64, u64, u64),
    ) -> Self {
        computing(&mut requests);
        let bytes = touched(&requests);
        let ssd_bytes = (bytes * percent / 100 / ssds).next_multiple_of(64 * KIB) * ssds;
        let (d, s) = (counted(disks, "disk"), counted(ssds, "SSD"));
        let servers = format!("{d}, {s} for {percent} %");
        let what = format!("{what}; {servers}");
        Self { name, what, requests, disks, ssds, ssd_bytes }
    }

    /// The servers, disks first.
    pub(super) fn servers(&self) -> Result<ServerSet, String> {
        let mut text = String::new();
        for (kind, count, bytes) in
            [("hdd", self.disks, 1 << 40), ("ssd", self.ssds, self.ssd_bytes / self.ssds)]
        {
            for number in 0..count {
                let table = format!("[[server]]\nname = \"{kind}{number}\"\nprofile = \"{kind}\"");
                writeln!(text, "{table}\ncapacity = {bytes}").expect("a string takes all");
            }
        }
        ServerSet::parse(&text, Path::new("the servers of a workload"))
            .map_err(|error| error.to_string())
    }
}

/// All workloads; `part` is 1, or, for a test, the factor by which they are smaller.
pub(super) fn all(part: u64) -> Result<Vec<Case>, String> {
    let mut all = at_random(part);
    all.extend(of_whole_files(part));
    all.extend(in_order(part)?);
    Ok(all)
}

/// Processes that go over a file of `bytes`, divided by `part`.
fn sweeps(
    part: u64,
    (processes, request, bytes, passes): (u32, u64, u64, u64),
    (order, read_percent): (Order, u64),
) -> Vec<Request> {
    let steps = (bytes / part / request / u64::from(processes)).max(4);
    let sweeps = Sweeps { processes, request, steps, passes, order, read_percent, seed: 1 };
    sweeps.requests().collect()
}

/// The workloads with random requests.
fn at_random(part: u64) -> Vec<Case> {
    vec![
        Case::new(
            "random writes",
            "8 processes, 64 KiB, one file of 512 MiB",
            sweeps(part, (8, 64 * KIB, 512 * MIB, 1), (Order::Random, 0)),
            (4, 2, 120),
        ),
        Case::new(
            "random reads",
            "8 processes, 64 KiB, 3 passes over 128 MiB",
            sweeps(part, (8, 64 * KIB, 128 * MIB, 3), (Order::Random, 100)),
            (4, 2, 150),
        ),
        Case::new(
            "few random reads",
            "1 process, 4 KiB, one file of 16 MiB once",
            sweeps(part, (1, 4 * KIB, 16 * MIB, 1), (Order::Random, 100)),
            (1, 1, 20),
        ),
        Case::new(
            "random mix",
            "16 processes, 16 KiB, 70 % read, 2 passes over 64 MiB",
            sweeps(part, (16, 16 * KIB, 64 * MIB, 2), (Order::Random, 70)),
            (4, 2, 50),
        ),
        Case::new(
            "hot spot",
            "8 processes, 16 KiB, 9 of 10 reads in a twentieth of 256 MiB",
            hot_spot(256 * MIB / part, 16_384 / part, 1),
            (2, 1, 10),
        ),
        Case::new(
            "moving hot spot",
            "8 processes, 16 KiB, 9 of 10 reads in a twentieth of 256 MiB, in 8 places in turn",
            hot_spot(256 * MIB / part, 65_536 / part, 8),
            (2, 1, 10),
        ),
    ]
}

/// The workloads that read whole files more than once.
fn of_whole_files(part: u64) -> Vec<Case> {
    let files = |files: u32, passes| files_again(files, 2 * MIB / part.min(4), passes);
    vec![
        Case::new(
            "files in turn",
            "2 processes read 32 files of 2 MiB each, each 8 times, then the next",
            files_in_turn(32 / part.min(2), 2 * MIB / part.min(4), 8),
            (1, 1, 20),
        ),
        Case::new(
            "files that fit",
            "4 processes read 64 files of 2 MiB 6 times",
            files(64, 6),
            (1, 1, 120),
        ),
        Case::new(
            "too many files",
            "4 processes read 128 files of 2 MiB 4 times",
            files(128, 4),
            (1, 1, 40),
        ),
    ]
}

/// All other workloads.
fn in_order(part: u64) -> Result<Vec<Case>, String> {
    let checkpoint = Ior::new(4, 128 * MIB / part, MIB, 1)?.file_per_process();
    let btio = Btio::new(if part > 1 { Class::S } else { Class::W }, 4, Variant::Simple, true)?;
    let hpio = Hpio::new(16, (512 / part).max(4), 64 * KIB, 8 * KIB, Op::Read)?;
    Ok(vec![
        Case::new(
            "streams",
            "4 processes, 1 MiB in order, one file of 1 GiB once",
            sweeps(part, (4, MIB, 1024 * MIB, 1), (Order::Sequential, 100)),
            (4, 1, 50),
        ),
        Case::new(
            "strided reads",
            "16 processes, 64 KiB, 2 passes over 256 MiB",
            sweeps(part, (16, 64 * KIB, 256 * MIB, 2), (Order::Strided, 100)),
            (8, 4, 25),
        ),
        Case::new(
            "checkpoint",
            "4 processes write 128 MiB each, a file each, 1 MiB",
            checkpoint.requests().collect(),
            (4, 1, 120),
        ),
        Case::new(
            "bursts",
            "8 processes write 4 times 64 MiB, 64 KiB, 2 s between",
            bursts(sweeps(part, (8, 64 * KIB, 256 * MIB, 1), (Order::Random, 0))),
            (2, 1, 120),
        ),
        Case::new(
            "bursts and a small SSD",
            "8 processes write 4 times 64 MiB, 64 KiB, 2 s between",
            bursts(sweeps(part, (8, 64 * KIB, 256 * MIB, 1), (Order::Random, 0))),
            (2, 1, 30),
        ),
        Case::new(
            "mostly computing",
            "1 process writes 32 MiB in order, 64 KiB each 0.1 s",
            mostly_computing(sweeps(part, (1, 64 * KIB, 32 * MIB, 1), (Order::Sequential, 0))),
            (1, 1, 50),
        ),
        Case::new(
            "hpio",
            "16 processes, regions of 64 KiB, 8 KiB apart, read",
            hpio.requests().collect(),
            (6, 2, 30),
        ),
        Case::new(
            "btio",
            "simple, 4 processes, written and read",
            btio.requests().collect(),
            (2, 2, 60),
        ),
    ])
}

/// Random reads, most of them in one place: first behind the middle, then in further `places` in turn.
fn hot_spot(bytes: u64, count: u64, places: u64) -> Vec<Request> {
    const REQUEST: u64 = 16 * KIB;
    let (all, hot) = (bytes / REQUEST, (bytes / 20 / REQUEST).max(1));
    let request = |n: u64| {
        let die = mixed(n << 1);
        let begin = (all / 2 + n * places / count * (all / 8)) % all;
        let place =
            if die.is_multiple_of(10) { mixed(die) % all } else { begin + mixed(die) % hot };
        let (start_ns, process) = (n / 8 * 1000, u32::try_from(n % 8).expect("small"));
        let (offset, length) = (place * REQUEST, REQUEST);
        Request { start_ns, duration_ns: None, process, file: 0, op: Op::Read, offset, length }
    };
    (0..count).map(request).collect()
}

/// 4 processes that read the same files one after the other, each in its own order and each file from beginning to end.
fn files_again(files: u32, bytes: u64, passes: u32) -> Vec<Request> {
    const REQUEST: u64 = 256 * KIB;
    let mut requests = Vec::new();
    for process in 0..4_u32 {
        let mut step = 0;
        for turn in 0..passes * files {
            // A stride without common divisors visits all of them.
            let file = (turn * (2 * process + 1) + process * files / 4) % files;
            for offset in (0..bytes).step_by(usize::try_from(REQUEST).expect("small")) {
                let length = REQUEST.min(bytes - offset);
                let start_ns = step * 1000;
                let op = Op::Read;
                step += 1;
                requests.push(Request {
                    start_ns,
                    duration_ns: None,
                    process,
                    file,
                    op,
                    offset,
                    length,
                });
            }
        }
    }
    requests.sort_by_key(|request| (request.start_ns, request.process));
    requests
}

/// 2 processes, each of which reads its own files one after the other: each file several times in a row, from beginning
/// to end.
fn files_in_turn(files: u64, bytes: u64, times: u64) -> Vec<Request> {
    const REQUEST: u64 = 256 * KIB;
    let (of_file, op) = (bytes / REQUEST, Op::Read);
    let request = |(step, process): (u64, u64)| {
        let file = u32::try_from(process * files + step / of_file / times).expect("a few");
        let (start_ns, offset) = (step * 1000, step % of_file * REQUEST);
        let process = u32::try_from(process).expect("2");
        Request { start_ns, duration_ns: None, process, file, op, offset, length: REQUEST }
    };
    let steps = 0..files * times * of_file;
    steps.flat_map(|step| [(step, 0), (step, 1)]).map(request).collect()
}

/// The same with much longer pauses.
fn mostly_computing(mut requests: Vec<Request>) -> Vec<Request> {
    for request in &mut requests {
        request.start_ns *= MOSTLY;
    }
    requests
}

/// The same in four bursts.
fn bursts(mut requests: Vec<Request>) -> Vec<Request> {
    let steps = requests.last().map_or(0, |request| request.start_ns / 1000) + 1;
    for request in &mut requests {
        let burst = request.start_ns / 1000 * 4 / steps;
        // Further steps in which no process has a request.
        request.start_ns += burst * (BETWEEN_BURSTS_NS / COMPUTE_NS) * 1000;
    }
    requests
}

/// Steps of a microsecond become those of the time that processes compute.
fn computing(requests: &mut [Request]) {
    for (number, request) in (0..).zip(requests.iter_mut()) {
        request.start_ns = request.start_ns / 1000 * COMPUTE_NS + mixed(number) % COMPUTE_NS;
        request.duration_ns = Some(0);
    }
    requests.sort_by_key(|request| request.start_ns);
}

/// Bytes of all files up to the last one that is touched.
fn touched(requests: &[Request]) -> u64 {
    let mut ends = std::collections::BTreeMap::<u32, u64>::new();
    for request in requests {
        let end = ends.entry(request.file).or_default();
        *end = (*end).max(request.end());
    }
    ends.values().sum()
}

/// A number that looks random (the finalizer of `SplitMix64`).
const fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
