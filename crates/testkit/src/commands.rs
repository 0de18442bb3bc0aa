//! Which commands the command has, as its help says: what a test goes over is then complete by itself.

use std::path::Path;
use std::process::Command;

/// All commands that have no commands below them, each with its words: `status`, `bench ior`.
pub fn commands(program: &Path) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    below(program, &[], &mut found);
    assert!(found.len() > 20, "the help has changed: {found:?}");
    found
}

fn below(program: &Path, words: &[String], found: &mut Vec<Vec<String>>) {
    let output = Command::new(program).args(words).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let Some((_, list)) = help.split_once("\nCommands:\n") else {
        return found.push(words.to_vec());
    };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // What is indented further goes on with the line before.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for name in names.filter(|name| !name.is_empty() && *name != "help") {
        below(program, &[words, &[name.to_owned()]].concat(), found);
    }
}
