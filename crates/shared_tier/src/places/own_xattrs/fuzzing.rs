//! What the extended attributes of files and directories claim: part of a fuzz target (`crate::fuzzing`).

use super::{
    Dated, Name, NotedKind, TwoNames, dated_value, from_value, parse_dated, parse_from, parse_name,
    parse_number, parse_renaming, renaming_value, value,
};
use halocline_cluster::names::attributes::Location;

/// A claim of each kind: an accepted value has only one form, or survives being written again.
pub(crate) fn claims(bytes: &[u8]) {
    if let Some(number) = parse_number(bytes) {
        assert_eq!(number.to_string().as_bytes(), bytes);
    }
    if let Some((directory, name)) = parse_name(bytes) {
        // In another form it would be in an attribute where nobody removes it.
        assert_eq!(value(directory, &name), bytes);
    }
    if let Some(dated) = parse_dated(bytes) {
        assert_eq!(dated_value(dated), bytes);
    }
    if let Some(renaming) = parse_renaming(bytes) {
        assert_eq!(renaming_value(&renaming), bytes);
    }
    if let Some(from) = parse_from(bytes) {
        assert!(!from.path.as_path().is_absolute());
        assert_eq!(parse_from(&from_value(&from)), Some(from));
    }
}

/// Attributes as they are written for a file with a name, whose copy came from a place.
pub(crate) fn seeds(from: &Location) -> [(&'static str, Vec<u8>); 5] {
    let name = Name::from(&b"a name\xff"[..]);
    let (old, new) = ((4711, name.clone()), (1, Name::from("new")));
    [
        ("renaming", renaming_value(&TwoNames { kind: NotedKind::Exchanges, from: old, to: new })),
        ("number", 4711.to_string().into_bytes()),
        ("name", value(4711, &name)),
        ("from", from_value(from)),
        ("dated", dated_value(Dated { mtime_ns: -4711, as_of_ns: 4712 })),
    ]
}
