#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halocline_cluster::fuzzing::translators(bytes));
