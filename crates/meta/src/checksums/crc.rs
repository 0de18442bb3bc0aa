//! CRC-32C, also combined from the sums of two parts.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// The register is inverted with this at the end.
const FINAL: u32 = u32::MAX;

/// Zeros to shift a register by.
static ZEROS: [u8; 4096] = [0; 4096];

/// The sum of `data`.
pub(super) fn sum(data: &[u8]) -> u32 {
    crc32_iscsi(data)
}

/// The sum of two parts, one after the other, from the sum of each and the length of the second, which is at most 4096
/// bytes.
pub(super) fn join(first: u32, second: u32, second_len: usize) -> u32 {
    // The register is linear in its contents: what the first part left in it is shifted through the second's length,
    // without the initial value of a separate sum.
    let zeros = &ZEROS[..second_len];
    go_on(first, zeros) ^ go_on(0, zeros) ^ second
}

/// The sum of `data` appended to bytes whose sum is `before`.
fn go_on(before: u32, data: &[u8]) -> u32 {
    let register = u64::from(before ^ FINAL);
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, register);
    digest.update(data);
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_crc_32c() {
        assert_eq!(sum(b"123456789"), 0xE306_9283);
        assert_ne!(sum(&[0; 4096]), sum(&[0; 4095]));
    }

    #[test]
    fn two_parts_are_what_they_are_together() {
        let data: Vec<u8> = (0..4096_u32).map(|at| (at * at).to_le_bytes()[1]).collect();
        for cut in [0, 1, 7, 512, 2049, 4000, 4095, 4096] {
            let (first, second) = data.split_at(cut);
            assert_eq!(join(sum(first), sum(second), second.len()), sum(&data), "cut at {cut}");
            assert_eq!(go_on(sum(first), second), sum(&data), "cut at {cut}");
        }
    }
}
