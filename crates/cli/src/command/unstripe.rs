//! `halocline unstripe`: a striped origin back as plain files, without an engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{Claim, ClaimRequest, Progress, UseAs};
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_os::open_files::raise_limit;
use halocline_storage::volume::unstripe::{incomplete, planned_bytes, unstripe, unstripe_tree};

use super::placement;
use crate::failure::{Failure, Outcome};
use crate::print::{say, tell};
use crate::progress::Meter;
use crate::text;

/// Copy a file, or everything, from a striped origin to plain files
///
/// The origin must not be mounted: what its cache holds dirty is not in it. Flush or unmount first. What is wrong with one file
/// keeps no other from being copied; a copy that lacks anything keeps a name that ends in `.incomplete`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct UnstripeArgs {
    /// The striped origin
    origin: PathBuf,
    /// One file, as it was below the mount point; everything when left out
    path: Option<PathBuf>,
    /// The new file or directory
    #[arg(required = true)]
    out: PathBuf,
    /// Only tell how much would be copied
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Copies.
pub(crate) fn execute(args: &UnstripeArgs) -> Outcome {
    let (path, out) = (args.path.as_deref(), args.out.as_path());
    if out.symlink_metadata().is_ok() {
        let out = out.display();
        return Err(Failure::refused(format!("{out} exists; name a new file or directory")));
    }
    if let Err(error) = fs::canonicalize(&args.origin) {
        let origin = text::path(&args.origin);
        return Err(Failure::refused(format!(
            "{origin}: {error}; give the directory that `mount` had as origin"
        )));
    }
    // Each server, and each file on it, takes some.
    raise_limit();
    let dir = placement::volume_dir(&args.origin)?;
    // Until the copy is made: what is dirty on a cache would not be in it.
    let wanted = ClaimRequest { dirs: &[&dir], cache: Path::new(""), use_as: UseAs::Reader };
    let _claim = Claim::take(&wanted).map_err(|taken| Failure::refused(Error::from(taken)))?;
    let planned = planned_bytes(&args.origin, path, out).map_err(Failure::refused)?;
    let (total_bytes, unread) = planned;
    if args.dry_run {
        for error in &unread {
            tell!("{error}");
        }
        let bytes = text::bytes(total_bytes);
        if !unread.is_empty() {
            return Err(Failure::failed(format!(
                "{bytes} would be copied to {}, which would lack what is told above",
                text::path(&incomplete(out))
            )));
        }
        say!("{bytes} would be copied to {}", text::path(out));
        return Ok(ExitCode::SUCCESS);
    }
    let mut meter = Meter::new("copying", false);
    let mut done_bytes = 0_u64;
    let mut passed = |bytes: u64| {
        done_bytes = u64::saturating_add(done_bytes, bytes);
        let total_bytes = total_bytes.max(done_bytes);
        meter.tell(&Progress { done_bytes, total_bytes, path: PathBuf::new() });
    };
    let lacking = match path {
        Some(path) => unstripe(&args.origin, path, out, &mut passed)?,
        None => unstripe_tree(&args.origin, out, &mut passed)?,
    };
    drop(meter);
    if !lacking.is_empty() {
        for error in &lacking {
            tell!("{error}");
        }
        return Err(Failure::failed(format!(
            "{} copied to {}, which lacks what is told above ({}): mend that and copy again, or give it another name if you can \
             do without",
            text::bytes(done_bytes),
            text::path(&incomplete(out)),
            counted(lacking.len(), "error")
        )));
    }
    say!("{} copied to {}", text::bytes(done_bytes), text::path(out));
    Ok(ExitCode::SUCCESS)
}
