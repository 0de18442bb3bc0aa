//! `halocline unstripe`: a striped origin back as plain files, without an engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{Claim, ClaimRequest, Progress, UseAs};
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_os::open_files::raise_limit;
use halocline_storage::volume::origin::unnamed::{UnnamedObject, unnamed_objects};
use halocline_storage::volume::unstripe::{incomplete, planned_bytes, unstripe, unstripe_tree};

use serde::Serialize;

use super::{placement, print_json};
use crate::failure::{Failure, Outcome};
use crate::print::{say, tell};
use crate::progress::Meter;
use crate::text;

/// Copy a file, or everything, from a striped origin to plain files
///
/// The origin must not be mounted: what its cache holds dirty is not in it. Flush or unmount first. What is wrong with one file
/// keeps no other from being copied; a copy that lacks anything keeps a name that ends in `.incomplete`. Data that no file names is
/// in no copy of the tree: it is told, and the exit status is 1.
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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `unstripe --json` says.
#[derive(Debug, Serialize)]
struct Unstriped {
    dry_run: bool,
    /// The copy, which has this name until it is whole.
    copy: String,
    bytes: u64,
    lacking: Vec<String>,
    unnamed: Vec<UnnamedJson>,
    unnamed_bytes: u64,
    unnamed_unknown: Option<String>,
}

#[derive(Debug, Serialize)]
struct UnnamedJson {
    object: String,
    bytes: u64,
    files: Vec<String>,
    left_by_move: bool,
}

/// Objects that are told to people by their files.
const SHOWN: usize = 4;

/// Data of the origin that no file names; `Err` if that is not known.
type Unnamed = Result<Vec<UnnamedObject>, Error>;

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
    let (total_bytes, unread) = planned_bytes(&args.origin, path, out).map_err(Failure::refused)?;
    // Of one file nobody expects what others had.
    let unnamed = || path.map_or_else(|| unnamed_objects(&args.origin), |_| Ok(Vec::new()));
    if args.dry_run {
        return dry_run(args, total_bytes, &unread, &unnamed());
    }
    let mut meter = Meter::new("copying", args.json);
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
    let unnamed = unnamed();
    if args.json {
        print_json(&answer(args, done_bytes, &lacking, &unnamed))?;
    } else {
        tell_unnamed(&unnamed);
    }
    if !lacking.is_empty() {
        for error in lacking.iter().filter(|_| !args.json) {
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
    if !args.json {
        say!("{} copied to {}", text::bytes(done_bytes), text::path(out));
    }
    end(args, &unnamed)
}

fn dry_run(args: &UnstripeArgs, bytes: u64, unread: &[Error], unnamed: &Unnamed) -> Outcome {
    if args.json {
        print_json(&answer(args, bytes, unread, unnamed))?;
    } else {
        for error in unread {
            tell!("{error}");
        }
        tell_unnamed(unnamed);
    }
    let out = &args.out;
    if !unread.is_empty() {
        return Err(Failure::failed(format!(
            "{} would be copied to {}, which would lack what is told above",
            text::bytes(bytes),
            text::path(&incomplete(out))
        )));
    }
    if !args.json {
        say!("{} would be copied to {}", text::bytes(bytes), text::path(out));
    }
    end(args, unnamed)
}

fn answer(args: &UnstripeArgs, bytes: u64, lacking: &[Error], unnamed: &Unnamed) -> Unstriped {
    let copy = if lacking.is_empty() { args.out.clone() } else { incomplete(&args.out) };
    let found = unnamed.as_deref().unwrap_or_default();
    let object = |it: &UnnamedObject| UnnamedJson {
        object: it.object.clone(),
        bytes: it.bytes,
        files: it.files.iter().map(|file| file.to_string_lossy().into_owned()).collect(),
        left_by_move: it.left_by_move,
    };
    Unstriped {
        dry_run: args.dry_run,
        copy: copy.to_string_lossy().into_owned(),
        bytes,
        lacking: lacking.iter().map(ToString::to_string).collect(),
        unnamed: found.iter().map(object).collect(),
        unnamed_bytes: bytes_of(found),
        unnamed_unknown: unnamed.as_ref().err().map(ToString::to_string),
    }
}

fn bytes_of(unnamed: &[UnnamedObject]) -> u64 {
    unnamed.iter().map(|it| it.bytes).fold(0, u64::saturating_add)
}

/// Where the data is that no file names.
fn tell_unnamed(unnamed: &Unnamed) {
    let unnamed = match unnamed {
        Ok(unnamed) => unnamed,
        Err(error) => {
            tell!(
                "whether the origin has data that no file names, and no copy has, is not known: {error}"
            );
            return;
        }
    };
    for it in unnamed.iter().take(SHOWN) {
        let files: Vec<_> = it.files.iter().map(|file| text::path(file)).collect();
        let why = if it.left_by_move { ", which an ended move to another layout left" } else { "" };
        let (object, bytes) = (&it.object, text::bytes(it.bytes));
        tell!("no file names {object} with {bytes}{why}: {}", files.join(", "));
    }
    if unnamed.len() > SHOWN {
        tell!("and {}", counted(unnamed.len() - SHOWN, "further object"));
    }
}

/// The copy has all that the tree names. There is no success where the origin has more: who removes it then removes that.
fn end(args: &UnstripeArgs, unnamed: &Unnamed) -> Outcome {
    let unnamed = unnamed.as_deref().unwrap_or_default();
    if unnamed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let (objects, bytes) = (counted(unnamed.len(), "object"), text::bytes(bytes_of(unnamed)));
    let verb = if args.dry_run { "would not be" } else { "not" };
    if unnamed.iter().all(|it| it.left_by_move) {
        return Err(Failure::failed(format!(
            "{objects} with {bytes} {verb} copied, because no file names them: moves to other layouts that were ended have left them, \
             and the copy has all that their files have. `halocline apply` of the plan removes them; where it does not, as in a copy of \
             the volume in which nothing tells whose they are, mount that with a cache and unmount it: `halocline fsck CACHE` lists what \
             no file names, and tells how to remove it"
        )));
    }
    Err(Failure::failed(format!(
        "{objects} with {bytes} {verb} copied, because no file names them: they may be the data of files that were moved out of \
         `namespace` for a while, or whose file system below it is not mounted. Bring these back and copy again; if they are \
         gone for good, the copy has all, and `halocline fsck CACHE` tells how to remove their data"
    )))
}
