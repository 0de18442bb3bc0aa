//! `halocline where`: which side has which bytes.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{
    CachedTree, ExtentInfo, FileInfo, JobPlaces, MountedPath, NodeBytes, Request, Side, is_glob,
};
use halocline_model::layout::Layout;
use halocline_os::counted::counted;

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup::{self, Named, without};
use crate::options::byte_count;
use crate::print::{self, say};
use crate::text;

/// Show where a file is: its extents, or on a file tier which tier has it; of a directory, what of
/// the files below it is on the cache
#[derive(Debug, Args)]
pub(crate) struct LocateArgs {
    /// A file or directory on the mount; on a file tier also a quoted glob
    path: PathBuf,
    /// First byte of a part of the file; or another file or directory
    #[arg(allow_hyphen_values = true)]
    offset: Option<OsString>,
    /// Length of the part in bytes; or another one
    #[arg(allow_hyphen_values = true)]
    length: Option<OsString>,
    /// More files and directories
    more: Vec<PathBuf>,
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
    let Wanted { paths, range } = args.wanted()?;
    let Named { found, stray_links } = mount_lookup::all_matching(&paths)?;
    let (mounted, _) = &found[0];
    if super::tier_text::is_tier(mounted)? {
        super::bulk::only_on_a_tier(true, mounts(&found), "ask for one kind at a time")?;
        return without(&stray_links, files(&found, args.json));
    }
    super::bulk::only_on_a_tier(false, mounts(&found), "ask for one kind at a time")?;
    // A cache matches no globs: each of these is the name of a file that is there, or of none.
    let names: Vec<PathBuf> =
        paths.iter().filter(|path| !stray_links.contains(path)).cloned().collect();
    mount_lookup::all_named(&names)?;
    let is_dir = range.is_none() && args.path.is_dir();
    if mounted.inside.as_os_str().is_empty() || is_dir || paths.len() > 1 {
        return without(&stray_links, below(&found, args.json));
    }
    let request = Request::Locate { path: mounted.inside.clone(), range };
    let extents: Vec<ExtentInfo> = mount_lookup::connect(mounted)?.call(&request, |_| {})?;
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

/// What is shown.
#[derive(Debug)]
struct Wanted {
    paths: Vec<PathBuf>,
    /// Offset and length of a part of the only file.
    range: Option<(u64, u64)>,
}

impl LocateArgs {
    /// All paths, or one and a part of it. What is neither a number of bytes nor a file that is there is a wrong number; two
    /// numbers that are both names of files here are those files.
    fn wanted(&self) -> Result<Wanted, Failure> {
        let bytes = |word: &OsString| byte_count(&word.to_string_lossy());
        let words = [self.offset.as_ref(), self.length.as_ref()];
        let are_files =
            words.into_iter().flatten().all(|word| Path::new(word).symlink_metadata().is_ok());
        if let [Some(Ok(offset)), Some(Ok(length))] = words.map(|word| word.map(bytes))
            && self.more.is_empty()
            && !are_files
        {
            return Ok(Wanted { paths: vec![self.path.clone()], range: Some((offset, length)) });
        }
        let named = ["OFFSET", "LENGTH"].into_iter().zip(words);
        for (name, word) in named.filter_map(|(name, word)| Some((name, word?))) {
            let is_there = Path::new(word).symlink_metadata().is_ok();
            let why = match bytes(word) {
                _ if is_there || is_glob(&word.to_string_lossy()) => continue,
                Ok(_) if self.length.is_some() => continue,
                Ok(_) => "LENGTH must follow".to_owned(),
                Err(why) => why,
            };
            let word = text::path(Path::new(word));
            return Err(Failure::refused(format!("{name} {word}: {why}; nor is it a file")));
        }
        let mut paths = vec![self.path.clone()];
        paths.extend(words.into_iter().flatten().map(PathBuf::from));
        paths.extend(self.more.clone());
        Ok(Wanted { paths, range: None })
    }
}

fn mounts(found: &[(MountedPath, PathBuf)]) -> impl Iterator<Item = &MountedPath> {
    found.iter().map(|(mounted, _)| mounted)
}

/// Shows where files of a tier are.
fn files(found: &[(MountedPath, PathBuf)], json: bool) -> Outcome {
    let mut files: Vec<FileInfo> = Vec::new();
    // Globs may match the same file.
    let mut seen = HashSet::new();
    for (mounted, inside) in found {
        let request = Request::Files { path: inside.clone() };
        let mut some: Vec<FileInfo> = mount_lookup::connect(mounted)?.call(&request, |_| {})?;
        let place = |file: &FileInfo| (mounted.socket.clone(), file.path.clone());
        some.retain(|file| !seen.contains(&place(file)));
        // Within one answer, paths that are too long to be told whole may be the same.
        seen.extend(some.iter().map(place));
        files.extend(some);
    }
    if json {
        return print_json(&files);
    }
    print::lines(&super::tier_text::files(&files));
    Ok(ExitCode::SUCCESS)
}

/// Shows what is on the cache of files, and of those below directories.
fn below(found: &[(MountedPath, PathBuf)], json: bool) -> Outcome {
    let mut tree = CachedTree::default();
    for (mounted, inside) in found {
        let request = Request::Cached { path: inside.clone() };
        let one: CachedTree = mount_lookup::connect(mounted)?.call(&request, |_| {})?;
        tree.files.extend(one.files);
        tree.cached_bytes += one.cached_bytes;
        tree.dirty_bytes += one.dirty_bytes;
    }
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
