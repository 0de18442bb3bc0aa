#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halocline_os::fuzzing::process_status(bytes));
