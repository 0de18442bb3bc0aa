//! The SSDs to which a pattern leads, by the directory in which `{node}` stands: also those of nodes that the shared disk does not
//! note, because it is another one than they were mounted with.

use std::path::PathBuf;

use super::{PATTERN, Whose, check_node};

/// The nodes whose names lead to the SSD of a node of this name, with their tiers, in order. Of a directory that cannot be
/// listed there are none.
pub(crate) fn reached(pattern: &str) -> Vec<Whose> {
    let parts: Vec<&str> = pattern.split('/').collect();
    let Some(at) = parts.iter().position(|part| part.contains(PATTERN)) else { return Vec::new() };
    let above = PathBuf::from(parts[..at].join("/"));
    let above = match above.as_os_str().is_empty() {
        false => above,
        true if pattern.starts_with('/') => PathBuf::from("/"),
        true => PathBuf::from("."),
    };
    let names = std::fs::read_dir(above).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let nodes = names.filter_map(|name| node_of(parts[at], &name).map(str::to_owned));
    let found = nodes.filter_map(|node| {
        super::of_ssd(&super::of_node(pattern, &node)).filter(|found| found.node == node)
    });
    let mut found: Vec<Whose> = found.collect();
    found.sort();
    found
}

/// The node for which a part of a pattern is this name.
fn node_of<'n>(part: &str, name: &'n str) -> Option<&'n str> {
    let (before, _) = part.split_once(PATTERN)?;
    let count = part.matches(PATTERN).count();
    let bytes = name.len().checked_sub(part.len() - count * PATTERN.len())?;
    let node = name.get(before.len()..before.len() + bytes / count)?;
    (check_node(node).is_ok() && part.replace(PATTERN, node) == name).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_pattern_says_which_node_a_name_is() {
        for (part, name, node) in [
            ("{node}", "n1", Some("n1")),
            ("ssd-{node}", "ssd-n1", Some("n1")),
            ("{node}.{node}x", "ab.abx", Some("ab")),
            ("{node}.{node}x", "ab.acx", None),
            ("{node}-ssd", "-ssd", None),
            ("ssd-{node}", "ss", None),
            ("ssd-{node}", "hdd-n1", None),
            ("{node}", ".hidden", None),
            ("{node}é", "né", Some("n")),
            ("é{node}", "aéa", None),
        ] {
            assert_eq!(node_of(part, name), node, "{part} {name}");
        }
    }

    #[test]
    fn ssds_are_found_by_the_directory_in_which_the_pattern_has_the_node() {
        let scratch = tempfile::tempdir().unwrap();
        for (dir, node) in [("b", "b"), ("a", "a"), ("other", "a"), ("none", "")] {
            let private = scratch.path().join(dir).join("ssd/.halocline");
            std::fs::create_dir_all(&private).unwrap();
            if !node.is_empty() {
                std::fs::write(private.join("node"), format!("{node}\ntier\n")).unwrap();
            }
        }
        let pattern = format!("{}/{{node}}/ssd", scratch.path().display());
        let whose = |node: &str| Whose { node: node.to_owned(), tier: "tier".to_owned() };
        assert_eq!(reached(&pattern), ["a", "b"].map(whose));
        assert_eq!(reached(&format!("{pattern}/nowhere")), []);
        assert_eq!(reached("nowhere/{node}"), []);
    }
}
