//! Counted nouns for people: `1 file`, `2 files`.

use std::fmt::Display;

/// `count` and the noun in singular or plural; `one` is the singular.
pub fn counted<N: Display + Copy + PartialEq + From<u8>>(count: N, one: &str) -> String {
    if count == N::from(1) { format!("{count} {one}") } else { format!("{count} {}", plural(one)) }
}

/// `count`, the noun in singular or plural, and the matching verb: `1 file was`, `2 files were`.
pub fn counted_with<N>(count: N, one: &str, (of_one, of_many): (&str, &str)) -> String
where
    N: Display + Copy + PartialEq + From<u8>,
{
    let verb = if count == N::from(1) { of_one } else { of_many };
    format!("{} {verb}", counted(count, one))
}

/// The plural of a regular noun; of a phrase, that of its last word.
fn plural(one: &str) -> String {
    let ends_in_a_sibilant = ["s", "x", "ch", "sh"].iter().any(|end| one.ends_with(end));
    match one.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if ends_in_a_sibilant => format!("{one}es"),
        _ => format!("{one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_are_in_their_number() {
        assert_eq!(counted(0_u64, "file"), "0 files");
        assert_eq!(counted(1_usize, "file"), "1 file");
        assert_eq!(counted(2_u32, "open file"), "2 open files");
        assert_eq!(counted(2_u64, "directory"), "2 directories");
        assert_eq!(counted(2_u64, "process"), "2 processes");
        assert_eq!(counted(2_u64, "key"), "2 keys");
    }

    #[test]
    fn verbs_follow_them() {
        let told = |count: u64| counted_with(count, "file", ("was", "were"));
        assert_eq!((told(1), told(3)), ("1 file was".to_owned(), "3 files were".to_owned()));
    }
}
