//! Integers in 7 bits per byte, least significant first; the top bit means that more follow.

/// Appends `value`: 1 to 10 bytes.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Takes a number from the front of `input`; `None` if it ends early or does not fit in 64 bits.
pub(crate) fn take(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (index, &byte) in input.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * index);
        if byte < 0x80 {
            *input = &input[index + 1..];
            return Some(value);
        }
    }
    None
}

/// Maps a signed number to an unsigned one, so that small ones of either sign are short.
pub(crate) const fn fold(value: i64) -> u64 {
    (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned()
}

/// The inverse of [`fold`].
pub(crate) const fn unfold(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            let mut rest = bytes.as_slice();
            assert_eq!(take(&mut rest), Some(value));
            assert!(rest.is_empty());
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None);
            assert_eq!(fold(unfold(value)), value);
        }
        assert_eq!([fold(0), fold(-1), fold(1), fold(-2)], [0, 1, 2, 3]);
        assert_eq!(take(&mut [0xff; 10].as_slice()), None);
    }
}
