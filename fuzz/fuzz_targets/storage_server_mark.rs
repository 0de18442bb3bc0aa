#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halocline_storage::fuzzing::server_mark(bytes));
