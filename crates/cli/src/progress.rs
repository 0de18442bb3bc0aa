//! Progress of long operations: a bar with an ETA on a terminal, otherwise an occasional line.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use halocline_api::control::Progress;
use halocline_os::counted::counted;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::print::tell;
use crate::text;

/// Time between two plain lines.
pub(crate) const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Time until the first line about an operation without a meter.
const FIRST_LINE_AFTER: Duration = Duration::from_millis(1500);
/// The remaining time is estimated once this fraction (a 20th) is done.
const ESTIMATE_FROM: u64 = 20;

/// When something was last said of the progress.
#[derive(Debug)]
pub(crate) struct Spoken {
    last: Instant,
    /// After how long the next line follows: the first one soon, so that nobody takes a long search for one that hangs.
    next_after: Duration,
}

impl Spoken {
    /// Nothing yet.
    pub(crate) fn begin() -> Self {
        Self { last: Instant::now(), next_after: FIRST_LINE_AFTER }
    }

    /// Whether another line is due; if so, it counts as said.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.last.elapsed() >= self.next_after;
        if is_due {
            (self.last, self.next_after) = (Instant::now(), LINE_INTERVAL);
        }
        is_due
    }
}

/// Shows the progress of one operation on standard error.
pub(crate) struct Meter {
    verb: &'static str,
    /// How an amount of work is told.
    amount: fn(u64) -> String,
    bar: Option<ProgressBar>,
    /// When the last line was written, and the number of bytes done then.
    last_line: Option<(Instant, u64)>,
}

impl Meter {
    /// A meter for an operation called `verb`, as in "flushing"; silent if `quiet`.
    pub(crate) fn new(verb: &'static str, quiet: bool) -> Self {
        Self::with(verb, quiet, text::bytes, "{bytes}/{total_bytes} {bytes_per_sec}")
    }

    /// The same for an operation whose work is requests.
    pub(crate) fn of_requests(verb: &'static str, quiet: bool) -> Self {
        Self::with(verb, quiet, |done| counted(done, "request"), "{pos}/{len}")
    }

    fn with(
        verb: &'static str,
        quiet: bool,
        amount: fn(u64) -> String,
        shown: &'static str,
    ) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let template = ["{prefix} [{bar:30}] ", shown, " ETA {eta} {wide_msg}"].concat();
            let style = ProgressStyle::with_template(&template);
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_prefix(verb)
        });
        // In a pipe, a short operation needs no line.
        let last_line = (!quiet).then(|| (Instant::now(), 0));
        Self { verb, amount, bar, last_line }
    }

    /// Shows the progress.
    pub(crate) fn tell(&mut self, now: &Progress) {
        if let Some(bar) = &self.bar {
            bar.set_length(now.total_bytes);
            bar.set_position(now.done_bytes);
            bar.set_message(text::path(&now.path));
        } else if let Some((last, bytes)) =
            self.last_line.filter(|(last, _)| last.elapsed() >= LINE_INTERVAL)
        {
            self.last_line = Some((Instant::now(), now.done_bytes));
            tell!("{}: {}", self.verb, line(now, (last.elapsed(), bytes), self.amount));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `1.00 GiB of 4.00 GiB, 25.0 %, 30.00 s left`, from the rate since the previous line, when that many bytes were done.
/// Where the amount is not known yet, or is nothing, the place is told. The beginning is not representative of the rest: it waits for programs, and for the first file.
#[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
fn line(
    now: &Progress,
    (passed, before): (Duration, u64),
    amount: impl Fn(u64) -> String,
) -> String {
    let (done, total) = (amount(now.done_bytes), amount(now.total_bytes));
    if now.total_bytes == 0 {
        return format!("at {}", text::path(&now.path));
    }
    if now.done_bytes == 0 {
        return format!("{done} of {total}");
    }
    let share = text::share(now.done_bytes, now.total_bytes);
    let so_far = format!("{done} of {total}, {share}");
    let moved = now.done_bytes.saturating_sub(before);
    if moved == 0 || now.done_bytes < now.total_bytes / ESTIMATE_FROM {
        return so_far;
    }
    let left = now.total_bytes.saturating_sub(now.done_bytes);
    let seconds = passed.as_secs_f64() * left as f64 / moved as f64;
    format!("{so_far}, {} left", text::seconds(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_the_time_left() {
        let now = Progress { done_bytes: 1 << 20, total_bytes: 4 << 20, path: "f".into() };
        let text = line(&now, (Duration::from_secs(10), 0), text::bytes);
        assert_eq!(text, "1.00 MiB of 4.00 MiB, 25.0 %, 30.00 s left");
        let none = Progress { done_bytes: 0, total_bytes: 0, path: "d/e".into() };
        assert_eq!(line(&none, (Duration::ZERO, 0), text::bytes), "at d/e");
        let none = Progress { total_bytes: 9, ..none };
        assert_eq!(line(&none, (Duration::ZERO, 0), text::bytes), "0 B of 9 B");
        // Regression: the requests of a calibration were told as bytes.
        let requests = Progress { done_bytes: 30, total_bytes: 120, path: "d".into() };
        let text = line(&requests, (Duration::from_secs(1), 0), |count| counted(count, "request"));
        assert_eq!(text, "30 requests of 120 requests, 25.0 %, 3.00 s left");
    }

    /// Regression: after a slow start, "61 min 15 s left" was reported for an operation that took seconds.
    #[test]
    fn the_time_left_is_by_the_latest_rate_and_not_told_at_the_beginning() {
        let at = |done: u64| Progress {
            done_bytes: done << 20,
            total_bytes: 100 << 20,
            path: "f".into(),
        };
        let ten = Duration::from_secs(10);
        assert_eq!(line(&at(1), (ten, 0), text::bytes), "1.00 MiB of 100 MiB, 1.0 %");
        let told = line(&at(50), (ten, 1 << 20), text::bytes);
        assert_eq!(told, "50.0 MiB of 100 MiB, 50.0 %, 10.20 s left");
        assert_eq!(line(&at(50), (ten, 50 << 20), text::bytes), "50.0 MiB of 100 MiB, 50.0 %");
    }
}
