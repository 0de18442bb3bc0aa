//! The command under test.

use std::process::Command;

/// The one of this build, or another named by the environment.
pub(crate) fn halocline() -> Command {
    let other = std::env::var_os("HALOCLINE_UNDER_TEST");
    Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_halocline").into()))
}
