//! The mark on an origin that nodes share: body of a fuzz target (`crate::fuzzing`).

use super::{MarkContent, WHAT};
use crate::origin_attribute::subjects_in;

const OWN: MarkContent = MarkContent { origin_inode: 7, origin_born_ns: 9, user: 3 };

/// A mark, or a list of names of attributes, by whoever may write to the origin's directory: a mark that is believed is of this
/// directory and this user, and a list leads to nothing that it does not name.
pub fn cluster_mark(bytes: &[u8]) {
    for own in [OWN, MarkContent { origin_born_ns: 0, ..OWN }] {
        if !own.is_in(bytes) {
            continue;
        }
        let mark: MarkContent = serde_json::from_slice(bytes).expect("it was understood");
        assert_eq!((mark.origin_inode, mark.user), (OWN.origin_inode, OWN.user));
        assert!([OWN.origin_born_ns, 0].contains(&mark.origin_born_ns) || own.origin_born_ns == 0);
        let again = serde_json::to_vec(&mark).expect("numbers");
        assert!(own.is_in(&again));
    }
    let ids = subjects_in(bytes, WHAT);
    assert!(ids.len() <= bytes.split(|byte| *byte == 0).count());
    for id in ids {
        let is_named = |class: &str| {
            let name = format!("{class}.halocline.{WHAT}.{id}");
            bytes.split(|byte| *byte == 0).any(|found| found == name.as_bytes())
        };
        assert!(is_named("trusted") || is_named("user"), "{id:?}");
    }
}

/// Seeds of [`cluster_mark`].
#[cfg(test)]
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let names = b"user.a\0trusted.halocline.cluster.0e1c\0user.halocline.cluster.a-b\0".to_vec();
    let unborn = MarkContent { origin_born_ns: 0, ..OWN };
    vec![
        ("plain", serde_json::to_vec(&OWN).unwrap()),
        ("unborn", serde_json::to_vec(&unborn).unwrap()),
        ("names", names),
    ]
}
