//! The trace that is planned for, read twice: once to sum it up, once to sort its requests into classes. Where it has so many
//! files that the first pass could not look at each, another pass looks at the largest.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};
use std::path::Path;

use halocline_plan::workload::{Aggregator, Workload};
use halocline_trace::analysis::Analysis;
use halocline_trace::{Completeness, Reader, Request, Source};
use xxhash_rust::xxh3::Xxh3;

use super::io_time::IoTime;
use super::picture::Picture;
use crate::command::traced::Content;
use crate::failure::Failure;
use crate::reading::{self, Reading};
use crate::text;

/// With fewer requests the four parts whose gains are compared have a handful each, and their spread says little.
const FEW_REQUESTS: u64 = 64;

/// A trace as the planner sees it.
#[derive(Debug)]
pub(crate) struct TraceSummary {
    /// Its requests in classes, and a sample.
    pub(crate) workload: Workload,
    /// The sum of its bytes.
    pub(crate) digest: String,
    /// What it had in it, by which later passes know it again.
    pub(crate) content: Content,
    /// How much of what happened it holds.
    pub(crate) completeness: Completeness,
    /// When its requests were under way.
    pub(crate) io_time: IoTime,
    /// What a report shows of it; only [`summarize_for_report`] sees that.
    pub(crate) picture: Option<Picture>,
    names: Vec<Vec<u8>>,
}

impl TraceSummary {
    /// Whether it has so few requests that hardly anything can be said of others like them.
    pub(crate) const fn has_few_requests(&self) -> bool {
        self.workload.requests < FEW_REQUESTS
    }

    /// How many files the trace has.
    pub(crate) const fn files(&self) -> usize {
        self.workload.files.len() + self.workload.other_files.len()
    }

    /// Name of a file of the trace.
    pub(crate) fn name(&self, number: u32) -> &[u8] {
        self.names.get(number as usize).map_or(b"", Vec::as_slice)
    }
}

/// Reads `path`, to plan for so many servers.
pub(crate) fn summarize(path: &Path, servers: usize) -> Result<TraceSummary, Failure> {
    summary_of(path, servers, false)
}

/// The same for a report.
pub(crate) fn summarize_for_report(path: &Path, servers: usize) -> Result<TraceSummary, Failure> {
    summary_of(path, servers, true)
}

fn summary_of(path: &Path, servers: usize, closely: bool) -> Result<TraceSummary, Failure> {
    reading::check_repeatable(path)?;
    let mut analysis = Analysis::default();
    let (first, digest) = pass(path, |request| analysis.push(request))?;
    let changed = || {
        let name = text::path(path);
        Failure::failed(format!("{name}: it changed while it was read; plan again"))
    };
    if let Some(files) = analysis.larger_files() {
        analysis = Analysis::of_files(files);
        let (_, again) = pass(path, |request| analysis.push(request))?;
        if again != digest {
            return Err(changed());
        }
    }
    let summary = analysis.finish();
    let mut aggregator = Aggregator::new(&summary, servers);
    let mut io_time = IoTime::default();
    let mut picture = closely.then(|| Picture::new(&summary));
    let (second, again) = pass(path, |request| {
        aggregator.push(request);
        io_time.push(request);
        if let Some(picture) = &mut picture {
            picture.push(request);
        }
    })?;
    if again != digest {
        return Err(changed());
    }
    let files = u32::try_from(first.files()).unwrap_or(u32::MAX);
    let names = (0..files).map(|number| first.file(number).unwrap_or_default().to_vec());
    let workload = aggregator.finish(processes_per_node(&second));
    Ok(TraceSummary {
        workload,
        digest,
        content: Content::of(&first),
        completeness: first.completeness().clone(),
        names: names.collect(),
        io_time,
        picture,
    })
}

/// Processes with requests on the node that has most; 1 where nodes are not known.
fn processes_per_node<R: Read>(reader: &Reader<R>) -> u64 {
    let mut nodes: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for process in reader.active_processes() {
        if !process.node.is_empty() {
            *nodes.entry(process.node).or_default() += 1;
        }
    }
    nodes.into_values().max().unwrap_or(1)
}

/// Names of the files of the trace at `path`, by their numbers, and where it comes from.
pub(crate) fn names(path: &Path) -> Result<(Vec<Vec<u8>>, Source), Failure> {
    reading::check_repeatable(path)?;
    let (reader, _) = pass(path, |_| {})?;
    let files = u32::try_from(reader.files()).unwrap_or(u32::MAX);
    let names = (0..files).map(|number| reader.file(number).unwrap_or_default().to_vec());
    Ok((names.collect(), reader.source().clone()))
}

/// Tells `each` request of the trace at `path`; answers whether that is whole.
pub(crate) fn each_request(
    path: &Path,
    each: impl FnMut(&Request),
) -> Result<Completeness, Failure> {
    pass(path, each).map(|(reader, _)| reader.completeness().clone())
}

type Summed = Reader<Summing<BufReader<Reading>>>;

/// Tells `each` request; answers the reader at its end, and the sum of all bytes.
fn pass(path: &Path, mut each: impl FnMut(&Request)) -> Result<(Summed, String), Failure> {
    let file = reading::open(path, "reading")?;
    let name = text::path(path);
    let wrong = |error: halocline_trace::Error| Failure::refused(format!("{name}: {error}"));
    let sum = std::rc::Rc::new(std::cell::RefCell::new(Xxh3::new()));
    let input = Summing { input: file, sum: sum.clone() };
    let mut reader = Reader::new(input).map_err(wrong)?;
    while let Some(requests) = reader.next_block().map_err(wrong)? {
        requests.iter().for_each(&mut each);
    }
    let digest = sum.borrow().digest128();
    Ok((reader, format!("xxh3-128:{digest:032x}")))
}

/// Sums the bytes that pass.
struct Summing<R> {
    input: R,
    sum: std::rc::Rc<std::cell::RefCell<Xxh3>>,
}

impl<R: Read> Read for Summing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.input.read(into)?;
        self.sum.borrow_mut().update(&into[..got]);
        Ok(got)
    }
}
