//! The picture of a trace in a report: which bytes were requested when, counted over all requests in bounded memory.

use halocline_trace::analysis::{Sizes, Summary};
use halocline_trace::{Op, Request};

/// How many files are shown, those with the most bytes.
pub(crate) const FILES_MAX: usize = 3;
/// Cells of a map along time and offset.
pub(crate) const COLUMNS: usize = 48;
/// See [`COLUMNS`].
pub(crate) const ROWS: usize = 32;

/// Requests that touched each cell of a file.
#[derive(Debug, Clone)]
pub(crate) struct Map {
    /// The file's number in the trace.
    pub(crate) file: u32,
    /// One past its last byte.
    pub(crate) bytes: u64,
    /// By direction, reads first; cells column by column from the beginning of the file.
    pub(crate) counts: [Vec<u32>; 2],
}

/// A trace as a report shows it.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    /// Files with the most bytes.
    pub(crate) maps: Vec<Map>,
    /// Files there are.
    pub(crate) files: usize,
    /// From the start of the first request to the end of the last, nanoseconds.
    pub(crate) span_ns: u64,
    /// Reads and writes by the power of two below their length.
    pub(crate) sizes: [Sizes; 2],
    /// Requests and bytes of reads and writes.
    pub(crate) mix: halocline_trace::analysis::Mix,
    begin_ns: u64,
}

impl Picture {
    /// For a trace with this summary, whose requests are yet to be pushed.
    pub(crate) fn new(summary: &Summary) -> Self {
        let map = |file: &halocline_trace::analysis::FileSummary| Map {
            file: file.file,
            bytes: file.end.max(1),
            counts: [vec![0; COLUMNS * ROWS], vec![0; COLUMNS * ROWS]],
        };
        Self {
            maps: summary.files.iter().take(FILES_MAX).map(map).collect(),
            files: summary.files.len(),
            span_ns: summary.end_ns.saturating_sub(summary.begin_ns),
            sizes: [summary.read_sizes, summary.write_sizes],
            mix: summary.mix,
            begin_ns: summary.begin_ns,
        }
    }

    /// Takes a request; they come in the order of their start.
    pub(crate) fn push(&mut self, request: &Request) {
        let Some(map) = self.maps.iter_mut().find(|map| map.file == request.file) else { return };
        let column = cell(
            request.start_ns.saturating_sub(self.begin_ns),
            self.span_ns.saturating_add(1),
            COLUMNS,
        );
        let first = cell(request.offset, map.bytes, ROWS);
        let last = cell(request.end() - 1, map.bytes, ROWS);
        let counts = &mut map.counts[usize::from(request.op == Op::Write)];
        for count in &mut counts[column * ROWS + first..=column * ROWS + last] {
            *count = count.saturating_add(1);
        }
    }
}

/// Which of `cells` equal parts of `[0, whole)` has `at`.
fn cell(at: u64, whole: u64, cells: usize) -> usize {
    let index = u128::from(at) * cells as u128 / u128::from(whole.max(1));
    usize::try_from(index).unwrap_or(cells).min(cells - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use halocline_trace::analysis::Analysis;

    #[test]
    fn cells_count_what_touches_them() {
        let request = |start_ns, op, offset, length| Request {
            start_ns,
            duration_ns: Some(100),
            process: 0,
            file: 7,
            op,
            offset,
            length,
        };
        let all = [
            request(1000, Op::Read, 0, 3200),
            request(1050, Op::Write, 100, 1),
            request(5790, Op::Write, 3199, 1),
        ];
        let mut analysis = Analysis::default();
        for request in &all {
            analysis.push(request);
        }
        let mut picture = Picture::new(&analysis.finish());
        for request in &all {
            picture.push(request);
        }
        let [reads, writes] = &picture.maps[0].counts;
        assert_eq!(reads[..ROWS], [1; ROWS], "all of the file in the first column");
        assert_eq!(reads.iter().sum::<u32>(), 32);
        assert_eq!((writes[1], writes[COLUMNS * ROWS - 1]), (1, 1));
        assert_eq!(writes.iter().sum::<u32>(), 2);
    }
}
