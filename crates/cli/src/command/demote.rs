//! `halocline demote`: off the SSD of a file tier, now.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;
use halocline_api::control::{MountedPath, Request, is_glob};

use super::bulk::{Telling, only_on_a_tier};
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;

/// Move files of a file tier from the SSD to the next tier that has room
#[derive(Debug, Args)]
pub(crate) struct DemoteArgs {
    /// File, directory or quoted glob on the mount: /mnt/a, "/mnt/**/*.log"
    path: PathBuf,
    /// Only tell what would be moved
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Demotes.
pub(crate) fn execute(args: &DemoteArgs) -> Outcome {
    let (mounted, inside) = find(&args.path)?;
    only_on_a_tier(
        true,
        &mounted,
        "`halocline evict` takes files off it, `halocline flush` writes dirty data to the origin",
    )?;
    let request = Request::Evict { path: inside, dry_run: args.dry_run };
    let telling = Telling {
        doing: "demoting",
        done: "demoted",
        left: |left| Failure::failed(format!("{left} stay on the SSD, see above")),
        dry_run: args.dry_run,
        json: args.json,
    };
    telling.ask(&mounted, &request)
}

/// The mount of a path that may end in a glob, and the path below its root.
pub(super) fn find(path: &Path) -> Result<(MountedPath, PathBuf), Failure> {
    let is_glob = |part: &OsStr| is_glob(&part.to_string_lossy());
    let literal = match mount_lookup::find(path) {
        Ok(mounted) => {
            let inside = mounted.inside.clone();
            return Ok((mounted, inside));
        }
        // A name may look like a glob, and a glob like a name that does not exist.
        Err(error) if error.errno() == libc::ETIMEDOUT || !path.iter().any(is_glob) => {
            return Err(mount_lookup::not_found(error));
        }
        Err(error) => error,
    };
    let plain: PathBuf = path.iter().take_while(|part| !is_glob(part)).collect();
    let base = if plain.as_os_str().is_empty() { Path::new(".") } else { &plain };
    // If neither is on a mount, the error is about what was typed.
    let Ok(mounted) = mount_lookup::find(base) else {
        return Err(mount_lookup::not_found(literal));
    };
    let rest: PathBuf = path.iter().skip_while(|part| !is_glob(part)).collect();
    let inside = mounted.inside.join(rest);
    Ok((mounted, inside))
}
