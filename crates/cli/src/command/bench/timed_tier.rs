//! The file tier itself on emulated devices, in simulated time.
//!
//! The engine decides which files are where, and really moves them between two directories in memory: the requests
//! reach it as those of a mount would. Only time is emulated: each request takes the time of the device on which its
//! file is then, and each move takes the time of reading the file on one side and writing it on the other; a piece is
//! read while the one before it is written, as the engine copies. One thread does everything, and the engine's own
//! threads wait for the simulated clock: what they move is noticed before the time advances.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use halocline_api::config::CacheSize;
use halocline_api::control::Controlled;
use halocline_model::emulated::{Access, Mechanism};
use halocline_model::request::{ByteRange, Direction};
use halocline_os::clock::Clock;
use halocline_os::error::Error;
use halocline_sim::placement::inode_of;
use halocline_sim::{FileLayout, ServerSet, Sides, TracedFiles, Uses};
use halocline_tier::{Decorations, FileTier, Handle, TierOptions, TierSet};
use halocline_trace::{Op, Request};
use halocline_vfs::{Caller, Engine, Maker};
use serde::Serialize;

use super::timed_engine::scratch_dir;

/// Bytes that are copied at a time.
const PIECE: u64 = 8 << 20;
/// Stripe on both sides, bytes.
const STRIPE: u64 = 64 << 10;
/// Bytes that are written at a time before the measured time begins.
const PREPARED: usize = 1 << 20;
/// The engine checks the SSD once a second without being told to.
const SETTLES: Duration = Duration::from_secs(3);

/// The result of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// From the first issue to the last completion, seconds.
    pub(crate) foreground_seconds: f64,
    /// The same until all moves have ended, seconds.
    pub(crate) total_seconds: f64,
    /// Bytes of requests that the SSD served.
    pub(crate) ssd_bytes: u64,
    /// Bytes of files that came to the SSD.
    pub(crate) promoted_bytes: u64,
    /// Bytes of files that left it.
    pub(crate) demoted_bytes: u64,
}

/// The servers of `set`: those of the slowest class are the disk, all others the SSD.
struct Devices {
    all: Vec<Mechanism>,
    /// Disk and SSD.
    layouts: [FileLayout; 2],
}

impl Devices {
    fn new(set: &ServerSet) -> Result<Self, String> {
        let sides = Sides::new(set, 0, "tier")?;
        let striped = |these: &[usize]| {
            let mut widths = vec![0; set.len()];
            for server in these {
                widths[*server] = STRIPE;
            }
            FileLayout::uniform(widths)
        };
        Ok(Self {
            all: set.servers().iter().map(|server| server.profile.device()).collect(),
            layouts: [striped(&sides.slow)?, striped(&sides.fast)?],
        })
    }

    fn serve(
        &mut self,
        now_ns: u64,
        file: u32,
        range: ByteRange,
        (on_ssd, direction): (bool, Direction),
    ) -> u64 {
        let (all, mut done_ns) = (&mut self.all, now_ns);
        self.layouts[usize::from(on_ssd)].split(range, |server, local| {
            let (inode, offset, len) = (inode_of(0, file), local.start, local.len());
            let access = Access { inode, offset, len, direction };
            done_ns = done_ns.max(all[server].serve(now_ns, access));
        });
        done_ns
    }

    /// When the copy of a file ends whose reading begins at `now_ns`.
    fn copy(&mut self, now_ns: u64, file: u32, len: u64, to_ssd: bool) -> u64 {
        let (mut ready_ns, mut at, mut read) = (now_ns, 0, None::<ByteRange>);
        while at < len || read.is_some() {
            let begun_ns = ready_ns;
            if let Some(piece) = read.take() {
                let way = (to_ssd, Direction::Write);
                ready_ns = ready_ns.max(self.serve(begun_ns, file, piece, way));
            }
            if at < len {
                let piece = ByteRange::new(at, len.min(at + PIECE));
                let way = (!to_ssd, Direction::Read);
                ready_ns = ready_ns.max(self.serve(begun_ns, file, piece, way));
                (at, read) = (piece.end, Some(piece));
            }
        }
        ready_ns
    }
}

/// A file of the trace.
struct File {
    /// Its bytes, if it exists.
    len: Option<u64>,
    on_ssd: bool,
    /// The time at which its move ends.
    ready_ns: u64,
}

/// A request that a process has not made yet.
#[derive(Clone, Copy)]
struct Next {
    request: Request,
    /// Time since the one before it.
    pause: Duration,
    /// The last of a use of its file, which the process then closes.
    is_last: bool,
}

/// One process: the requests that it has not made yet, and what it has open.
#[derive(Default)]
struct Process {
    requests: VecDeque<Next>,
    handles: HashMap<u32, Handle>,
    /// Its next request began a use, and its file may be in the middle of a move.
    opened: bool,
}

struct Run {
    tier: FileTier,
    ssd: PathBuf,
    devices: Devices,
    files: BTreeMap<u32, File>,
    uses: Uses,
    buf: Vec<u8>,
    moved_ns: u64,
    sums: Outcome,
}

/// Runs `requests` on a tier whose SSD holds `capacity` bytes. Each process makes one request after the other, with the
/// recorded time between them. The simulator's code determines which files are created by their first request and which
/// are on the disk from the start.
pub(crate) fn run(
    requests: &[Request],
    set: &ServerSet,
    capacity: u64,
    policy: &str,
) -> Result<Outcome, Error> {
    let scratch = scratch_dir().map_err(Error::at(Path::new("/tmp"), "make a directory in"))?;
    for side in ["ssd", "hdd"] {
        let dir = scratch.path().join(side);
        fs::create_dir(&dir).map_err(Error::at(&dir, "make"))?;
    }
    let tiers = TierSet::below(scratch.path(), &["ssd", "hdd"])?;
    let options = |bytes| TierOptions {
        limit: CacheSize::Bytes(bytes),
        policy: policy.to_owned(),
        passthrough: false,
        ..TierOptions::default()
    };
    let files = files_of(requests);
    // A separate mount, so that the policy knows nothing of this.
    prepare(&FileTier::open(&tiers, options(u64::MAX >> 1))?, &files)?;
    let clock = Clock::simulated();
    let _working = clock.work().begin();
    let around = Decorations { clock: clock.clone(), ..Decorations::NONE };
    let (tier, _) = FileTier::open_decorated(&tiers, options(capacity), &around)?;
    let devices =
        Devices::new(set).map_err(|why| Error::invalid(why, "describe an SSD beside the disks"))?;
    let mut run = Run {
        tier,
        ssd: scratch.path().join("ssd"),
        devices,
        files,
        uses: Uses::default(),
        buf: Vec::new(),
        moved_ns: 0,
        sums: Outcome {
            foreground_seconds: 0.0,
            total_seconds: 0.0,
            ssd_bytes: 0,
            promoted_bytes: 0,
            demoted_bytes: 0,
        },
    };
    let end_ns = run.all(requests, &clock)?;
    run.tier.close()?;
    let total_ns = end_ns.max(run.moved_ns);
    Ok(Outcome {
        foreground_seconds: seconds(end_ns),
        total_seconds: seconds(total_ns),
        ..run.sums
    })
}

#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// All files of the trace, with their bytes if they exist from the start.
fn files_of(requests: &[Request]) -> BTreeMap<u32, File> {
    let mut seen = TracedFiles::default();
    for request in requests {
        seen.push(request);
    }
    let there: HashMap<u32, u64> = seen.there_before().collect();
    let file = |number| File { len: there.get(&number).copied(), on_ssd: false, ready_ns: 0 };
    requests.iter().map(|request| (request.file, file(request.file))).collect()
}

const fn caller(process: u32) -> Caller {
    Caller { uid: 0, gid: 0, pid: 0x4000_0000 + process }
}

const BY: Maker = Maker { caller: caller(0), umask: 0 };

fn name(file: u32) -> OsString {
    file.to_string().into()
}

/// Creates the files that exist from the start, and moves them to the disk.
fn prepare(tier: &FileTier, files: &BTreeMap<u32, File>) -> Result<(), Error> {
    let zeros = vec![0; PREPARED];
    for (number, file) in files {
        let Some(len) = file.len else { continue };
        let (_, _, handle) =
            tier.create((&tier.root(), &name(*number)), 0o600, libc::O_RDWR, BY)?;
        let mut at = 0;
        while at < len {
            let piece = zeros.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            tier.write(&handle, at, &zeros[..piece], caller(0))?;
            at += piece as u64;
        }
        drop(handle);
        let path = PathBuf::from(name(*number));
        Controlled::evict(tier, &path, false, &mut |_| ControlFlow::Continue(()))?;
    }
    tier.close()
}

impl Run {
    /// When the last request is done, in nanoseconds from the first issue.
    fn all(&mut self, requests: &[Request], clock: &Clock) -> Result<u64, Error> {
        let mut processes = processes(requests);
        let pause = |process: &Process| {
            process.requests.front().map(|next| u64::try_from(next.pause.as_nanos()).unwrap_or(0))
        };
        let due = processes.iter().filter_map(|(number, it)| Some(Reverse((pause(it)?, *number))));
        let mut due: BinaryHeap<_> = due.collect();
        let begun = clock.instant();
        let mut end_ns = 0;
        while let Some(Reverse((now_ns, number))) = due.pop() {
            wait_until(clock, begun, now_ns);
            self.look(now_ns);
            let process = processes.get_mut(&number).expect("it has requests");
            let Some(Next { request, is_last, .. }) = process.requests.front().copied() else {
                continue;
            };
            if let Some(ready_ns) = self.open(now_ns, process, &request)? {
                due.push(Reverse((ready_ns, number)));
                continue;
            }
            let done_ns = self.serve(now_ns, process, &request)?;
            end_ns = end_ns.max(done_ns);
            process.requests.pop_front();
            process.opened = false;
            if is_last {
                // What a process has open cannot move.
                process.handles.remove(&request.file);
            }
            if let Some(pause_ns) = pause(process) {
                due.push(Reverse((done_ns + pause_ns, number)));
            }
        }
        clock.sleep(SETTLES);
        self.look(end_ns);
        Ok(end_ns)
    }

    /// Opens the file of a request that begins a use of it. Returns when its move ends, if it moves.
    fn open(
        &mut self,
        now_ns: u64,
        process: &mut Process,
        request: &Request,
    ) -> Result<Option<u64>, Error> {
        let number = request.file;
        if !process.opened && self.uses.begins(request) {
            let (root, by) = (self.tier.root(), caller(request.process));
            let file = self.files.get_mut(&number).expect("a file of the trace");
            let handle = if file.len.is_none() {
                (file.len, file.on_ssd) = (Some(0), true);
                self.tier.create((&root, &name(number)), 0o600, libc::O_RDWR, BY)?.2
            } else {
                let vnode = self.tier.lookup(&root, &name(number))?.0;
                self.tier.open(&vnode, libc::O_RDWR, by)?
            };
            process.handles.insert(number, handle);
            let ready_ns = self.look(now_ns);
            let file = self.files.get_mut(&number).expect("a file of the trace");
            file.ready_ns = file.ready_ns.max(ready_ns);
        }
        process.opened = true;
        Ok(Some(self.files[&number].ready_ns).filter(|ready_ns| *ready_ns > now_ns))
    }

    /// When a request is done.
    fn serve(&mut self, now_ns: u64, process: &Process, request: &Request) -> Result<u64, Error> {
        let (handle, by) = (&process.handles[&request.file], caller(request.process));
        self.buf.clear();
        self.buf.resize(usize::try_from(request.length).unwrap_or(usize::MAX), 0);
        let direction = match request.op {
            Op::Read => {
                self.tier.read(handle, request.offset, &mut self.buf, by)?;
                Direction::Read
            }
            Op::Write => {
                self.tier.write(handle, request.offset, &self.buf, by)?;
                Direction::Write
            }
        };
        // What the write pushed out, which may be the file itself, moved before it.
        let from_ns = self.look(now_ns);
        let file = self.files.get_mut(&request.file).expect("a file of the trace");
        file.len = file.len.map(|len| len.max(request.end()));
        let on_ssd = file.on_ssd;
        self.sums.ssd_bytes += if on_ssd { request.length } else { 0 };
        let range = ByteRange::at(request.offset, request.length);
        Ok(self.devices.serve(from_ns, request.file, range, (on_ssd, direction)))
    }

    /// Checks where the files are, and lets the time of the moves pass, one file after the other, beginning with those
    /// that left the SSD. Returns when all of them have moved.
    fn look(&mut self, now_ns: u64) -> u64 {
        let mut moved: Vec<(bool, u32)> = Vec::new();
        for (number, file) in self.files.iter().filter(|(_, file)| file.len.is_some()) {
            let there = fs::symlink_metadata(self.ssd.join(name(*number)));
            let on_ssd = there.is_ok_and(|found| found.is_file());
            if on_ssd != file.on_ssd {
                moved.push((on_ssd, *number));
            }
        }
        moved.sort_unstable();
        let mut ready_ns = now_ns;
        for (to_ssd, number) in moved {
            let file = self.files.get_mut(&number).expect("it was just seen");
            file.on_ssd = to_ssd;
            let len = file.len.unwrap_or(0);
            ready_ns = self.devices.copy(ready_ns, number, len, to_ssd);
            self.moved_ns = self.moved_ns.max(ready_ns);
            let sum =
                if to_ssd { &mut self.sums.promoted_bytes } else { &mut self.sums.demoted_bytes };
            *sum += len;
        }
        ready_ns
    }
}

fn wait_until(clock: &Clock, begun: Instant, at_ns: u64) {
    let at = begun + Duration::from_nanos(at_ns);
    if at > clock.instant() {
        clock.sleep_until(at);
    }
}

fn processes(requests: &[Request]) -> BTreeMap<u32, Process> {
    let begun = requests.first().map_or(0, |request| request.start_ns);
    let mut ended = HashMap::new();
    let mut processes = BTreeMap::<u32, Process>::new();
    for request in requests {
        let last = ended.entry(request.process).or_insert(begun);
        let pause = Duration::from_nanos(request.start_ns.saturating_sub(*last));
        *last = request.start_ns + request.duration_ns.unwrap_or(0);
        let next = Next { request: *request, pause, is_last: true };
        processes.entry(request.process).or_default().requests.push_back(next);
    }
    for process in processes.values_mut() {
        mark_last(process.requests.make_contiguous());
    }
    processes
}

/// Finds the last requests of uses in those of a process: after them it has none of the file, or one that begins the next use.
fn mark_last(requests: &mut [Next]) {
    let mut uses = Uses::default();
    let mut before = HashMap::new();
    for at in 0..requests.len() {
        let request = requests[at].request;
        let begins = uses.begins(&request);
        if let Some(before) = before.insert(request.file, at) {
            let before: &mut Next = &mut requests[before];
            before.is_last = begins;
        }
    }
}
