#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halocline_api::fuzzing::mounts(bytes));
