//! The mark of a cache on its origin: body of a fuzz target (`crate::fuzzing`).

use super::MarkContent;
use crate::OriginKey;

const ORIGIN: OriginKey = OriginKey { inode: 7, born_ns: 9 };

/// A mark, by whoever may write to the origin's directory: what is understood is of this directory, can be shown to
/// people, and is the same when it is written again.
pub fn origin_mark(value: &[u8]) {
    let Some(content) = MarkContent::parse(value, ORIGIN) else { return };
    assert_eq!((content.origin_inode, content.origin_born_ns), (ORIGIN.inode, ORIGIN.born_ns));
    assert!(!content.host.contains(char::is_control) && !content.cache.contains(char::is_control));
    assert!(content.host.len() + content.cache.len() <= value.len(), "it has what was there");
    let again = serde_json::to_vec(&content).expect("texts and numbers");
    assert_eq!(MarkContent::parse(&again, ORIGIN), Some(content));
}

/// Seeds of [`origin_mark`].
#[cfg(test)]
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let content = MarkContent {
        host: "n1".to_owned(),
        cache: "/mnt/ssd/cache \u{fffd}".to_owned(),
        cache_inode: 3,
        cache_born_ns: 5,
        origin_inode: ORIGIN.inode,
        origin_born_ns: ORIGIN.born_ns,
    };
    vec![("plain", serde_json::to_vec(&content).unwrap())]
}
