//! Replays the requests of a trace on servers, in simulated time.
//!
//! Closed loop: a process issues its next request when the previous one completes, after the time that it computed in
//! between, if that is preserved. Open loop: a request is issued at its recorded time. Each server has its device's
//! queue, first come, first served.

mod cached;
mod issue;
mod link;
mod sides;
mod station;
mod tiered;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use halocline_model::request::{ByteRange, Direction};
use halocline_trace::{Op, Request};
use rustc_hash::FxHashMap;
use serde::Serialize;

pub use cached::{CacheOutcome, MakeAdmission, replay_cached, replay_cached_by};
pub use sides::Sides;
pub use tiered::{TierOutcome, TracedFiles, Uses, replay_tiered};

use crate::FileLayout;
use crate::placement::inode_of;
use crate::servers::ServerSet;
use issue::Issuer;
use station::{Begun, Station};

/// When requests are issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Each process issues its next request when its last one is done.
    ClosedLoop {
        /// Whether the time between the recorded end of a request and the start of the process's next one is preserved,
        /// and that before its first one. Where the trace has no duration, that time is zero.
        think: bool,
    },
    /// At the times in the trace, regardless of the servers.
    OpenLoop,
}

/// How to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Determines the positions of files on the disks ([`crate::placement`]).
    pub seed: u64,
    /// When requests are issued.
    pub pace: Pace,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, pace: Pace::ClosedLoop { think: false } }
    }
}

/// The activity of one server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerOutcome {
    /// Its name.
    pub name: String,
    /// Parts of requests that it served.
    pub requests: u64,
    /// Bytes that it read.
    pub read_bytes: u64,
    /// Bytes that it wrote.
    pub written_bytes: u64,
    /// Time during which its device was busy, in seconds.
    pub busy_seconds: f64,
    /// Bytes that it holds at the end: for each file, everything up to the last byte accessed.
    pub held_bytes: u64,
    /// When a request completed with which the bytes exceeded its capacity, in seconds from the beginning. The replay
    /// continues.
    pub full_at_seconds: Option<f64>,
}

/// The times of the requests of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct OpOutcome {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Mean of their times, in seconds.
    pub mean_seconds: f64,
    /// The longest of their times, in seconds.
    pub longest_seconds: f64,
    /// Their bytes divided by the time of the whole replay, in MB (10^6 bytes) per second.
    pub mb_per_s: f64,
}

/// Requests of a closed loop that were issued later than their process was ready, because the trace has none of it among
/// the next ones that fit in memory.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Late {
    /// How many.
    pub late_requests: u64,
    /// How late the latest of them was, in seconds.
    pub late_seconds: f64,
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// From the first issue to the last completion.
    pub seconds: f64,
    /// Requests.
    pub requests: u64,
    /// Bytes of all requests.
    pub bytes: u64,
    /// All bytes divided by `seconds`, in MB (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Reads.
    pub read: OpOutcome,
    /// Writes.
    pub write: OpOutcome,
    /// Where the replay is no closed loop.
    #[serde(flatten)]
    pub late: Late,
    /// Servers, in the order of the set.
    pub servers: Vec<ServerOutcome>,
}

impl Outcome {
    /// The means of replays of the same requests under the same layout; the longest times of all.
    ///
    /// # Panics
    /// There are none.
    #[must_use]
    pub fn mean(all: &[Self]) -> Self {
        let (first, rest) = all.split_first().expect("a replay");
        let mut mean = first.clone();
        mean.seconds = mean_of(all.iter().map(|it| it.seconds));
        mean.mb_per_s = rate(mean.bytes, mean.seconds);
        mean.read = OpOutcome::mean(all.iter().map(|it| it.read), mean.seconds);
        mean.write = OpOutcome::mean(all.iter().map(|it| it.write), mean.seconds);
        for other in rest {
            let late = &mut mean.late;
            late.late_requests = late.late_requests.max(other.late.late_requests);
            late.late_seconds = late.late_seconds.max(other.late.late_seconds);
        }
        for (number, server) in mean.servers.iter_mut().enumerate() {
            let of = || all.iter().map(|it| &it.servers[number]);
            server.busy_seconds = mean_of(of().map(|it| it.busy_seconds));
            let full_at = || of().filter_map(|it| it.full_at_seconds);
            server.full_at_seconds = server.full_at_seconds.map(|_| mean_of(full_at()));
        }
        mean
    }
}

impl OpOutcome {
    fn mean(all: impl Iterator<Item = Self> + Clone, seconds: f64) -> Self {
        let mut mean = all.clone().next().unwrap_or_default();
        mean.mean_seconds = mean_of(all.clone().map(|it| it.mean_seconds));
        mean.longest_seconds = all.map(|it| it.longest_seconds).fold(0.0, f64::max);
        mean.mb_per_s = rate(mean.bytes, seconds);
        mean
    }
}

/// Of some numbers, of one that number.
fn mean_of(all: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = all.fold((0.0, 0.0), |(sum, count), it| (sum + it, count + 1.0));
    sum / count
}

/// Replays `requests`, which are sorted by start, on `servers`. `layout_of` returns the layout of a file on them; it is
/// called once for each file.
///
/// # Errors
/// A request that is invalid in a trace, decreasing times, or a layout for another number of servers.
pub fn replay<'l>(
    requests: impl Iterator<Item = Request>,
    servers: &ServerSet,
    layout_of: impl FnMut(u32) -> &'l FileLayout,
    options: &Options,
) -> Result<Outcome, String> {
    replay_noting(requests, servers, layout_of, options, &mut |_, _| {})
}

/// The same; `note` is told of each request when it completed, in seconds from the first issue.
///
/// # Errors
/// As [`replay`].
pub fn replay_noting<'l>(
    requests: impl Iterator<Item = Request>,
    servers: &ServerSet,
    mut layout_of: impl FnMut(u32) -> &'l FileLayout,
    options: &Options,
    note: &mut dyn FnMut(&Request, f64),
) -> Result<Outcome, String> {
    let mut issuer = Issuer::new(requests, options.pace)?;
    let mut simulation = Simulation::new(servers, options.seed);
    loop {
        // What leaves a device at the time of an issue came before it.
        let next_ns = issuer.next_ns()?.unwrap_or(u64::MAX);
        let done = if simulation.leaves_until(next_ns) {
            simulation.leave()
        } else if let Some((now_ns, request)) = issuer.next()? {
            let file = simulation.file(request.file, &mut layout_of)?;
            simulation.issue(now_ns, file, issuer.serving(), request)
        } else {
            break;
        };
        if let Some(done) = done {
            simulation.complete(&done);
            issuer.done_by(done.process, &done.request, done.done_ns)?;
            note(&done.request, seconds(done.done_ns - simulation.first_ns.unwrap_or(0)));
        }
    }
    simulation.grow_until(u64::MAX);
    Ok(simulation.outcome(servers, issuer.late()))
}

/// A file of the replay.
#[derive(Debug)]
struct File<'l> {
    layout: &'l FileLayout,
    /// Length up to the last byte accessed by what has completed.
    len: u64,
    inode: u64,
}

/// A request in progress.
#[derive(Debug, Clone, Copy)]
struct Open {
    request: Request,
    process: usize,
    file: usize,
    issued_ns: u64,
    /// When all parts complete of which it is known.
    done_ns: u64,
    /// Parts that are still to leave a device.
    leaving: u32,
}

/// A part of a request that a device has read, ordered by the time of that, and then by that of its issue.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Leaving {
    read_ns: u64,
    number: u64,
    server: usize,
    bytes: u64,
    /// Index of the request.
    open: usize,
}

#[derive(Debug)]
struct Simulation<'l> {
    stations: Vec<Station>,
    files: Vec<File<'l>>,
    by_number: FxHashMap<u32, usize>,
    seed: u64,
    last_file: Option<(u32, usize)>,
    /// Requests with parts that are still to leave a device, at any index.
    open: Vec<Open>,
    free: Vec<usize>,
    leaving: BinaryHeap<Reverse<Leaving>>,
    /// Parts that have left a device, or are to.
    leavings: u64,
    /// Times at which files grow, with the file and its length by then.
    growing: BinaryHeap<Reverse<(u64, usize, u64)>>,
    sums: [Sum; 2],
    first_ns: Option<u64>,
    end_ns: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    requests: u64,
    bytes: u64,
    time_ns: u128,
    longest_ns: u64,
}

impl<'l> Simulation<'l> {
    fn new(servers: &ServerSet, seed: u64) -> Self {
        Self {
            stations: servers.servers().iter().map(Station::new).collect(),
            files: Vec::new(),
            by_number: FxHashMap::default(),
            seed,
            last_file: None,
            open: Vec::new(),
            free: Vec::new(),
            leaving: BinaryHeap::new(),
            leavings: 0,
            growing: BinaryHeap::new(),
            sums: [Sum::default(); 2],
            first_ns: None,
            end_ns: 0,
        }
    }

    /// The index of file `number`, assigned when it is first seen.
    fn file(
        &mut self,
        number: u32,
        layout_of: &mut impl FnMut(u32) -> &'l FileLayout,
    ) -> Result<usize, String> {
        if let Some((_, index)) = self.last_file.filter(|last| last.0 == number) {
            return Ok(index);
        }
        let known = self.by_number.get(&number).copied();
        let index = known.map_or_else(|| self.add_file(number, layout_of(number)), Ok)?;
        self.last_file = Some((number, index));
        Ok(index)
    }

    fn add_file(&mut self, number: u32, layout: &'l FileLayout) -> Result<usize, String> {
        let (wanted, there) = (layout.servers(), self.stations.len());
        if wanted != there {
            return Err(format!(
                "the layout of file {number} is for {wanted} servers, and there are {there}"
            ));
        }
        let inode = inode_of(self.seed, number);
        let index = self.files.len();
        self.files.push(File { layout, len: 0, inode });
        self.by_number.insert(number, index);
        Ok(index)
    }

    /// Issues a request at `now_ns`. Returns it if it is known when it completes, which is when the last of its parts does.
    fn issue(
        &mut self,
        now_ns: u64,
        file: usize,
        process: usize,
        request: Request,
    ) -> Option<Open> {
        self.first_ns.get_or_insert(now_ns);
        self.grow_until(now_ns);
        let File { layout, inode, .. } = self.files[file];
        let range = ByteRange::at(request.offset, request.length);
        let direction = match request.op {
            Op::Read => Direction::Read,
            Op::Write => Direction::Write,
        };
        let index = self.free.last().copied().unwrap_or(self.open.len());
        let mut open =
            Open { request, process, file, issued_ns: now_ns, done_ns: now_ns, leaving: 0 };
        layout.split(range, |server, local| {
            match self.stations[server].begin(now_ns, inode, local, direction) {
                Begun::Done(done_ns) => open.done_ns = open.done_ns.max(done_ns),
                Begun::Leaves(read_ns) => {
                    let (number, bytes) = (self.leavings, local.len());
                    self.leaving.push(Reverse(Leaving {
                        read_ns,
                        number,
                        server,
                        bytes,
                        open: index,
                    }));
                    self.leavings += 1;
                    open.leaving += 1;
                }
            }
        });
        if open.leaving == 0 {
            return Some(open);
        }
        if self.free.pop().is_some() {
            self.open[index] = open;
        } else {
            self.open.push(open);
        }
        None
    }

    /// Whether a device is done with reading a part until `now_ns`.
    fn leaves_until(&self, now_ns: u64) -> bool {
        self.leaving.peek().is_some_and(|Reverse(first)| first.read_ns <= now_ns)
    }

    /// Lets the first part leave its device. Returns the request if it is now known when it completes.
    fn leave(&mut self) -> Option<Open> {
        let Reverse(Leaving { read_ns, server, bytes, open: index, .. }) = self.leaving.pop()?;
        let done_ns = self.stations[server].leave(read_ns, bytes);
        let open = &mut self.open[index];
        open.done_ns = open.done_ns.max(done_ns);
        open.leaving -= 1;
        (open.leaving == 0).then(|| {
            self.free.push(index);
            *open
        })
    }

    /// Notes when a request completes, which may be later than now.
    fn complete(&mut self, done: &Open) {
        let (end, length) = (done.request.end(), done.request.length);
        if end > self.files[done.file].len {
            self.growing.push(Reverse((done.done_ns, done.file, end)));
        }
        let took_ns = done.done_ns - done.issued_ns;
        let sum = &mut self.sums[usize::from(done.request.op == Op::Write)];
        sum.requests += 1;
        sum.bytes = sum.bytes.saturating_add(length);
        sum.time_ns += u128::from(took_ns);
        sum.longest_ns = sum.longest_ns.max(took_ns);
        self.end_ns = self.end_ns.max(done.done_ns);
    }

    /// Lets the files grow by what completes until `now_ns`. Nothing of which the end is not known yet completes before.
    fn grow_until(&mut self, now_ns: u64) {
        while let Some(Reverse((done_ns, index, end))) = self.growing.peek().copied() {
            if done_ns > now_ns {
                break;
            }
            self.growing.pop();
            let (file, stations) = (&mut self.files[index], &mut self.stations);
            if end > file.len {
                file.layout.split(ByteRange::new(file.len, end), |server, local| {
                    stations[server].hold(local, done_ns);
                });
                file.len = end;
            }
        }
    }

    fn outcome(self, servers: &ServerSet, late: Late) -> Outcome {
        let first_ns = self.first_ns.unwrap_or(0);
        let seconds = seconds(self.end_ns - first_ns);
        let [read, write] = self.sums.map(|sum| sum.outcome(seconds));
        let bytes = read.bytes.saturating_add(write.bytes);
        let named = servers.servers().iter().zip(self.stations);
        Outcome {
            seconds,
            requests: read.requests + write.requests,
            bytes,
            mb_per_s: rate(bytes, seconds),
            read,
            write,
            late,
            servers: named.map(|(server, station)| station.outcome(server, first_ns)).collect(),
        }
    }
}

impl Sum {
    #[expect(clippy::cast_precision_loss, reason = "a mean for people")]
    fn outcome(self, total_seconds: f64) -> OpOutcome {
        OpOutcome {
            requests: self.requests,
            bytes: self.bytes,
            mean_seconds: self.time_ns as f64 / 1e9 / self.requests.max(1) as f64,
            longest_seconds: seconds(self.longest_ns),
            mb_per_s: rate(self.bytes, total_seconds),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// MB (10^6 bytes) per second; 0 if no time passed.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests;
