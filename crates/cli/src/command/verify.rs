//! `halocline verify`: whether the files of a striped origin lie as a plan says (docs/PLANNING.md).

mod measured;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_os::open_files::raise_limit;
use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::relayout::{self, LayoutChange, Wish};
use halocline_trace::Completeness;
use serde::Serialize;

use super::placement::{self, PartJson, PlacementArgs, ServerBytes};
use super::print_json;
use super::traced::tell_if_partial;
use crate::failure::{Failure, Outcome};
use crate::print::say;
use crate::text;

use measured::ServerTimes;

/// Compare the layouts of files of a striped origin with those of a plan
///
/// Nothing is changed, and the origin may be mounted. Exits with 0 where all files lie as planned and with 1 where one does
/// not, is missing or cannot be looked at, or where a server has nothing of a file that has a part on it.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    place: PlacementArgs,
    /// A trace of a run in these layouts: its service times are compared with those that the plan was made with
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Believe that a file has holes where a server has nothing of it: nothing of it is lost
    #[arg(long)]
    known: bool,
}

/// What `verify --json` says.
#[derive(Debug, Serialize)]
struct Verified {
    agrees: bool,
    left_alone: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    none_there: Option<String>,
    files: Vec<FileJson>,
    outside: Vec<String>,
    servers: Vec<ServerBytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Vec<ServerTimes>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_weight: Option<f64>,
}

#[derive(Debug, Serialize)]
struct FileJson {
    path: String,
    agrees: bool,
    missing: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    same_as: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<Vec<PartJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actual: Option<Vec<PartJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    absent_bytes: Option<u64>,
}

/// A file of the plan.
struct Checked {
    /// Its path below the mount.
    path: PathBuf,
    /// How it lies, or why that is not known.
    found: Result<LayoutChange, Error>,
    /// The name under which the same file comes before: its bytes are counted there.
    same_as: Option<PathBuf>,
}

impl Checked {
    fn is_right(&self) -> bool {
        matches!(&self.found, Ok(found) if found.agrees())
    }

    fn is_missing(&self) -> bool {
        matches!(&self.found, Err(error) if relayout::is_missing(error))
    }

    /// Bytes that it has on servers where nothing of it is.
    fn absent_bytes(&self) -> u64 {
        self.found
            .as_ref()
            .map_or(0, |found| found.absent.iter().copied().fold(0, u64::saturating_add))
    }

    fn json(&self) -> FileJson {
        let found = self.found.as_ref();
        FileJson {
            path: self.path.to_string_lossy().into_owned(),
            agrees: self.is_right(),
            missing: self.is_missing(),
            same_as: self.same_as.as_ref().map(|path| path.to_string_lossy().into_owned()),
            error: found.err().filter(|_| !self.is_missing()).map(ToString::to_string),
            planned: found.ok().map(|found| placement::parts(&found.wished)),
            actual: found.ok().map(|found| placement::parts(&found.now)),
            absent_bytes: found.ok().map(|_| self.absent_bytes()),
        }
    }

    fn say(&self) {
        let path = text::path(&self.path);
        if let Some(same_as) = &self.same_as {
            say!("{path}: another name of {}, counted once", text::path(same_as));
        }
        match &self.found {
            Err(_) if self.is_missing() => say!("{path}: missing"),
            Err(error) => say!("{path}: {error}"),
            Ok(found) if !found.agrees() => {
                let [lies, planned] = [&found.now, &found.wished].map(placement::told);
                say!("{path}: lies in {lies}; planned is {planned}");
            }
            Ok(_) => {}
        }
    }
}

/// The files of the wishes, each looked at alone: names of one file may all lie as planned.
fn checked(origin: &Origin, wishes: &[Wish]) -> Result<Vec<Checked>, Failure> {
    let mut files = Vec::new();
    let mut known: HashMap<(u64, u64), PathBuf> = HashMap::new();
    for wish in wishes {
        let found = relayout::look_at_each(origin, std::slice::from_ref(wish), false);
        for (path, found) in found.map_err(Failure::refused)? {
            let identity = found.as_ref().ok().map(LayoutChange::identity);
            let same_as = identity.and_then(|identity| known.get(&identity).cloned());
            known.extend(identity.filter(|_| same_as.is_none()).map(|it| (it, path.clone())));
            files.push(Checked { path, found, same_as });
        }
    }
    Ok(files)
}

/// Executes the command.
pub(crate) fn execute(args: &VerifyArgs) -> Outcome {
    // Each server, and each file on it, takes some.
    raise_limit();
    let mut plan = placement::read(&args.place.plan)?;
    args.place.wishes(&plan)?;
    let dir = args.place.canonical_dir()?;
    let origin = Origin::open_to_look(&dir).map_err(Failure::refused)?;
    args.place.check_servers(&plan, &origin)?;
    let left_alone = args.place.leaves_alone(&plan);
    args.place.replace_layouts(&mut plan, &origin)?;
    let wishes = args.place.wishes(&plan)?;
    let measured = args.trace.as_deref();
    let measured =
        measured.map(|trace| measured::measure(trace, &plan, &args.place)).transpose()?;
    let (measured, completeness) = measured.unzip();
    let files = checked(&origin, &wishes)?;
    let is_left_out = |file: &Checked| args.place.skip_missing && file.is_missing();
    let is_any_there = files.iter().any(|file| !file.is_missing());
    // Where none is there, the paths are wrong.
    let agrees = (is_any_there || !args.place.skip_missing)
        && files.iter().all(|file| file.is_right() || is_left_out(file));
    let lost = if args.known { 0 } else { may_have_lost(&files) };
    let status = u8::from(!agrees || lost > 0);
    let none_there = (!is_any_there).then(|| args.place.none_there(&plan, files.is_empty()));
    let once = files.iter().filter(|file| file.same_as.is_none());
    let there: Vec<LayoutChange> =
        once.filter_map(|file| file.found.as_ref().ok().cloned()).collect();
    let servers = placement::by_server(&plan, &origin, &there);
    let outside = args.place.outside(&plan);
    if args.place.json {
        let files = files.iter().map(Checked::json).collect();
        let outside = outside.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        let trace_weight = completeness.map(|completeness| completeness.weight());
        print_json(&Verified {
            agrees,
            left_alone,
            none_there,
            files,
            outside,
            servers,
            measured,
            trace_weight,
        })?;
        return Ok(status.into());
    }
    files.iter().for_each(Checked::say);
    args.place.say_outside(&outside);
    placement::say_absent(&plan, &origin, &there);
    for server in &servers {
        let used = text::bytes(server.used_bytes);
        say!("{}: {}, {used} in use", server.name, server.planned("planned"));
    }
    for server in measured.iter().flatten() {
        server.say(completeness.as_ref().is_some_and(Completeness::is_partial));
    }
    if let (Some(trace), Some(completeness)) = (&args.trace, &completeness) {
        tell_if_partial(trace, completeness);
    }
    say_of_plan(none_there.as_deref(), left_alone);
    say_how_many(&files, outside.len());
    say_lost(lost);
    Ok(ExitCode::from(status))
}

/// How many files have nothing on a server that has some of them.
fn may_have_lost(files: &[Checked]) -> usize {
    files.iter().filter(|file| file.same_as.is_none() && file.absent_bytes() > 0).count()
}

fn say_lost(files: usize) {
    if files > 0 {
        say!(
            "{} may have lost data, as told above; where these are holes, say so with --known",
            counted(files, "file")
        );
    }
}

fn say_of_plan(none_there: Option<&str>, left_alone: bool) {
    if let Some(none_there) = none_there {
        say!("{none_there}");
    }
    if left_alone {
        say!("the plan leaves the layout of its files alone, however they lie");
    }
}

/// How many of the files lie as planned; a file with several names is one.
fn say_how_many(files: &[Checked], outside: usize) {
    let once = || files.iter().filter(|file| file.same_as.is_none());
    let right = once().filter(|file| file.is_right()).count();
    let left_out = match outside {
        0 => String::new(),
        outside => format!("; {outside} not below what --below takes off"),
    };
    say!("{right} of {} files lie as planned{left_out}", once().count());
}
