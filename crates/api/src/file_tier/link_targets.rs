//! The form of links on the SSD of a tier of one node, which that tier writes and an adoption by nodes reads: after the root of
//! a lower tier and a slash comes a plain relative path, or one of these marks.

/// Marks a user's link whose target begins with a tier's root: a no-op on the way to the same file, which no place has.
pub const ESCAPE: &[u8] = b".//";
/// Marks a link of the tier that may have several names (hard links): the kernel resolves it to the same file, and neither
/// a plain path nor an escaped target begins like this.
pub const SHARED: &[u8] = b"./";
/// Times of the tier's own links before this second stand for numbers of files; no file is as old as 1970.
pub const NUMBERS_BEFORE_S: i64 = 365 * 24 * 3600;
