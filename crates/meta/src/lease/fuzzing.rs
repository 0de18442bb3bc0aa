//! The lease of a cache: body of a fuzz target (`crate::fuzzing`).

use super::{Closed, Evidence, LENGTH, Text, read};
use crate::Stamp;
use crate::fuzz_input::memory_file;

/// A lease from any writer: what is parsed is the same when it is rewritten, and judging by it does not overflow.
pub fn lease(bytes: &[u8]) {
    let identity = ((7, 9), 1000);
    let file = memory_file(bytes);
    for boot in ["boot", "a1b2"] {
        let (evidence, exit) = read(&file, identity, boot).expect("memory is read");
        assert_eq!(bytes.is_empty(), evidence == Evidence::Nothing);
        assert!(exit.is_none_or(|exit| exit.id >= 0));
        for at in [i64::MIN, 0, i64::MAX] {
            let found = Stamp::Closed { size: 1, mtime_ns: at, ctime_ns: at };
            for left in [Stamp::Writing, Stamp::Unjudged { until_ns: at }, found] {
                let _ = evidence.judge(evidence.kept(left), found);
            }
        }
    }
    let Some(text) = Text::decode(&bytes[..bytes.len().min(LENGTH)]) else { return };
    let again = text.encode();
    // A text longer than the file is cut, which makes it unreadable.
    assert!(Text::decode(&again).is_none_or(|again| again == text));
}

/// Seeds of [`lease`].
#[cfg(test)]
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let text = Text {
        boot_id: "0e1c2d3f-4455-6677-8899-aabbccddeeff".to_owned(),
        until_ms: 1_795_577_225_000,
        synced_until_ms: 1_795_577_285_000,
        closed: Closed::No,
        behind: false,
        identity: (7, 9),
        ahead_ms: 12,
        exit: Some(crate::exit_time::Name { key: 1_234_567, id: 32_770 }),
        busy: true,
    };
    let closed =
        Text { closed: Closed::Durable, behind: true, exit: None, busy: false, ..text.clone() };
    let before = "lease-1 boot a1b2 until 5 synced 6 closed 0 behind 0 inode 7 born 9 \n";
    vec![
        ("busy", text.encode().to_vec()),
        ("closed", closed.encode().to_vec()),
        ("earlier-version", before.into()),
    ]
}
