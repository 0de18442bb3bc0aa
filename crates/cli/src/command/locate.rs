//! `halocline where`: which side has which bytes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{
    CachedTree, ExtentInfo, FileInfo, JobPlaces, MountedPath, NodeBytes, Request, Side,
};
use halocline_model::layout::Layout;
use halocline_os::counted::counted;

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::options::byte_count;
use crate::print::{self, say};
use crate::text;

/// Show where a file is: its extents, or on a file tier which tier has it; of a directory, what of
/// the files below it is on the cache
#[derive(Debug, Args)]
pub(crate) struct LocateArgs {
    /// A file or directory on the mount; on a file tier also a quoted glob
    path: PathBuf,
    /// First byte
    #[arg(requires = "length", value_parser = byte_count, allow_hyphen_values = true)]
    offset: Option<u64>,
    /// Length in bytes
    #[arg(value_parser = byte_count, allow_hyphen_values = true)]
    length: Option<u64>,
    /// On which nodes the files of a job are, the one with the most bytes first: of a tier that nodes share, with PATH on
    /// it, for a scheduler
    #[arg(long, value_name = "JOB.json", conflicts_with = "offset")]
    job: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Shows them.
pub(crate) fn execute(args: &LocateArgs) -> Outcome {
    if let Some(job) = &args.job {
        return places(&args.path, job, args.json);
    }
    let (mounted, inside) = super::demote::find(&args.path)?;
    if super::tier_text::is_tier(&mounted)? {
        let files: Vec<FileInfo> =
            mount_lookup::connect(&mounted)?.call(&Request::Files { path: inside }, |_| {})?;
        if args.json {
            return print_json(&files);
        }
        print::lines(&super::tier_text::files(&files));
        return Ok(ExitCode::SUCCESS);
    }
    if mounted.inside.as_os_str().is_empty() || (args.offset.is_none() && args.path.is_dir()) {
        return below(&mounted, args.json);
    }
    let range = args.offset.zip(args.length);
    let request = Request::Locate { path: mounted.inside.clone(), range };
    let extents: Vec<ExtentInfo> = mount_lookup::connect(&mounted)?.call(&request, |_| {})?;
    if args.json {
        return print_json(&extents);
    }
    say!(
        "{:>15} {:>15}  {:<7} {:<8} {:<6} last use",
        "offset",
        "length",
        "side",
        "layout",
        "state"
    );
    for extent in &extents {
        say!("{}", line(extent));
    }
    let cached: u64 = extents.iter().filter(|e| e.side == Side::Cache).map(|e| e.length).sum();
    let dirty: u64 = extents.iter().filter(|e| e.dirty).map(|e| e.length).sum();
    let all: u64 = extents.iter().map(|e| e.length).sum();
    say!(
        "{} of {} on the cache ({}), {} of it dirty",
        text::bytes(cached),
        text::bytes(all),
        text::share(cached, all),
        text::bytes(dirty)
    );
    Ok(ExitCode::SUCCESS)
}

/// Shows on which nodes the files of a job are.
fn places(path: &Path, job: &Path, json: bool) -> Outcome {
    let mounted = mount_lookup::named(path)?;
    let text = super::jobs::read(job)?;
    let answer = mount_lookup::connect(&mounted)?.call(&Request::JobPlaces(text), |_| {});
    let places: JobPlaces = answer.map_err(|error| Failure::answered(error).about(Some(job)))?;
    if json {
        return print_json(&places);
    }
    say!("{:>12} {:>9}  node", "bytes", "files");
    for NodeBytes { node, files, bytes } in &places.nodes {
        let node = node.as_ref().map_or("(shared disk)".into(), |node| text::line(node));
        say!("{:>12} {files:>9}  {node}", text::bytes(*bytes));
    }
    if places.missing_files > 0 {
        let verb = if places.missing_files == 1 { "is" } else { "are" };
        say!("{} of the job {verb} not there", counted(places.missing_files, "file"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows what is on the cache of the files below a directory.
fn below(mounted: &MountedPath, json: bool) -> Outcome {
    let request = Request::Cached { path: mounted.inside.clone() };
    let tree: CachedTree = mount_lookup::connect(mounted)?.call(&request, |_| {})?;
    if json {
        return print_json(&tree);
    }
    say!("{:>12} {:>12} {:>9}  file", "on cache", "dirty", "extents");
    for file in &tree.files {
        say!(
            "{:>12} {:>12} {:>9}  {}",
            text::bytes(file.cached_bytes),
            text::bytes(file.dirty_bytes),
            file.extents,
            text::path(&file.path)
        );
    }
    say!(
        "{} of {} on the cache, {} of it dirty",
        text::bytes(tree.cached_bytes),
        counted(tree.files.len(), "file"),
        text::bytes(tree.dirty_bytes)
    );
    Ok(ExitCode::SUCCESS)
}

fn line(extent: &ExtentInfo) -> String {
    let side = if extent.side == Side::Cache { "cache" } else { "origin" };
    let layout = extent.layout.map_or_else(String::new, |layout| match layout {
        Layout::OneDh => layout.title().to_owned(),
        _ => format!("{}:{}", layout.title(), extent.group),
    });
    let state = match (extent.side, extent.dirty) {
        (Side::Cache, true) => "dirty",
        (Side::Cache, false) => "clean",
        (Side::Origin, _) => "",
    };
    let used = extent.last_use_ms.map(text::ago).unwrap_or_default();
    format!("{:>15} {:>15}  {side:<7} {layout:<8} {state:<6} {used}", extent.offset, extent.length)
        .trim_end()
        .to_owned()
}
