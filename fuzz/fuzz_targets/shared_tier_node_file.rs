#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halocline_shared_tier::fuzzing::node_file(bytes));
