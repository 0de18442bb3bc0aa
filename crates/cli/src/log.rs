//! The log of this process: messages of the libraries on standard error, which of a mount is a file.
//!
//! What must hold: programs cannot fill the disk with it. Each failed request of theirs is a warning, so warnings of one
//! kind are limited in their rate, and how many were left out is told.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use halocline_os::clock::Clock;
use halocline_os::counted::counted;
use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::print::{self, tell};

/// So many warnings of one kind are logged at once; then one each [`PAUSE`], until there was none for a while.
const AT_ONCE: u32 = 50;
const PAUSE: Duration = Duration::from_secs(10);

/// The limits of this process's log.
static LIMITS: OnceLock<Limits> = OnceLock::new();

/// Begins it: warnings, or what `HALOCLINE_LOG` selects.
pub(crate) fn begin(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_env("HALOCLINE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let limits = LIMITS.get_or_init(|| Limits::new(&Clock::MACHINE));
    // Without colours, because most of it is read in a log file. A log on a full disk loses lines: if the subscriber
    // reported that on standard error, which is the log, it would panic instead, and fail a program's request.
    let log = tracing_subscriber::fmt().with_ansi(false).log_internal_errors(false);
    let log = log.event_format(Limited(limits)).with_env_filter(filter);
    log.with_writer(|| print::Log(std::io::stderr())).init();
}

/// Says how many warnings were left out that no later one has told of.
pub(crate) fn end() {
    let left_out = LIMITS.get().map_or(0, Limits::take_left_out);
    if left_out > 0 {
        tell!("halocline: {} like earlier ones not logged", counted(left_out, "warning"));
    }
}

/// A kind of warnings: where in the code it is logged, and about which request of programs.
type Kind = (Identifier, Option<String>);

/// What was logged of one kind.
#[derive(Debug)]
struct Logged {
    /// How many may still be logged at once, as of `at`.
    left: u32,
    at: Instant,
    /// How many were left out since the last that was logged.
    left_out: u64,
}

#[derive(Debug)]
struct Limits {
    clock: Clock,
    kinds: Mutex<HashMap<Kind, Logged>>,
}

impl Limits {
    fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), kinds: Mutex::default() }
    }

    /// Counts a warning: how many of its kind were left out before it, or `None` if it is left out, too.
    fn count(&self, kind: Kind) -> Option<u64> {
        let now = self.clock.instant();
        let mut kinds = self.kinds.lock();
        let logged = kinds.entry(kind).or_insert(Logged { left: AT_ONCE, at: now, left_out: 0 });
        let pauses = now.saturating_duration_since(logged.at).as_secs() / PAUSE.as_secs();
        if pauses > 0 {
            let pauses = u32::try_from(pauses).unwrap_or(u32::MAX);
            (logged.left, logged.at) = (logged.left.saturating_add(pauses).min(AT_ONCE), now);
        }
        if logged.left == 0 {
            logged.left_out += 1;
            return None;
        }
        logged.left -= 1;
        Some(std::mem::take(&mut logged.left_out))
    }

    fn take_left_out(&self) -> u64 {
        let mut kinds = self.kinds.lock();
        kinds.values_mut().map(|logged| std::mem::take(&mut logged.left_out)).sum()
    }
}

/// Finds the request that a warning is about.
#[derive(Default)]
struct Request(Option<String>);

impl Visit for Request {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "request" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// Writes events as usual, except for warnings beyond the limits.
struct Limited<'a>(&'a Limits);

impl<S, N> FormatEvent<S, N> for Limited<'static>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // What is asked for by a level is written whole.
        if *event.metadata().level() > Level::WARN {
            return Format::default().format_event(context, writer, event);
        }
        let mut request = Request::default();
        event.record(&mut request);
        let Some(left_out) = self.0.count((event.metadata().callsite(), request.0)) else {
            return Ok(());
        };
        if left_out == 0 {
            return Format::default().format_event(context, writer, event);
        }
        let mut line = String::new();
        Format::default().format_event(context, Writer::new(&mut line), event)?;
        writeln!(writer, "{} ({left_out} like it were not logged before)", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;

    #[derive(Debug, Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        fn lines(&self) -> Vec<String> {
            let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    /// Regression: a program whose requests failed wrote gigabytes into the log of its mount.
    #[test]
    fn warnings_of_one_kind_are_limited_and_the_others_are_counted() {
        let clock = Clock::simulated();
        let limits: &'static Limits = Box::leak(Box::new(Limits::new(&clock)));
        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).event_format(Limited(limits));
        let log = log.with_max_level(Level::INFO).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || {
            let failed = |request: &str| tracing::warn!(request, "a request failed");
            (0..1000).for_each(|_| failed("read"));
            assert_eq!(written.lines().len(), 50);
            // Others are not concerned, nor is what was asked for by a level.
            failed("write");
            (0..100).for_each(|_| tracing::info!("as asked"));
            tracing::error!("another kind");
            assert_eq!(written.lines().len(), 102);
            failed("read");
            clock.sleep(PAUSE);
            (0..10).for_each(|_| failed("read"));
            let lines = written.lines();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].contains("a request failed"), "{lines:?}");
            assert!(lines[0].ends_with("(951 like it were not logged before)"), "{lines:?}");
            assert_eq!(limits.take_left_out(), 9);
            clock.sleep(PAUSE * 1000);
            (0..100).for_each(|_| failed("read"));
            assert_eq!(written.lines().len(), 50);
        });
    }
}
