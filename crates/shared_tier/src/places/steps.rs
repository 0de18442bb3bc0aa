//! The steps by which disks change, each one call that a file system makes or refuses. Tests stop at them and fail
//! them.

use std::fmt::Debug;
use std::sync::Arc;

use halocline_os::error::{Error, Result};

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

    /// Runs a step; `what` is for people. If the disk is full, or a quota is used up, it is tried once more after `make_room`
    /// has made some.
    pub(crate) fn step<T, E: Into<Error>>(
        &self,
        what: &'static str,
        mut act: impl FnMut() -> Result<T, E>,
        make_room: impl FnOnce(&Error) -> bool,
    ) -> Result<T> {
        let mut make = || {
            self.0.as_ref().map_or(Ok(()), |watcher| watcher.before(what))?;
            act().map_err(Into::into)
        };
        match make() {
            Err(error) if error.is_full() && make_room(&error) => make(),
            done => done,
        }
    }
}
