//! The layout of a file of a striped volume: body of a fuzz target (`crate::fuzzing`).

use xxhash_rust::xxh3::xxh3_64;

use super::{HEAD, PARTS_MAX, WIDTH_BYTES_MIN, decode, encode};
use halocline_api::config::STRIPE_BYTES_MAX;

/// A layout, as it stands and with its right checksum: if it is accepted, it is bounded, covers each byte once, and is
/// the same when it is written again.
pub fn layout(bytes: &[u8]) {
    for servers in [1, 3, 8] {
        check(bytes, servers);
        let body =
            bytes.iter().position(|byte| *byte == b'\n').map_or(bytes, |at| &bytes[at + 1..]);
        let head = format!("{HEAD}{:016x}\n", xxh3_64(body));
        check(&[head.as_bytes(), body].concat(), servers);
    }
}

fn check(bytes: &[u8], servers: usize) {
    let Ok(layout) = decode(bytes, servers) else { return };
    let parts = layout.parts();
    assert!((1..=PARTS_MAX).contains(&parts.len()) && parts[0].start == 0);
    assert!(parts.is_sorted_by(|one, other| one.start < other.start));
    for part in parts {
        assert_eq!(part.striping.widths().len(), servers);
        let mut widths = part.striping.widths().iter().filter(|width| **width > 0);
        assert!(widths.all(|width| (WIDTH_BYTES_MIN..=STRIPE_BYTES_MAX).contains(width)));
    }
    let again = decode(encode(&layout).as_bytes(), servers).expect("our own");
    assert_eq!(again.parts(), parts);
}

/// Seeds of [`layout`].
#[cfg(test)]
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use halocline_model::file_layout::FileLayout;

    let one = FileLayout::from_parts(vec![(0, vec![65_536])]).unwrap();
    let three =
        vec![(0, vec![4096, 0, 65_536]), (1 << 20, vec![0, 0, 512]), (1 << 30, vec![512; 3])];
    let three = FileLayout::from_parts(three).unwrap();
    vec![("one-server", encode(&one).into_bytes()), ("three-parts", encode(&three).into_bytes())]
}
