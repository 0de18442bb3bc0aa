//! The layouts that a plan wants for the files of a striped origin: `apply` makes them, `verify` checks them.

mod server_bytes;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use halocline_api::control::MountedPath;
use halocline_os::bounded;
use halocline_os::error::Error;
use halocline_plan::layout::Part;
use halocline_plan::plan_file::{Plan, PlannedFile};
use halocline_plan::servers::Server;
use halocline_sim::ServerSet;
use halocline_storage::volume::origin::relayout::{self, LayoutChange, Wish};
use halocline_storage::volume::{Distribution, Origin};
use serde::Serialize;

use crate::command::{judge, planned_files};
use crate::failure::Failure;
use crate::print::{say, tell};
use crate::{mount_lookup, text};

pub(crate) use server_bytes::{ServerBytes, by_server, say_absent};

/// The remedy if the files of a plan are missing.
pub(crate) const BELOW: &str =
    "where the plan's paths begin with a mount point, take it off with --below";
/// Limit of a plan in bytes.
const PLAN_BYTES_MAX: u64 = 1 << 28;
/// Limit of a description of servers in bytes.
const SERVERS_BYTES_MAX: u64 = 1 << 24;

/// A plan, and the volume that it is for.
#[derive(Debug, Args)]
pub(crate) struct PlacementArgs {
    /// The plan
    pub(crate) plan: PathBuf,
    /// The striped origin: the directory that `mount` has as origin
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The servers as they are: a plan for others is refused
    #[arg(long, value_name = "FILE")]
    pub(crate) servers: Option<PathBuf>,
    /// What paths of the plan begin with, such as the mount point where its trace was recorded
    #[arg(long, value_name = "PATH")]
    pub(crate) below: Option<PathBuf>,
    /// Leave out files of the plan that are not there, or not below PATH, such as temporary ones and programs
    #[arg(long)]
    pub(crate) skip_missing: bool,
    /// Take default stripes for the planned ones: where the plan leaves the layout alone, those that it was compared with, else those
    /// that new files of the volume get
    #[arg(long)]
    to_default: bool,
    /// Print what was found as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a plan. Anything else is refused.
pub(crate) fn read(path: &Path) -> Result<Plan, Failure> {
    let content = bounded::read_to_string(path, PLAN_BYTES_MAX);
    let content = content.map_err(|error| Failure::unreadable(path, &error))?;
    let refused = |error| Failure::refused(format!("{}: {error}", text::path(path)));
    Plan::parse(&content).map_err(refused)
}

impl PlacementArgs {
    /// The volume's directory, as a canonical path.
    pub(crate) fn canonical_dir(&self) -> Result<PathBuf, Failure> {
        volume_dir(&self.dir)
    }

    /// Whether files lie as planned however they lie.
    pub(crate) fn leaves_alone(&self, plan: &Plan) -> bool {
        plan.leaves_alone() && !self.to_default
    }

    /// Puts into the plan what is wished instead of its layouts: those that the files have where it leaves these alone, and with
    /// `--to-default` those of new files of the volume.
    ///
    /// # Errors
    /// If a file cannot be looked at.
    pub(crate) fn replace_layouts(&self, plan: &mut Plan, origin: &Origin) -> Result<(), Failure> {
        if self.leaves_alone(plan) {
            return self.plan_as_they_lie(plan, origin);
        }
        if self.to_default && !plan.leaves_alone() {
            let striping = origin.striping();
            let widths = vec![striping.stripe(); plan.server.len()];
            for file in &mut plan.file {
                file.part = vec![Part { begin: 0, end: None, widths: widths.clone() }];
            }
        }
        Ok(())
    }

    /// Refuses a plan for servers other than those of `origin`, or than those described.
    pub(crate) fn check_servers(&self, plan: &Plan, origin: &Origin) -> Result<(), Failure> {
        let name = text::path(&self.plan);
        let (planned, there) = (plan.server.len(), origin.servers().len());
        if planned != there {
            return Err(Failure::refused(format!(
                "{name}: it is for {planned} servers, and {} has {there}; plan again for these",
                text::path(&self.dir)
            )));
        }
        let Some(path) = &self.servers else { return self.check_order(plan, origin) };
        let described = bounded::read_to_string(path, SERVERS_BYTES_MAX);
        let described = described.map_err(|error| Failure::unreadable(path, &error))?;
        let set = ServerSet::parse(&described, path).map_err(Failure::refused)?;
        let known = judge::servers(&set).map_err(Failure::refused)?;
        let other = |error| Failure::refused(format!("{name}: {error}"));
        judge::check_planned(plan, &set, &known).map_err(other)?;
        let mut named = 0;
        for (described, server) in set.servers().iter().zip(origin.servers()) {
            let Some(dir) = &described.directory else { continue };
            named += 1;
            let there = identity(dir).map_err(|error| {
                let (file, name) = (text::path(path), &described.name);
                Failure::refused(format!("{file}: server {name}: {}", error.message()))
            })?;
            if there != identity(server.dir())? {
                return Err(Failure::refused(format!(
                    "{}: {} is {}, and that server of the volume is {}; list the servers in the \
                     volume's order, and plan again",
                    text::path(path),
                    described.name,
                    text::path(dir),
                    text::path(server.dir())
                )));
            }
        }
        if named == 0 {
            return self.check_order(plan, origin);
        }
        Ok(())
    }

    /// Refuses a plan that has the servers of `origin` in another order, told by their directories, where it has them.
    /// Says so if the order matters and is not known: a plan may be made anywhere, also before there are directories.
    fn check_order(&self, plan: &Plan, origin: &Origin) -> Result<(), Failure> {
        let there = origin.servers().iter().map(|server| identity(server.dir()));
        let there = there.collect::<Result<Vec<_>, _>>()?;
        let (mut is_known, mut elsewhere) = (true, None);
        for (index, server) in plan.server.iter().enumerate() {
            let found = server.directory.as_deref().and_then(|dir| identity(dir).ok());
            let place = found.and_then(|found| there.iter().position(|other| *other == found));
            is_known &= place == Some(index);
            elsewhere = elsewhere.or(server.directory.as_deref().filter(|_| place.is_none()));
            let Some(place) = place.filter(|place| *place != index) else { continue };
            let of = |index: usize| text::path(origin.servers()[index].dir());
            return Err(Failure::refused(format!(
                "{}: it has {} in the place of {}, and in the volume that server is {}; list the servers in the \
                 volume's order, and plan again",
                text::path(&self.plan),
                server.name,
                of(index),
                of(place),
            )));
        }
        let class = |server: &Server| (server.profile, server.channels, server.network);
        let are_alike = plan.server.iter().all(|server| class(server) == class(&plan.server[0]));
        if !is_known && !are_alike {
            let names = plan.server.iter().map(|server| text::line(&server.name));
            let remedy = match elsewhere {
                // The plan may be made on another machine, or where the servers are mounted elsewhere.
                Some(dir) => format!("{}, of the plan, is no server of it", text::path(dir)),
                None => "plan with the `directory` of each server, and that is compared".to_owned(),
            };
            tell!(
                "{}: not checked: whether the servers of {} are {}, in this order; {remedy}",
                text::path(&self.plan),
                text::path(&self.dir),
                names.collect::<Vec<_>>().join(", ")
            );
        }
        Ok(())
    }

    /// Why the files of the plan cannot be moved: a plan has the paths of the trace.
    fn not_found(&self, error: &Error) -> Failure {
        match (relayout::is_missing(error), &self.below) {
            (true, None) => Failure::refused(format!("{error}; {BELOW}")),
            (true, Some(_)) => Failure::refused(format!(
                "{error}; make it, also empty, or leave out with --skip-missing what is not there"
            )),
            _ => Failure::refused(error),
        }
    }

    /// Why no file of the `plan` is there; `are_elsewhere` if none of its paths begins with what `--below` takes off.
    pub(crate) fn none_there(&self, plan: &Plan, are_elsewhere: bool) -> String {
        let (name, dir) = (text::path(&self.plan), text::path(&self.dir));
        match &self.below {
            Some(below) if are_elsewhere => format!(
                "{name}: none of its paths begins with {}: they begin with {}; give that mount point with --below, as the plan has it",
                text::path(below),
                told_beginnings(plan)
            ),
            Some(below) => format!(
                "{name}: none of its files is in {dir}; its paths behind {} must be those below the mount",
                text::path(below)
            ),
            None => format!("{name}: none of its files is in {dir}; {BELOW}"),
        }
    }

    /// The files of the plan that are left out because they are not below what `--below` takes off.
    pub(crate) fn outside(&self, plan: &Plan) -> Vec<PathBuf> {
        if !self.skip_missing {
            return Vec::new();
        }
        let below = planned_files::below_of(self.below.as_deref(), plan);
        let paths = plan.file.iter().filter_map(PlannedFile::path_bytes);
        let paths = paths.map(|path| PathBuf::from(OsString::from_vec(path)));
        let is_outside =
            |path: &PathBuf| planned_files::path_below_mount(below.as_deref(), path).is_none();
        paths.filter(is_outside).collect()
    }

    /// Tells people of these.
    pub(crate) fn say_outside(&self, outside: &[PathBuf]) {
        let Some(below) = &self.below else { return };
        let below = text::path(below);
        for path in outside {
            say!("{}: not below {below}, left out", text::path(path));
        }
    }

    /// What moving the files of the `wishes` would take. The files must be writable.
    ///
    /// # Errors
    /// If a file is not there and such files are not left out, or no file can be moved.
    pub(crate) fn look(
        &self,
        plan: &Plan,
        origin: &Origin,
        wishes: &[Wish],
    ) -> Result<FoundFiles, Failure> {
        let mut found = FoundFiles { files: Vec::new(), missing: Vec::new(), failed: Vec::new() };
        let mut first = None;
        for (path, file) in
            relayout::look_at_each(origin, wishes, true).map_err(|error| self.not_found(&error))?
        {
            match file {
                Ok(file) => found.files.push(file),
                Err(error) if !relayout::is_missing(&error) => {
                    found.failed.push((path, error.to_string()));
                    first.get_or_insert(error);
                }
                Err(_) if self.skip_missing => found.missing.push(path),
                Err(error) => return Err(self.not_found(&error)),
            }
        }
        if found.files.is_empty() {
            if let Some(error) = first {
                return Err(self.not_found(&error));
            }
            if self.skip_missing {
                return Err(Failure::refused(self.none_there(plan, wishes.is_empty())));
            }
        }
        Ok(found)
    }

    /// Gives the files of a plan that leaves the layout alone the layouts that they have. Those that are not there, or
    /// cannot be read, keep what the plan has.
    fn plan_as_they_lie(&self, plan: &mut Plan, origin: &Origin) -> Result<(), Failure> {
        let below = planned_files::below_of(self.below.as_deref(), plan);
        for at in 0..plan.file.len() {
            // Each alone: the path of another one may be that of no file.
            let wishes = self.wishes_of(plan, at..at + 1, below.as_deref())?;
            let there = relayout::look_at_each(origin, &wishes, false).map_err(Failure::refused)?;
            let Some((_, Ok(there))) = there.first() else { continue };
            let found = parts(&there.now);
            let ends = found.iter().skip(1).map(|next| Some(next.begin)).chain([None]);
            let part = |(part, end): (&PartJson, _)| Part {
                begin: part.begin,
                end,
                widths: part.widths.clone(),
            };
            plan.file[at].part = found.iter().zip(ends).map(part).collect();
        }
        Ok(())
    }

    /// The files of the plan with their layouts.
    pub(crate) fn wishes(&self, plan: &Plan) -> Result<Vec<Wish>, Failure> {
        let below = planned_files::below_of(self.below.as_deref(), plan);
        let wishes = self.wishes_of(plan, 0..plan.file.len(), below.as_deref())?;
        // Paths are compared by their components, as they are followed: `a//b` is `a/b`.
        let mut paths = HashSet::new();
        let without_dot = |path| Path::strip_prefix(path, ".").unwrap_or(path);
        if let Some(twice) = wishes.iter().find(|wish| !paths.insert(without_dot(&wish.path))) {
            return Err(Failure::refused(format!(
                "{}: {} is there twice; leave one of them out",
                text::path(&self.plan),
                text::path(&twice.path)
            )));
        }
        Ok(wishes)
    }

    /// Some of them, whose paths begin with `below`.
    fn wishes_of(
        &self,
        plan: &Plan,
        which: Range<usize>,
        below: Option<&Path>,
    ) -> Result<Vec<Wish>, Failure> {
        let name = text::path(&self.plan);
        let refused = |what: String| Failure::refused(format!("{name}: {what}"));
        let wish = |file: &halocline_plan::plan_file::PlannedFile| {
            let bytes = file.path_bytes().ok_or_else(|| refused("a file has no path".into()))?;
            let path = PathBuf::from(OsString::from_vec(bytes));
            let inside = planned_files::path_below_mount(below, &path);
            if self.skip_missing && inside.is_none() {
                return Ok(None);
            }
            let shown = text::path(&path);
            let inside = inside.ok_or_else(|| {
                let below = text::path(below.unwrap_or(Path::new("")));
                refused(format!(
                    "{shown} is not below {below}: paths of the plan begin with {}; correct --below, or leave out with \
                     --skip-missing what is not below it",
                    told_beginnings(plan)
                ))
            })?;
            let layout = file.layout(plan.server.len());
            let layout = layout.and_then(|layout| judge::file_layout(&layout));
            let layout = layout.map_err(|what| refused(format!("{shown}: {what}")))?;
            Ok(Some(Wish { path: inside.to_owned(), layout }))
        };
        plan.file[which].iter().filter_map(|file| wish(file).transpose()).collect()
    }
}

/// Of the directories that paths of a plan begin with, so many are told.
const BEGINNINGS: usize = 3;

/// What paths of the plan begin with, for people.
fn told_beginnings(plan: &Plan) -> String {
    let all = planned_files::beginnings(plan);
    let told = |dir: &PathBuf| {
        if dir.as_os_str().is_empty() { "the names of files".to_owned() } else { text::path(dir) }
    };
    let mut shown: Vec<String> = all.iter().take(BEGINNINGS).map(told).collect();
    if all.len() > BEGINNINGS {
        shown.push(format!("{} more", all.len() - BEGINNINGS));
    }
    match shown.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => shown.concat(),
    }
}

/// The files of a plan as they were found.
#[derive(Debug)]
pub(crate) struct FoundFiles {
    /// Those that can be moved.
    pub(crate) files: Vec<LayoutChange>,
    /// Those that are not there.
    pub(crate) missing: Vec<PathBuf>,
    /// Those that cannot be moved: who owns a file decides what becomes of that one alone.
    pub(crate) failed: Vec<(PathBuf, String)>,
}

/// A file of a plan that was left as it is, in `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct FailedJson {
    path: String,
    error: String,
}

impl FailedJson {
    pub(crate) fn of((path, error): &(PathBuf, String)) -> Self {
        Self { path: path.to_string_lossy().into_owned(), error: error.clone() }
    }
}

/// The directory at `dir`, whatever it is called.
fn identity(dir: &Path) -> Result<(u64, u64), Failure> {
    let found = fs::metadata(dir).map_err(|error| Failure::unusable(dir, &error))?;
    Ok((found.dev(), found.ino()))
}

/// The canonical path of a striped volume that was given by the user. Refused is a running mount, which shows the files and
/// not the volume below them.
pub(crate) fn volume_dir(named: &Path) -> Result<PathBuf, Failure> {
    let dir = fs::canonicalize(named).map_err(|error| Failure::unusable(named, &error))?;
    let is_on_mount = |mounted: &MountedPath| !mounted.mountpoint.as_os_str().is_empty();
    let Some(mounted) = mount_lookup::find(&dir).ok().filter(is_on_mount) else { return Ok(dir) };
    let (shown, point) = (text::path(&dir), text::path(&mounted.mountpoint));
    Err(Failure::refused(match mount_lookup::status(&mounted).map(|status| status.status.origin) {
        Ok(origin) if origin == mounted.mountpoint => format!(
            "{shown}: a running mount lies over this volume and shows its files alone; unmount {point} first, or, where \
             `halocline run` mounted it, look from outside of its command"
        ),
        Ok(origin) => format!(
            "{shown} is on the running mount {point}; give its origin, {}",
            text::path(&origin)
        ),
        Err(_) => format!(
            "{shown} is on the running mount {point}; give the directory that is its origin"
        ),
    }))
}

/// A part of a file in `plan --json`.
#[derive(Debug, Serialize)]
pub(crate) struct PartJson {
    begin: u64,
    widths: Vec<u64>,
}

/// The parts of a file with this distribution.
pub(crate) fn parts(distribution: &Distribution) -> Vec<PartJson> {
    match distribution {
        Distribution::Even(striping) => {
            let widths = vec![striping.stripe(); striping.servers() as usize];
            vec![PartJson { begin: 0, widths }]
        }
        Distribution::Varied(layout) => {
            let part = |part: &halocline_model::file_layout::Part| PartJson {
                begin: part.start,
                widths: part.striping.widths().to_vec(),
            };
            layout.parts().iter().map(part).collect()
        }
    }
}

/// Parts for people: widths of the servers in order, `-` for none.
pub(crate) fn told(distribution: &Distribution) -> String {
    let width = |width: &u64| match *width {
        0 => "-".to_owned(),
        width => text::exact_bytes(width),
    };
    let widths = |part: &PartJson| part.widths.iter().map(width).collect::<Vec<_>>().join(", ");
    let part = |part: PartJson| match part.begin {
        0 => widths(&part),
        begin => format!("from {} {}", text::exact_bytes(begin), widths(&part)),
    };
    parts(distribution).into_iter().map(part).collect::<Vec<_>>().join("; ")
}
