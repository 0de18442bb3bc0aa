//! `halocline verify`: whether the files of a striped origin lie as a plan says (docs/PLANNING.md).

mod measured;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
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
/// not, is missing or cannot be looked at.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    place: PlacementArgs,
    /// A trace of a run in these layouts: its service times are compared with those that the plan was made with
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// What `verify --json` says.
#[derive(Debug, Serialize)]
struct Verified {
    agrees: bool,
    left_alone: bool,
    files: Vec<FileJson>,
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
    error: Option<String>,
    planned: Option<Vec<PartJson>>,
    actual: Option<Vec<PartJson>>,
}

/// Each wish's file, or why it is not known how it lies.
type Found = Vec<(PathBuf, Result<LayoutChange, Error>)>;

fn found(origin: &Origin, wishes: &[Wish]) -> Result<Found, Failure> {
    let mut files = Vec::new();
    for wish in wishes {
        let found = relayout::look_at_each(origin, std::slice::from_ref(wish), false);
        files.extend(found.map_err(Failure::refused)?);
    }
    Ok(files)
}

fn is_right(found: &Result<LayoutChange, Error>) -> bool {
    matches!(found, Ok(found) if found.agrees())
}

fn is_missing(found: &Result<LayoutChange, Error>) -> bool {
    matches!(found, Err(error) if relayout::is_missing(error))
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
    let left_alone = plan.leaves_alone();
    if left_alone {
        args.place.plan_as_they_lie(&mut plan, &origin)?;
    }
    let wishes = args.place.wishes(&plan)?;
    let measured = args.trace.as_deref();
    let measured =
        measured.map(|trace| measured::measure(trace, &plan, &args.place)).transpose()?;
    let (measured, completeness) = measured.unzip();
    let files = found(&origin, &wishes)?;
    let is_left_out = |found| args.place.skip_missing && is_missing(found);
    let is_any_there = files.iter().any(|(_, found)| !is_missing(found));
    // Where none is there, the paths are wrong.
    let agrees = (is_any_there || !args.place.skip_missing)
        && files.iter().all(|(_, found)| is_right(found) || is_left_out(found));
    let there: Vec<LayoutChange> =
        files.iter().filter_map(|(_, found)| found.as_ref().ok().cloned()).collect();
    let servers = placement::by_server(&plan, &origin, &there);
    if args.place.json {
        let file = |(path, found): &(PathBuf, Result<LayoutChange, Error>)| FileJson {
            path: path.to_string_lossy().into_owned(),
            agrees: is_right(found),
            missing: is_missing(found),
            error: found.as_ref().err().filter(|_| !is_missing(found)).map(ToString::to_string),
            planned: found.as_ref().ok().map(|found| placement::parts(&found.wished)),
            actual: found.as_ref().ok().map(|found| placement::parts(&found.now)),
        };
        let files = files.iter().map(file).collect();
        let trace_weight = completeness.map(|completeness| completeness.weight());
        print_json(&Verified { agrees, left_alone, files, servers, measured, trace_weight })?;
        return Ok(u8::from(!agrees).into());
    }
    for (path, found) in files.iter().filter(|(_, found)| !is_right(found)) {
        match found {
            Err(_) if is_missing(found) => say!("{}: missing", text::path(path)),
            Err(error) => say!("{}: {error}", text::path(path)),
            Ok(found) => {
                let [lies, planned] = [&found.now, &found.wished].map(placement::told);
                say!("{}: lies in {lies}; planned is {planned}", text::path(path));
            }
        }
    }
    for server in &servers {
        let (planned, used) = (text::bytes(server.planned_bytes), text::bytes(server.used_bytes));
        say!("{}: {planned} planned, {used} in use", server.name);
    }
    for server in measured.iter().flatten() {
        server.say(completeness.as_ref().is_some_and(Completeness::is_partial));
    }
    if let (Some(trace), Some(completeness)) = (&args.trace, &completeness) {
        tell_if_partial(trace, completeness);
    }
    if !is_any_there {
        say!("{}", args.place.none_there(files.is_empty()));
    }
    if left_alone {
        say!("the plan leaves the layout of its files alone, however they lie");
    }
    let right = files.iter().filter(|(_, found)| is_right(found)).count();
    say!("{right} of {} files lie as planned", files.len());
    Ok(ExitCode::from(u8::from(!agrees)))
}
