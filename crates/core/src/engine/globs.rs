//! Pin and exclude globs, as both engines use them.

pub(crate) use crate::globs::Globs;
