//! Generates `docs/CONFIG.md` from the table of options.

use std::fmt::Write as _;

use halocline_model::{admit, evict, tier};

use super::{Kind, OPTIONS, OptionSpec, Scope};

const HEAD: &str = "\
# Configuration

<!-- Generated from crates/api/src/config/options.rs by `halocline docs --pages-only docs`; do not edit. -->

One TOML file, named by `--config FILE`; without the flag `$XDG_CONFIG_HOME/halocline/halocline.toml`
(usually `~/.config/halocline/halocline.toml`) is read if it is there. Every option is also a flag: a
flag wins over the file, the file over the default. An unknown key, a wrong type or a wrong unit is
an error that names the file, the line and the key; nothing is started then.

Bytes take K, M, G and T (powers of 1024), times take ms, s, m, h and d.
";

const TABLES: &str = "\
## Tables

`[profile.NAME]` describes an emulated device for `emulate`. A key that is left out has the value
of the built-in profile of that kind.

```toml
emulate = \"8xslow+2xfast\"

[profile.slow]
kind = \"hdd\"
seek_ms_min = 0.8      # shortest seek, milliseconds
seek_ms_max = 16.0     # seek over the whole surface, milliseconds
rpm = 5400.0           # revolutions a minute
mb_per_s = 90.0        # transfer, 10^6 bytes a second
capacity_gb = 250.0    # distance of a full seek, 10^9 bytes

[profile.fast]
kind = \"ssd\"
read_startup_us = 60.0   # microseconds
write_startup_us = 80.0
read_mb_per_s = 740.0    # 10^6 bytes a second, all channels together
write_mb_per_s = 700.0
channels = 4             # requests in service at once
```

`[device.\"DIR\"]` is what `halocline calibrate DIR` measured. It holds for DIR and everything below
it; without one, built-in values for a rotating or solid-state device are used.

```toml
[device.\"/mnt/hdd\"]
read = { startup_sequential_ps = 90000000, startup_random_ps = 12000000000, per_byte_ps = 8300 }
write = { startup_sequential_ps = 90000000, startup_random_ps = 12000000000, per_byte_ps = 8300 }
```
";

/// The whole of `docs/CONFIG.md`.
pub fn markdown() -> String {
    let mut out = HEAD.to_owned();
    for scope in Scope::ALL {
        let _ = write!(out, "\n## {}\n", scope.heading());
        for option in OPTIONS.iter().filter(|option| option.scope == scope) {
            describe(&mut out, option);
        }
    }
    out.push('\n');
    out.push_str(TABLES);
    out
}

fn describe(out: &mut String, option: &OptionSpec) {
    let default = option.default_value().replace('\n', "`, `");
    let default = if default.is_empty() { "empty".into() } else { format!("`{default}`") };
    let _ = write!(
        out,
        "\n### `{}`\n\n{}\n\n- flag: `--{}{}`\n- value: {}\n- default: {default}\n",
        option.key,
        option.doc,
        option.flag(),
        option.kind.argument(),
        option.kind.describe(),
    );
    let policies: Vec<_> = match option.kind {
        Kind::Admission => {
            let tier = tier::POLICIES.iter().map(|row| (row.name, row.doc));
            admit::POLICIES.iter().map(|row| (row.name, row.doc)).chain(tier).collect()
        }
        Kind::Eviction => evict::POLICIES.iter().map(|row| (row.name, row.doc)).collect(),
        _ => return,
    };
    for (name, about) in policies {
        let _ = writeln!(out, "  - `{name}`: {about}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Bounds, Config, format_bytes};

    #[test]
    fn every_option_is_documented_and_round_trips() {
        let page = markdown();
        for option in OPTIONS {
            assert!(page.contains(&format!("### `{}`", option.key)), "{}", option.key);
            assert!(option.doc.ends_with('.') && option.doc.len() > 15, "{}", option.key);
            let mut config = Config::default();
            let text = option.default_value();
            assert_eq!((option.set)(&mut config, &text), Some(()), "{} = {text:?}", option.key);
            assert_eq!(config, Config::default(), "{} changes by being set to itself", option.key);
            assert!(option.key.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
        }
    }

    /// A value of the option's kind other than its default.
    fn another(option: &OptionSpec) -> String {
        let default = option.default_value();
        let values: Vec<String> = match option.kind {
            Kind::Bool => vec!["true".into(), "false".into()],
            Kind::Count(Bounds { least, .. }) => vec![least.to_string(), (least + 1).to_string()],
            Kind::Bytes { bounds: Bounds { least, .. }, step } => {
                vec![format_bytes(least), format_bytes(least + step)]
            }
            Kind::Size(least) => vec![format_bytes(least), format_bytes(least + 1)],
            Kind::Percent => vec!["7.5%".into(), "12.5%".into()],
            Kind::Duration => vec!["90s".into(), "250ms".into()],
            Kind::Hours => vec!["22-6".into(), "9-17".into()],
            Kind::Word(_) | Kind::Admission | Kind::Eviction => {
                option.kind.names().into_iter().map(str::to_owned).collect()
            }
            Kind::Globs => vec!["*.tmp\n{a,b}/*".into(), "*.idx".into()],
            Kind::RecordStore => vec!["log".into(), "other-2".into()],
            Kind::Names => vec!["fast\nslow".into(), "slow\nfast".into()],
            Kind::Emulation => vec!["8xhdd+4xssd".into(), "hdd+ssd".into()],
        };
        let other = values.into_iter().find(|value| *value != default);
        other.expect("two values of each kind")
    }

    #[test]
    fn every_option_changes_the_configuration() {
        for option in OPTIONS {
            let mut config = Config::default();
            let text = another(option);
            config.set(option, &text).unwrap();
            assert_ne!(config, Config::default(), "{} has no effect", option.key);
            let again = (option.get)(&config);
            let mut copy = Config::default();
            copy.set(option, &again).unwrap();
            assert_eq!(copy, config, "{}: {text:?} is written as {again:?}", option.key);
        }
    }

    /// The documented bounds are those that are enforced.
    #[test]
    fn the_least_and_the_most_are_taken_and_nothing_beyond() {
        for option in OPTIONS {
            let takes = |text: String| (option.set)(&mut Config::default(), &text).is_some();
            let (good, bad): (Vec<u64>, Vec<u64>) = match option.kind {
                Kind::Count(Bounds { least, most }) => (
                    vec![least, most],
                    [least.checked_sub(1), Some(most + 1)].into_iter().flatten().collect(),
                ),
                Kind::Bytes { bounds: Bounds { least, most }, step: 1 } => {
                    assert!(takes(format!("{}T", (1 << 23) - 1)) && !takes("8388608T".into()));
                    (vec![least], vec![most + 1])
                }
                Kind::Bytes { bounds: Bounds { least, most }, step } => {
                    (vec![least, most], vec![least - step, most + step, least + 1])
                }
                Kind::Size(least) => {
                    assert!(takes("100%".into()) && !takes("0%".into()) && !takes("100.1%".into()));
                    (vec![least], vec![least - 1])
                }
                Kind::Percent => {
                    assert!(takes("0%".into()) && takes("100%".into()) && !takes("101%".into()));
                    continue;
                }
                Kind::Duration => {
                    assert!(
                        takes("0s".into()) && takes("36600d".into()) && !takes("36601d".into())
                    );
                    continue;
                }
                _ => continue,
            };
            for number in good {
                assert!(takes(number.to_string()), "{} {number}", option.key);
            }
            for number in bad {
                assert!(!takes(number.to_string()), "{} {number}", option.key);
            }
        }
    }

    #[test]
    fn the_page_in_the_repository_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIG.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(page == markdown(), "run `cargo run -p halocline-cli -- docs --pages-only docs`");
    }
}
