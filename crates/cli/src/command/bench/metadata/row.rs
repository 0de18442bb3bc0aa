//! What is measured of one phase. The keys are an interface.

use serde::Serialize;

/// One phase.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// Of a cluster that the benchmark started.
    pub(super) masters: Option<u32>,
    pub(super) clients: u32,
    pub(super) operation: &'static str,
    pub(super) directories: &'static str,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
    pub(super) round_trips_per_operation: f64,
    pub(super) native_per_second: Option<f64>,
    pub(super) ratio: Option<f64>,
    /// Processor time of this process.
    pub(super) client_us_per_operation: f64,
    /// Of the server's thread, if the benchmark started the server.
    pub(super) server_us_per_operation: Option<f64>,
    /// The part of the processor time in which this process polled for answers.
    #[serde(skip)]
    pub(super) polled_us_per_operation: f64,
    /// How long each create took.
    #[serde(skip)]
    pub(super) took_ns: Vec<u64>,
}

/// Each case once: the run of the median rate, with the median ratio.
pub(super) fn medians(mut rows: Vec<Row>) -> Vec<Row> {
    let mut medians = Vec::new();
    while let Some(first) = rows.first().cloned() {
        let key = |row: &Row| (row.masters, row.clients, row.operation, row.directories);
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
