//! `halocline fsck`: is a cache in order, and what would be lost without it?

pub(super) mod contents;
mod findings;
#[cfg(test)]
mod keys;
mod origin_objects;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_meta::lease::{Evidence, Verdict};
use halocline_meta::table::Access;
use halocline_meta::{FileRecord, Removal};
use halocline_model::request::ByteRange;
use halocline_os::counted::{counted, counted_with};
use halocline_os::error::Result;
use halocline_storage::volume::label;

use self::contents::Contents;
use self::findings::{Findings, Problem};
use self::origin_objects::{Gifts, OriginObjects, gifts, misnamed_object, tell_unnamed};
use super::offline_cache::{self, OfflineCache};
use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::print::say;
use crate::text;

/// Check a cache that is not mounted: records against objects, contents against their checksums,
/// dirty files against the origin
///
/// Without --repair nothing is changed, and a second check finds the same. The status is 1 when
/// something is wrong, or could not be checked, as a striped origin that is mounted.
#[derive(Debug, Args)]
pub(crate) struct FsckArgs {
    /// The cache directory, or the root of a file tier's directories
    cache: PathBuf,
    /// Drop records whose data is missing or damaged, and objects that no record names;
    /// what only the cache had of damaged data is saved first, in conflicts/
    #[arg(long)]
    repair: bool,
    /// Remove for good the objects of a striped origin that no file names, if there are exactly COUNT,
    /// as a check has told: they may be the data of files that are elsewhere for the moment
    #[arg(long, value_name = "COUNT", requires = "repair")]
    remove_unnamed: Option<usize>,
    /// Give FILE, a path below the mount, the OBJECT of a striped origin that it names and that a check has told: it is what a
    /// backup restored of the object's own file, which is gone. May be given more than once
    #[arg(long, value_name = "OBJECT=FILE", requires = "repair")]
    give: Vec<OsString>,
    /// The same for each line OBJECT=FILE of a file, `-` for standard input: all of them are given at once, or none if one is refused
    #[arg(long, value_name = "FILE", requires = "repair")]
    give_from: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// A cache opened for checking.
struct Cache {
    offline: OfflineCache,
    problems: Vec<Problem>,
    origin_unchecked: Option<String>,
}

/// Checks, and repairs if requested.
pub(crate) fn execute(args: &FsckArgs) -> Outcome {
    if let Some(outcome) = super::tier_fsck::execute(&args.cache, args.repair, args.json) {
        return outcome;
    }
    let gifts = gifts(args)?;
    let dir = offline_cache::cache_dir(&args.cache)?;
    let mut cache = Cache::open(&dir, args.repair).map_err(Failure::refused)?;
    cache.check_servers()?;
    let mut contents = Contents::new(cache.offline.dmt.index().usage().mapped, args.json);
    for file in cache.offline.dmt.files().all() {
        let missing = cache.check_file(&file, args.repair)?;
        cache.check_contents(&file, &missing, &mut contents, args.repair.then_some(&dir))?;
    }
    let verified_bytes = contents.verified_bytes;
    drop(contents);
    cache.check_objects(args.repair)?;
    let objects = cache.check_origin(args, &gifts)?;
    cache.offline.leave()?;
    let usage = cache.offline.dmt.index().usage();
    let findings = Findings {
        origin: cache.offline.binding.as_ref().map(|binding| binding.origin.clone()),
        files: cache.offline.dmt.files().all().len(),
        extents: usage.extents,
        mapped_bytes: usage.mapped,
        dirty_bytes: usage.dirty,
        verified_bytes,
        repaired: args.repair,
        problems: cache.problems,
        origin_unchecked: cache.origin_unchecked,
    };
    if args.json {
        print_json(&findings)?;
    } else {
        tell(&findings);
        tell_unnamed(&findings, args, objects);
    }
    Ok(if findings.are_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Cache {
    fn open(dir: &Path, repair: bool) -> Result<Self> {
        let offline =
            OfflineCache::open(dir, if repair { Access::Change } else { Access::ReadOnly })?;
        let lost = offline.recovery.dropped.iter().filter(|dropped| dropped.dirty_bytes > 0);
        let lost = lost.map(|dropped| Problem::LostAtPowerLoss {
            path: dropped.path.clone(),
            dirty_bytes: dropped.dirty_bytes,
        });
        let mut problems: Vec<_> = lost.collect();
        let dirty_bytes = offline.dmt.index().usage().dirty;
        if offline.evidence == Evidence::Copy && dirty_bytes > 0 {
            problems.push(Problem::Copy { dirty_bytes });
        }
        Ok(Self { offline, problems, origin_unchecked: None })
    }

    /// Looks for servers that were replaced or lost.
    fn check_servers(&mut self) -> Result<()> {
        let lost = label::unlabelled(
            self.offline.objects.volume(),
            &self.offline.dmt.identity().cache_id,
        )?;
        self.problems.extend(lost.into_iter().map(|server| Problem::LostServer { server }));
        Ok(())
    }

    /// Checks the records of one file against its objects and its place on the origin; returns the missing bytes.
    fn check_file(&mut self, file: &FileRecord, repair: bool) -> Result<Vec<ByteRange>> {
        let extents = self.offline.dmt.index().extents(file.id);
        let mut missing = Vec::new();
        for extent in &extents {
            for range in self.offline.missing(file.id, extent)? {
                self.problems.push(Problem::MissingData {
                    path: file.path.clone(),
                    offset: range.start,
                    length: range.len(),
                    dirty: extent.dirty,
                });
                missing.push(range);
                if repair {
                    self.offline.dmt.changes().unmap(file.id, range)?;
                }
            }
        }
        let dirty_bytes: u64 =
            extents.iter().filter(|extent| extent.dirty).map(|extent| extent.range.len()).sum();
        if dirty_bytes > 0 && file.removal != Removal::Done {
            let path = file.path.clone();
            let evidence = self.offline.evidence;
            let names = self.offline.names.as_ref();
            match names.map_or(Ok(Some(Verdict::Same)), |names| names.judge(file, evidence)) {
                Err(reason) => {
                    self.problems.push(Problem::NotReachable { path, dirty_bytes, reason });
                }
                // A program removed it, or was just about to.
                Ok(None) if file.removal != Removal::None => {}
                Ok(None) => self.problems.push(Problem::NoOrigin { path, dirty_bytes }),
                Ok(Some(Verdict::Theirs)) => {
                    self.problems.push(Problem::Conflict { path, dirty_bytes });
                }
                Ok(Some(_)) => {}
            }
        }
        Ok(missing)
    }

    /// Compares the cached bytes of one file, except for `missing` ones, with its checksums. `repair` is the directory
    /// of a cache to be repaired: damaged bytes are dropped after those that only the cache had were saved.
    fn check_contents(
        &mut self,
        file: &FileRecord,
        missing: &[ByteRange],
        contents: &mut Contents,
        repair: Option<&PathBuf>,
    ) -> Result<()> {
        let mut damaged = Vec::new();
        for extent in self.offline.dmt.index().extents(file.id) {
            let mut found =
                contents.damaged((&self.offline.dmt, &self.offline.objects), file, &extent)?;
            found.retain(|range| !missing.iter().any(|hole| hole.contains(*range)));
            damaged.extend(found.into_iter().map(|range| (range, extent)));
        }
        let dirty: Vec<_> = damaged.iter().copied().filter(|(_, extent)| extent.dirty).collect();
        let saved = match repair {
            Some(dir) if !dirty.is_empty() => {
                Some(contents::save(dir, &self.offline.objects, file, &dirty)?)
            }
            _ => None,
        };
        for (range, extent) in damaged {
            if repair.is_some() {
                self.offline.dmt.changes().unmap(file.id, range)?;
            }
            self.problems.push(Problem::DamagedData {
                path: file.path.clone(),
                offset: range.start,
                length: range.len(),
                dirty: extent.dirty,
                saved: saved.clone().filter(|_| extent.dirty),
            });
        }
        Ok(())
    }

    /// Looks for objects that no record names, and for unaccounted blocks.
    fn check_objects(&mut self, repair: bool) -> Result<()> {
        let known: HashSet<u64> =
            self.offline.dmt.files().all().iter().map(|file| file.id.0).collect();
        let mut stray: Vec<u64> = self.offline.objects.list()?.iter().map(|key| key.file).collect();
        stray.retain(|file| !known.contains(file));
        stray.sort_unstable();
        stray.dedup();
        for file in stray {
            let next_mount_removes = self.offline.recovery.trim;
            self.problems.push(Problem::StrayObject { file, next_mount_removes });
            if repair {
                self.offline.objects.remove(file)?;
            }
        }
        let (allocated_bytes, counted_bytes) =
            (self.offline.objects.allocated_bytes()?, self.offline.dmt.index().usage().used);
        if allocated_bytes > counted_bytes && self.problems.is_empty() {
            self.problems.push(Problem::Uncounted { allocated_bytes, counted_bytes });
        }
        if repair {
            // A barrier declares durable what the records name, but a killed process has not synced it.
            for key in self.offline.objects.list()? {
                self.offline.objects.open(key.file, key.placement)?.sync(true)?;
            }
            self.offline.dmt.barrier()?;
            // The records no longer refer to anything that a lost server had.
            label::write(self.offline.objects.volume(), &self.offline.dmt.identity().cache_id)?;
        }
        Ok(())
    }

    /// Looks at the objects of a striped origin.
    fn check_origin(&mut self, args: &FsckArgs, gifts: &Gifts) -> Result<usize, Failure> {
        let binding = self.offline.binding.as_ref();
        if let Some(gone) = binding.filter(|binding| !binding.origin.is_dir()) {
            let origin = text::path(&gone.origin);
            self.origin_unchecked =
                Some(format!("{origin}: there is no such directory; mount or move it there"));
        }
        let binding = binding.filter(|binding| binding.origin.is_dir());
        let objects = binding.map(|binding| OriginObjects::check(&binding.origin, args, gifts));
        let objects = objects.transpose()?.unwrap_or_default();
        objects.check_what_was_asked(args, gifts)?;
        self.problems.extend(objects.problems);
        self.origin_unchecked = self.origin_unchecked.take().or(objects.unchecked);
        Ok(objects.count)
    }
}

fn tell(findings: &Findings) {
    if let Some(origin) = &findings.origin {
        say!("cache of {}", text::path(origin));
    }
    say!(
        "{}, {}, {} cached, {} of it dirty",
        counted(findings.files, "file"),
        counted(findings.extents, "extent"),
        text::bytes(findings.mapped_bytes),
        text::bytes(findings.dirty_bytes)
    );
    say!("{} have checksums", text::bytes(findings.verified_bytes));
    if let Some(why) = &findings.origin_unchecked {
        say!("the origin was not checked: {why}");
    }
    let is_stray = |problem: &&Problem| matches!(problem, Problem::StrayObject { .. });
    let (strays, others): (Vec<_>, Vec<_>) =
        findings.problems.iter().partition(|problem| is_stray(problem) && problem.ends_by_itself());
    for problem in others {
        say!("{}", describe(problem));
    }
    if !strays.is_empty() {
        let objects = counted_with(strays.len(), "object", ("is", "are"));
        say!("{objects} named by no record: the next mount removes what no record names");
    }
    match (findings.wrong(), findings.repaired) {
        (0, _) if findings.are_clean() => say!("clean"),
        (0, _) => say!("nothing is wrong with what was checked; not all was: see above"),
        (count, true) => say!("{}, repaired where that is possible", counted(count, "problem")),
        (count, false) => {
            let problems = counted(count, "problem");
            say!("{problems}; --repair drops what is missing, damaged or stray");
        }
    }
}

fn describe(problem: &Problem) -> String {
    match problem {
        Problem::LostAtPowerLoss { path, dirty_bytes } => format!(
            "{}: {} that no fsync had covered were lost when the machine lost power",
            text::path(path),
            text::bytes(*dirty_bytes)
        ),
        Problem::MissingData { path, offset, length, dirty } => format!(
            "{}: {} at {offset} are not on the cache device: {}",
            text::path(path),
            text::bytes(*length),
            if *dirty { "these bytes are lost" } else { "the origin has them" }
        ),
        Problem::DamagedData { path, offset, length, dirty, saved } => format!(
            "{}: {} at {offset} are damaged on the cache: {}",
            text::path(path),
            text::bytes(*length),
            match (dirty, saved) {
                (false, _) => "the origin has them".to_owned(),
                (true, None) => "only the cache had them".to_owned(),
                (true, Some(saved)) => format!(
                    "only the cache had them; what was there is saved in {}, and the file has the \
                     origin's bytes there now",
                    text::path(saved)
                ),
            }
        ),
        Problem::LostServer { server } => format!(
            "{}: it holds nothing of this cache; mount its device. If that is lost, what was on \
             it is listed below, and --repair drops it",
            text::path(server)
        ),
        Problem::StrayObject { file, .. } => stray_object(*file),
        Problem::NotReachable { path, dirty_bytes, reason } => format!(
            "{}: {} are dirty, and nobody knows whether the origin has the file: {reason}; they stay on the \
             cache until a mount finds it",
            text::path(path),
            text::bytes(*dirty_bytes)
        ),
        Problem::NoOrigin { path, dirty_bytes } => format!(
            "{}: {} are dirty, and the origin has no such file there; the next mount searches it, and saves \
             them if it is gone",
            text::path(path),
            text::bytes(*dirty_bytes)
        ),
        Problem::Conflict { path, dirty_bytes } => format!(
            "{}: {} are dirty, and others changed the origin's file since; the next mount keeps \
             their version and saves these in `conflicts` in the cache directory",
            text::path(path),
            text::bytes(*dirty_bytes)
        ),
        Problem::Copy { dirty_bytes } => format!(
            "this is a copy of a cache, or was moved to another file system, and {} are dirty; a \
             mount writes to the origin what belongs to files that are as they were, and saves the rest",
            text::bytes(*dirty_bytes)
        ),
        Problem::OrphanObject { object, bytes, removed: was } => {
            unnamed_object(object, *bytes, *was)
        }
        Problem::LeftoverObject { object, bytes } => leftover_object(object, *bytes),
        Problem::MisnamedObject { object, named_by } => misnamed_object(object, named_by),
        Problem::UnreadName { reason } => reason.clone(),
        Problem::UnreadableFile { path, owner, reason } => unreadable_file(path, *owner, reason),
        Problem::OtherTree { reason } => format!("the origin's names cannot be right: {reason}"),
        Problem::Uncounted { allocated_bytes, counted_bytes } => {
            uncounted(*allocated_bytes, *counted_bytes)
        }
    }
}

fn uncounted(allocated: u64, counted: u64) -> String {
    format!(
        "{} are in use and {} are counted, as after most mounts; nothing is wrong with that, and the next mount frees the rest",
        text::bytes(allocated),
        text::bytes(counted)
    )
}

fn stray_object(file: u64) -> String {
    format!("object {file:016x}: no record names it; it only takes space")
}

fn unnamed_object(object: &str, bytes: u64, removed: bool) -> String {
    let takes = if removed { "took" } else { "takes" };
    format!("origin object {object}: no file names it; it {takes} {}", text::bytes(bytes))
}

fn unreadable_file(path: &Path, owner: u32, reason: &str) -> String {
    let path = text::path(path);
    format!("{path} (of user {owner}) cannot be read: {reason}")
}

fn leftover_object(object: &str, bytes: u64) -> String {
    format!(
        "origin object {object}: a move that was interrupted left it, and its file has another; it only takes {}",
        text::bytes(bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: after a clean unmount, "620 KiB are in use and 616 KiB are counted" was followed by "clean".
    #[test]
    fn what_the_next_mount_frees_is_said_to_be_normal() {
        let problem = Problem::Uncounted { allocated_bytes: 620 << 10, counted_bytes: 616 << 10 };
        let told = describe(&problem);
        assert!(problem.ends_by_itself() && told.contains("nothing is wrong with that"), "{told}");
    }
}
