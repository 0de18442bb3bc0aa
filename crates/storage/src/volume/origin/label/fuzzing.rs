//! The label of a striped volume: body of a fuzz target (`crate::fuzzing`).

use std::path::Path;

use halocline_model::request::ByteRange;

use super::{NAME, VolumeLabel};
use halocline_api::config::{SERVERS_MAX, STRIPE_BYTES_MAX};

/// A label: it is refused, or a geometry that all of a file fits; whether it was accepted.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(label) = VolumeLabel::parse(text, Path::new(NAME)) else { return false };
    assert!((1..=SERVERS_MAX).contains(&label.servers), "{label:?}");
    assert!((1..=STRIPE_BYTES_MAX).contains(&label.stripe), "{label:?}");
    let again =
        VolumeLabel::parse(&toml::to_string(&label).expect("numbers are TOML"), Path::new(NAME));
    assert_eq!(again.expect("our own"), label);
    assert!(label.bound_to(u64::MAX).is_bound_to(u64::MAX));
    let (striping, end) = (label.striping(), i64::MAX.cast_unsigned());
    for start in [0, label.stripe - 1, end - label.stripe.min(end)] {
        let range = ByteRange::new(start, (start + 2 * label.stripe).min(end));
        let pieces: u64 = striping.pieces(range).map(|piece| piece.len).sum();
        assert_eq!(pieces, range.len(), "{label:?} {range:?}");
    }
    for server in [0, label.servers - 1] {
        assert!(striping.local_len(server, end) <= end, "{label:?}");
    }
    true
}

/// The label of a striped volume.
pub fn volume_label(bytes: &[u8]) {
    check(bytes);
}
