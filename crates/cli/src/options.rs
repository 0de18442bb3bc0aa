//! Flags from the table of options, and the configuration they make with the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use halocline_api::config::{Config, Kind, OPTIONS, OptionSpec, format_bytes, parse_bytes};
use halocline_os::error::{Error, Result};

use crate::mount_lookup;

/// `--config` and one flag for each option of the table.
#[derive(Debug, Clone)]
pub(crate) struct ConfigArgs {
    file: Option<PathBuf>,
    given: Vec<(&'static OptionSpec, String)>,
}

impl ConfigArgs {
    /// Takes one flag's text out, for a command that gives it a meaning of its own.
    pub(crate) fn take(&mut self, key: &str) -> Option<String> {
        let at = self.given.iter().position(|(option, _)| option.key == key)?;
        Some(self.given.remove(at).1)
    }

    /// Gives an option a value, unless a flag has.
    pub(crate) fn default_to(&mut self, key: &str, text: &str) {
        let option = OPTIONS.iter().find(|option| option.key == key);
        let option = option.expect("an option of the table");
        if !self.given.iter().any(|(given, _)| given.key == key) {
            self.given.push((option, text.to_owned()));
        }
    }

    /// Refuses flags without an effect on a file tier (`tier`), or on a cache: who gives one expects
    /// something of it. A file may hold options of both.
    pub(crate) fn check_effect(&self, tier: bool) -> Result<()> {
        self.check_rights(rustix::process::geteuid().is_root())?;
        let without = |(option, _): &&(&OptionSpec, String)| !option.has_effect_on(tier);
        let Some((option, _)) = self.given.iter().find(without) else { return Ok(()) };
        let flag = option.flag();
        let (what, other) = match (tier, flag.as_str()) {
            (true, "size") => ("a file tier", "give --ssd-limit for it"),
            (true, "attr-timeout") => ("a file tier", "give --tier-attr-timeout for it"),
            (true, _) => ("a file tier", "leave it out, or mount an origin with --cache"),
            (false, "ssd-limit") => ("a cache", "give --size for it"),
            (false, "tier-attr-timeout") => ("a cache", "give --attr-timeout for it"),
            (false, _) => ("a cache", "leave it out, or mount with --tier"),
        };
        Err(Error::invalid(format!("--{flag} has no effect on {what}"), other))
    }

    /// Refuses flags that only mounts of root heed.
    fn check_rights(&self, root: bool) -> Result<()> {
        let (suid, dev) = ("allow_suid", "allow_dev");
        let heeded = |(option, text): &&(&OptionSpec, String)| {
            [suid, dev].contains(&option.key) && text == "true"
        };
        match self.given.iter().find(heeded) {
            Some((option, _)) if !root => Err(Error::invalid(
                format!("--{} has an effect in mounts of root only", option.flag()),
                "leave it out, or mount as root",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses flags that want something else than the options that are `in_force`, as text by key,
    /// and names the options of a file that do.
    pub(crate) fn against(
        &self,
        config: &Config,
        in_force: &BTreeMap<String, String>,
    ) -> Result<Vec<String>> {
        let mut ignored = Vec::new();
        for option in OPTIONS {
            let Some(other) = in_force.get(option.key) else { continue };
            let wanted = (option.get)(config);
            if wanted == *other {
                continue;
            }
            let flag = option.flag();
            if self.given.iter().any(|(given, _)| given.key == option.key) {
                return Err(Error::invalid(
                    format!("--{flag} {wanted:?} was given, and the running engine has {other:?}"),
                    format!("leave --{flag} out, or wait until that engine has ended"),
                ));
            }
            ignored.push(flag);
        }
        Ok(ignored)
    }

    /// Checks that the configuration can be read once more, by the process in the background: a pipe
    /// (`--config <(...)`) is empty by then, and closed.
    pub(crate) fn check_lasts(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if std::fs::metadata(file).is_ok_and(|found| found.is_file()) {
            return Ok(());
        }
        Err(Error::invalid(
            format!(
                "{} is not a file that stays, and the mount in the background reads it again",
                file.display()
            ),
            "write it to a file, or add --foreground",
        ))
    }

    /// The file's values, overridden by the flags.
    pub(crate) fn load(&self) -> Result<Config> {
        let file = match &self.file {
            Some(file) => {
                mount_lookup::check_answers(file)?;
                Some(file.clone())
            }
            None => user_file()?.filter(|file| file.exists()),
        };
        let mut config = file.map_or_else(|| Ok(Config::default()), |file| Config::load(&file))?;
        for (option, text) in &self.given {
            config.set(option, text)?;
        }
        Ok(config)
    }
}

/// Reads `8K` and the like, for positions and lengths on the command line: files end at 2^63 bytes.
pub(crate) fn byte_count(text: &str) -> Result<u64, String> {
    bytes_within(text, 0, i64::MAX.cast_unsigned())
}

/// Reads a number of bytes from `least` to `most`; the error says both.
pub(crate) fn bytes_within(text: &str, least: u64, most: u64) -> Result<u64, String> {
    parse_bytes(text).filter(|bytes| (least..=most).contains(bytes)).ok_or_else(|| {
        format!(
            "{text:?} is not a number of bytes such as 65536, 64K or 1G, at least {} and at most {}",
            format_bytes(least),
            format_bytes(most)
        )
    })
}

/// Where the configuration is looked for without `--config`.
///
/// # Errors
/// The home directory hangs.
pub(crate) fn user_file() -> Result<Option<PathBuf>> {
    let base = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".config")));
    let file = base.map(|base| base.join("halocline/halocline.toml"));
    file.as_deref().map_or(Ok(()), mount_lookup::check_answers)?;
    Ok(file)
}

/// The flag of one option.
fn argument(option: &'static OptionSpec) -> Arg {
    let default = option.default_value().replace('\n', ", ");
    let default = if default.is_empty() { "empty".into() } else { default };
    let bounds = option.kind.bounds().map_or_else(String::new, |bounds| format!("{bounds}; "));
    let arg = Arg::new(option.key)
        .long(option.flag())
        .value_name(option.kind.placeholder())
        .help_heading(option.scope.heading())
        .help(format!("{} [{bounds}default: {default}]", option.short_doc()))
        .long_help(format!(
            "{}\n\nValue: {}. [default: {default}]",
            option.doc,
            option.kind.describe()
        ));
    match option.kind {
        Kind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Kind::Globs | Kind::Names => arg.action(ArgAction::Append),
        // -5G is refused by what knows the bounds, not as a flag that does not exist.
        _ => arg.allow_hyphen_values(true),
    }
}

impl Args for ConfigArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file; a flag wins over it");
        command.arg(file).args(OPTIONS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = OPTIONS.iter().filter_map(|option| {
            let values: Vec<_> = matches.get_many::<String>(option.key)?.cloned().collect();
            Some((option, values.join("\n")))
        });
        Ok(Self { file: matches.get_one("config").cloned(), given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Config> {
        let command = ConfigArgs::augment_args(Command::new("test").no_binary_name(true));
        let matches = command.try_get_matches_from(args).unwrap();
        ConfigArgs::from_arg_matches(&matches).unwrap().load()
    }

    #[test]
    fn every_option_has_a_flag_with_help() {
        let mut command = ConfigArgs::augment_args(Command::new("test"));
        let help = command.render_long_help().to_string();
        for option in OPTIONS {
            assert!(help.contains(&format!("--{}", option.flag())), "{}", option.key);
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "policy = \"always\"\nthreads = 3\ndirect = true\n").unwrap();
        let file = file.to_str().unwrap();
        let config = parse(&["--config", file, "--policy", "never", "--direct=false"]).unwrap();
        assert_eq!((config.policy.as_str(), config.threads, config.direct), ("never", 3, false));
    }

    #[test]
    fn a_repeated_glob_flag_makes_a_list() {
        let config = parse(&["--pin", "*.{a,b}", "--pin", "c/**", "--direct"]).unwrap();
        assert_eq!(config.pin, ["*.{a,b}", "c/**"]);
        assert!(config.direct);
    }

    /// `--size 10G` was ignored with `--tier`, where the limit then was 90 % of the SSD.
    #[test]
    fn a_flag_without_effect_is_refused() {
        let check = |args: &[&str], tier| {
            let command = ConfigArgs::augment_args(Command::new("test").no_binary_name(true));
            let matches = command.try_get_matches_from(args).unwrap();
            ConfigArgs::from_arg_matches(&matches).unwrap().check_effect(tier)
        };
        for (flag, tier, remedy) in [
            ("--size=1G", true, "--ssd-limit"),
            ("--attr-timeout=0s", true, "--tier-attr-timeout"),
            ("--mode=read-only", true, "--cache"),
            ("--ssd-limit=1G", false, "--size"),
            ("--tiers=ssd", false, "--tier"),
        ] {
            let error = check(&[flag], tier).unwrap_err().to_string();
            assert!(error.contains("no effect") && error.contains(remedy), "{error}");
            check(&[flag], !tier).unwrap();
        }
        check(&["--pin=*", "--policy=lru", "--allow-other", "--threads=1"], true).unwrap();
        check(&["--pin=*", "--policy=always", "--allow-other", "--threads=1"], false).unwrap();
    }

    /// An ordinary user's mount took `--allow-suid` without a word, and was `nosuid`.
    #[test]
    fn what_only_root_may_grant_is_refused_to_others() {
        let check = |arg: &str, root| {
            let command = ConfigArgs::augment_args(Command::new("test").no_binary_name(true));
            let matches = command.try_get_matches_from([arg]).unwrap();
            ConfigArgs::from_arg_matches(&matches).unwrap().check_rights(root)
        };
        for flag in ["--allow-suid", "--allow-dev"] {
            let error = check(flag, false).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains("as root"), "{error}");
            check(flag, true).unwrap();
        }
        check("--allow-suid=false", false).unwrap();
        check("--allow-other", false).unwrap();
    }

    #[test]
    fn a_wrong_value_names_flag_and_remedy() {
        let error = parse(&["--size", "2X"]).unwrap_err().to_string();
        assert!(
            error.contains("--size") && error.contains("\"2X\"") && error.contains("2G"),
            "{error}"
        );
    }
}
