//! `halocline rescue`: dirty bytes whose origin is gone for good, saved elsewhere and then dropped.
//!
//! What must hold: nothing leaves the cache before it is durable elsewhere, has been read there again and agrees with
//! its checksum. A rescue that was killed is started again, and finds what it had saved.

mod destination;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::control::{Progress, path_as_json};
use halocline_meta::table::Access;
use halocline_meta::{Extent, FileRecord, Removal};
use halocline_model::request::ByteRange;
use halocline_os::counted::counted;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use serde::Serialize;

use self::destination::{Manifest, Saving};
use super::offline_cache::{self, OfflineCache};
use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::print::say;
use crate::progress::Meter;
use crate::text;

/// Bytes that are read at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Save dirty bytes whose origin is gone for good, then drop them from the cache
///
/// Takes the files of an unmounted cache that the origin does not have, or that cannot be looked at
/// there. Each gets a sparse file in DIR with its dirty bytes at their offsets, and a .json with its
/// path and ranges. Only what was synced there, read again and agrees with its checksum leaves the
/// cache. A rescue that was interrupted goes on when it is begun again. The status is 3 when dirty
/// bytes stay on the cache, or may.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct RescueArgs {
    /// The cache directory, not mounted
    cache: PathBuf,
    /// A new or empty directory, or that of an earlier rescue; closed to others (0700)
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Also files that the origin has: the next mount would bring their dirty bytes to the origin
    #[arg(long)]
    all: bool,
    /// Also from damaged records, of which a mount is refused: all files, as far as the records can be read. Such bytes
    /// may be older than what programs wrote, and nothing leaves the cache
    #[arg(long)]
    salvage: bool,
    /// Only print what would be saved, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Dirty bytes of one file that were saved, or would be.
#[derive(Debug, Serialize)]
struct Rescued {
    /// Path below the origin's root, as last seen.
    #[serde(serialize_with = "path_as_json")]
    path: PathBuf,
    /// Bytes that were saved.
    bytes: u64,
    /// Name of the sparse file in DIR; the manifest has the same with `.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    saved: Option<String>,
    /// What was saved.
    extents: Vec<destination::Extent>,
}

/// Dirty bytes that stay on the cache.
#[derive(Debug, Serialize)]
struct RemainingFile {
    /// Path below the origin's root, as last seen.
    #[serde(serialize_with = "path_as_json")]
    path: PathBuf,
    /// How many.
    dirty_bytes: u64,
    /// Why.
    reason: &'static str,
}

/// Dirty bytes that an earlier power loss took.
#[derive(Debug, Serialize)]
struct Lost {
    /// Path below the origin's root, as last seen.
    #[serde(serialize_with = "path_as_json")]
    path: PathBuf,
    /// How many.
    dirty_bytes: u64,
}

/// What was done.
#[derive(Debug, Serialize)]
struct RescueResult {
    dry_run: bool,
    /// What is wrong with the records, if `--salvage` found them damaged: what was saved may be old.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
    rescued_bytes: u64,
    kept_bytes: u64,
    rescued: Vec<Rescued>,
    kept: Vec<RemainingFile>,
    lost_at_power_loss: Vec<Lost>,
}

/// Executes the command.
pub(crate) fn execute(args: &RescueArgs) -> Outcome {
    let dir = offline_cache::cache_dir(&args.cache)?;
    let to = std::path::absolute(&args.to)?;
    if to.starts_with(&dir) || to.canonicalize().is_ok_and(|real| real.starts_with(&dir)) {
        let what = format!("{} lies in the cache", to.display());
        return Err(Failure::refused(format!("{what}; name a directory on another disk")));
    }
    let target =
        if args.dry_run { None } else { Some(destination::open(&to).map_err(Failure::refused)?) };
    let access = match args {
        RescueArgs { salvage: true, .. } => Access::Salvage,
        RescueArgs { dry_run: true, .. } => Access::ReadOnly,
        _ => Access::Change,
    };
    let cache = OfflineCache::open(&dir, access).map_err(Failure::refused)?;
    let done = rescue(&cache, target.as_ref(), args)?;
    cache.leave()?;
    if args.json {
        print_json(&done)?;
    } else {
        tell(&done, &to, args.salvage);
    }
    if let Some(damage) = done.damage.filter(|_| !args.dry_run) {
        // Whoever removes the cache after a success would remove files that nobody knows of.
        let (dir, damage) = (dir.display(), text::line(&damage));
        return Err(Failure::dirty_left(format!(
            "the cache {dir} is as it was, and its objects may have dirty bytes that its records do not tell: {damage}"
        )));
    }
    if args.dry_run || done.kept_bytes == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let (bytes, dir) = (text::bytes(done.kept_bytes), dir.display());
    Err(Failure::dirty_left(format!("{bytes} dirty bytes stay on the cache {dir}")))
}

fn rescue(
    cache: &OfflineCache,
    to: Option<&PrivateDir>,
    args: &RescueArgs,
) -> Result<RescueResult> {
    let lost = cache.recovery.dropped.iter().filter(|dropped| dropped.dirty_bytes > 0);
    let lost = lost.map(|lost| Lost { path: lost.path.clone(), dirty_bytes: lost.dirty_bytes });
    let mut done = RescueResult {
        dry_run: args.dry_run,
        damage: cache.recovery.damage.clone(),
        rescued_bytes: 0,
        kept_bytes: 0,
        rescued: Vec::new(),
        kept: Vec::new(),
        lost_at_power_loss: lost.collect(),
    };
    let mut progress = (Meter::new("rescuing", args.json), 0, cache.dmt.index().usage().dirty);
    for file in cache.dmt.files().all() {
        let mut dirty = cache.dmt.index().extents(file.id);
        dirty.retain(|extent| extent.dirty);
        let dirty_bytes: u64 = dirty.iter().map(|extent| extent.range.len()).sum();
        // Of a file that a program removed nobody wants the bytes: the next mount drops them.
        if dirty.is_empty() || file.removal == Removal::Done {
            continue;
        }
        progress.1 += dirty_bytes;
        let (done_bytes, total_bytes) = (progress.1, progress.2);
        progress.0.tell(&Progress { done_bytes, total_bytes, path: file.path.clone() });
        if !args.all && !args.salvage && is_on_origin(cache, &file) {
            let reason = "the origin has this file: a mount brings them to the origin (--all saves them, too)";
            done.kept.push(RemainingFile { path: file.path, dirty_bytes, reason });
            continue;
        }
        let rescued = rescue_file(cache, to, &file, &dirty)?;
        if rescued.bytes < dirty_bytes {
            let reason = "missing or damaged on the cache: `fsck --repair` saves what is there of \
                          damaged ones, and drops both";
            let dirty_bytes = dirty_bytes - rescued.bytes;
            done.kept.push(RemainingFile { path: file.path, dirty_bytes, reason });
        }
        done.rescued.extend(Some(rescued).filter(|rescued| rescued.bytes > 0));
    }
    done.rescued_bytes = done.rescued.iter().map(|rescued| rescued.bytes).sum();
    done.kept_bytes = done.kept.iter().map(|kept| kept.dirty_bytes).sum();
    Ok(done)
}

/// Whether the next mount finds the file and brings its bytes to the origin.
fn is_on_origin(cache: &OfflineCache, file: &FileRecord) -> bool {
    cache.names.as_ref().is_some_and(|names| matches!(names.find(file), Ok(Some(_))))
}

/// Saves the sound part of a file's dirty extents, and then drops it from the cache.
fn rescue_file(
    cache: &OfflineCache,
    to: Option<&PrivateDir>,
    file: &FileRecord,
    dirty: &[Extent],
) -> Result<Rescued> {
    let mut sound = Vec::new();
    let Some(to) = to else {
        each_sound(cache, file, dirty, &mut |at, bytes| {
            push_joined(&mut sound, ByteRange::at(at, bytes.len() as u64));
            Ok(())
        })?;
        return Ok(rescued(file, None, &sound));
    };
    let mut saving = Saving::begin(to, &cache.dmt.identity().cache_id, file.id)?;
    each_sound(cache, file, dirty, &mut |at, bytes| {
        push_joined(&mut sound, ByteRange::at(at, bytes.len() as u64));
        saving.write(at, bytes)
    })?;
    if sound.is_empty() {
        saving.abandon()?;
        return Ok(rescued(file, None, &sound));
    }
    let origin = cache.binding.as_ref().map(|binding| binding.origin.clone()).unwrap_or_default();
    saving.sync()?;
    // What is in the directory is read, not what is still in memory.
    each_sound(cache, file, dirty, &mut |at, bytes| saving.compare(at, bytes))?;
    let (path, damage) = (file.path.clone(), cache.recovery.damage.clone());
    let name = saving.finish(&Manifest { origin, path, damage, extents: extents(&sound) })?;
    for range in &sound {
        cache.dmt.changes().unmap(file.id, *range)?;
    }
    cache.dmt.changes().persist()?;
    Ok(rescued(file, Some(name), &sound))
}

/// Calls `each` with the offset and the bytes of each part of dirty extents that is on the cache and agrees with its
/// checksum, in order.
fn each_sound(
    cache: &OfflineCache,
    file: &FileRecord,
    dirty: &[Extent],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut buf = Vec::new();
    for extent in dirty {
        let object = cache.objects.open(file.id.0, extent.placement)?;
        let mut bad_parts = cache.missing(file.id, extent)?;
        let mut at = extent.range.start;
        while at < extent.range.end {
            // Pieces end at block boundaries: if a block were in two pieces, it would be read entirely for each.
            let end = ((at / PIECE_BYTES + 1) * PIECE_BYTES).min(extent.range.end);
            let piece = ByteRange::new(at, end);
            buf.resize(usize::try_from(piece.len()).expect("a piece fits in memory"), 0);
            let mut rest = |at, buf: &mut [u8]| object.read_filled(at, buf);
            let checked = object.read_filled(at, &mut buf).and_then(|()| {
                cache.dmt.checksums().check((file.id, extent.placement), at, &buf, &mut rest)
            });
            match checked {
                Ok(checked) => bad_parts.extend(checked.damaged),
                Err(error) if error.raw_os_error() == Some(libc::EIO) => bad_parts.push(piece),
                Err(error) => return Err(error.into()),
            }
            for part in without(piece, &mut bad_parts) {
                let index = |at: u64| usize::try_from(at - piece.start).expect("inside the piece");
                each(part.start, &buf[index(part.start)..index(part.end)])?;
            }
            at = end;
        }
    }
    Ok(())
}

/// The parts of `piece` that are in none of `parts`, which are sorted in place.
fn without(piece: ByteRange, parts: &mut [ByteRange]) -> Vec<ByteRange> {
    parts.sort_unstable_by_key(|part| part.start);
    let (mut left, mut at) = (Vec::new(), piece.start);
    for part in parts.iter().filter(|part| part.overlaps(piece)) {
        if part.start > at {
            left.push(ByteRange::new(at, part.start));
        }
        at = at.max(part.end);
    }
    if at < piece.end {
        left.push(ByteRange::new(at, piece.end));
    }
    left
}

fn push_joined(ranges: &mut Vec<ByteRange>, next: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

fn extents(ranges: &[ByteRange]) -> Vec<destination::Extent> {
    let extent =
        |range: &ByteRange| destination::Extent { offset: range.start, length: range.len() };
    ranges.iter().map(extent).collect()
}

fn rescued(file: &FileRecord, saved: Option<String>, sound: &[ByteRange]) -> Rescued {
    let bytes = sound.iter().map(|range| range.len()).sum();
    Rescued { path: file.path.clone(), bytes, saved, extents: extents(sound) }
}

fn tell(done: &RescueResult, to: &Path, salvage: bool) {
    if let Some(damage) = &done.damage {
        say!("the cache's records are damaged: {}", text::line(damage));
        say!("what follows may be older than what programs wrote, and not all of it");
    }
    for lost in &done.lost_at_power_loss {
        let (path, bytes) = (text::path(&lost.path), text::bytes(lost.dirty_bytes));
        say!("{path}: {bytes} that no fsync had covered were lost when the machine lost power");
    }
    for file in &done.rescued {
        let (path, bytes) = (text::path(&file.path), text::bytes(file.bytes));
        match &file.saved {
            Some(name) => say!("{path}: {bytes} saved in {}", text::path(&to.join(name))),
            None => say!("{path}: {bytes} would be saved"),
        }
    }
    for kept in &done.kept {
        let (path, bytes) = (text::path(&kept.path), text::bytes(kept.dirty_bytes));
        say!("{path}: {bytes} stay on the cache: {}", kept.reason);
    }
    let (bytes, files) = (text::bytes(done.rescued_bytes), counted(done.rescued.len(), "file"));
    let verb = match done.dry_run {
        true => "would be saved",
        false if salvage && done.damage.is_none() => "saved; the cache is sound, and is as it was",
        false if salvage => "saved; the cache is as it was: move it away before the next mount",
        false => "saved, and dropped from the cache",
    };
    say!("{bytes} of {files} {verb}");
}

/// The error for something that does not fit in a directory.
fn refused(what: String, remedy: &str) -> Error {
    Error::invalid(what, remedy)
}
