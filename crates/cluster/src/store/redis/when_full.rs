//! Requests that a server executes although its memory is used up (`maxmemory`). Nodes would lose their leases
//! otherwise, and nobody could make room.
//!
//! What must hold: the memory that is used in this way is bounded by the number of nodes and of open files, whatever
//! programs do.

use redis::{Script, ScriptInvocation};

use super::{Result, StoreError};

/// The first line of a script that a server executes although its memory is used up. Servers before Redis 7 do not know
/// it, so a script without it is sent first.
pub(crate) const WHEN_FULL: &str = "#!lua flags=allow-oom\n";

/// How a server that does not know that line refuses it.
const UNKNOWN_LINE: &str = "compiling script";

/// A script in two forms.
pub(super) struct EvenIfFull {
    plain: Script,
    when_full: Script,
}

impl EvenIfFull {
    pub(super) fn new(text: &str) -> Self {
        Self::with(text, text)
    }

    /// With another text for a server whose memory is used up.
    pub(super) fn with(text: &str, when_full: &str) -> Self {
        let when_full = Script::new(&[WHEN_FULL, when_full].concat());
        Self { plain: Script::new(text), when_full }
    }

    /// Runs the script, whichever form the server executes.
    pub(super) fn run<'a, T>(
        &'a self,
        of: impl Fn(&'a Script) -> Result<ScriptInvocation<'a>>,
        run: impl Fn(&ScriptInvocation<'a>) -> Result<T>,
    ) -> Result<T> {
        or_when_full(run(&of(&self.plain)?), || run(&of(&self.when_full)?))
    }
}

/// The result of a request, which is sent `again` in its other form if the server did nothing because its memory is
/// used up.
pub(crate) fn or_when_full<T>(asked: Result<T>, again: impl FnOnce() -> Result<T>) -> Result<T> {
    if !asked.as_ref().is_err_and(StoreError::is_full) {
        return asked;
    }
    match again() {
        Err(StoreError::NoAnswer(what)) if what.contains(UNKNOWN_LINE) => asked,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(what: &str) -> Result<u8> {
        Err(StoreError::NoAnswer(what.to_owned()))
    }

    #[test]
    fn a_request_is_sent_again_only_if_nothing_was_done() {
        let full = "h:1: \"OOM\": command not allowed when used memory > 'maxmemory'.";
        assert_eq!(or_when_full(failed(full), || Ok(2)), Ok(2));
        assert_eq!(or_when_full(failed("no answer in 3 s"), || Ok(2)), failed("no answer in 3 s"));
        assert_eq!(or_when_full(Ok(1), || Ok(2)), Ok(1));
        let old =
            "Error compiling script (new function): user_script:1: unexpected symbol near '#'";
        assert_eq!(or_when_full(failed(full), || failed(old)), failed(full));
        assert_eq!(or_when_full(failed(full), || failed("no answer")), failed("no answer"));
    }
}
