//! A request, the origin of a trace, and its completeness.

use serde::Serialize;

/// Limit of the end of a request: offsets are signed in the kernel.
pub const FILE_END_MAX: u64 = i64::MAX.cast_unsigned();

/// Direction of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// One request of a process. `process` and `file` are indexes into the trace's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Nanoseconds since the trace's zero.
    pub start_ns: u64,
    /// Duration in nanoseconds, if known.
    pub duration_ns: Option<u64>,
    /// The process that issued it.
    pub process: u32,
    /// The file.
    pub file: u32,
    /// Direction.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

impl Request {
    /// One past its last byte.
    pub const fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Whether it is valid in a trace; the error says why not.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.length == 0 {
            return Err("a request of no bytes");
        }
        if self.offset.checked_add(self.length).is_none_or(|end| end > FILE_END_MAX) {
            return Err("offset and length reach past the largest file there can be");
        }
        if self.duration_ns.is_some_and(|took| self.start_ns.checked_add(took).is_none()) {
            return Err("start and duration pass the largest time there can be");
        }
        Ok(())
    }
}

/// The issuer of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Process {
    /// Rank, or process id.
    pub number: u64,
    /// Name of the machine it ran on; empty if unknown.
    pub node: Vec<u8>,
}

/// What created a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A program that generates requests.
    Generated,
    /// Comma-separated values.
    Csv,
    /// The text of `darshan-dxt-parser`.
    DxtText,
    /// A binary log of Darshan.
    DarshanLog,
    /// A mount of Halocline: the requests that reached it, behind the kernel's page cache.
    Mount,
    /// A mount of Halocline with `--direct`: the programs' own requests, except for mapped files.
    MountDirect,
}

impl Kind {
    /// All, by their number in the format.
    pub(crate) const ALL: [Self; 6] = [
        Self::Generated,
        Self::Csv,
        Self::DxtText,
        Self::DarshanLog,
        Self::Mount,
        Self::MountDirect,
    ];

    /// The creator, in words.
    pub const fn of(self) -> &'static str {
        match self {
            Self::Generated => "a generator",
            Self::Csv => "CSV",
            Self::DxtText => "text of darshan-dxt-parser",
            Self::DarshanLog => "log of Darshan",
            Self::Mount => "a mount",
            Self::MountDirect => "a mount with --direct",
        }
    }

    /// What readers of such a trace must know.
    pub const fn notes(self) -> &'static [&'static str] {
        match self {
            Self::Mount => &[
                "reads that the kernel's page cache answered are not here, and others are as it asked for them; \
                 a mount with --direct records what programs ask",
            ],
            Self::Generated => &[
                "its times were computed: they tell the order of its requests, and not how long any took",
            ],
            _ => &[],
        }
    }
}

/// The origin of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// What created it.
    pub kind: Kind,
    /// Name of what was imported; empty if there is none.
    pub name: Vec<u8>,
    /// Resolution of its times, in nanoseconds; 0 if unknown.
    pub resolution_ns: u64,
}

impl Source {
    /// A source without a name, whose times are exact.
    pub const fn new(kind: Kind) -> Self {
        Self { kind, name: Vec::new(), resolution_ns: 1 }
    }
}

/// How much of what happened is in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Completeness {
    /// Number of requests in it.
    pub requests: u64,
    /// Requests known to be missing, because the source counted them.
    pub lost: u64,
    /// Whether the source reports that it lacks some, but not how many.
    pub incomplete_source: bool,
    /// How the trace itself is cut off or damaged after its last request, if it is.
    pub cut: Option<String>,
}

impl Completeness {
    /// Whether something is missing.
    pub const fn is_partial(&self) -> bool {
        self.lost > 0 || self.incomplete_source || self.cut.is_some()
    }

    /// How much a plan may trust this trace, from 0 to 1: the share of the requests that it has. If that is unknown, at
    /// most one half.
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn weight(&self) -> f64 {
        if self.requests == 0 {
            return if self.is_partial() { 0.0 } else { 1.0 };
        }
        let known = self.requests as f64 / (self.requests as f64 + self.lost as f64);
        if self.incomplete_source || self.cut.is_some() { known.min(0.5) } else { known }
    }
}
