//! Miss-ratio curves of a trace: for people, for scripts, and as a picture.

use std::fmt::Write as _;
use std::path::Path;

use halocline_api::config::parse_bytes;
use halocline_model::curve::{Point, Sampler, curve};
use halocline_model::evict::POLICIES;
use halocline_trace::{Reader, Request};
use plotters::prelude::*;
use serde::Serialize;

use crate::command::bench::plot::{DrawResult, colour, count};
use crate::failure::Failure;
use crate::print::tell;
use crate::progress::Spoken;
use crate::reading;
use crate::text;

/// Bytes of a block: the unit of the extent cache.
const BLOCK: u64 = 4096;
/// Limit of the accesses that are analysed: some 100 MiB of memory, and a few seconds for a dozen sizes.
const ACCESSES_MAX: usize = 1 << 21;
/// Limit of the accesses that are counted: minutes. Others' traces may claim requests of exbibytes.
const COUNTED_MAX: u64 = 1 << 36;
/// Blocks between two looks at the clock: a tenth of a second. One request may be of terabytes.
const TOLD_EVERY: u64 = 1 << 24;
/// Limit of the cache sizes that can be requested.
const SIZES_MAX: usize = 64;
/// Number of default sizes: the footprint, half of it, and so on.
const HALVINGS: u32 = 8;

/// Cache sizes that the user wants a curve at.
#[derive(Debug, Clone)]
pub(crate) enum Sizes {
    /// Fractions of the bytes that the trace touches.
    Footprint,
    /// A cache of so many bytes, and such of a quarter, half, twice and four times as many; below the footprint those of
    /// its fractions where a quarter holds all that the trace touches, so that each would miss the same.
    Around(u64),
    /// These, in bytes.
    Given(Vec<u64>),
}

/// Reads `auto`, or sizes such as `64M,1G`.
pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    if text == "auto" {
        return Ok(Sizes::Footprint);
    }
    let refused = |what: &str| format!("{what:?} is not a size such as 64M or 1G, or auto");
    let one = |word: &str| parse_bytes(word).filter(|b| *b >= BLOCK).ok_or_else(|| refused(word));
    let mut sizes = text.split(',').map(|word| one(word.trim())).collect::<Result<Vec<_>, _>>()?;
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() > SIZES_MAX {
        return Err(format!("more than {SIZES_MAX} sizes"));
    }
    Ok(Sizes::Given(sizes))
}

/// The value of a point that a line of the picture shows.
type Measure = fn(&PointReport) -> f64;

/// A curve in the form that scripts read (docs/METRICS.md has the keys).
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Curve {
    block_bytes: u64,
    accesses: u64,
    footprint_bytes: u64,
    sampled_share: f64,
    policy: &'static str,
    points: Vec<PointReport>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct PointReport {
    cache_bytes: u64,
    lru: f64,
    s3fifo: f64,
    ours: f64,
    optimum: f64,
    error: f64,
}

/// Collects requests for a curve.
pub(crate) struct Curves {
    sampler: Sampler,
    /// Accesses so far; beyond [`COUNTED_MAX`] also those that were not analysed.
    counted: u64,
    progress: Spoken,
}

impl Curves {
    pub(crate) fn new() -> Self {
        let sampler = Sampler::new(ACCESSES_MAX);
        Self { sampler, counted: 0, progress: Spoken::begin() }
    }

    pub(crate) fn push(&mut self, request: &Request) {
        let blocks = request.offset / BLOCK..request.end().div_ceil(BLOCK);
        self.counted = self.counted.saturating_add(blocks.end - blocks.start);
        if self.counted > COUNTED_MAX {
            return;
        }
        let before = self.counted - (blocks.end - blocks.start);
        for (done, block) in (before..).zip(blocks) {
            self.sampler.push(request.file, block);
            if done % TOLD_EVERY == TOLD_EVERY - 1 && self.progress.is_due() {
                tell!("cache sizes: requests of {} analysed", text::bytes(done * BLOCK));
            }
        }
    }

    /// The curve at `sizes`; an error explains why there is none for a trace that moves too much.
    pub(crate) fn finish(self, sizes: &Sizes) -> Result<Curve, String> {
        if self.counted > COUNTED_MAX {
            let most = text::bytes(COUNTED_MAX * BLOCK);
            return Err(format!("its requests are of more than {most}: too much for a curve"));
        }
        let accesses = self.sampler.finish();
        let footprint_bytes = accesses.footprint() * BLOCK;
        let sizes = match sizes {
            Sizes::Given(sizes) => sizes.clone(),
            Sizes::Around(bytes) if footprint_bytes > 0 && bytes / 4 >= footprint_bytes => {
                let mut sizes = halves(footprint_bytes, 3);
                sizes.push(*bytes);
                sizes
            }
            Sizes::Around(bytes) => {
                let mut sizes = [bytes / 4, bytes / 2, *bytes]
                    .into_iter()
                    .chain([2, 4].map(|times| bytes.saturating_mul(times)))
                    .map(|bytes| bytes.max(BLOCK))
                    .collect::<Vec<_>>();
                sizes.dedup();
                sizes
            }
            Sizes::Footprint => halves(footprint_bytes, HALVINGS),
        };
        let blocks: Vec<u64> = sizes.iter().map(|bytes| bytes / BLOCK).collect();
        let report = |(&cache_bytes, point): (&u64, Point)| PointReport {
            cache_bytes,
            lru: point.lru,
            s3fifo: point.s3fifo,
            ours: point.ours,
            optimum: point.optimum,
            error: point.error,
        };
        Ok(Curve {
            block_bytes: BLOCK,
            accesses: accesses.all(),
            footprint_bytes,
            sampled_share: accesses.share(),
            policy: POLICIES[0].name,
            points: sizes.iter().zip(curve(&accesses, &blocks)).map(report).collect(),
        })
    }
}

/// So many bytes, and half of them, so many times, without those that are less than a block; the least first.
fn halves(bytes: u64, times: u32) -> Vec<u64> {
    (0..=times).rev().map(|times| bytes >> times).filter(|bytes| *bytes >= BLOCK).collect()
}

/// The curve of the whole trace at `path`.
pub(crate) fn of_trace(path: &Path, sizes: &Sizes) -> Result<Curve, Failure> {
    let name = text::path(path);
    let failed = |error| Failure::failed(format!("{name}: {error}"));
    let mut reader = Reader::new(reading::open(path, "reading")?).map_err(failed)?;
    let mut curves = Curves::new();
    while let Some(requests) = reader.next_block().map_err(failed)? {
        for request in requests {
            curves.push(request);
        }
    }
    curves.finish(sizes).map_err(|why| Failure::failed(format!("{name}: {why}")))
}

impl Curve {
    /// A table that fits a terminal's width.
    pub(crate) fn table(&self) -> String {
        let mut out = format!(
            "What caches would have missed of {} accesses to blocks of {},\n{} distinct",
            self.accesses,
            text::bytes(self.block_bytes),
            text::bytes(self.footprint_bytes),
        );
        if self.sampled_share < 1.0 {
            let _ =
                write!(out, "; estimated from {:.2} % of the blocks", self.sampled_share * 100.0);
        }
        out.push_str(":\n");
        let ours = format!("ours ({})", self.policy);
        let [cache, lru, s3fifo, optimum] = ["cache", "LRU", "S3-FIFO", "optimum"];
        let sampled = self.sampled_share < 1.0;
        let error = if sampled { "     error" } else { "" };
        let _ = writeln!(out, "{cache:>12}{lru:>10}{s3fifo:>10}{ours:>15}{optimum:>10}{error}");
        for point in &self.points {
            let percent = |share: f64| format!("{:.2} %", share * 100.0);
            let size = text::bytes(point.cache_bytes);
            let [lru, s3fifo, ours, optimum, error] =
                [point.lru, point.s3fifo, point.ours, point.optimum, point.error].map(percent);
            let error = if sampled { format!("{error:>10}") } else { String::new() };
            let _ = writeln!(out, "{size:>12}{lru:>10}{s3fifo:>10}{ours:>15}{optimum:>10}{error}");
        }
        out
    }

    /// As a picture.
    pub(crate) fn draw(&self, out: &mut String) -> DrawResult {
        let root = SVGBackend::with_string(out, (720, 420)).into_drawing_area();
        root.fill(&WHITE)?;
        let [first, last] = [self.points.first(), self.points.last()]
            .map(|point| point.map_or(1.0, |point| mib(point.cache_bytes)));
        let mut chart = ChartBuilder::on(&root)
            .caption("miss ratio by size of the cache", ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d((first..last.max(first * 2.0)).log_scale(), 0.0..1.0)?;
        chart
            .configure_mesh()
            .max_light_lines(0)
            .x_desc("cache, MiB")
            .y_desc("misses of all accesses")
            .draw()?;
        let ours = format!("ours ({})", self.policy);
        let series: [(&str, Measure); 4] = [
            ("the optimum", |point| point.optimum),
            (&ours, |point| point.ours),
            ("LRU", |point| point.lru),
            ("S3-FIFO", |point| point.s3fifo),
        ];
        for (number, (name, of)) in series.into_iter().enumerate() {
            let points: Vec<_> =
                self.points.iter().map(|point| (mib(point.cache_bytes), of(point))).collect();
            let style = colour(number).stroke_width(6_u32.saturating_sub(2 * count(number)).max(2));
            chart
                .draw_series([PathElement::new(points, style)])?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
        root.present()?;
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a coordinate")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use halocline_trace::Op;

    use super::*;

    #[test]
    fn sizes_around_a_cache_are_those_of_smaller_and_larger_ones() {
        let request = |offset| Request {
            start_ns: 0,
            duration_ns: None,
            process: 0,
            file: 0,
            op: Op::Write,
            offset,
            length: BLOCK,
        };
        let sizes = |bytes| {
            let mut curves = Curves::new();
            (0..8).for_each(|block| curves.push(&request(block * BLOCK)));
            let curve = curves.finish(&Sizes::Around(bytes)).unwrap();
            curve.points.iter().map(|point| point.cache_bytes / BLOCK).collect::<Vec<_>>()
        };
        assert_eq!(sizes(16 * BLOCK), [4, 8, 16, 32, 64]);
        assert_eq!(sizes(2 * BLOCK), [1, 2, 4, 8]);
        assert_eq!(sizes(0), [1]);
        // Regression: five caches of which each holds the 8 blocks, and all miss as many.
        assert_eq!(sizes(32 * BLOCK), [1, 2, 4, 8, 32]);
        assert_eq!(sizes(1 << 40), [1, 2, 4, 8, (1 << 40) / BLOCK]);
    }

    /// Regression: each block of it would have been counted, for days.
    #[test]
    fn a_request_of_exbibytes_is_not_counted_block_by_block() {
        let request = |length| Request {
            start_ns: 0,
            duration_ns: None,
            process: 0,
            file: 0,
            op: Op::Read,
            offset: 1,
            length,
        };
        let mut curves = Curves::new();
        curves.push(&request(BLOCK));
        curves.push(&request(1 << 62));
        curves.push(&request(1 << 62));
        assert!(curves.finish(&Sizes::Footprint).unwrap_err().contains("too much for a curve"));
        let mut curves = Curves::new();
        curves.push(&request(BLOCK));
        assert_eq!(curves.finish(&Sizes::Footprint).unwrap().accesses, 2);
    }
}
