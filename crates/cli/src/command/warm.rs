//! `halocline warm`: fetch before it is needed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use halocline_api::control::Request;
use halocline_os::bounded;
use halocline_os::error::Error;

use super::bulk::Telling;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup::{self, Named, without};

/// Bytes of a list of paths at most; a mount takes fewer at a time.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// Fetch files into the cache and wait until they are there
#[derive(Debug, Args)]
pub(crate) struct WarmArgs {
    /// Files and directories on the mount; on a file tier also quoted globs
    #[arg(required_unless_present = "list")]
    paths: Vec<PathBuf>,
    /// A file with one path a line, or - for standard input
    #[arg(short = 'f', long = "files-from", value_name = "LIST", id = "list")]
    list: Option<PathBuf>,
    /// Only tell what would be fetched
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Fetches.
pub(crate) fn execute(args: &WarmArgs) -> Outcome {
    let mut paths = args.paths.clone();
    if let Some(list) = &args.list {
        paths.extend(read_list(list)?);
    }
    let Named { found, stray_links } = mount_lookup::all_matching(&paths)?;
    let Some((first, _)) = found.first() else {
        return Err(Failure::refused("the list names no file"));
    };
    let mut mounted = found.iter().map(|(mounted, _)| mounted);
    if let Some(stray) = mounted.find(|one| one.socket != first.socket) {
        let (here, there) = (first.mountpoint.display(), stray.mountpoint.display());
        return Err(Failure::refused(format!(
            "the paths lie on several mounts, {here} and {there}; warm one mount at a time"
        )));
    }
    let first = first.clone();
    let paths = found.into_iter().map(|(_, inside)| inside).collect();
    let request = Request::Warm { paths, dry_run: args.dry_run };
    let telling = Telling {
        doing: "fetching",
        done: "fetched",
        left: |left| Failure::failed(format!("{left} were not fetched, see above why")),
        counts_empty: false,
        dry_run: args.dry_run,
        json: args.json,
    };
    without(&stray_links, telling.ask(&[(first, request)]))
}

/// Paths are bytes: not every name is UTF-8.
fn read_list(list: &Path) -> Result<Vec<PathBuf>, Failure> {
    let bytes = if list == Path::new("-") {
        bounded::read_from(std::io::stdin(), LIST_BYTES_MAX)?
    } else {
        bounded::read(list, LIST_BYTES_MAX).map_err(Error::at(list, "read the list"))?
    };
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(|line| OsStr::from_bytes(line).into()).collect())
}
