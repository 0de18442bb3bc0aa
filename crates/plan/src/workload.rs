//! A trace of any length in bounded memory: classes of similar requests with weights for the cost model, and a sample
//! that keeps the order of the requests for replays.

mod alike;
mod chains;

use std::sync::Arc;

use rustc_hash::FxHashMap;

use halocline_trace::analysis::{Analysis, Summary};
use halocline_trace::{Op, Request};

pub use alike::KINDS_MAX;
pub(crate) use chains::{Chained, Kind};
use chains::{Chains, quarter};

/// Number of parts in which a file is analysed.
const BINS: u64 = 64;
/// The smallest part, in bytes.
const BIN_MIN: u64 = 64 << 10;
/// Limit of the classes; beyond it, requests join the class nearest in size.
const CLASSES_MAX: usize = 1 << 16;
/// How many requests of a class are kept.
const KEPT: usize = 4;
/// Consecutive requests that the sample keeps together, so that it preserves streams and concurrency.
pub const WINDOW: usize = 512;
/// Limit of the windows of a sample.
const WINDOWS_MAX: usize = 64;
/// Limit of the regions of a file.
const REGIONS_MAX: usize = 8;
/// Limit of the pairs of process and file whose last request is remembered.
const STREAMS_MAX: usize = 1 << 18;

/// In place of the number of a file: all files that do not get their own layout.
pub(crate) const OTHERS: u32 = u32::MAX;

/// A request that represents similar ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighted {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Direction.
    pub op: Op,
    /// Whether it begins where the previous request in this file ended.
    pub sequential: bool,
    /// Number of requests that it represents.
    pub weight: f64,
}

/// A stretch of a file that is planned separately.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    /// First byte.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
    /// The length that carries most of its bytes.
    pub size: u64,
    /// Bytes that its requests read and write.
    pub traffic: f64,
    /// Its requests.
    pub requests: Vec<Weighted>,
}

impl Region {
    /// The share of its requests that write.
    pub(crate) fn writes(&self) -> f64 {
        let all: f64 = self.requests.iter().map(|r| r.weight).sum();
        let some = self.requests.iter().filter(|r| r.op == Op::Write);
        some.map(|r| r.weight).sum::<f64>() / all.max(f64::MIN_POSITIVE)
    }
}

/// A file.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    /// Its number in the trace.
    pub number: u32,
    /// One past its last byte.
    pub bytes: u64,
    /// Processes that use it.
    pub processes: u64,
    /// Its regions, without gaps; files that are alike share them.
    pub regions: Arc<[Region]>,
}

impl File {
    /// All of its requests.
    pub fn requests(&self) -> impl Iterator<Item = &Weighted> {
        self.regions.iter().flat_map(|region| &region.requests)
    }

    /// The length that carries most of its bytes.
    pub fn size(&self) -> u64 {
        usual_length(self.requests())
    }

    /// The share of its requests for which `test` holds.
    pub fn share(&self, test: impl Fn(&Weighted) -> bool) -> f64 {
        let all: f64 = self.requests().map(|request| request.weight).sum();
        let some: f64 = self.requests().filter(|r| test(r)).map(|request| request.weight).sum();
        if all > 0.0 { some / all } else { 0.0 }
    }
}

/// A trace as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Requests of the trace.
    pub requests: u64,
    /// Requests of files that do not get their own layout.
    pub requests_of_other_files: u64,
    /// The numbers of these files, ascending, and one past the last byte of each.
    pub other_files: Vec<(u32, u64)>,
    /// How many requests each process has, by file.
    pub(crate) chains: Vec<Chained>,
    /// Bytes read and written.
    pub bytes: u64,
    /// Files that get a layout, those with the most bytes first.
    pub files: Vec<File>,
    /// Windows of consecutive requests, evenly distributed over the trace.
    pub sample: Vec<Vec<Request>>,
    /// Whether each of these requests begins where the previous one in its file ended, as with [`Weighted`].
    pub(crate) sequential: Vec<Vec<bool>>,
    /// Processes on one node, as far as known: c of the cost model.
    pub processes_per_node: u64,
}

impl Workload {
    /// Of requests in memory, for a few servers. `processes_per_node` is at least 1.
    pub fn of(requests: &[Request], processes_per_node: u64) -> Self {
        let mut analysis = Analysis::default();
        for request in requests {
            analysis.push(request);
        }
        let mut aggregator = Aggregator::new(&analysis.finish(), 1);
        for request in requests {
            aggregator.push(request);
        }
        aggregator.finish(processes_per_node)
    }

    /// Requests of the sample.
    pub fn sampled(&self) -> usize {
        self.sample.iter().map(Vec::len).sum()
    }

    /// How many requests each process has to a file, or to [`OTHERS`].
    pub(crate) fn chains_of(&self, file: u32) -> impl Iterator<Item = &Chained> {
        let from = self.chains.partition_point(|chained| chained.file < file);
        self.chains[from..].iter().take_while(move |chained| chained.file == file)
    }

    /// The factor that converts a time of the sample into one of the trace.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn scale(&self) -> f64 {
        self.requests as f64 / self.sampled().max(1) as f64
    }
}

fn usual_length<'a>(requests: impl Iterator<Item = &'a Weighted>) -> u64 {
    let mut lengths: FxHashMap<u64, f64> = FxHashMap::default();
    for request in requests {
        #[expect(clippy::cast_precision_loss, reason = "compared only")]
        let bytes = request.weight * request.length as f64;
        *lengths.entry(request.length).or_default() += bytes;
    }
    let most = lengths.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    most.map_or(0, |(length, _)| length)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    file: u32,
    bin: u8,
    op: Op,
    /// Quarter of an octave.
    size: u16,
    alignment: u8,
    sequential: bool,
}

/// Evenly spaced elements of a sequence of unknown length.
#[derive(Debug, Clone, Copy)]
struct Class {
    count: u64,
    stride: u64,
    kept: [(u64, u64); KEPT],
    len: usize,
}

impl Class {
    fn push(&mut self, request: &Request) {
        if self.count.is_multiple_of(self.stride) {
            if self.len == KEPT {
                for index in 0..KEPT / 2 {
                    self.kept[index] = self.kept[2 * index];
                }
                self.len = KEPT / 2;
                self.stride *= 2;
            }
            if self.count.is_multiple_of(self.stride) {
                self.kept[self.len] = (request.offset, request.length);
                self.len += 1;
            }
        }
        debug_assert_eq!(self.len as u64, (self.count + 1).div_ceil(self.stride), "evenly spaced");
        self.count += 1;
    }
}

/// Analyses a trace, request by request, after it was summarised once.
#[derive(Debug)]
pub struct Aggregator {
    files: FxHashMap<u32, FileStats>,
    /// The files that get layouts, and which of them stands for each.
    order: Vec<(u32, u32)>,
    classes: FxHashMap<Key, Class>,
    streams: FxHashMap<(u32, u32), u64>,
    sample: Vec<(Vec<Request>, Vec<bool>)>,
    stride: u64,
    requests: u64,
    others: u64,
    chains: Chains,
    /// One past the last byte of each file that is not in `files`, and the end of its last request; the trace has a name for
    /// each, which takes more.
    other_files: FxHashMap<u32, (u64, u64)>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct FileStats {
    bytes: u64,
    bin: u64,
    processes: u64,
    last_end: u64,
    /// Whether another file stands for this one, whose requests are in classes.
    is_like_another: bool,
}

impl Aggregator {
    /// For a trace with this summary, and so many servers.
    pub fn new(summary: &Summary, servers: usize) -> Self {
        let chosen = alike::with_layouts(summary, servers);
        let known = chosen.iter().map(|(file, first)| {
            let bin = (file.end.div_ceil(BINS)).max(BIN_MIN).next_multiple_of(BIN_MIN);
            let (processes, last_end) = (file.processes.max(1), u64::MAX);
            let is_like_another = *first != file.file;
            let bytes = file.end;
            (file.file, FileStats { bytes, bin, processes, last_end, is_like_another })
        });
        Self {
            files: known.collect(),
            order: chosen.iter().map(|(file, first)| (file.file, *first)).collect(),
            classes: FxHashMap::default(),
            streams: FxHashMap::default(),
            sample: Vec::new(),
            stride: 1,
            requests: 0,
            others: 0,
            chains: Chains::default(),
            other_files: FxHashMap::default(),
            bytes: 0,
        }
    }

    /// Adds a request.
    pub fn push(&mut self, request: &Request) {
        let sequential = self.classify(request);
        self.keep(request, sequential);
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(request.length);
    }

    /// Adds a request to its class; answers whether it continues a stream.
    fn classify(&mut self, request: &Request) -> bool {
        let Some(file) = self.files.get_mut(&request.file) else {
            self.others += 1;
            let (end, last_end) = self.other_files.entry(request.file).or_insert((0, u64::MAX));
            *end = request.end().max(*end);
            let sequential = *last_end == request.offset;
            *last_end = request.end();
            self.chains.push(OTHERS, request, sequential);
            return sequential;
        };
        let alone = file.processes == 1;
        let mut sequential = file.last_end == request.offset;
        file.last_end = request.end();
        let bin = u8::try_from(request.offset / file.bin).unwrap_or(u8::MAX);
        if !alone && self.streams.len() < STREAMS_MAX {
            let last = self.streams.insert((request.process, request.file), request.end());
            // One stream among many is a stream for the servers only if few others interleave.
            sequential |= last == Some(request.offset) && file.processes <= 2;
        }
        self.chains.push(request.file, request, sequential);
        if file.is_like_another {
            return sequential;
        }
        let mut key = Key {
            file: request.file,
            bin,
            op: request.op,
            size: quarter(request.length),
            alignment: u8::try_from(request.offset.trailing_zeros().clamp(9, 22)).unwrap_or(22),
            sequential,
        };
        if self.classes.len() >= CLASSES_MAX && !self.classes.contains_key(&key) {
            (key.size, key.alignment) = (key.size & !3, 0);
        }
        let new = Class { count: 0, stride: 1, kept: [(0, 0); KEPT], len: 0 };
        self.classes.entry(key).or_insert(new).push(request);
        sequential
    }

    fn keep(&mut self, request: &Request, sequential: bool) {
        let window = self.requests / WINDOW as u64;
        if !window.is_multiple_of(self.stride) {
            return;
        }
        if self.requests.is_multiple_of(WINDOW as u64) {
            if self.sample.len() == WINDOWS_MAX {
                let mut index = 0;
                self.sample.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride *= 2;
                if !window.is_multiple_of(self.stride) {
                    return;
                }
            }
            self.sample.push((Vec::with_capacity(WINDOW), Vec::with_capacity(WINDOW)));
        }
        if let Some((window, are_sequential)) = self.sample.last_mut()
            && window.len() < WINDOW
        {
            window.push(*request);
            are_sequential.push(sequential);
        }
    }

    /// The result. `processes_per_node` is at least 1.
    pub fn finish(self, processes_per_node: u64) -> Workload {
        let mut by_file: FxHashMap<u32, Vec<(Key, Class)>> = FxHashMap::default();
        let mut classes: Vec<_> = self.classes.into_iter().collect();
        classes.sort_unstable_by_key(|(key, _)| *key);
        for (key, class) in classes {
            by_file.entry(key.file).or_default().push((key, class));
        }
        let mut regions_of: FxHashMap<u32, Arc<[Region]>> = FxHashMap::default();
        let files = self.order.iter().filter_map(|(number, first)| {
            let FileStats { bytes, processes, .. } = self.files[number];
            if let Some(classes) = by_file.remove(number) {
                regions_of.insert(*number, regions(&self.files[number], &classes).into());
            }
            let regions = regions_of.get(first)?.clone();
            Some(File { number: *number, bytes, processes, regions })
        });
        let (sample, sequential) = self.sample.into_iter().unzip();
        let ends = self.other_files.into_iter().map(|(number, (end, _))| (number, end));
        let mut other_files: Vec<_> = ends.collect();
        other_files.sort_unstable();
        Workload {
            requests: self.requests,
            requests_of_other_files: self.others,
            other_files,
            chains: self.chains.finish(),
            bytes: self.bytes,
            files: files.collect(),
            sample,
            sequential,
            processes_per_node: processes_per_node.max(1),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "weights")]
fn weighted(key: &Key, class: &Class) -> impl Iterator<Item = Weighted> + use<> {
    let weight = class.count as f64 / class.len.max(1) as f64;
    let (op, sequential) = (key.op, key.sequential);
    let kept = class.kept.into_iter().take(class.len);
    kept.map(move |(offset, length)| Weighted { offset, length, op, sequential, weight })
}

/// Merges parts of the file of the same kind.
fn regions(file: &FileStats, classes: &[(Key, Class)]) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    let mut bins: Vec<Region> = Vec::new();
    for chunk in classes.chunk_by(|a, b| a.0.bin == b.0.bin) {
        let begin = u64::from(chunk[0].0.bin) * file.bin;
        let requests: Vec<_> = chunk.iter().flat_map(|(key, class)| weighted(key, class)).collect();
        bins.push(region(begin, begin + file.bin, requests));
    }
    for bin in bins {
        match regions.last_mut() {
            Some(last) if alike(last, &bin) => join(last, bin),
            _ => regions.push(bin),
        }
    }
    while regions.len() > REGIONS_MAX {
        let distance = |at: usize| {
            let (a, b) = (&regions[at], &regions[at + 1]);
            size_ratio(a, b) * heat_ratio(a, b)
        };
        let at = (0..regions.len() - 1).min_by(|a, b| distance(*a).total_cmp(&distance(*b)));
        let at = at.expect("there are two");
        let next = regions.remove(at + 1);
        join(&mut regions[at], next);
    }
    // Without gaps, from the beginning to the end of the file.
    for index in 0..regions.len() {
        let begin = if index == 0 { 0 } else { regions[index - 1].end };
        let next = regions.get(index + 1).map(|next| next.begin);
        regions[index].begin = begin;
        regions[index].end = next.unwrap_or(file.bytes).max(begin + 1);
    }
    debug_assert!(regions.windows(2).all(|pair| pair[0].end == pair[1].begin), "no gaps");
    assert!(regions.len() <= REGIONS_MAX);
    regions
}

fn region(begin: u64, end: u64, requests: Vec<Weighted>) -> Region {
    #[expect(clippy::cast_precision_loss, reason = "a sum of bytes")]
    let traffic = requests.iter().map(|r| r.weight * r.length as f64).sum();
    Region { begin, end, size: usual_length(requests.iter()), traffic, requests }
}

fn join(last: &mut Region, next: Region) {
    last.requests.extend(next.requests);
    *last = region(last.begin, next.end, std::mem::take(&mut last.requests));
}

#[expect(clippy::cast_precision_loss, reason = "compared only")]
fn size_ratio(a: &Region, b: &Region) -> f64 {
    a.size.max(b.size) as f64 / a.size.min(b.size).max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "compared only")]
fn heat_ratio(a: &Region, b: &Region) -> f64 {
    let heat = |region: &Region| region.traffic / (region.end - region.begin).max(1) as f64;
    let (a, b) = (heat(a), heat(b));
    if a.min(b) > 0.0 { a.max(b) / a.min(b) } else { f64::MAX }
}

/// Whether both need the same stripes: common lengths and traffic per byte within a factor of two, and not reads in one
/// and writes in the other.
fn alike(a: &Region, b: &Region) -> bool {
    let as_hot = heat_ratio(a, b) < 2.0 || differ_by_a_request(a, b);
    size_ratio(a, b) < 2.0 && as_hot && (a.writes() - b.writes()).abs() <= 0.5
}

/// Whether one request more or less that begins in `b`, in each pass over the file, explains the difference of its
/// traffic from that of `a`.
#[expect(clippy::cast_precision_loss, reason = "compared only")]
fn differ_by_a_request(a: &Region, b: &Region) -> bool {
    let heat = a.traffic / (a.end - a.begin).max(1) as f64;
    let expected = heat * (b.end - b.begin) as f64;
    (expected - b.traffic).abs() <= 1.5 * a.size.max(b.size) as f64 * heat.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    fn request(at: u64, process: u32, offset: u64, length: u64) -> Request {
        let (start_ns, duration_ns, file, op) = (at, None, 0, Op::Write);
        Request { start_ns, duration_ns, process, file, op, offset, length }
    }

    #[test]
    fn weights_and_sample_stand_for_all_requests() {
        let requests: Vec<_> =
            (0..100_000).map(|n| request(n, (n % 16) as u32, n * 8192, 8192)).collect();
        let seen = Workload::of(&requests, 1);
        let weight: f64 = seen.files[0].requests().map(|request| request.weight).sum();
        assert!((weight - 100_000.0).abs() < 1e-3, "{weight}");
        assert!((32..=64).contains(&seen.sample.len()), "{}", seen.sample.len());
        assert!(seen.sample.iter().rev().skip(1).all(|window| window.len() == WINDOW));
        let last = seen.sample.last().and_then(|window| window.first()).expect("a window");
        assert!(last.start_ns > 90_000, "{}", last.start_ns);
        assert_eq!((seen.files[0].size(), seen.files[0].processes), (8192, 16));
        assert_eq!(seen.files[0].regions.len(), 1);
    }

    #[test]
    fn parts_of_other_sizes_or_heat_are_regions_without_gaps() {
        // 16 MiB in requests of 8 KiB, the first quarter four times; then 16 MiB in requests of 1 MiB.
        let small = (0..2048).map(|n| (n * 8192, 8192));
        let hot = (0..512 * 3).map(|n| (n % 512 * 8192, 8192));
        let large = (16..32).map(|n| (n << 20, 1 << 20));
        let all = small.chain(hot).chain(large).enumerate();
        let requests: Vec<_> = all.map(|(at, (o, l))| request(at as u64, 0, o, l)).collect();
        let regions = &Workload::of(&requests, 1).files[0].regions;
        let found: Vec<_> = regions.iter().map(|r| (r.begin >> 20, r.end >> 20, r.size)).collect();
        assert_eq!(found, [(0, 4, 8192), (4, 16, 8192), (16, 32, 1 << 20)]);
    }
}
