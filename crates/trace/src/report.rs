//! A summary in the form that scripts read (docs/METRICS.md has every key).

use std::io::Read;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::analysis::{Analysis, FileSummary, Mix, Pattern, Phase, Region, StreamCounts, Summary};
use crate::error::Error;
use crate::reader::Reader;
use crate::request::{Kind, Request};

/// A name: text, or its bytes if it is not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "each is what it says")]
pub enum Name {
    Text(String),
    Bytes(Vec<u8>),
}

impl Name {
    fn new(bytes: &[u8]) -> Self {
        String::from_utf8(bytes.to_vec()).map_or_else(|_| Self::Bytes(bytes.to_vec()), Self::Text)
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
        }
    }

    /// As displayed to people.
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        }
    }
}

/// What `halocline trace show --json` prints.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "docs/METRICS.md says what each key is, and a test compares them")]
pub struct Report {
    pub source: SourceReport,
    pub completeness: CompletenessReport,
    pub notes: Vec<&'static str>,
    pub requests: u64,
    #[serde(flatten)]
    pub mix: Mix,
    pub begin_ns: u64,
    pub end_ns: u64,
    pub processes: u64,
    pub processes_per_node_max: Option<u64>,
    pub in_flight_max: Option<u64>,
    pub in_flight_mean: Option<f64>,
    pub streams: StreamCounts,
    pub sizes: Vec<SizeReport>,
    pub file_count: u64,
    pub files: Vec<FileReport>,
    pub requests_of_other_files: u64,
    pub requests_of_other_streams: u64,
}

#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "docs/METRICS.md")]
pub struct SourceReport {
    pub kind: Kind,
    pub name: Name,
    pub resolution_ns: u64,
}

#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "docs/METRICS.md")]
pub struct CompletenessReport {
    pub partial: bool,
    pub weight: f64,
    pub lost: u64,
    pub incomplete_source: bool,
    pub cut: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "docs/METRICS.md")]
pub struct SizeReport {
    pub from_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "docs/METRICS.md")]
pub struct FileReport {
    pub name: Name,
    pub requests: u64,
    #[serde(flatten)]
    pub mix: Mix,
    pub end: u64,
    pub processes: u64,
    pub pattern: Pattern,
    pub streams: StreamCounts,
    pub phases: Vec<PhaseReport>,
    pub regions: Vec<RegionReport>,
}

#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "docs/METRICS.md")]
pub struct PhaseReport {
    pub begin_ns: u64,
    pub end_ns: u64,
    #[serde(flatten)]
    pub mix: Mix,
    pub sequential: u64,
    pub bursts: u64,
}

#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "docs/METRICS.md")]
pub struct RegionReport {
    pub offset: u64,
    pub length: u64,
    #[serde(flatten)]
    pub mix: Mix,
}

/// Reads a trace to its end and summarises it; `also` is called with each request, too.
pub fn report<R: Read>(
    reader: &mut Reader<R>,
    mut also: impl FnMut(&Request),
) -> Result<Report, Error> {
    let mut analysis = Analysis::default();
    while let Some(block) = reader.next_block()? {
        for request in block {
            analysis.push(request);
            also(request);
        }
    }
    Ok(of_summary(analysis.finish(), reader))
}

fn of_summary<R: Read>(summary: Summary, reader: &Reader<R>) -> Report {
    let source = reader.source();
    let completeness = reader.completeness();
    let sizes = summary.read_sizes.iter().zip(&summary.write_sizes).enumerate();
    Report {
        source: SourceReport {
            kind: source.kind,
            name: Name::new(&source.name),
            resolution_ns: source.resolution_ns,
        },
        completeness: CompletenessReport {
            partial: completeness.is_partial(),
            weight: completeness.weight(),
            lost: completeness.lost,
            incomplete_source: completeness.incomplete_source,
            cut: completeness.cut.clone(),
        },
        notes: source.kind.notes().to_vec(),
        requests: summary.mix.requests(),
        mix: summary.mix,
        begin_ns: summary.begin_ns,
        end_ns: summary.end_ns,
        processes: summary.concurrency.processes,
        processes_per_node_max: per_node(reader),
        in_flight_max: summary.concurrency.in_flight_max,
        in_flight_mean: summary.concurrency.in_flight_mean,
        streams: summary.streams,
        sizes: sizes
            .filter(|(_, (reads, writes))| **reads + **writes > 0)
            .map(|(log2, (&reads, &writes))| SizeReport { from_bytes: 1 << log2, reads, writes })
            .collect(),
        file_count: reader.files() as u64,
        files: summary.files.into_iter().map(|file| of_file(file, reader)).collect(),
        requests_of_other_files: summary.requests_of_other_files,
        requests_of_other_streams: summary.requests_of_other_streams,
    }
}

/// Processes with requests on the node that has the most, if nodes are known.
fn per_node<R: Read>(reader: &Reader<R>) -> Option<u64> {
    let mut nodes: FxHashMap<Vec<u8>, u64> = FxHashMap::default();
    for process in reader.active_processes() {
        if process.node.is_empty() {
            return None;
        }
        *nodes.entry(process.node).or_default() += 1;
    }
    nodes.into_values().max()
}

fn of_file<R: Read>(file: FileSummary, reader: &Reader<R>) -> FileReport {
    let phase = |phase: Phase| PhaseReport {
        begin_ns: phase.begin_ns,
        end_ns: phase.end_ns,
        mix: phase.mix,
        sequential: phase.sequential,
        bursts: phase.bursts,
    };
    let region = |region: Region| RegionReport {
        offset: region.offset,
        length: region.length,
        mix: region.mix,
    };
    FileReport {
        name: Name::new(reader.file(file.file).unwrap_or_default()),
        requests: file.mix.requests(),
        mix: file.mix,
        end: file.end,
        processes: file.processes,
        pattern: file.pattern,
        streams: file.streams,
        phases: file.phases.into_iter().map(phase).collect(),
        regions: file.regions.into_iter().map(region).collect(),
    }
}
