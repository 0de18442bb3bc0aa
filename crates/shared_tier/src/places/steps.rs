//! The steps by which disks change, each one call that a file system makes or refuses. Tests stop at them and fail
//! them.

use std::fmt::Debug;
use std::sync::Arc;

use halocline_os::error::Result;

/// Is called before each step. It may fail the step, which is then not made, or unwind as if the process had died
/// there.
pub(crate) trait Watcher: Debug + Send + Sync {
    /// Before a step.
    ///
    /// # Errors
    /// What the step then fails with.
    fn before(&self, what: &'static str) -> Result<()>;
}

/// Runs the steps of one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steps(Option<Arc<dyn Watcher>>);

impl Steps {
    /// Steps that are reported to a watcher.
    pub(crate) const fn new(watcher: Option<Arc<dyn Watcher>>) -> Self {
        Self(watcher)
    }

    /// Runs a step; `what` is for people.
    pub(crate) fn step<T, E: Into<halocline_os::error::Error>>(
        &self,
        what: &'static str,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T> {
        if let Some(watcher) = &self.0 {
            watcher.before(what)?;
        }
        act().map_err(Into::into)
    }
}
