//! Progress of long work: a bar with an ETA on a terminal, a line now and then otherwise.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use halocline_api::control::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::print::tell;
use crate::text;

/// Time between two plain lines.
pub(crate) const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Shows the progress of one piece of work on standard error.
pub(crate) struct Meter {
    verb: &'static str,
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
    started: Instant,
}

impl Meter {
    /// A meter for work called `verb`, as in "flushing"; silent when `quiet`.
    pub(crate) fn new(verb: &'static str, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template(
                "{prefix} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} ETA {eta} {wide_msg}",
            );
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_prefix(verb)
        });
        // In a pipe, work that ends soon needs no line.
        let last_line = (!quiet).then(Instant::now);
        Self { verb, bar, last_line, started: Instant::now() }
    }

    /// Shows how far it is.
    pub(crate) fn tell(&mut self, now: &Progress) {
        if let Some(bar) = &self.bar {
            bar.set_length(now.total_bytes);
            bar.set_position(now.done_bytes);
            bar.set_message(text::path(&now.path));
        } else if self.last_line.is_some_and(|last| last.elapsed() >= LINE_INTERVAL) {
            self.last_line = Some(Instant::now());
            tell!("{}: {}", self.verb, line(now, self.started.elapsed()));
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

/// `1.00 GiB of 4.00 GiB, 25.0 %, 30.00 s left`.
#[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
fn line(now: &Progress, passed: Duration) -> String {
    let done = text::bytes(now.done_bytes);
    let total = text::bytes(now.total_bytes);
    let share = text::share(now.done_bytes, now.total_bytes);
    let left = now.total_bytes.saturating_sub(now.done_bytes);
    if now.done_bytes == 0 {
        return format!("{done} of {total}");
    }
    let seconds = passed.as_secs_f64() * left as f64 / now.done_bytes as f64;
    format!("{done} of {total}, {share}, {} left", text::seconds(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_the_time_left() {
        let now = Progress { done_bytes: 1 << 20, total_bytes: 4 << 20, path: "f".into() };
        let text = line(&now, Duration::from_secs(10));
        assert_eq!(text, "1.00 MiB of 4.00 MiB, 25.0 %, 30.00 s left");
        let none = Progress { done_bytes: 0, total_bytes: 0, path: "".into() };
        assert_eq!(line(&none, Duration::ZERO), "0 B of 0 B");
    }
}
