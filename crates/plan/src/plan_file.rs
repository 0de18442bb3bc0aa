//! Plans on disk: the layout of each file, and the servers (docs/PLANNING.md).

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::default_layout::Rest;
use crate::layout::{Layout, Part};
use crate::servers::Server;

/// Version of the format.
pub const VERSION: u32 = 1;
/// Limit of the files of a plan.
const FILES_MAX: usize = 1 << 16;
/// Limit of the servers of a plan, the same as for a description of servers.
const SERVERS_MAX: usize = 4096;
/// A parser of TOML takes some 75 times the bytes of the text. A longer text than this is parsed table by table, as
/// [`Plan::to_toml`] writes it: each file begins with a line of its own, after everything else.
const WHOLE_BYTES_MAX: usize = 4 << 20;
/// Limit of such a table. 256 parts over all servers take less.
const TABLE_BYTES_MAX: usize = 16 << 20;
/// Limit of the widths in all parts together: twice what `plan` writes for 256 files of eight regions, each in two
/// parts, on all servers.
const WIDTHS_MAX: usize = 1 << 25;
/// The line with which a file begins, and the end of the line before it.
const FILE_TABLE: &str = "\n[[file]]\n";

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`VERSION`].
    pub version: u32,
    /// Which layout was chosen: `def`, `pa`, `psa` or `ours`. With `def` nothing is to be done, wherever the files lie: its
    /// parts are the default layout that the others were compared with.
    pub chosen: String,
    /// How many files it has, from which a plan that is cut off between two of them is known; plans of earlier versions
    /// do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<usize>,
    /// The trace from which it was made.
    pub trace: Trace,
    /// What it promises.
    pub expected: Expected,
    /// The servers; all widths are in this order.
    pub server: Vec<Server>,
    /// The files.
    #[serde(default)]
    pub file: Vec<PlannedFile>,
}

/// The trace of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// `xxh3-128:` and the sum of the trace's bytes in hexadecimal digits.
    pub digest: String,
    /// Its requests.
    pub requests: u64,
}

/// Predictions of a plan for a run like that of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// By the cost model.
    pub predicted_seconds: f64,
    /// By the replay.
    pub simulated_seconds: f64,
    /// By the replay, with the default layout.
    pub def_simulated_seconds: f64,
    /// Gain of throughput, relative to the default layout: 0.5 means half as much again.
    pub gain_over_def: f64,
    /// How much the gain differs between parts of the trace.
    pub spread: f64,
    /// Which of two default layouts that is over; `None` if there is one alone, or the plan is of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub def_rest: Option<Rest>,
}

impl Expected {
    fn check(&self) -> Result<(), String> {
        let Self {
            predicted_seconds,
            simulated_seconds,
            def_simulated_seconds,
            gain_over_def,
            spread,
            def_rest: _,
        } = *self;
        // What is not a number compares with nothing.
        for (key, value, least) in [
            ("predicted_seconds", predicted_seconds, 0.0),
            ("simulated_seconds", simulated_seconds, 0.0),
            ("def_simulated_seconds", def_simulated_seconds, 0.0),
            ("gain_over_def", gain_over_def, -1.0),
            ("spread", spread, 0.0),
        ] {
            if value.partial_cmp(&least).is_none_or(Ordering::is_lt) {
                return Err(format!("{key} is {value}, not a number from {least}"));
            }
        }
        Ok(())
    }
}

/// A file of a plan. Its path is `path`, or `path_hex` if that is not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFile {
    /// Its path, as the trace names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its bytes as hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// Bytes that it had in the trace.
    pub bytes: u64,
    /// Its parts.
    pub part: Vec<Part>,
}

impl PlannedFile {
    /// A file called `path`.
    pub fn new(path: &[u8], bytes: u64, layout: &Layout) -> Self {
        let text = std::str::from_utf8(path).ok().map(str::to_owned);
        let digit = |value: u8| char::from_digit(value.into(), 16).expect("below 16");
        let hex = || path.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        let path_hex = text.is_none().then(hex);
        Self { path: text, path_hex, bytes, part: layout.parts().to_vec() }
    }

    /// Its path; `None` if the plan has none, or two, or one that is not hexadecimal digits.
    pub fn path_bytes(&self) -> Option<Vec<u8>> {
        match (&self.path, &self.path_hex) {
            (Some(path), None) => Some(path.clone().into_bytes()),
            (None, Some(hex)) => from_hex(hex),
            _ => None,
        }
    }

    /// Its layout over `servers` servers.
    pub fn layout(&self, servers: usize) -> Result<Layout, String> {
        Layout::new(self.part.clone(), servers)
    }
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|value| u8::try_from(value).ok()))
        .collect();
    let digits = digits?;
    let even = digits.len().is_multiple_of(2);
    even.then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// The place from `from` on at which the table of a file begins.
fn next_file(text: &str, from: usize) -> Option<usize> {
    let found = text.get(from..)?.find(FILE_TABLE)?;
    Some(from + found + 1)
}

/// What stands before the first file, and the rest.
fn head_and_files(text: &str) -> (&str, &str) {
    text.split_at(next_file(text, 0).unwrap_or(text.len()))
}

/// Parses `part` of `text`.
fn from_toml<T: DeserializeOwned>(text: &str, part: &str) -> Result<T, Error> {
    // Counted only where something is wrong: long plans have tens of thousands of tables.
    let line = |place: usize| {
        let begin = part.as_ptr().addr() - text.as_ptr().addr();
        text.bytes().take(begin + place).filter(|byte| *byte == b'\n').count() + 1
    };
    if part.len() > TABLE_BYTES_MAX {
        return Err(Error::NotAPlan(format!(
            "line {}: a table of more than {TABLE_BYTES_MAX} bytes",
            line(0)
        )));
    }
    // Not with the line itself: it may be of any file.
    toml::from_str(part).map_err(|error| {
        let place = error.span().map_or(0, |place| place.start);
        Error::NotAPlan(format!("line {}: {}", line(place), error.message()))
    })
}

impl Plan {
    /// Parses a plan. Other versions, unknown keys, invalid layouts and duplicate files are refused.
    pub fn parse(text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let (head, files) =
            if text.len() > WHOLE_BYTES_MAX { head_and_files(text) } else { (text, "") };
        let versioned: Versioned = from_toml(text, head)?;
        if versioned.version != VERSION {
            let found = versioned.version;
            return Err(Error::NotAPlan(format!(
                "it is of version {found}; this program reads {VERSION}"
            )));
        }
        let mut plan: Self = from_toml(text, head)?;
        plan.read_files(text, files)?;
        plan.check().map_err(Error::NotAPlan)?;
        Ok(plan)
    }

    /// Adds the files of `rest`, a part of `text` that begins with the table of one, table by table.
    fn read_files(&mut self, text: &str, mut rest: &str) -> Result<(), Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Files {
            file: Vec<PlannedFile>,
        }
        let of =
            |file: &PlannedFile| -> usize { file.part.iter().map(|part| part.widths.len()).sum() };
        let mut widths = 0;
        while !rest.is_empty() {
            let end = next_file(rest, 1).unwrap_or(rest.len());
            let Files { file } = from_toml(text, &rest[..end])?;
            widths += file.iter().map(of).sum::<usize>();
            self.file.extend(file);
            if widths > WIDTHS_MAX || self.file.len() > FILES_MAX {
                return Err(Error::NotAPlan(format!(
                    "it has more than {FILES_MAX} files, or {WIDTHS_MAX} widths"
                )));
            }
            rest = &rest[end..];
        }
        Ok(())
    }

    /// Refuses what [`Plan::parse`] refuses.
    pub fn check(&self) -> Result<(), String> {
        if !["def", "pa", "psa", "ours"].contains(&self.chosen.as_str()) {
            return Err(format!("no layout is called {:?}", self.chosen));
        }
        if self.server.is_empty() {
            return Err("it has no servers".into());
        }
        if self.file.len() > FILES_MAX {
            return Err(format!("it has {} files; at most {FILES_MAX}", self.file.len()));
        }
        if self.server.len() > SERVERS_MAX {
            return Err(format!("it has {} servers; at most {SERVERS_MAX}", self.server.len()));
        }
        self.expected.check()?;
        self.check_own_servers()?;
        self.check_files()
    }

    fn check_own_servers(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for server in &self.server {
            if server.capacity == Some(0) {
                return Err(format!("server {} has a capacity of 0 bytes", server.name));
            }
            let checked = server.profile.check().and_then(|()| server.seen().check_takes_time());
            checked.map_err(|what| format!("server {}: {what}", server.name))?;
            if !names.insert(server.name.as_str()) {
                return Err(format!("two servers are called {}", server.name));
            }
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), String> {
        let mut paths = BTreeSet::new();
        if let Some(files) = self.files.filter(|files| *files != self.file.len()) {
            return Err(format!(
                "it says that files = {files}, and has {}: it is cut off, or some were added or taken out without changing that",
                self.file.len()
            ));
        }
        for (index, file) in self.file.iter().enumerate() {
            let path = file.path_bytes().ok_or_else(|| match (&file.path, &file.path_hex) {
                (None, Some(_)) => format!(
                    "path_hex of file {index} is not made of bytes, each two hexadecimal digits"
                ),
                _ => format!("file {index} needs one of path and path_hex"),
            })?;
            let name = String::from_utf8_lossy(&path).into_owned();
            if path.is_empty() || path.contains(&0) {
                return Err(format!("{name:?} is not a path: it is empty, or has a byte 0 in it"));
            }
            file.layout(self.server.len()).map_err(|what| format!("{name}: {what}"))?;
            if !paths.insert(path) {
                return Err(format!("{name} is there twice"));
            }
        }
        Ok(())
    }

    /// Whether it says that the layout of the files is to be left alone.
    pub fn leaves_alone(&self) -> bool {
        self.chosen == "def"
    }

    /// As text.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("tables after values")
    }

    /// Refuses servers that differ from those for which the plan was made, in name, order, service times or network.
    pub fn check_servers(&self, there: &[Server]) -> Result<(), Error> {
        let names = |servers: &[Server]| -> Vec<String> {
            servers.iter().map(|server| server.name.clone()).collect()
        };
        let (planned, found) = (names(&self.server), names(there));
        if planned != found {
            let (planned, found) = (planned.join(", "), found.join(", "));
            return Err(Error::OtherServers(format!("it is for {planned}; there are {found}")));
        }
        for (planned, found) in self.server.iter().zip(there) {
            let what = if (planned.profile, planned.channels) != (found.profile, found.channels) {
                "other service times"
            } else if planned.network != found.network {
                "another network path"
            } else {
                continue;
            };
            let name = &planned.name;
            return Err(Error::OtherServers(format!(
                "{name} has {what} than the plan was made with; plan again"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
