//! `halocline pin`, `unpin` and `exclude`: a person's word on what is cached.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{MountedPath, Request, RuleChange, Rules, is_glob};

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
    /// A path on the mount, or the cache directory of a running mount; without it the working
    /// directory's mount, or else the one that GLOB leads into
    #[arg(long = "on", value_name = "PATH")]
    on: Option<PathBuf>,
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
    let (mounted, glob) = find(args)?;
    let answer = mount_lookup::connect(&mounted)?.call(&Request::Rules(how(glob)), |_| {});
    let rules: Rules = answer.map_err(Failure::answered)?;
    if args.json {
        return print_json(&rules);
    }
    for (name, globs) in [("pin", &rules.pin), ("exclude", &rules.exclude)] {
        say!("{name}: {}", if globs.is_empty() { "nothing".into() } else { text::words(globs) });
    }
    Ok(ExitCode::SUCCESS)
}

/// The mount that is meant, and the glob below its mount point.
fn find(args: &RuleArgs) -> Result<(MountedPath, String), Failure> {
    let here = std::env::current_dir().unwrap_or_default();
    let glob = &args.glob;
    if let Some(on) = &args.on {
        let mounted = mount_lookup::named(on)?;
        let glob = relative(glob, &mounted.mountpoint, &here);
        return Ok((mounted, glob));
    }
    if let Some(found) = along(glob).filter(|_| Path::new(glob).is_absolute()) {
        return Ok(found);
    }
    match mount_lookup::named(Path::new(".")) {
        Ok(mounted) => {
            let glob = relative(glob, &mounted.mountpoint, &here);
            Ok((mounted, glob))
        }
        Err(failure) => along(glob).ok_or_else(|| {
            let message = failure.message();
            Failure::refused(format!(
                "{message}, and the glob leads into none: begin it with the mount point, or name the mount with --on"
            ))
        }),
    }
}

/// The mount that the beginning of a glob leads into, and the rest of the glob.
fn along(glob: &str) -> Option<(MountedPath, String)> {
    let mut base: PathBuf =
        Path::new(glob).iter().take_while(|part| !is_glob(&part.to_string_lossy())).collect();
    while !base.as_os_str().is_empty() {
        match mount_lookup::find(&base) {
            // A cache directory stands for the root of its mount; what a glob has below it does not.
            Ok(mounted) if !mounted.mountpoint.as_os_str().is_empty() => {
                let rest = Path::new(glob).strip_prefix(&base).ok()?;
                let mut inside =
                    mounted.inside.join(rest).to_str()?.trim_end_matches('/').to_owned();
                if glob.ends_with('/') {
                    inside.push('/');
                }
                return Some((mounted, inside));
            }
            Err(error) if error.errno() == libc::ETIMEDOUT => return None,
            // Files that are not there yet can be pinned.
            _ => {}
        }
        if !base.pop() {
            break;
        }
    }
    None
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
