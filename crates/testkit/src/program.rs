//! The command under test.

use std::path::PathBuf;

/// The `halocline` under test, as a `PathBuf`: the one of this build, or another that
/// `HALOCLINE_UNDER_TEST` names. Only for integration tests of the package that builds it.
#[macro_export]
macro_rules! program {
    () => {
        $crate::program::under_test(env!("CARGO_BIN_EXE_halocline"))
    };
}

/// The one that the environment names, or else `of_this_build`.
pub fn under_test(of_this_build: &str) -> PathBuf {
    std::env::var_os("HALOCLINE_UNDER_TEST").unwrap_or_else(|| of_this_build.into()).into()
}
