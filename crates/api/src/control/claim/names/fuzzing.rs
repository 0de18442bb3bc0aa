//! Claims of other processes: body of a fuzz target (`crate::fuzzing`).

use std::path::PathBuf;

use super::{Entry, parse_table};
use crate::control::claim::{ClaimReport, DirectoryInUse};
use halocline_os::error::Error;

/// The kernel's list of sockets, whose names anyone chooses, and what a process reports about its claim: accepted names
/// are those that we would write ourselves, and the report can be shown.
pub fn claims(bytes: &[u8]) {
    let entries = parse_table(bytes).expect("memory is read");
    let lines = bytes.split(|byte| *byte == b'\n').count();
    assert!(entries.len() <= lines + bytes.len() / 4096);
    for entry in entries {
        let name = entry.name();
        assert!(name.len() <= 102 && Entry::parse(&name) == Some(entry));
        assert!(bytes.windows(name.len()).any(|window| window == name.as_bytes()));
    }
    let Ok(told) = serde_json::from_slice::<ClaimReport>(bytes) else { return };
    let again = serde_json::to_vec(&told).expect("paths");
    let again: ClaimReport = serde_json::from_slice(&again).expect("our own");
    assert_eq!((&again.dir, &again.inside, &again.cache), (&told.dir, &told.inside, &told.cache));
    let ClaimReport { dir, cache, .. } = told;
    let taken = DirectoryInUse {
        wanted: PathBuf::from("/wanted"),
        wanted_cache: PathBuf::from("/cache"),
        dir,
        cache,
        pid: 1,
        uid: 2,
        answers: true,
    };
    let shown = Error::from(taken).to_string();
    assert!(!shown.contains(char::is_control), "{shown:?}");
}
