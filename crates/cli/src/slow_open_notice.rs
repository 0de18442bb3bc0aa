//! Reports what opening an origin and its cache waits for, if it takes long.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::print::tell;
use crate::text;

/// How long it may take until something is reported.
const LONG: Duration = Duration::from_secs(20);

/// Something is being opened until this is dropped.
#[derive(Debug)]
pub(crate) struct SlowOpenNotice {
    _ends: Option<Sender<()>>,
}

impl SlowOpenNotice {
    /// Opens `origin`, with what a killed mount left. To be called when more threads may be started.
    pub(crate) fn of(origin: &Path) -> Self {
        let (ends, ended) = channel::<()>();
        let origin = text::path(origin);
        let watch = move || {
            if ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                tell!(
                    "halocline: {origin}: still opening: what a killed mount left is looked at file by file; where a disk or \
                     server does not answer, this waits for it, and ends when it does"
                );
            }
        };
        let watched = thread::Builder::new().name("opening".into()).spawn(watch);
        Self { _ends: watched.is_ok().then_some(ends) }
    }
}
