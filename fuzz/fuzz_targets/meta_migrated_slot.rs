#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halocline_meta::fuzzing::migrated_slot(bytes));
