//! Every option that takes a number, of every command, and every key of the configuration file: what
//! is out of bounds is refused with the name of the option and its bounds, and nothing happens.

use std::collections::BTreeSet;
use std::fs;

use halocline_api::config::{Kind, OPTIONS};
use halocline_testkit::commands::commands;
use halocline_testkit::program;
use halocline_testkit::sandbox::{Sandbox, said, written};

/// What is not a value of any option that takes a number.
const NONSENSE: [&str; 10] =
    ["-5G", "-1", "99999999999999999999999", "1e400", "NaN", "", " ", "1x", "64Q", "\u{663}"];

/// Commands whose numbers are read late, as those of the configuration are, with their other arguments. They lead
/// nowhere, so that nothing happens where a value is good. The numbers of all others are read while arguments are
/// parsed, whatever else is missing.
const COMMANDS: [&[&str]; 12] = [
    &["mount", "nowhere", "mnt", "--cache", "cache"],
    &["mount", "--tier", "nowhere", "mnt"],
    &["run", "--origin", "nowhere", "--cache", "cache"],
    &["bench", "ior", "--dir", "nowhere"],
    &["bench", "tier", "--dir", "nowhere"],
    &["calibrate", "nowhere", "--config", "c.toml"],
    &["explain", "nowhere", "0", "8K"],
    &["where", "nowhere"],
    &["jobs"],
    &["trace", "record", "--origin", "nowhere"],
    &["cluster", "recover", "nowhere", "node", "--cluster", "redis://nowhere"],
    &["doctor"],
];

/// The flags with a value of these kinds that the help of a command names, and what it says of each.
fn numbers(sandbox: &Sandbox, command: &[&str]) -> Vec<(String, String)> {
    let words = command
        .iter()
        .take_while(|word| !word.starts_with('-') && !["nowhere", "node"].contains(word));
    let help = written(
        &sandbox.halocline(&[&words.copied().collect::<Vec<_>>()[..], &["--help"]].concat()),
    );
    let mut found: Vec<(String, String)> = Vec::new();
    for line in help.lines() {
        let start = line.trim_start();
        if start.starts_with('-') {
            let flag = start.split_whitespace().find(|word| word.starts_with("--"));
            found.push((flag.unwrap_or_default().trim_end_matches(',').to_owned(), String::new()));
        }
        if let Some((_, text)) = found.last_mut() {
            text.push_str(start);
            text.push('\n');
        }
    }
    let kinds = ["<NUMBER>", "<BYTES>", "<SIZE>", "<PERCENT>", "<TIME>", "<TIMES>", "<HOURS>"];
    let others = ["--size <", "--files <", "--repetitions <", "--seconds <"];
    found.retain(|(_, text)| kinds.iter().chain(&others).any(|kind| text.contains(kind)));
    found
}

#[test]
fn every_number_of_every_command_is_bounded_and_says_so() {
    let sandbox = Sandbox::new(program!());
    let mut seen = BTreeSet::new();
    let all = commands(sandbox.program());
    let others: Vec<Vec<&str>> = all
        .iter()
        .map(|words| words.iter().map(String::as_str).collect::<Vec<_>>())
        .filter(|words| !COMMANDS.iter().any(|command| command.starts_with(words)))
        .collect();
    for command in COMMANDS.into_iter().chain(others.iter().map(Vec::as_slice)) {
        for (flag, help) in numbers(&sandbox, command) {
            let says_bounds = ["from ", "at least ", "below ", "at most ", "above "];
            // Bytes of simulated things are bounded by what bytes are.
            let is_free = others.iter().any(|other| other == command) && !help.contains("<NUMBER>");
            let says = says_bounds.iter().any(|word| help.contains(word));
            assert!(says || is_free, "{command:?}: {help}");
            // The options of a mount are read by the same code for all commands.
            let of_mounts = OPTIONS.iter().any(|option| flag == format!("--{}", option.flag()));
            let reads_alike = of_mounts && !["mount", "run"].contains(&command[0]);
            if reads_alike && flag != "--size" {
                continue;
            }
            let few = if of_mounts && command[0] != "run" { 1 } else { NONSENSE.len() };
            for value in &NONSENSE[..few] {
                let given = format!("{flag}={value}");
                // As one word and, where that says the same, as two.
                for args in [vec![given.as_str()], vec![flag.as_str(), *value]] {
                    let has_command =
                        command[0] == "run" || command.starts_with(&["trace", "record"]);
                    let tail: &[&str] = if has_command { &["--", "true"] } else { &[] };
                    let output = sandbox.halocline(&[command, &args, tail].concat());
                    let message = said(&output) + &written(&output);
                    assert_eq!(output.status.code(), Some(2), "{command:?} {args:?}: {message}");
                    assert!(message.contains(&flag), "{command:?} {args:?}: {message}");
                }
            }
            seen.insert(flag);
        }
    }
    for flag in ["--groups", "--size", "--span", "--processes", "--seconds", "--tier-low"] {
        assert!(seen.contains(flag), "{flag}: {seen:?}");
    }
    assert!(fs::read_dir(sandbox.path("cache")).unwrap().next().is_none());
    assert!(!sandbox.path("c.toml").exists());
}

#[test]
fn positions_of_requests_are_bounded() {
    let sandbox = Sandbox::new(program!());
    for command in ["explain", "where"] {
        for value in NONSENSE {
            for range in [[value, "8K"], ["0", value]] {
                let args = [&[command, "origin/data"][..], &range].concat();
                let output = sandbox.halocline(&args);
                assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
                assert!(said(&output).contains(if range[0] == "0" { "LENGTH" } else { "OFFSET" }));
                assert!(!said(&output).contains("unexpected argument"), "{}", said(&output));
            }
        }
    }
}

/// The flag and the key of an option refuse the same, in both ways a file writes a number, and name
/// bounds, default, and the line.
#[test]
fn every_key_of_the_configuration_is_bounded_and_says_so() {
    let sandbox = Sandbox::new(program!());
    let run = ["run", "--origin", "origin", "--cache", "cache", "--config", "c.toml", "--", "true"];
    for option in OPTIONS {
        let Some(bounds) = option.kind.bounds() else { continue };
        if matches!(option.kind, Kind::Names | Kind::Emulation) {
            continue;
        }
        let texts = NONSENSE.iter().take(5).map(|value| format!("{value:?}"));
        let numbers = ["-1", "9223372036854775808", "nan", "true", "[]"];
        for value in texts.chain(numbers.map(str::to_owned)) {
            fs::write(sandbox.path("c.toml"), format!("\n{} = {value}\n", option.key)).unwrap();
            let output = sandbox.halocline(&run);
            let message = said(&output);
            assert_eq!(output.status.code(), Some(2), "{} = {value}: {message}", option.key);
            for part in ["c.toml, line 2", option.key, &bounds, "default"] {
                assert!(message.contains(part), "{} = {value}: {message} ({part})", option.key);
            }
        }
    }
    assert!(fs::read_dir(sandbox.path("cache")).unwrap().next().is_none());
}

/// What does not fit the machine or another option is told with the line, too: it said `--size`,
/// which nobody had given.
#[test]
fn what_does_not_fit_names_where_it_was_given() {
    let sandbox = Sandbox::new(program!());
    for tier in ["ssd", "hdd"] {
        fs::create_dir(sandbox.path(tier)).unwrap();
    }
    let cache: &[&str] = &["mount", "origin", "mnt", "--cache", "cache", "--config", "c.toml"];
    let tier: &[&str] = &["mount", "--tier", ".", "mnt", "--config", "c.toml"];
    for (text, mount, key) in [
        ("size = \"8000T\"", cache, "size"),
        ("size = \"0.0000000001%\"", cache, "size"),
        ("policy = \"lru\"", cache, "policy"),
        ("policy = \"always\"", tier, "policy"),
        ("ssd_limit = \"8000T\"", tier, "ssd_limit"),
        ("tier_low = \"99%\"", tier, "tier_low"),
    ] {
        fs::write(sandbox.path("c.toml"), format!("# mine\n{text}\n")).unwrap();
        let output = sandbox.halocline(mount);
        assert_eq!(output.status.code(), Some(2), "{text}: {}", said(&output));
        assert!(said(&output).contains(&format!("c.toml, line 2: {key}")), "{}", said(&output));
    }
}
