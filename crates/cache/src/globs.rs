//! Pin and exclude globs, as both engines use them.

pub(crate) use halocline_api::globs::Globs;
