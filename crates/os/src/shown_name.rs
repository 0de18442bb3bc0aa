//! Names and paths in messages, as bytes that are mostly text.

use std::fmt::Write as _;

/// A name or path for people: as it is, but for what is no text, and for what a terminal would obey instead of showing it.
#[must_use]
pub fn shown_name(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_obeyed(c) { out.extend(c.escape_debug()) } else { out.push(c) }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Whether a terminal obeys this character: it moves the cursor, begins a line or an escape sequence, or turns the direction
/// of writing.
#[must_use]
pub fn is_obeyed(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    turns || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_are_unless_a_terminal_would_obey_them() {
        for plain in ["a/b", "\"q'`$(id)", "back\\slash", "Zürich/日本", " sp "] {
            assert_eq!(shown_name(plain.as_bytes()), plain);
        }
        assert_eq!(shown_name(b"\x1b[31m\n\xff\xfe"), "\\u{1b}[31m\\n\\xff\\xfe");
        assert_eq!(shown_name("\u{202e}rtl".as_bytes()), "\\u{202e}rtl");
    }
}
