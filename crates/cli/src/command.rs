//! The subcommands: one file each, one row each in [`Command`].

mod advise;
mod apply;
mod bench;
mod bulk;
mod calibrate;
pub(crate) mod cluster;
mod curve;
mod demote;
mod docs;
mod doctor;
mod evict;
mod explain;
mod flush;
mod fsck;
mod jobs;
mod judge;
mod locate;
mod mark_servers;
mod model;
mod mount;
mod offline_cache;
mod origin_files;
mod placement;
mod plan;
mod planned_files;
mod rescue;
mod rules;
mod run;
mod server_file;
mod simulate;
mod status;
mod tier_fsck;
mod tier_text;
mod trace;
mod traced;
mod umount;
mod unstripe;
mod verify;
mod warm;

use std::path::{Path, PathBuf};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use halocline_os::error::Error;
use serde::Serialize;

use crate::failure::{Failure, Outcome, STATUSES};
use crate::mount_lookup;
use crate::output;
use crate::print;
use crate::text;

/// Runs programs with an SSD cache in front of their HDD data.
#[derive(Debug, Parser)]
#[command(name = "halocline", version, after_help = STATUSES, max_term_width = 100)]
pub(crate) struct Cli {
    /// Print more: -v what is done, -vv details
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::RunArgs>),
    Mount(Box<mount::MountArgs>),
    #[command(alias = "unmount")]
    Umount(umount::UmountArgs),
    Status(status::StatusArgs),
    Where(locate::LocateArgs),
    Explain(explain::ExplainArgs),
    Flush(flush::FlushArgs),
    Warm(warm::WarmArgs),
    Evict(evict::EvictArgs),
    Demote(demote::DemoteArgs),
    Jobs(jobs::JobsArgs),
    Pin(rules::PinArgs),
    Unpin(rules::UnpinArgs),
    Exclude(rules::ExcludeArgs),
    Fsck(fsck::FsckArgs),
    Rescue(rescue::RescueArgs),
    Doctor(doctor::DoctorArgs),
    Calibrate(calibrate::CalibrateArgs),
    Bench(bench::BenchArgs),
    Model(model::ModelArgs),
    Trace(trace::TraceArgs),
    Plan(plan::PlanArgs),
    Simulate(simulate::SimulateArgs),
    Advise(advise::AdviseArgs),
    Apply(apply::ApplyArgs),
    Verify(verify::VerifyArgs),
    MarkServers(mark_servers::MarkServersArgs),
    Unstripe(unstripe::UnstripeArgs),
    Cluster(cluster::ClusterCommand),
    #[command(hide = true)]
    Docs(docs::DocsArgs),
    #[command(hide = true)]
    Look(mount_lookup::LookArgs),
}

impl Cli {
    /// The parsed arguments, and all paths in them.
    pub(crate) fn parsed() -> Result<(Self, Vec<PathBuf>), clap::Error> {
        let mut matches = Self::command().try_get_matches()?;
        let mut paths = Vec::new();
        let mut level = Some(&matches);
        while let Some(now) = level {
            for id in now.ids() {
                // An argument of another type is not a path.
                let found = now.try_get_many::<PathBuf>(id.as_str());
                paths.extend(found.ok().flatten().into_iter().flatten().cloned());
            }
            level = now.subcommand().map(|(_, below)| below);
        }
        Ok((Self::from_arg_matches_mut(&mut matches)?, paths))
    }
}

impl Command {
    /// Whether this command itself reports paths that hang, as the way to a mount or as a finding, or is how that is
    /// found out.
    pub(crate) const fn waits_for_no_path(&self) -> bool {
        matches!(self, Self::Umount(_) | Self::Status(_) | Self::Where(_) | Self::Explain(_))
            || matches!(self, Self::Flush(_) | Self::Warm(_) | Self::Evict(_) | Self::Demote(_))
            || matches!(self, Self::Doctor(_) | Self::Look(_))
    }

    /// Whether programs depend on this process: it must not end when no one reads its output.
    pub(crate) const fn serves(&self) -> bool {
        match self {
            Self::Run(_) | Self::Mount(_) | Self::Bench(_) => true,
            Self::Trace(args) => args.serves(),
            _ => false,
        }
    }

    /// Whether its status is that of a program, or of a mount that goes on: output that is lost changes nothing then.
    pub(crate) const fn passes_a_status_on(&self) -> bool {
        match self {
            Self::Run(_) | Self::Mount(_) => true,
            Self::Trace(args) => args.is_recording(),
            _ => false,
        }
    }

    /// Executes the command.
    pub(crate) fn execute(&self) -> Outcome {
        match self {
            Self::Run(args) => run::execute(args),
            Self::Mount(args) => mount::execute(args),
            Self::Umount(args) => umount::execute(args),
            Self::Status(args) => status::execute(args),
            Self::Where(args) => locate::execute(args),
            Self::Explain(args) => explain::execute(args),
            Self::Flush(args) => flush::execute(args),
            Self::Warm(args) => warm::execute(args),
            Self::Evict(args) => evict::execute(args),
            Self::Demote(args) => demote::execute(args),
            Self::Jobs(args) => jobs::execute(args),
            Self::Pin(args) => rules::pin(args),
            Self::Unpin(args) => rules::unpin(args),
            Self::Exclude(args) => rules::exclude(args),
            Self::Fsck(args) => fsck::execute(args),
            Self::Rescue(args) => rescue::execute(args),
            Self::Doctor(args) => doctor::execute(args),
            Self::Bench(args) => bench::execute(args),
            Self::Model(args) => model::execute(args),
            Self::Trace(args) => trace::execute(args),
            Self::Plan(args) => plan::execute(args),
            Self::Simulate(args) => simulate::execute(args),
            Self::Advise(args) => advise::execute(args),
            Self::Calibrate(args) => calibrate::execute(args),
            Self::Apply(args) => apply::execute(args),
            Self::Verify(args) => verify::execute(args),
            Self::MarkServers(args) => mark_servers::execute(args),
            Self::Unstripe(args) => unstripe::execute(args),
            Self::Cluster(args) => cluster::execute(args),
            Self::Docs(args) => docs::execute(args),
            Self::Look(args) => mount_lookup::execute(args),
        }
    }
}

/// Prints a value as JSON for scripts.
fn print_json(value: &impl Serialize) -> Outcome {
    print::lines(&json(value)?);
    Ok(std::process::ExitCode::SUCCESS)
}

/// Writes a value as JSON to `file`; `what` describes that in errors: "write the report".
fn write_json(file: &Path, what: &'static str, value: &impl Serialize) -> Result<(), Failure> {
    Ok(output::write(file, json(value)? + "\n").map_err(Error::at(file, what))?)
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(text::json(&serde_json::to_string_pretty(value).map_err(std::io::Error::from)?))
}
