//! `halocline fsck`: is a cache in order, and what would be lost without it?

mod contents;
mod findings;
#[cfg(test)]
mod keys;
mod names;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_core::config::{Binding, Config};
use halocline_core::counted::{counted, counted_with};
use halocline_core::error::{Error, Result};
use halocline_core::meta::lease::{self, Evidence, Verdict};
use halocline_core::meta::recover::Left;
use halocline_core::meta::table::{self, ExtentTable};
use halocline_core::meta::{Extent, FileId, FileRecord};
use halocline_core::volume::{CacheObjects, Origin, Volume, marks};
use halocline_model::evict;
use halocline_model::request::ByteRange;

use self::contents::Contents;
use self::findings::{Findings, Problem};
use self::names::Names;
use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::say::say;
use crate::text;

/// Check a cache that is not mounted: records against objects, contents against their checksums,
/// dirty files against the origin
///
/// Without --repair nothing is changed, and a second check finds the same. The status is 1 when
/// something is wrong.
#[derive(Debug, Args)]
pub(crate) struct FsckArgs {
    /// The cache directory, or the root of a file tier's directories
    cache: PathBuf,
    /// Drop records whose data is missing or damaged, and objects that no record or no file names;
    /// what only the cache had of damaged data is saved first, in conflicts/
    #[arg(long)]
    repair: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// A cache that is open for checking.
struct Cache {
    dmt: ExtentTable,
    objects: CacheObjects,
    binding: Option<Binding>,
    problems: Vec<Problem>,
    left: Left,
    /// Whether the next mount removes what no record names.
    next_mount_trims: bool,
    origin_unchecked: Option<String>,
    /// What tells changes of the origin by others.
    evidence: Evidence,
    /// What the origin has; `None` without an origin.
    names: Option<Names>,
}

/// Checks, and mends if asked.
pub(crate) fn execute(args: &FsckArgs) -> Outcome {
    if let Some(outcome) = super::tier_fsck::execute(&args.cache, args.repair, args.json) {
        return outcome;
    }
    let dir = fs::canonicalize(&args.cache)
        .map_err(|error| Failure::refused(format!("cache {}: {error}", args.cache.display())))?;
    let mark = dir.join(halocline_core::meta::owner::CACHE_FILE);
    let is_cache = mark.try_exists().map_err(Error::at(&mark, "look at"));
    if !is_cache.map_err(Failure::refused)? {
        let dir = dir.display();
        return Err(Failure::refused(format!("{dir} is no cache: nothing was ever cached here")));
    }
    let mut cache = Cache::open(&dir, args.repair).map_err(Failure::refused)?;
    cache.check_servers()?;
    let mut contents = Contents::new(cache.dmt.usage().mapped, args.json);
    for file in cache.dmt.files() {
        let missing = cache.check_file(&file, args.repair)?;
        cache.check_contents(&file, &missing, &mut contents, args.repair.then_some(&dir))?;
    }
    let verified_bytes = contents.verified_bytes;
    drop(contents);
    cache.check_objects(args.repair)?;
    cache.check_origin(args.repair)?;
    cache.leave()?;
    let usage = cache.dmt.usage();
    let findings = Findings {
        origin: cache.binding.as_ref().map(|binding| binding.origin.clone()),
        files: cache.dmt.files().len(),
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
    }
    let clean = findings.wrong() == 0;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Findings {
    /// Problems that the next mount does not end by itself. A killed mount leaves blocks that were
    /// written and not yet recorded: nobody was told that they are stored, and nothing is lost.
    fn wrong(&self) -> usize {
        self.problems.iter().filter(|problem| !problem.ends_by_itself()).count()
    }
}

impl Cache {
    fn open(dir: &Path, repair: bool) -> Result<Self> {
        let binding = Binding::load(dir)?;
        let eviction = evict::POLICIES.first().map(|policy| (policy.make)());
        let eviction = eviction.ok_or_else(|| Error::invalid("no eviction policy", "rebuild"))?;
        let options = table::Options {
            look_only: !repair,
            witness: binding
                .as_ref()
                .map(|binding| binding.origin.clone())
                .filter(|dir| dir.is_dir()),
            ..table::Options::new(u64::MAX, eviction, Config::default().cdt_entries)
        };
        let (dmt, recovery) = ExtentTable::open(dir, options)?;
        let mut problems: Vec<_> = recovery
            .dropped
            .into_iter()
            .filter(|dropped| dropped.dirty_bytes > 0)
            .map(|dropped| Problem::LostAtPowerLoss {
                path: dropped.path,
                dirty_bytes: dropped.dirty_bytes,
            })
            .collect();
        let geometry = match &binding {
            Some(binding) => binding.geometry(),
            None => halocline_model::layout::CacheGeometry::new(1, 1, 0),
        };
        let volume =
            Volume::in_directory(dir, geometry.servers(), geometry.stripe(), &|_, device| device)?;
        let objects = CacheObjects::new(volume, geometry);
        let (left, next_mount_trims, origin_unchecked) = (recovery.left, recovery.trim, None);
        let evidence = lease::evidence(dir)?;
        let dirty_bytes = dmt.usage().dirty;
        if evidence == Evidence::Copy && dirty_bytes > 0 {
            problems.push(Problem::Copy { dirty_bytes });
        }
        let names = binding.as_ref().map(Names::of);
        Ok(Self {
            dmt,
            objects,
            binding,
            problems,
            left,
            next_mount_trims,
            origin_unchecked,
            evidence,
            names,
        })
    }

    /// Leaves the cache in the order in which it was found. A crashed one stays so: what its
    /// process wrote was never synced, and must not pass for durable if the machine goes down.
    fn leave(&self) -> Result<()> {
        if self.left == Left::Crashed { Ok(()) } else { self.dmt.close() }
    }

    /// Looks for servers that are not what they were.
    fn check_servers(&mut self) -> Result<()> {
        let lost = marks::unmarked(self.objects.volume(), &self.dmt.identity().cache_id)?;
        self.problems.extend(lost.into_iter().map(|server| Problem::LostServer { server }));
        Ok(())
    }

    /// Holds the records of one file against its objects and its place on the origin; answers
    /// which bytes are missing.
    fn check_file(&mut self, file: &FileRecord, repair: bool) -> Result<Vec<ByteRange>> {
        let extents = self.dmt.extents(file.id);
        let mut missing = Vec::new();
        for extent in &extents {
            for range in self.missing(file.id, extent)? {
                self.problems.push(Problem::MissingData {
                    path: file.path.clone(),
                    offset: range.start,
                    length: range.len(),
                    dirty: extent.dirty,
                });
                missing.push(range);
                if repair {
                    self.dmt.unmap(file.id, range)?;
                }
            }
        }
        let dirty_bytes: u64 =
            extents.iter().filter(|extent| extent.dirty).map(|extent| extent.range.len()).sum();
        if dirty_bytes > 0 {
            let path = file.path.clone();
            match self.names.as_ref().map_or(Ok(Some(file.stamp)), |names| names.find(file)) {
                Err(reason) => {
                    self.problems.push(Problem::NotReachable { path, dirty_bytes, reason });
                }
                Ok(None) => self.problems.push(Problem::NoOrigin { path, dirty_bytes }),
                Ok(Some(found)) if self.evidence.judge(file.stamp, found) == Verdict::Theirs => {
                    self.problems.push(Problem::Conflict { path, dirty_bytes });
                }
                Ok(Some(_)) => {}
            }
        }
        Ok(missing)
    }

    /// Compares what is cached of one file, but for what is `missing`, with its checksums. `repair` is the directory of a cache
    /// that is to be repaired: what is damaged is dropped, after what only the cache had was saved.
    fn check_contents(
        &mut self,
        file: &FileRecord,
        missing: &[ByteRange],
        contents: &mut Contents,
        repair: Option<&PathBuf>,
    ) -> Result<()> {
        let mut damaged = Vec::new();
        for extent in self.dmt.extents(file.id) {
            let mut found = contents.damaged((&self.dmt, &self.objects), file, &extent)?;
            found.retain(|range| !missing.iter().any(|hole| hole.contains(*range)));
            damaged.extend(found.into_iter().map(|range| (range, extent)));
        }
        let dirty: Vec<_> = damaged.iter().copied().filter(|(_, extent)| extent.dirty).collect();
        let saved = match repair {
            Some(dir) if !dirty.is_empty() => {
                Some(contents::save(dir, &self.objects, file, &dirty)?)
            }
            _ => None,
        };
        for (range, extent) in damaged {
            if repair.is_some() {
                self.dmt.unmap(file.id, range)?;
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

    /// Parts of an extent without data below: holes, or past the object's end.
    fn missing(&self, file: FileId, extent: &Extent) -> Result<Vec<ByteRange>> {
        let object = self.objects.open(file.0, extent.placement)?;
        let mut gaps = Vec::new();
        let mut at = extent.range.start;
        while at < extent.range.end {
            let hole = object.seek(at, false)?.unwrap_or(at).min(extent.range.end);
            if hole == extent.range.end {
                break;
            }
            let data = object.seek(hole, true)?.unwrap_or(u64::MAX).min(extent.range.end);
            gaps.push(ByteRange::new(hole, data));
            at = data.max(hole + 1);
        }
        Ok(gaps)
    }

    /// Looks for objects that no record names, and for blocks that nobody counts.
    fn check_objects(&mut self, repair: bool) -> Result<()> {
        let known: HashSet<u64> = self.dmt.files().iter().map(|file| file.id.0).collect();
        let mut stray: Vec<u64> = self.objects.list()?.iter().map(|key| key.file).collect();
        stray.retain(|file| !known.contains(file));
        stray.sort_unstable();
        stray.dedup();
        for file in stray {
            let next_mount_removes = self.next_mount_trims;
            self.problems.push(Problem::StrayObject { file, next_mount_removes });
            if repair {
                self.objects.remove(file)?;
            }
        }
        let (allocated_bytes, counted_bytes) =
            (self.objects.allocated_bytes()?, self.dmt.usage().used);
        if allocated_bytes > counted_bytes && self.problems.is_empty() {
            self.problems.push(Problem::Uncounted { allocated_bytes, counted_bytes });
        }
        if repair {
            // A barrier calls durable what the records name: a killed process has not synced it.
            for key in self.objects.list()? {
                self.objects.open(key.file, key.placement)?.sync(true)?;
            }
            self.dmt.barrier()?;
            // Nothing is recorded any more of what a lost server had.
            marks::write(self.objects.volume(), &self.dmt.identity().cache_id)?;
        }
        Ok(())
    }

    /// Looks for objects of a striped origin that a crash left without a name.
    fn check_origin(&mut self, repair: bool) -> Result<()> {
        let Some(binding) = self.binding.as_ref().filter(|binding| binding.origin.is_dir()) else {
            return Ok(());
        };
        let origin = match Origin::open_alone(&binding.origin) {
            Ok(Some(origin)) => origin,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.origin_unchecked = Some(error.to_string());
                return Ok(());
            }
        };
        if repair {
            origin.bind_objects()?;
        }
        for (id, bytes) in origin.orphans()? {
            self.problems.push(Problem::OrphanObject { object: id.to_string(), bytes });
            if repair {
                origin.remove_orphan(id)?;
            }
        }
        Ok(())
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
        say!("the origin's objects were not checked: {why}");
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
        (0, _) => say!("clean"),
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
        Problem::StrayObject { file, .. } => {
            format!("object {file:016x}: no record names it; it only takes space")
        }
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
             mount writes home what belongs to files that are as they were, and saves the rest",
            text::bytes(*dirty_bytes)
        ),
        Problem::OrphanObject { object, bytes } => format!(
            "origin object {object}: no file names it; it only takes {}",
            text::bytes(*bytes)
        ),
        Problem::Uncounted { allocated_bytes, counted_bytes } => format!(
            "{} are in use and {} are counted: the next mount frees the rest",
            text::bytes(*allocated_bytes),
            text::bytes(*counted_bytes)
        ),
    }
}
