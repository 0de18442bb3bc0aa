//! Results as they are printed with `--json`. The keys are an interface.

use serde::Serialize;

/// What creates are to reach of what the server's own benchmark does.
pub(super) const RATIO_TARGET: f64 = 0.8;
/// What creates in one directory of many entries are to reach of those in own directories.
pub(super) const LARGE_TARGET: f64 = 0.5;

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) benchmark: &'static str,
    pub(super) version: &'static str,
    pub(super) own_store: bool,
    pub(super) cpus: usize,
    pub(super) files: u32,
    pub(super) repeat: u32,
    pub(super) why_no_native: Option<&'static str>,
    pub(super) rows: Vec<Row>,
    pub(super) large: Option<Large>,
}

/// One phase.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) clients: u32,
    pub(super) operation: &'static str,
    pub(super) directories: &'static str,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
    pub(super) round_trips_per_operation: f64,
    pub(super) native_per_second: Option<f64>,
    pub(super) ratio: Option<f64>,
}

/// A directory of many entries.
#[derive(Debug, Serialize)]
pub(super) struct Large {
    pub(super) entries: u64,
    pub(super) clients: u32,
    pub(super) create_per_second: f64,
    pub(super) own_create_per_second: Option<f64>,
    pub(super) ratio: Option<f64>,
    pub(super) list_seconds: f64,
    pub(super) listed_per_second: f64,
    pub(super) pages: u64,
    pub(super) resident_bytes_before: u64,
    pub(super) resident_bytes_most: u64,
}

/// Each case once: the run of the median rate, with the median ratio.
pub(super) fn medians(mut rows: Vec<Row>) -> Vec<Row> {
    let mut medians = Vec::new();
    while let Some(first) = rows.first().cloned() {
        let key = |row: &Row| (row.clients, row.operation, row.directories);
        let (mut same, others): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| key(row) == key(&first));
        rows = others;
        let mut ratios: Vec<f64> = same.iter().filter_map(|row| row.ratio).collect();
        ratios.sort_by(f64::total_cmp);
        same.sort_by(|one, other| one.per_second.total_cmp(&other.per_second));
        let median = same.swap_remove(same.len() / 2);
        medians.push(Row { ratio: ratios.get(ratios.len() / 2).copied(), ..median });
    }
    medians
}

/// Creates a second in own directories by so many clients, the median.
pub(super) fn own_creates(rows: &[Row], clients: u32) -> Option<f64> {
    let is_it =
        |row: &&Row| (row.clients, row.operation, row.directories) == (clients, "create", "own");
    medians(rows.iter().filter(is_it).cloned().collect()).first().map(|row| row.per_second)
}
