//! What notes of renames claim: part of a fuzz target (`crate::fuzzing`).

use super::{POSITIONS_MAX, Position, read, target};

/// The positions of a note survive being written and read again.
pub(crate) fn note(bytes: &[u8]) {
    let positions = read(bytes);
    assert!(positions.len() <= POSITIONS_MAX);
    assert!(positions.iter().all(|(_, name)| !name.as_bytes().contains(&b'/')));
    assert_eq!(read(&target(&positions)), positions);
}

/// A note of a rename.
pub(crate) fn seed(positions: &[Position]) -> Vec<u8> {
    target(positions)
}
