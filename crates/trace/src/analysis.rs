//! Analyses a trace: patterns, sizes, concurrency, phases in time and regions in files (docs/ALGORITHMS.md, section 9).
//! One pass in bounded memory: what exceeds a bound is counted separately and reported.

mod concurrency;
mod mix;
mod pattern;
mod phases;
mod regions;

use std::cmp::Reverse;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::request::{Op, Request};
pub use concurrency::Concurrency;
use concurrency::InFlight;
pub use mix::Mix;
pub use pattern::{Pattern, Transitions};
pub use phases::Phase;
pub use regions::Region;

use pattern::Stream;
use phases::Phases;
use regions::Regions;

/// How many files are analysed individually, unless told otherwise the first of the trace: about 100 MiB.
const FILES_MAX: usize = 1 << 14;
/// How many pairs of process and file are analysed individually.
const STREAMS_MAX: usize = 1 << 18;

/// Number of requests by the power of two below their length.
pub type Sizes = [u64; 64];

/// Number of streams with each pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct StreamCounts {
    /// Each request begins where the previous one ended.
    pub sequential: u64,
    /// With the same gap between requests.
    pub strided: u64,
    /// Runs with one gap, and another gap between runs.
    pub nested_strided: u64,
    /// None of these.
    pub random: u64,
    /// Fewer than three requests: too few for a pattern.
    pub short: u64,
}

impl StreamCounts {
    const fn add(&mut self, pattern: Pattern) {
        match pattern {
            Pattern::Sequential => self.sequential += 1,
            Pattern::Strided => self.strided += 1,
            Pattern::NestedStrided => self.nested_strided += 1,
            Pattern::Random => self.random += 1,
            Pattern::Short => self.short += 1,
        }
    }
}

/// One file.
#[derive(Debug, Clone)]
pub struct FileSummary {
    /// Its number in the trace.
    pub file: u32,
    /// All requests.
    pub mix: Mix,
    /// One past the last byte that was read or written.
    pub end: u64,
    /// Processes that used it.
    pub processes: u64,
    /// The pattern of all its requests together, regardless of the process.
    pub pattern: Pattern,
    /// Patterns of its processes, each separately.
    pub streams: StreamCounts,
    /// Periods with a uniform mix of requests.
    pub phases: Vec<Phase>,
    /// Stretches of the file with a uniform mix of requests.
    pub regions: Vec<Region>,
}

/// A whole trace.
#[derive(Debug, Clone)]
pub struct Summary {
    /// All requests.
    pub mix: Mix,
    /// Reads by size.
    pub read_sizes: Sizes,
    /// Writes by size.
    pub write_sizes: Sizes,
    /// Start of the first request, nanoseconds.
    pub begin_ns: u64,
    /// End of the last request, nanoseconds.
    pub end_ns: u64,
    /// Concurrency of requests.
    pub concurrency: Concurrency,
    /// Patterns of each process in each file.
    pub streams: StreamCounts,
    /// Files, those with the most bytes first.
    pub files: Vec<FileSummary>,
    /// Requests of files beyond the limit, which are in no file's summary.
    pub requests_of_other_files: u64,
    /// Requests of pairs of process and file beyond the limit, which are in no pattern.
    pub requests_of_other_streams: u64,
}

struct FileState {
    mix: Mix,
    end: u64,
    processes: u64,
    whole: Stream,
    streams: StreamCounts,
    phases: Phases,
    regions: Regions,
}

/// Analyses requests, in the order of their start.
#[derive(Default)]
pub struct Analysis {
    mix: Mix,
    read_sizes: Option<Box<[Sizes; 2]>>,
    begin_ns: Option<u64>,
    end_ns: u64,
    in_flight: InFlight,
    files: FxHashMap<u32, FileState>,
    streams: FxHashMap<(u32, u32), Stream>,
    other_files: u64,
    /// Bytes of each of the other files.
    bytes_of_others: FxHashMap<u32, u64>,
    /// The only files that are analysed individually, if they are known beforehand.
    only: Option<FxHashSet<u32>>,
    other_streams: u64,
}

impl std::fmt::Debug for Analysis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Analysis").field("mix", &self.mix).finish_non_exhaustive()
    }
}

impl Analysis {
    /// Analyses these files individually, and not the first ones of the trace.
    pub fn of_files(files: FxHashSet<u32>) -> Self {
        Self { only: Some(files), ..Self::default() }
    }

    /// The files with the most bytes, as many as can be analysed individually, where these were other ones:
    /// [`Analysis::of_files`] analyses them.
    pub fn larger_files(&self) -> Option<FxHashSet<u32>> {
        if self.bytes_of_others.is_empty() {
            return None;
        }
        let known = self.files.iter().map(|(number, file)| (file.mix.bytes(), *number));
        let others = self.bytes_of_others.iter().map(|(number, bytes)| (*bytes, *number));
        let mut all: Vec<_> = known.chain(others).collect();
        all.sort_unstable_by_key(|(bytes, number)| (Reverse(*bytes), *number));
        all.truncate(FILES_MAX);
        let largest: FxHashSet<u32> = all.into_iter().map(|(_, number)| number).collect();
        let are_known = largest.iter().all(|number| self.files.contains_key(number));
        (!are_known).then_some(largest)
    }

    /// Adds a request.
    pub fn push(&mut self, request: &Request) {
        self.mix.add(request);
        let sizes = self.read_sizes.get_or_insert_with(|| Box::new([[0; 64]; 2]));
        sizes[usize::from(request.op == Op::Write)][request.length.ilog2() as usize] += 1;
        self.begin_ns.get_or_insert(request.start_ns);
        let end_ns = request.start_ns.saturating_add(request.duration_ns.unwrap_or(0));
        self.end_ns = self.end_ns.max(end_ns);
        self.in_flight.push(request);
        let has_place = match &self.only {
            Some(only) => only.contains(&request.file),
            None => self.files.len() < FILES_MAX,
        };
        let file = if has_place {
            Some(self.files.entry(request.file).or_insert_with(FileState::new))
        } else {
            self.files.get_mut(&request.file)
        };
        let Some(file) = file else {
            self.other_files += 1;
            let bytes = self.bytes_of_others.entry(request.file).or_default();
            *bytes = bytes.saturating_add(request.length);
            return;
        };
        file.mix.add(request);
        file.end = file.end.max(request.end());
        file.whole.push(request);
        file.regions.push(request);
        let key = (request.process, request.file);
        let full = self.streams.len() >= STREAMS_MAX;
        let continues = match self.streams.get_mut(&key) {
            Some(stream) => stream.push(request),
            None if full => {
                self.other_streams += 1;
                false
            }
            None => {
                file.processes += 1;
                self.streams.entry(key).or_default().push(request)
            }
        };
        file.phases.push(request, continues);
    }

    /// The result.
    pub fn finish(mut self) -> Summary {
        let mut streams = StreamCounts::default();
        for ((_, file), stream) in &self.streams {
            let pattern = stream.pattern();
            streams.add(pattern);
            if let Some(file) = self.files.get_mut(file) {
                file.streams.add(pattern);
            }
        }
        let mut files: Vec<_> =
            self.files.into_iter().map(|(number, state)| state.finish(number)).collect();
        files.sort_by_key(|file| (Reverse(file.mix.bytes()), file.file));
        let [read_sizes, write_sizes] = self.read_sizes.map_or([[0; 64]; 2], |sizes| *sizes);
        Summary {
            mix: self.mix,
            read_sizes,
            write_sizes,
            begin_ns: self.begin_ns.unwrap_or(0),
            end_ns: self.end_ns,
            concurrency: self.in_flight.finish(),
            streams,
            files,
            requests_of_other_files: self.other_files,
            requests_of_other_streams: self.other_streams,
        }
    }
}

impl FileState {
    fn new() -> Self {
        Self {
            mix: Mix::default(),
            end: 0,
            processes: 0,
            whole: Stream::default(),
            streams: StreamCounts::default(),
            phases: Phases::default(),
            regions: Regions::default(),
        }
    }

    fn finish(self, file: u32) -> FileSummary {
        FileSummary {
            file,
            mix: self.mix,
            end: self.end,
            processes: self.processes,
            pattern: self.whole.pattern(),
            streams: self.streams,
            phases: self.phases.finish(),
            regions: self.regions.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that a trace names after 16384 others was none of those with the most bytes, whatever was read of it.
    #[test]
    fn the_files_with_the_most_bytes_are_found_wherever_the_trace_names_them() {
        let request = |file, length| Request {
            start_ns: 0,
            duration_ns: None,
            process: 0,
            file,
            op: Op::Read,
            offset: 0,
            length,
        };
        let few = u32::try_from(FILES_MAX).unwrap();
        let all = |mut analysis: Analysis| {
            (0..few).for_each(|file| analysis.push(&request(file, 4096 + u64::from(file))));
            assert_eq!(analysis.larger_files(), None);
            analysis.push(&request(few, 1 << 20));
            analysis
        };
        let first = all(Analysis::default());
        let larger = first.larger_files().expect("another file is larger");
        assert!(larger.contains(&few) && !larger.contains(&0) && larger.contains(&1));
        assert_eq!(first.finish().requests_of_other_files, 1);
        let mut again = Analysis::of_files(larger);
        (0..few).for_each(|file| again.push(&request(file, 4096 + u64::from(file))));
        again.push(&request(few, 1 << 20));
        assert_eq!(again.larger_files(), None);
        let summary = again.finish();
        assert_eq!((summary.files.len(), summary.files[0].file), (FILES_MAX, few));
        assert_eq!((summary.requests_of_other_files, summary.mix.reads), (1, u64::from(few) + 1));
    }
}
