//! `halocline mark-servers`: the servers of a striped origin that an earlier version made, marked as what they are.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{Claim, ClaimRequest, UseAs};
use halocline_os::counted::{counted, counted_with};
use halocline_os::error::Error;
use halocline_storage::volume::origin::marking::{Evidence, mark_servers};

use super::placement;
use crate::failure::{Failure, Outcome};
use crate::print::say;
use crate::text;

/// Mark the servers of a striped origin, so that a server that is not mounted is noticed, and its files
///
/// Volumes made since format 4 are marked. An earlier one is marked where the servers hold what they should: bytes that a
/// server in its place cannot have are refused, and so is a server without anything of files that have a part on it. The
/// origin must not be mounted. Earlier versions of Halocline refuse such a volume from then on.
///
/// As root it also marks each file whose data is there, where this is not done yet, so that in a copy of the volume no other file
/// gets that data. Do this before you copy a volume that an earlier version, or another user, has written to. Files that name
/// data and cannot be marked are told, with the reason. Exits with 1 if the data of one of them is its own.
#[derive(Debug, Args)]
pub(crate) struct MarkServersArgs {
    /// The striped origin: the directory that `mount` has as origin
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Believe that a server on which nothing is is there: its files have holes in its place
    #[arg(long)]
    known: bool,
}

/// Marks.
pub(crate) fn execute(args: &MarkServersArgs) -> Outcome {
    let dir = placement::volume_dir(&args.dir)?;
    let wanted = ClaimRequest { dirs: &[&dir], cache: Path::new(""), use_as: UseAs::OnlyUser };
    let _claim = Claim::take(&wanted).map_err(|taken| Failure::refused(Error::from(taken)))?;
    let evidence = if args.known { Evidence::UserKnows } else { Evidence::Contents };
    let marked = mark_servers(&dir, evidence).map_err(Failure::refused)?;
    let shown = text::path(&dir);
    if marked.servers {
        say!("{shown}: its servers are marked");
    } else {
        say!("{shown}: its servers were marked already");
    }
    match marked.files {
        None => say!(
            "{shown}: its files are not marked: only root can, on a file system with attributes `trusted.*`"
        ),
        Some(0) => say!("{shown}: its files were marked already"),
        Some(files) => say!("{shown}: {} marked", counted_with(files, "file", ("is", "are"))),
    }
    for file in &marked.unmarked {
        say!("{}: not marked: {}", text::path(&file.path), file.reason);
    }
    let own = marked.unmarked.iter().filter(|file| file.has_data).count();
    let others = marked.unmarked.len() - own;
    if others > 0 {
        say!("{shown}: not marked, because the data is not theirs: {}", counted(others, "file"));
    }
    if own > 0 {
        return Err(Failure::failed(format!(
            "{shown}: {} not marked, for the reasons above, and would have no data in a copy: mark again when they are mended",
            counted_with(own, "file", ("is", "are"))
        )));
    }
    Ok(ExitCode::SUCCESS)
}
