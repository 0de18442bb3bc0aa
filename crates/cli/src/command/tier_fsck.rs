//! `halocline fsck ROOT` of a file tier: does every name have one file, and every file a name?

use std::path::Path;
use std::process::ExitCode;

use halocline_api::config::Config;
use halocline_api::control::tier::{PRIVATE, Problem, ScanFindings};
use halocline_meta::identity::CACHE_FILE;
use halocline_os::counted::counted;
use halocline_tier::{FileTier, TierSet};

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::print::say;
use crate::{mount_lookup, open_engine, shared_tier, text};

/// Checks `root` if it is the root of a file tier.
pub(super) fn execute(root: &Path, repair: bool, json: bool) -> Option<Outcome> {
    if let Err(hangs) = mount_lookup::check_tiers_answer(root) {
        return Some(Err(Failure::refused(hangs)));
    }
    let mut config = Config::default();
    if let Some(names) = TierSet::names_below(root) {
        config.tiers = names;
    }
    let names = &config.tiers;
    let is_tier = names.iter().all(|name| root.join(name).is_dir())
        || root.join(&names[0]).join(PRIVATE).is_dir();
    if is_tier {
        return Some(check(root, &config, repair, json));
    }
    // What lies on a server that has ended looks as if it were not there.
    let dead = mount_lookup::dead_tier(root).filter(|_| !root.join(CACHE_FILE).exists());
    dead.map(|dead| Err(Failure::refused(dead)))
}

fn check(root: &Path, config: &Config, repair: bool, json: bool) -> Outcome {
    not_mounted(root)?;
    // Names that a store has are not on the SSD: there is nothing here to compare.
    shared_tier::refuse_if_shared(root).map_err(|error| {
        Failure::refused(format!(
            "{error}; what lies on it is checked by `halocline cluster fsck --tier ROOT --cluster URL [--peers PATTERN]`"
        ))
    })?;
    let set = open_engine::tier_set(root, config).map_err(Failure::refused)?;
    let found = FileTier::check(&set, repair).map_err(Failure::refused)?;
    if json {
        print_json(&found)?;
    } else {
        tell(&found, repair);
    }
    // What the next mount puts right by itself is nothing to worry about.
    let wrong = |problem: &&Problem| {
        !matches!(
            problem,
            Problem::Leftover { .. }
                | Problem::NotCutOver { .. }
                | Problem::Unlinked { .. }
                | Problem::CopyGone { .. }
                | Problem::CopyDiffers { .. }
                | Problem::NotAFile { .. }
                | Problem::ManyNames { .. }
        )
    };
    let clean = found.problems.iter().filter(wrong).count() == 0;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Refuses tiers that are mounted, saying where.
fn not_mounted(root: &Path) -> Result<(), Failure> {
    let Ok(found) = mount_lookup::find(root) else { return Ok(()) };
    let Ok(status) = mount_lookup::status(&found) else { return Ok(()) };
    let (root, pid) = (text::path(root), status.status.pid);
    let point = Some(found.mountpoint).filter(|point| !point.as_os_str().is_empty());
    Err(Failure::refused(match point.or_else(|| mount_lookup::mountpoint_of(&found.socket)) {
        Some(point) => {
            let point = text::path(&point);
            format!(
                "{root} is mounted at {point} by process {pid}; first run `halocline umount {point}`"
            )
        }
        None => format!("{root} is in use by process {pid}; first run `halocline umount {root}`"),
    }))
}

fn tell(found: &ScanFindings, repaired: bool) {
    let files: Vec<String> = found.files.iter().map(ToString::to_string).collect();
    say!(
        "{} files on the tiers, fastest first; {} on the SSD",
        files.join(" + "),
        text::bytes(found.ssd_bytes)
    );
    if found.copies > 0 {
        say!("{} of them have a clean copy below", found.copies);
    }
    if repaired {
        let removed = counted(found.removed, "leftover");
        say!("{removed} removed, {} adopted", counted(found.adopted.len(), "file"));
    }
    for problem in &found.problems {
        say!("{problem}");
    }
    if found.problems.is_empty() {
        say!("clean");
    }
}
