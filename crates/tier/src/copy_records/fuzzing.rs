//! The era of clean copies: part of a fuzz target (`crate::fuzzing`).

use super::parse_era;

/// What a link says of the era.
pub(crate) fn era(target: &str) {
    if let Some((era, boot)) = parse_era(target) {
        assert_eq!(parse_era(&format!("{era:x} {boot}")), Some((era, boot)));
    }
}
