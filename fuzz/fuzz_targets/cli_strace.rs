#![no_main]

// The command is not a library, so its parser and the body are included as files.
#[path = "../../crates/cli/src/command/jobs/fuzzing.rs"]
mod fuzzing;
#[path = "../../crates/cli/src/command/jobs/trace.rs"]
mod trace;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::strace(bytes));
