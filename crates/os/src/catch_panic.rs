//! Catches panics: a panic fails only the request or the round of work in which it occurs, not the thread.
//!
//! If a thread ended, its mount would stay as it is, with nothing being flushed any more, or with requests unanswered,
//! and no one would notice. So threads that live as long as a mount do their work through here. Locks are released as
//! the stack unwinds.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::error::Error;

/// A panic that was caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// Its message.
    what: String,
    /// Source file, line and column; `None` if it was in another thread.
    place: Option<String>,
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a defect of this program: it panicked")?;
        if let Some(place) = &self.place {
            write!(f, " at {place}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Panicked {}

impl From<Panicked> for io::Error {
    fn from(panicked: Panicked) -> Self {
        Self::other(panicked)
    }
}

impl From<Panicked> for Error {
    fn from(panicked: Panicked) -> Self {
        Self::Io(panicked.into())
    }
}

/// What `call` returns, or its panic, which is logged with its place.
pub fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    note_places();
    PLACE.take();
    panic::catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let panicked = Panicked { what: words(&*payload), place: PLACE.take() };
        tracing::error!("{panicked}");
        panicked
    })
}

/// The result of `call`; a panic in it counts as an error.
pub fn catch_panic<T, E: From<Panicked>>(call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    caught(call)?
}

thread_local! {
    /// Where this thread last panicked.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs a panic hook that notes the place and then calls the previous hook: a caught panic does not contain its
/// place.
fn note_places() {
    static NOTED: Once = Once::new();
    // A destructor that runs during a panic must not change the hook.
    if std::thread::panicking() {
        return;
    }
    NOTED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(ToString::to_string);
            // In a thread that is ending, it may already be gone.
            let _ending = PLACE.try_with(|noted| noted.replace(place));
            before(panic);
        }));
    });
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a word".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_says_what_and_where() {
        let panicked = caught(|| panic!("on {}", "purpose")).unwrap_err();
        assert_eq!(panicked.what, "on purpose");
        assert!(panicked.place.as_ref().is_some_and(|place| place.contains("catch_panic.rs")));
        let error = catch_panic(|| -> crate::error::Result<()> { panic!("too") }).unwrap_err();
        assert_eq!(error.errno(), libc::EIO);
        assert!(error.to_string().contains("catch_panic.rs"), "{error}");
        assert!(error.to_string().ends_with(": too"), "{error}");
        assert_eq!(catch_panic(|| Ok::<_, io::Error>(7)).unwrap(), 7);
    }

    #[test]
    fn the_place_is_not_that_of_an_earlier_panic() {
        assert!(caught(|| panic!("first")).is_err());
        // As a join propagates another thread's panic.
        let handed_on = caught(|| panic::resume_unwind(Box::new("second"))).unwrap_err();
        assert_eq!(handed_on, Panicked { what: "second".into(), place: None });
    }
}
