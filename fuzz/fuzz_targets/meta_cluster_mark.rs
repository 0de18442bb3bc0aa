#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halocline_meta::fuzzing::cluster_mark(bytes));
