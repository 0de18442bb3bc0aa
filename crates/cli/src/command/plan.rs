//! `halocline plan`: stripes for servers of several kinds, from a trace (docs/PLANNING.md).

mod alike;
mod apart;
mod exported;
mod gains;
mod io_time;
pub(super) mod job;
mod page;
mod picture;
mod report;
pub(crate) mod source;
#[cfg(test)]
mod test_servers;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{print_json, server_file};
use crate::failure::{Failure, Outcome as Ended};
use crate::output;
use crate::preflight;
use crate::print::{say, tell};
use crate::replaceable::ResultKind;
use crate::text;
use clap::Args;
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_plan::plan_file::{Expected, Plan, PlannedFile, Trace, VERSION};
use halocline_plan::planner::{self, Name, Outcome};
use halocline_plan::write::Target;

use super::judge::{self, Replay};
use super::traced::TraceFile;
use job::Job;
use source::TraceSummary;

/// Plan the stripes of files on servers of several kinds, from a trace of their requests
///
/// Compares 64 KiB everywhere (def), the layouts of the paper (pa, psa) and what a search finds (ours) in a
/// replay on simulated servers, and recommends the best of them, or nothing where nothing is to be gained.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The trace
    trace: PathBuf,
    /// The servers: a `server` table for each, with name, profile and capacity
    #[arg(long)]
    servers: PathBuf,
    /// The plan to write
    #[arg(short, long)]
    out: Option<PathBuf>,
    /// Draw the trace, the load of the servers under each layout, and the plan with its reasons, as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the comparison as JSON
    #[arg(long, conflicts_with = "for_system")]
    json: bool,
    /// Print the commands that create the files with the planned layout, empty; servers are the file
    /// system's targets in the order of the description
    #[arg(long = "for", value_name = "FILE_SYSTEM")]
    for_system: Option<FileSystem>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum FileSystem {
    /// lfs setstripe: composite layouts, unequal stripes as several objects
    Lustre,
    /// setfattr and pvfs2-touch: variable strips, layouts of one part
    #[value(name = "orangefs")]
    OrangeFs,
    /// setfattr: equal stripes in one pool, whose name and a number are the servers' names (ssd.0)
    #[value(name = "cephfs")]
    CephFs,
    /// beegfs-ctl: equal stripes in one storage pool, whose number is the first part of the servers' names (2.0)
    #[value(name = "beegfs")]
    BeeGfs,
}

impl FileSystem {
    const fn target(self) -> Target {
        match self {
            Self::Lustre => Target::Lustre,
            Self::OrangeFs => Target::OrangeFs,
            Self::CephFs => Target::CephFs,
            Self::BeeGfs => Target::BeeGfs,
        }
    }
}

/// Plans.
pub(crate) fn execute(args: &PlanArgs) -> Ended {
    let set = server_file::read(&args.servers)?;
    let servers = judge::servers(&set).map_err(Failure::refused)?;
    server_file::tell_if_fuller(&args.servers, &set);
    if let (Some(out), Some(html)) = (&args.out, &args.html) {
        preflight::different_outputs(out, html).map_err(Failure::refused)?;
    }
    let out = args.out.iter().map(|out| (out, ResultKind::Plan));
    for (file, kind) in out.chain(args.html.iter().map(|html| (html, ResultKind::Page))) {
        preflight::no_input(file, &[&args.trace, &args.servers]).map_err(Failure::refused)?;
        preflight::report_file(file, kind).map_err(Failure::refused)?;
    }
    let read = if args.html.is_some() { source::summarize_for_report } else { source::summarize };
    let seen = read(&args.trace, set.len())?;
    let name = text::path(&args.trace);
    let trace = TraceFile::known(&args.trace, seen.content.clone());
    let whole = job::replay_of_all(&trace, &set);
    let mut replay = Replay::with_whole(&set, &whole, seen.workload.requests);
    let planned = planner::plan(&servers, &seen.workload, &mut replay, seen.completeness.weight());
    let mut outcome = planned.map_err(|error| {
        Failure::refused(format!("{}: {}", text::path(&args.trace), no_plan(&seen, &error)))
    })?;
    if let Some(why) = replay.failure() {
        return Err(Failure::failed(format!("{name}: {why}")));
    }
    if seen.completeness.is_partial() {
        tell!("{name}: the trace is not whole: a gain must be larger to be believed");
    }
    if seen.has_few_requests() {
        let requests = counted(seen.workload.requests, "request");
        tell!(
            "{name}: {requests}: too few to say what others like them would gain; record more of the job"
        );
    }
    let job = Job::of(&trace, &seen, &set, &outcome)?;
    if job.as_ref().is_some_and(Job::gains_nothing) {
        outcome.leave_alone();
    }
    let plan = plan_of(&seen, servers.all().to_vec(), &outcome);
    // No command takes a plan that this refuses, such as one for a file without a name.
    plan.check()
        .map_err(|what| Failure::refused(format!("{name}: no plan can be written: {what}")))?;
    let commands = args
        .for_system
        .map(|system| exported::script(system, &plan, &mut replay, (&seen, &servers, &outcome)));
    let commands = commands.transpose()?;
    if let Some(out) = &args.out {
        output::write(out, plan.to_toml()).map_err(Error::at(out, "write the plan"))?;
    }
    if let Some(html) = &args.html {
        page::write(html, (&args.trace, &seen), (&set, &servers), (&outcome, job.as_ref()))?;
    }
    if args.json {
        return print_json(&report::json(&seen, &servers, &outcome, job));
    }
    if let Some(commands) = commands {
        for command in commands {
            say!("{command}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    report::print(&seen, &servers, &outcome, job.as_ref());
    if let Some(out) = &args.out {
        say!("plan written to {}", text::path(out));
    }
    if let Some(html) = &args.html {
        say!("page written to {}", text::path(html));
    }
    Ok(ExitCode::SUCCESS)
}

/// Why there is no plan for the trace that was `seen`.
pub(super) fn no_plan(seen: &TraceSummary, error: &halocline_plan::Error) -> String {
    match error {
        halocline_plan::Error::NoSpace { file, bytes, missing } => {
            let name = file.parse().map_or(b"".as_slice(), |number| seen.name(number));
            let name = text::path(Path::new(OsStr::from_bytes(name)));
            format!(
                "{missing} bytes of the {bytes} of {name} fit on no server beside the other files; \
                 describe servers with more capacity"
            )
        }
        error => error.to_string(),
    }
}

fn plan_of(
    seen: &TraceSummary,
    server: Vec<halocline_plan::servers::Server>,
    outcome: &Outcome,
) -> Plan {
    let choice = outcome.choice();
    let default = outcome.of(Name::Def).unwrap_or(choice);
    let file = |file: &halocline_plan::workload::File| {
        PlannedFile::new(seen.name(file.number), file.bytes, choice.layouts.of(file.number))
    };
    let (digest, requests) = (seen.digest.clone(), seen.workload.requests);
    Plan {
        version: VERSION,
        chosen: outcome.chosen.text().to_owned(),
        files: Some(seen.workload.files.len()),
        trace: Trace { digest, requests },
        expected: Expected {
            predicted_seconds: choice.predicted_seconds,
            simulated_seconds: choice.simulated_seconds,
            def_simulated_seconds: default.simulated_seconds,
            gain_over_def: outcome.gain_over_def,
            spread: outcome.gains.spread(),
            def_rest: outcome.rest.as_ref().map(|it| it.rest),
        },
        server,
        file: seen.workload.files.iter().map(file).collect(),
    }
}
