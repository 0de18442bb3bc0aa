//! A layout of all files, with what cost model and replays say of it.

use halocline_model::file_layout::stored_bytes;

use crate::judge::{Judge, Layouts, Step};
use crate::paper::Scheme;
use crate::placed::{Placed, Replayed};
use crate::{predict, used};

/// A layout of all files, with its predictions.
#[derive(Debug, Clone)]
pub struct Judged {
    /// The layouts.
    pub layouts: Layouts,
    /// Seconds for the whole trace by the cost model.
    pub predicted_seconds: f64,
    /// Seconds for the whole trace by its replays, or by those of the sample: the mean of those in each placement of the
    /// files.
    pub simulated_seconds: f64,
    /// The same in each placement, that of the search first.
    pub seconds_by_placement: Vec<f64>,
    /// Bytes of the files on servers that are not of the slowest class.
    pub ssd_bytes: u64,
    /// The share of the bytes that requests of the sample read and write on these servers.
    pub ssd_traffic: f64,
    /// Seconds by the replay until the last of the bytes that fit on the SSDs came there; `None` if they have room for
    /// everything, or are not used.
    pub full_after_seconds: Option<f64>,
}

/// The kind of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// 64 KiB everywhere as long as there is room; of the rest, the faster of two ways.
    Def,
    /// Performance-aware.
    Pa,
    /// Performance- and space-aware.
    Psa,
    /// The result of our search.
    Ours,
}

impl Name {
    /// The kind of a layout by `scheme`.
    pub const fn of_scheme(scheme: Scheme) -> Self {
        match scheme {
            Scheme::Def => Self::Def,
            Scheme::Pa => Self::Pa,
            Scheme::Psa => Self::Psa,
        }
    }

    /// All kinds, in order of appearance.
    pub const ALL: [Self; 4] = [Self::Def, Self::Pa, Self::Psa, Self::Ours];

    /// The name in plans and reports.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Def => "def",
            Self::Pa => "pa",
            Self::Psa => "psa",
            Self::Ours => "ours",
        }
    }
}

/// A layout with what its replays say.
pub(crate) fn judged(
    placed: Placed<'_>,
    judge: &mut dyn Judge,
    (layouts, replayed): (Layouts, Replayed),
) -> Judged {
    let Placed { servers, workload, sample, .. } = placed;
    let mut ssd_bytes = 0u64;
    for (done, file) in workload.files.iter().enumerate() {
        judge.advanced(Step::Prediction, done, workload.files.len());
        let layout = layouts.of(file.number);
        let bytes = layout.bytes(file.bytes);
        debug_assert_eq!(bytes.iter().sum::<u64>(), file.bytes, "each byte is on one server");
        let on_ssds: u64 = servers.fast().map(|server| stored_bytes(bytes[server])).sum();
        ssd_bytes = ssd_bytes.saturating_add(on_ssds);
    }
    let predicted_seconds = predict::seconds(servers, workload, &layouts);
    let ssd_traffic = used::share_of_fast(servers, sample, &layouts);
    let Replayed { seconds: simulated_seconds, by_placement, full_after_seconds } = replayed;
    Judged {
        layouts,
        predicted_seconds,
        simulated_seconds,
        seconds_by_placement: by_placement,
        ssd_bytes,
        ssd_traffic,
        full_after_seconds,
    }
}
