//! Byte counts as text.

/// Suffixes of byte counts, powers of 1024, largest first.
const BYTE_UNITS: [(&str, u64); 4] =
    [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// Splits `12.5GiB` into 12.5 and `GiB`.
pub fn split_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

/// Reads bytes: `4096`, `64K`, `1.5G`, `2GiB`, `2GB` (all powers of 1024).
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a fraction of a unit is rounded down to bytes; exact below 2^53"
)]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text)?;
    let unit = unit.to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let factor = match BYTE_UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return None,
    };
    let bytes = number * factor as f64;
    (bytes < 2f64.powi(63)).then_some(bytes as u64)
}

/// Writes bytes exactly, in the largest unit that divides them, as [`parse_bytes`] reads it.
pub fn format_bytes(bytes: u64) -> String {
    BYTE_UNITS
        .iter()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .map_or_else(|| bytes.to_string(), |(name, factor)| format!("{}{name}", bytes / factor))
}
