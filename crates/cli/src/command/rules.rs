//! `halocline pin`, `unpin` and `exclude`: a person's word on what is cached.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{Request, RuleChange, Rules};

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::print::say;
use crate::text;

/// Never evict files that match
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    #[command(flatten)]
    rule: RuleArgs,
}

/// Take a pin back
#[derive(Debug, Args)]
pub(crate) struct UnpinArgs {
    #[command(flatten)]
    rule: RuleArgs,
}

/// Never cache files that match; what is cached of them is flushed and leaves
#[derive(Debug, Args)]
pub(crate) struct ExcludeArgs {
    #[command(flatten)]
    rule: RuleArgs,
    /// Take the exclude back
    #[arg(long)]
    remove: bool,
}

/// What the three have in common.
#[derive(Debug, Args)]
struct RuleArgs {
    /// Glob over paths below the mount point, quoted: "*.idx", "scratch/**"
    glob: String,
    /// A path on the mount, or the cache directory of a running mount
    #[arg(long = "on", value_name = "PATH", default_value = ".")]
    on: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Pins.
pub(crate) fn pin(args: &PinArgs) -> Outcome {
    change(&args.rule, RuleChange::Pin)
}

/// Unpins.
pub(crate) fn unpin(args: &UnpinArgs) -> Outcome {
    change(&args.rule, RuleChange::Unpin)
}

/// Excludes, or takes it back.
pub(crate) fn exclude(args: &ExcludeArgs) -> Outcome {
    change(&args.rule, if args.remove { RuleChange::Include } else { RuleChange::Exclude })
}

fn change(args: &RuleArgs, how: impl Fn(String) -> RuleChange) -> Outcome {
    let place = match mount_lookup::named(&args.on) {
        Err(failure) if args.on == Path::new(".") => {
            let message = failure.message();
            return Err(Failure::refused(format!(
                "{message} (with --on; else it is the working directory's mount)"
            )));
        }
        place => place?,
    };
    let here = std::env::current_dir().unwrap_or_default();
    let glob = relative(&args.glob, &place.mountpoint, &here);
    let rules: Rules = mount_lookup::connect(&place)?.call(&Request::Rules(how(glob)), |_| {})?;
    if args.json {
        return print_json(&rules);
    }
    for (name, globs) in [("pin", &rules.pin), ("exclude", &rules.exclude)] {
        say!("{name}: {}", if globs.is_empty() { "nothing".into() } else { text::words(globs) });
    }
    Ok(ExitCode::SUCCESS)
}

/// A glob that a person wrote with the mount point in front, as it is or as it is called from the
/// directory `here` above it, below the mount point.
fn relative(glob: &str, mountpoint: &Path, here: &Path) -> String {
    if mountpoint.as_os_str().is_empty() {
        return glob.to_owned();
    }
    let from_above = || glob.strip_prefix(mountpoint.strip_prefix(here).ok()?.to_str()?);
    let absolute = || glob.strip_prefix(mountpoint.to_str()?);
    let below = absolute().or_else(|| from_above().filter(|_| here != mountpoint));
    let below = below.filter(|below| below.is_empty() || below.starts_with('/'));
    below.map_or(glob, |below| below.trim_start_matches('/')).to_owned()
}

/// What is pinned and excluded, if anything is.
pub(super) fn lines(rules: &Rules) -> impl Iterator<Item = (&'static str, String)> {
    [("pinned", &rules.pin), ("excluded", &rules.exclude)]
        .into_iter()
        .filter(|(_, globs)| !globs.is_empty())
        .map(|(name, globs)| (name, text::words(globs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_taken_below_the_mount_point() {
        let mountpoint = Path::new("/mnt/x");
        let relative_from = relative;
        let relative = |glob, mountpoint| relative_from(glob, mountpoint, Path::new("/elsewhere"));
        assert_eq!(relative("*.idx", mountpoint), "*.idx");
        assert_eq!(relative("/mnt/x/a/**", mountpoint), "a/**");
        assert_eq!(relative("/mnt/x/a/", mountpoint), "a/");
        assert_eq!(relative("/mnt/xy/a", mountpoint), "/mnt/xy/a");
        assert_eq!(relative("/mnt/x", mountpoint), "");
        assert_eq!(relative("a/b", Path::new("")), "a/b");
        let above = |glob| relative_from(glob, mountpoint, Path::new("/mnt"));
        assert_eq!(above("x/d/*"), "d/*");
        assert_eq!(above("xy/d/*"), "xy/d/*");
        assert_eq!(relative_from("mnt/x/d", mountpoint, Path::new("/")), "d");
        assert_eq!(relative_from("x/d", mountpoint, mountpoint), "x/d");
    }
}
