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

impl Row {
    /// A thousand creates in own directories.
    #[cfg(test)]
    pub(super) fn of_creates(clients: u32, per_second: f64) -> Self {
        Self {
            masters: None,
            clients,
            operation: "create",
            directories: "own",
            operations: 1000,
            seconds: 1000.0 / per_second,
            per_second,
            round_trips_per_operation: 1.0,
            native_per_second: None,
            ratio: None,
            client_us_per_operation: 0.0,
            server_us_per_operation: None,
            polled_us_per_operation: 0.0,
            took_ns: Vec::new(),
        }
    }

    /// Beside what the server's own benchmark reached just before and just after, in commands a second.
    pub(super) fn beside(self, (before, after): (f64, f64)) -> Self {
        let native = f64::midpoint(before, after);
        let ratio = Some(self.per_second / native);
        Self { native_per_second: Some(native), ratio, ..self }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_to_what_was_measured_around_it() {
        let of = |per_second| Row::of_creates(2, per_second);
        let slow = of(500.0).beside((900.0, 1100.0));
        assert_eq!((slow.native_per_second, slow.ratio), (Some(1000.0), Some(0.5)));
        // The machine became three times as fast: so did both.
        let rows =
            vec![slow, of(1800.0).beside((3000.0, 3000.0)), of(900.0).beside((1000.0, 800.0))];
        let medians = medians(rows);
        assert_eq!(medians.len(), 1);
        assert_eq!((medians[0].per_second, medians[0].ratio), (900.0, Some(0.6)));
    }
}
