//! The requests of a trace on servers, in simulated time.
//!
//! Closed loop: a process issues its next request when the one before is done, after the time that it computed in
//! between, if that shall be kept. Open loop: a request is issued at its recorded time. Each server has the queue of
//! its device, first come, first served.

mod cached;
mod issue;
mod sides;
mod station;
mod tiered;

use halocline_model::request::{ByteRange, Direction};
use halocline_trace::{Op, Request};
use rustc_hash::FxHashMap;
use serde::Serialize;

pub use cached::{CacheOutcome, replay_cached};
pub use sides::Sides;
pub use tiered::{FilesSeen, TierOutcome, Uses, replay_tiered};

use crate::FileLayout;
use crate::servers::ServerSet;
use issue::Issuer;
use station::Station;

/// When requests are issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Each process issues its next request when its last one is done.
    ClosedLoop {
        /// Whether the time between the recorded end of a request and the start of the process's next one passes
        /// first. Where the trace has no durations, nothing passes.
        think: bool,
    },
    /// At the times of the trace, whatever the servers do.
    OpenLoop,
}

/// How to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Where files lie on the disks.
    pub seed: u64,
    /// When requests are issued.
    pub pace: Pace,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, pace: Pace::ClosedLoop { think: false } }
    }
}

/// What one server did.
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
    /// Time in which its device had something to do, seconds.
    pub busy_seconds: f64,
    /// Bytes that it holds at the end: of each file, all up to the last one that was touched.
    pub held_bytes: u64,
    /// When it held more than it can, seconds from the beginning. The replay goes on.
    pub full_at_seconds: Option<f64>,
}

/// What the requests of one direction saw.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct OpOutcome {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The mean of their times, seconds.
    pub mean_seconds: f64,
    /// The longest of their times, seconds.
    pub longest_seconds: f64,
    /// Their bytes over the whole replay's time, MB (10^6 bytes) a second.
    pub mb_per_s: f64,
}

/// How the replay ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// From the first issue to the last completion.
    pub seconds: f64,
    /// Requests.
    pub requests: u64,
    /// Bytes of all requests.
    pub bytes: u64,
    /// All bytes over `seconds`, MB (10^6 bytes) a second.
    pub mb_per_s: f64,
    /// Reads.
    pub read: OpOutcome,
    /// Writes.
    pub write: OpOutcome,
    /// Servers, in the order of the set.
    pub servers: Vec<ServerOutcome>,
}

/// Replays `requests`, which are in the order of their start, on `servers`. `layout_of` says how a file lies on
/// them; it is asked once for each file.
///
/// # Errors
/// A request that a trace must not hold, times that run backwards, or a layout of another number of servers.
pub fn replay<'l>(
    requests: impl Iterator<Item = Request>,
    servers: &ServerSet,
    mut layout_of: impl FnMut(u32) -> &'l FileLayout,
    options: &Options,
) -> Result<Outcome, String> {
    let mut issuer = Issuer::new(requests, options.pace)?;
    let mut simulation = Simulation::new(servers, options.seed);
    while let Some((now_ns, request)) = issuer.next()? {
        let file = simulation.file(request.file, &mut layout_of)?;
        let done_ns = simulation.serve(now_ns, file, &request);
        issuer.done(&request, done_ns)?;
    }
    Ok(simulation.outcome(servers))
}

/// Where file `number` lies on a disk.
fn inode_of(seed: u64, number: u32) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(number)
}

/// A file of the replay.
#[derive(Debug)]
struct File<'l> {
    layout: &'l FileLayout,
    /// Bytes from its beginning to the last that was touched.
    len: u64,
    inode: u64,
}

#[derive(Debug)]
struct Simulation<'l> {
    stations: Vec<Station>,
    files: Vec<File<'l>>,
    by_number: FxHashMap<u32, usize>,
    seed: u64,
    last_file: Option<(u32, usize)>,
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
            sums: [Sum::default(); 2],
            first_ns: None,
            end_ns: 0,
        }
    }

    /// The place of file `number` among the files, which it gets when it is first seen.
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

    /// When the request, issued at `now_ns`, is done: with the last of its parts.
    fn serve(&mut self, now_ns: u64, file: usize, request: &Request) -> u64 {
        let file = &mut self.files[file];
        let range = ByteRange::at(request.offset, request.length);
        let direction = match request.op {
            Op::Read => Direction::Read,
            Op::Write => Direction::Write,
        };
        let mut done_ns = now_ns;
        let (stations, inode) = (&mut self.stations, file.inode);
        file.layout.split(range, |server, local| {
            done_ns = done_ns.max(stations[server].serve(now_ns, inode, local, direction));
        });
        if range.end > file.len {
            file.layout.split(ByteRange::new(file.len, range.end), |server, local| {
                stations[server].hold(local.len(), done_ns);
            });
            file.len = range.end;
        }
        let sum = &mut self.sums[usize::from(request.op == Op::Write)];
        sum.requests += 1;
        sum.bytes = sum.bytes.saturating_add(request.length);
        sum.time_ns += u128::from(done_ns - now_ns);
        sum.longest_ns = sum.longest_ns.max(done_ns - now_ns);
        self.first_ns.get_or_insert(now_ns);
        self.end_ns = self.end_ns.max(done_ns);
        done_ns
    }

    fn outcome(self, servers: &ServerSet) -> Outcome {
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

/// MB (10^6 bytes) a second; 0 where no time passed.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests;
