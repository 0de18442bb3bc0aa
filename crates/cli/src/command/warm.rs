//! `halocline warm`: fetch before it is needed.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use halocline_core::control::{Place, Request};
use halocline_core::error::Error;

use super::moving::Telling;
use crate::failure::{Failure, Outcome};

/// Fetch files into the cache and wait until they are there
#[derive(Debug, Args)]
pub(crate) struct WarmArgs {
    /// Files and directories on the mount
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
    let places: Vec<_> = paths.iter().map(|path| Place::find(path)).collect::<Result<_, _>>()?;
    let Some(first) = places.first() else {
        return Err(Failure::refused("the list names no file"));
    };
    if let Some(stray) = places.iter().find(|place| place.socket != first.socket) {
        let (here, there) = (first.mountpoint.display(), stray.mountpoint.display());
        return Err(Failure::refused(format!(
            "the paths lie on several mounts, {here} and {there}; warm one mount at a time"
        )));
    }
    let paths = places.iter().map(|place| place.inside.clone()).collect();
    let request = Request::Warm { paths, dry_run: args.dry_run };
    let telling = Telling {
        doing: "fetching",
        done: "fetched",
        left: |left| {
            Failure::failed(format!(
                "{left} found no room on the cache; make it larger (--size) or evict something"
            ))
        },
        dry_run: args.dry_run,
        json: args.json,
    };
    telling.ask(first, &request)
}

fn read_list(list: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut text = String::new();
    if list == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)?;
    } else {
        text = fs::read_to_string(list).map_err(Error::at(list, "read the list"))?;
    }
    Ok(text.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect())
}
