//! Tests that cannot run on a machine say so.

use std::fmt::Display;
use std::io::{self, Write};

/// Reports that this test cannot run here; `.ci/run` counts the line. Unlike `eprintln`, this is not
/// captured by the test harness, which names a test's thread after it.
pub fn skip(reason: impl Display) {
    let thread = std::thread::current();
    let _ = writeln!(io::stderr(), "\nSKIP {}: {reason}", thread.name().unwrap_or("main"));
}
