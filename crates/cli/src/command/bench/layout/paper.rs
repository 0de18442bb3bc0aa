//! The settings of the paper's Figures 7 to 13, and the gains that it prints.

use halocline_sim::workload::Class;
use halocline_trace::Op;

use super::setting::{Benchmark, Setting};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const G: u64 = 1 << 30;

/// How much of a setting runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// As in the paper.
    Full,
    /// A few hundred requests, for emulated devices in real time.
    Measured,
    /// A few dozen requests, for a test.
    Quick,
}

/// One pair of bars of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Row {
    /// The figure's number.
    pub(super) figure: u32,
    /// What is varied in the figure.
    pub(super) what: &'static str,
    /// At [`Scale::Full`].
    full: Setting,
    /// Percent that PSA gains over DEF and over PA in the paper.
    pub(super) published: (Option<f64>, Option<f64>),
    /// Whether the paper reports only the largest gain of several settings, over DEF and over PA.
    pub(super) up_to: (bool, bool),
}

impl Row {
    /// The setting at a scale. The SSDs' share of the file stays the same.
    pub(super) fn at(&self, scale: Scale) -> Setting {
        let processes = u64::from(self.full.processes);
        let few = |measured: u64, quick: u64| match scale {
            Scale::Full => u64::MAX,
            Scale::Measured => measured,
            Scale::Quick => quick,
        };
        let benchmark = match self.full.benchmark {
            Benchmark::Ior { data, size, random } => {
                let data = data.min(few(256, 64).saturating_mul(size));
                Benchmark::Ior { data, size, random }
            }
            Benchmark::Hpio { count, size } => {
                Benchmark::Hpio { count: count.min((few(256, 64) / processes).max(1)), size }
            }
            Benchmark::Tile { rows } => Benchmark::Tile { rows: rows.min(few(2, 1)) },
            Benchmark::Btio { class } => Benchmark::Btio {
                class: match scale {
                    Scale::Full => class,
                    Scale::Measured => Class::A,
                    Scale::Quick => Class::S,
                },
            },
        };
        Setting { benchmark, ..self.full }
    }
}

const fn ior(random: bool, op: Op, processes: u32, size: u64, servers: (usize, usize)) -> Setting {
    let benchmark = Benchmark::Ior { data: 16 * G, size, random };
    // 1 GB on each SSD, 16 GB in the file.
    #[expect(clippy::cast_precision_loss, reason = "a few servers")]
    let ssd_share = servers.1 as f64 / 16.0;
    Setting { benchmark, processes, op, servers, ssd_share }
}

const fn row(figure: u32, what: &'static str, full: Setting, over: (f64, f64)) -> Row {
    Row { figure, what, full, published: (Some(over.0), Some(over.1)), up_to: (false, false) }
}

/// All of them in their order.
pub(super) fn rows() -> Vec<Row> {
    use Op::{Read, Write};
    let mut all = Vec::new();
    for (what, random, op, over) in [
        ("sequential read", false, Read, (66.9, 39.8)),
        ("random read", true, Read, (66.9, 39.8)),
        ("sequential write", false, Write, (77.1, 29.7)),
        ("random write", true, Write, (77.1, 29.7)),
    ] {
        let setting = ior(random, op, 16, 512 * K, (4, 4));
        all.push(Row { up_to: (true, true), ..row(7, what, setting, over) });
    }
    for (what, op, processes, over) in [
        ("8 processes, read", Read, 8, (62.8, 36.2)),
        ("32 processes, read", Read, 32, (59.5, 41.9)),
        ("64 processes, read", Read, 64, (36.7, 27.1)),
        ("8 processes, write", Write, 8, (74.3, 32.1)),
        ("32 processes, write", Write, 32, (70.9, 25.4)),
        ("64 processes, write", Write, 64, (66.7, 22.3)),
    ] {
        all.push(row(8, what, ior(true, op, processes, 512 * K, (4, 4)), over));
    }
    for (what, op, size, over) in [
        ("128 KiB, read", Read, 128 * K, (68.7, 43.4)),
        ("1 MiB, read", Read, M, (68.7, 43.4)),
        ("128 KiB, write", Write, 128 * K, (74.4, 38.9)),
        ("1 MiB, write", Write, M, (74.4, 38.9)),
    ] {
        all.push(Row {
            up_to: (true, true),
            ..row(9, what, ior(true, op, 16, size, (4, 4)), over)
        });
    }
    for (what, op, over) in [
        ("5 disks, 3 SSDs, read", Read, (58.6, 35.3)),
        ("5 disks, 3 SSDs, write", Write, (68.2, 28.6)),
    ] {
        all.push(Row {
            up_to: (true, false),
            ..row(10, what, ior(true, op, 16, 512 * K, (5, 3)), over)
        });
    }
    for (what, op) in [("3 disks, 5 SSDs, read", Read), ("3 disks, 5 SSDs, write", Write)] {
        let row = row(10, what, ior(true, op, 16, 512 * K, (3, 5)), (0.0, 0.0));
        all.push(Row { published: (None, None), ..row });
    }
    all.extend(others());
    all
}

/// HPIO, MPI-Tile-IO and BTIO.
fn others() -> Vec<Row> {
    use Op::{Read, Write};
    let mut all = Vec::new();
    let hpio = |size, op| Setting {
        benchmark: Benchmark::Hpio { count: 1024, size },
        processes: 32,
        op,
        servers: (4, 4),
        ssd_share: 1.0 / 3.0,
    };
    for (what, size, over) in [
        ("64 KiB, read", 64 * K, (59.4, 33.2)),
        ("256 KiB, read", 256 * K, (64.5, 25.1)),
        ("512 KiB, read", 512 * K, (51.8, 19.2)),
    ] {
        all.push(row(11, what, hpio(size, Read), over));
    }
    for (what, size) in
        [("64 KiB, write", 64 * K), ("256 KiB, write", 256 * K), ("512 KiB, write", 512 * K)]
    {
        let row = row(11, what, hpio(size, Write), (0.0, 0.0));
        all.push(Row { published: (None, None), ..row });
    }
    for (what, op, processes, over) in [
        ("100 processes, read", Read, 100, (41.9, 28.2)),
        ("200 processes, read", Read, 200, (38.2, 30.8)),
        ("400 processes, read", Read, 400, (34.1, 27.9)),
        ("100 processes, write", Write, 100, (50.8, 26.9)),
        ("200 processes, write", Write, 200, (56.7, 30.7)),
        ("400 processes, write", Write, 400, (59.2, 32.2)),
    ] {
        let benchmark = Benchmark::Tile { rows: 8 };
        let setting = Setting { benchmark, processes, op, servers: (4, 4), ssd_share: 0.25 };
        all.push(row(12, what, setting, over));
    }
    for (what, processes, over) in [
        ("4 processes", 4, (66.1, 38.9)),
        ("16 processes", 16, (47.7, 38.9)),
        ("64 processes", 64, (53.7, 38.9)),
    ] {
        // 0.5 GB on each of two SSDs, of 40 dumps of 162^3 points of 40 bytes.
        let ssd_share = 1_073_741_824.0 / (40.0 * 170_061_120.0);
        let benchmark = Benchmark::Btio { class: Class::C };
        let setting = Setting { benchmark, processes, op: Write, servers: (6, 2), ssd_share };
        all.push(Row { up_to: (false, true), ..row(13, what, setting, over) });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_paper_and_small_ones_are_small() {
        let all = rows();
        assert_eq!(all.len(), 33);
        for row in &all {
            let few = row.at(Scale::Quick).requests().expect(row.what);
            assert!(few.len() <= 2000, "{}: {}", row.what, few.len());
            let most = row.at(Scale::Measured).requests().expect(row.what);
            assert!(most.len() <= 6000, "{}: {}", row.what, most.len());
        }
        let full = all[0].at(Scale::Full).requests().expect("requests");
        assert_eq!(full.len(), 32_768);
        assert_eq!(full.iter().map(halocline_trace::Request::end).max(), Some(16 << 30));
        let set = all[0].at(Scale::Full).set(&full).expect("servers");
        assert_eq!(set.servers()[7].capacity, 1 << 30);
    }
}
