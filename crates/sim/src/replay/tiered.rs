//! Replays the requests of a trace through a simulated file tier (docs/SIMULATOR.md, The file tier).
//!
//! The servers of the slowest class are the disk, all others the SSD. Which files come and which leave is decided by
//! the same policies of [`halocline_model::tier`] as on a mount.

mod devices;
mod moves;
mod uses;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use halocline_model::request::{ByteRange, Direction};
use halocline_model::tier::{self, FileId, Keep, Outlook};
use halocline_trace::{Op, Request};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::issue::Issuer;
use super::sides::Sides;
use super::{Late, Options, Pace, seconds};
use crate::servers::ServerSet;
use devices::Devices;
use moves::Move;
pub use uses::Uses;

/// Files are demoted when more than the first share of the SSD, in percent, is used, until it is down to the second: a
/// mount's defaults.
const HIGH_PERCENT: u64 = 95;
const LOW_PERCENT: u64 = 90;
/// A mount looks whether it is fuller after each write, and after so many nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

/// The results with one policy.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TierOutcome {
    /// The tier policy.
    pub policy: String,
    /// From the first issue to the last completion, seconds.
    pub foreground_seconds: f64,
    /// The same, until all moves ended, in seconds.
    pub total_seconds: f64,
    /// Requests.
    pub requests: u64,
    /// Their bytes: the sum of the next four.
    pub bytes: u64,
    /// Bytes that reads got from the SSD.
    pub ssd_read_bytes: u64,
    /// Bytes that writes put on the SSD.
    pub ssd_written_bytes: u64,
    /// Bytes that reads got from the disk.
    pub disk_read_bytes: u64,
    /// Bytes that writes put on the disk.
    pub disk_written_bytes: u64,
    /// Uses of files, which replace opens.
    pub uses: u64,
    /// Uses that found the file on the SSD.
    pub uses_on_ssd: u64,
    /// Bytes that came to the SSD.
    pub promoted_bytes: u64,
    /// Bytes that left it.
    pub demoted_bytes: u64,
    /// Largest number of bytes of files on the SSD at any time.
    pub most_used_bytes: u64,
    /// Where the replay is no closed loop.
    #[serde(flatten)]
    pub late: Late,
}

/// What a trace reveals about its files; needed before the replay, because a file moves as a whole.
#[derive(Debug, Clone, Default)]
pub struct TracedFiles {
    by_number: FxHashMap<u32, TracedFile>,
}

#[derive(Debug, Clone, Copy)]
struct TracedFile {
    /// One past the last byte accessed.
    len: u64,
    /// Whether it is assumed to be created by its first request: that is a write, and no read goes beyond what was
    /// written by then, as one of a file that existed before may.
    made: bool,
    /// One past the last byte written so far.
    written: u64,
}

impl TracedFiles {
    /// Notes a request; requests come in order.
    pub fn push(&mut self, request: &Request) {
        let end = request.offset.saturating_add(request.length);
        let new = TracedFile { len: 0, made: true, written: 0 };
        let file = self.by_number.entry(request.file).or_insert(new);
        file.len = file.len.max(end);
        match request.op {
            Op::Write => file.written = file.written.max(end),
            Op::Read => file.made &= end <= file.written,
        }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.by_number.values().map(|file| file.len).fold(0, u64::saturating_add)
    }

    /// The files that existed before the first request, with their sizes.
    pub fn there_before(&self) -> impl Iterator<Item = (u32, u64)> {
        let there = self.by_number.iter().filter(|(_, file)| !file.made);
        there.map(|(number, file)| (*number, file.len))
    }
}

/// Replays `requests` on a tier whose SSD holds `capacity` bytes with the policy called `policy`. `files` must have
/// been given the same requests before.
///
/// # Errors
/// As [`super::replay`]; a policy that does not exist; servers of one class only; more capacity than the SSD's servers
/// have; an open loop, in which no request would wait for a file that is being moved.
pub fn replay_tiered(
    requests: impl Iterator<Item = Request>,
    files: &TracedFiles,
    servers: &ServerSet,
    capacity: u64,
    policy: &str,
    options: &Options,
) -> Result<TierOutcome, String> {
    if options.pace == Pace::OpenLoop {
        return Err(
            "a file tier is simulated with processes that wait: not with an open loop".into()
        );
    }
    let mut tier = Tier::new(servers, capacity, policy, options.seed)?;
    let mut issuer = Issuer::new(requests, options.pace)?;
    while let Some((now_ns, request)) = issuer.next()? {
        tier.move_until(now_ns);
        match tier.serve(now_ns, &request, files) {
            Served::Done(done_ns) => issuer.done(&request, done_ns)?,
            Served::Waits(until_ns) => issuer.again(request, until_ns),
        }
    }
    Ok(tier.outcome(issuer.late()))
}

/// The result of a request.
enum Served {
    /// It completes at that time.
    Done(u64),
    /// A move of its file blocks it until then at least.
    Waits(u64),
}

#[derive(Debug)]
struct File {
    len: u64,
    on_ssd: bool,
    /// The move for which its requests wait.
    moving: Option<Move>,
}

#[derive(Debug)]
struct Tier {
    devices: Devices,
    policy: Box<dyn Keep>,
    /// In the order of their numbers, so that a replay is reproducible.
    files: BTreeMap<u32, File>,
    uses: Uses,
    /// Processes whose request has already waited.
    waited: FxHashSet<u32>,
    demotion: Move,
    /// When the SSD is looked at next.
    look_ns: u64,
    capacity: u64,
    used: u64,
    first_ns: Option<u64>,
    end_ns: u64,
    moved_ns: u64,
    sums: TierOutcome,
}

/// What a policy may know: sizes. Traces announce nothing.
struct Sizes<'a>(&'a BTreeMap<u32, File>);

impl Outlook for Sizes<'_> {
    fn size(&self, file: FileId) -> u64 {
        self.0.get(&number(file)).map_or(0, |file| file.len)
    }

    fn is_known(&self) -> bool {
        false
    }

    fn later(&self, _file: FileId, _horizon: u64) -> u64 {
        0
    }

    fn next(&self, _file: FileId) -> Option<u64> {
        None
    }

    fn by_name(&self, one: FileId, other: FileId) -> Ordering {
        one.cmp(&other)
    }
}

fn number(file: FileId) -> u32 {
    u32::try_from(file).expect("files of a trace have numbers of 32 bits")
}

/// Files that may leave: those on the SSD for which no request waits.
fn cached(files: &BTreeMap<u32, File>) -> Vec<FileId> {
    let here =
        files.iter().filter(|(_, file)| file.on_ssd && file.moving.is_none() && file.len > 0);
    here.map(|(number, _)| FileId::from(*number)).collect()
}

impl Tier {
    fn new(set: &ServerSet, capacity: u64, policy: &str, seed: u64) -> Result<Self, String> {
        let sides = Sides::new(set, capacity, "tier")?;
        let mut keep = tier::by_name(policy).map_err(|error| error.to_string())?;
        keep.holds(capacity);
        Ok(Self {
            devices: Devices::new(set.servers(), &sides, seed),
            policy: keep,
            files: BTreeMap::new(),
            uses: Uses::default(),
            waited: FxHashSet::default(),
            demotion: Move::default(),
            look_ns: 0,
            capacity,
            used: 0,
            first_ns: None,
            end_ns: 0,
            moved_ns: 0,
            sums: TierOutcome { policy: policy.to_owned(), ..Default::default() },
        })
    }

    fn serve(&mut self, now_ns: u64, request: &Request, files: &TracedFiles) -> Served {
        let number = request.file;
        self.first_ns.get_or_insert(now_ns);
        if !self.waited.remove(&request.process) && self.uses.begins(request) {
            self.used_file(now_ns, number, files);
        }
        let range = ByteRange::at(request.offset, request.length);
        if let Some(until_ns) =
            self.waits_until(now_ns, number).or_else(|| self.grow(now_ns, request))
        {
            self.waited.insert(request.process);
            return Served::Waits(until_ns);
        }
        let on_ssd = self.files[&number].on_ssd;
        let direction = match request.op {
            Op::Read => Direction::Read,
            Op::Write => Direction::Write,
        };
        let done_ns = self.devices.transfer(now_ns, number, range, on_ssd, direction);
        let sum = match (on_ssd, direction) {
            (true, Direction::Read) => &mut self.sums.ssd_read_bytes,
            (true, Direction::Write) => &mut self.sums.ssd_written_bytes,
            (false, Direction::Read) => &mut self.sums.disk_read_bytes,
            (false, Direction::Write) => &mut self.sums.disk_written_bytes,
        };
        *sum = sum.saturating_add(request.length);
        self.sums.requests += 1;
        self.sums.bytes = self.sums.bytes.saturating_add(request.length);
        self.end_ns = self.end_ns.max(done_ns);
        Served::Done(done_ns)
    }

    /// The effect of an open on a mount: informs the policy, and promotes the file if the policy wants that.
    fn used_file(&mut self, now_ns: u64, number: u32, files: &TracedFiles) {
        let id = FileId::from(number);
        let known = self.files.get(&number).map(|file| file.len);
        let traced = files.by_number.get(&number).copied().unwrap_or(TracedFile {
            len: 0,
            made: true,
            written: 0,
        });
        let len = known.unwrap_or(if traced.made { 0 } else { traced.len });
        self.policy.referenced(id, len);
        // Orders are not kept here: each is computed when it is needed.
        let _ = self.policy.is_reordered();
        self.sums.uses += 1;
        if known.is_none() {
            let on_ssd = traced.made && self.used < self.capacity;
            self.files.insert(number, File { len, on_ssd, moving: None });
            if on_ssd {
                self.policy.moved(id, true);
            }
        }
        let file = &self.files[&number];
        if file.on_ssd {
            self.sums.uses_on_ssd += 1;
        } else if file.moving.is_none() && 0 < len && len <= self.capacity {
            self.promote(now_ns, number, len);
        }
    }

    fn promote(&mut self, now_ns: u64, number: u32, len: u64) {
        let (free, files) = (self.capacity - self.used, &self.files);
        let here = || cached(files);
        let id = FileId::from(number);
        let Some(leaving) = self.policy.make_room(id, free, &here, &Sizes(files)) else { return };
        let mut coming = Move::begun(now_ns);
        for gone in leaving {
            let gone = self::number(gone);
            let bytes = self.leave(gone);
            coming.add(gone, false, bytes);
        }
        coming.add(number, true, len);
        self.hold(len);
        self.sums.promoted_bytes = self.sums.promoted_bytes.saturating_add(len);
        self.policy.moved(id, true);
        let file = self.files.get_mut(&number).expect("it is used");
        (file.on_ssd, file.moving) = (true, Some(coming));
    }

    /// Serves a file from the disk from now on; returns its bytes, which must be copied there.
    fn leave(&mut self, number: u32) -> u64 {
        let file = self.files.get_mut(&number).expect("it is on the SSD");
        file.on_ssd = false;
        let len = file.len;
        self.used -= len;
        self.sums.demoted_bytes = self.sums.demoted_bytes.saturating_add(len);
        self.policy.moved(FileId::from(number), false);
        len
    }

    fn hold(&mut self, bytes: u64) {
        self.used += bytes;
        self.sums.most_used_bytes = self.sums.most_used_bytes.max(self.used);
        assert!(self.used <= self.capacity, "room was made for it");
    }

    /// Extends a file if the request goes beyond its end. Returns until when that waits: a file that outgrows the SSD
    /// continues on the disk.
    fn grow(&mut self, now_ns: u64, request: &Request) -> Option<u64> {
        let file = self.files.get_mut(&request.file).expect("it is used");
        let end = request.offset.saturating_add(request.length);
        let more = end.saturating_sub(file.len);
        if more == 0 {
            return None;
        }
        if file.on_ssd && more > self.capacity - self.used {
            let bytes = self.leave(request.file);
            if bytes > 0 {
                let mut going = Move::begun(now_ns);
                going.add(request.file, false, bytes);
                self.files.get_mut(&request.file).expect("it is used").moving = Some(going);
                return Some(now_ns);
            }
        }
        let file = self.files.get_mut(&request.file).expect("it is used");
        file.len = end;
        if file.on_ssd {
            self.hold(more);
            self.keep_below_watermark(now_ns);
        }
        None
    }

    /// Begins to demote files if the SSD is fuller than it should be.
    fn keep_below_watermark(&mut self, now_ns: u64) {
        if !self.demotion.is_done() || self.used <= self.capacity / 100 * HIGH_PERCENT {
            return;
        }
        let order = self.policy.leaving(cached(&self.files), &Sizes(&self.files));
        let mut going = Move::begun(now_ns);
        for file in order {
            if self.used <= self.capacity / 100 * LOW_PERCENT {
                break;
            }
            let file = number(file);
            let bytes = self.leave(file);
            going.add(file, false, bytes);
        }
        self.demotion = going;
    }

    /// Performs the due steps of the move for which requests to `file` wait; returns until when they wait, if they do.
    fn waits_until(&mut self, now_ns: u64, file: u32) -> Option<u64> {
        let file = self.files.get_mut(&file)?;
        let moving = file.moving.as_mut()?;
        let stepped_ns = moving.advance(now_ns, &mut self.devices);
        self.moved_ns = self.moved_ns.max(stepped_ns.unwrap_or(0));
        let ready_ns = moving.ready_ns();
        if moving.is_done() && ready_ns <= now_ns {
            file.moving = None;
            return None;
        }
        Some(ready_ns)
    }

    /// Performs background moves until `now_ns`.
    fn move_until(&mut self, now_ns: u64) {
        if now_ns >= self.look_ns {
            self.keep_below_watermark(now_ns);
            self.look_ns = now_ns.saturating_add(LOOK_NS);
        }
        self.demote_until(now_ns);
    }

    /// Performs the steps of the demotion that are due at `now_ns`.
    fn demote_until(&mut self, now_ns: u64) {
        let stepped_ns = self.demotion.advance(now_ns, &mut self.devices);
        self.moved_ns = self.moved_ns.max(stepped_ns.unwrap_or(0));
    }

    fn outcome(mut self, late: Late) -> TierOutcome {
        self.keep_below_watermark(self.end_ns);
        self.demote_until(u64::MAX);
        let first_ns = self.first_ns.unwrap_or(0);
        TierOutcome {
            foreground_seconds: seconds(self.end_ns - first_ns),
            total_seconds: seconds(self.end_ns.max(self.moved_ns) - first_ns),
            late,
            ..self.sums
        }
    }
}

#[cfg(test)]
mod tests;
