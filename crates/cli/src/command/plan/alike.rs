//! Files that lie alike, which are told of once: where each of thousands of processes has a file of its own, all of them may.

use std::collections::HashMap;

use halocline_os::counted::counted;
use halocline_plan::judge::Layouts;
use halocline_plan::layout::{Layout, Part};
use halocline_plan::workload::File;

use super::source::TraceSummary;
use crate::text;

/// Files of one length in one layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alike<'l> {
    /// The number of the first in the trace.
    first: u32,
    /// How many they are.
    pub(super) count: usize,
    /// Bytes of each.
    pub(super) bytes: u64,
    pub(super) layout: &'l Layout,
}

impl<'l> Alike<'l> {
    /// The `files` in groups, in the order of the first of each.
    pub(super) fn of(files: &[File], layouts: &'l Layouts) -> Vec<Self> {
        let mut known: HashMap<(u64, &[Part]), usize> = HashMap::new();
        let mut groups: Vec<Self> = Vec::new();
        for &File { number: first, bytes, .. } in files {
            let layout = layouts.of(first);
            let at = *known.entry((bytes, layout.parts())).or_insert(groups.len());
            match groups.get_mut(at) {
                Some(group) => group.count += 1,
                None => groups.push(Self { first, count: 1, bytes, layout }),
            }
        }
        groups
    }

    /// The name of the first, and how many others there are.
    pub(super) fn name(&self, seen: &TraceSummary) -> String {
        let first = text::line(&String::from_utf8_lossy(seen.name(self.first)));
        match self.count - 1 {
            0 => first,
            others => format!("{first} and {} like it", counted(others, "file")),
        }
    }
}
