//! `halocline bench`: what the cache gains, measured through real mounts.
//!
//! - [`ior`]: the command and its options;
//! - [`workload`]: which process asks for which bytes, in which order;
//! - [`content`]: bytes that show where they belong;
//! - [`worker`]: one process of a run; [`worker_processes`]: all of them, from the parent's side;
//! - [`case`]: one policy and cache size over one workload, from mount to unmount;
//! - [`case_progress`]: signals and progress while a case runs;
//! - [`bare_origin`]: the origin after the run, compared byte by byte;
//! - [`scratch`]: the directories of a benchmark and their removal; [`scratch_dir`]: what killed benchmarks leave of
//!   them;
//! - [`halocline_os::bound_process`]: processes that end with the benchmark;
//! - [`mount_processes`]: the processes that serve mounts;
//! - [`cluster`]: several nodes over one origin; [`tier`]: the file tier; [`layout`]: stripes on servers of several
//!   kinds;
//! - [`admission`]: the admission policies on random workloads, simulated; [`timed_engine`]: the engine itself in
//!   simulated time, [`timed_tier`] the file tier; [`advise`]: what `advise` recommends compared with what they do;
//! - [`metadata`]: the names of a shared file tier in their store;
//! - [`store_server`]: the store, a server that the benchmark starts or one that runs;
//! - [`report_args`]: options that several of them have;
//! - [`record`]: the results as JSON; [`table`] and [`plot`]: for people.

mod admission;
mod advise;
mod bare_origin;
mod case;
mod case_progress;
mod cluster;
pub(super) mod content;
mod ior;
mod layout;
mod metadata;
mod mount_processes;
pub(super) mod plot;
mod record;
mod report_args;
mod results_file;
mod scratch;
mod scratch_dir;
mod store_server;
mod table;
mod tier;
mod timed_engine;
mod timed_tier;
pub(super) mod worker;
pub(super) mod worker_processes;
mod workload;

use clap::{Args, Subcommand};

use crate::failure::{Failure, Outcome};

/// Measure what the cache gains on this machine or on emulated devices
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    Ior(Box<ior::IorArgs>),
    Cluster(Box<cluster::ClusterBenchArgs>),
    Tier(tier::TierArgs),
    Admission(admission::AdmissionArgs),
    Advise(advise::AdviseArgs),
    Layout(Box<layout::LayoutArgs>),
    Metadata(metadata::MetadataArgs),
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
}

/// Measures.
pub(crate) fn execute(args: &BenchArgs) -> Outcome {
    match &args.what {
        BenchCommand::Ior(args) => ior::execute(args),
        BenchCommand::Cluster(args) => cluster::execute(args),
        BenchCommand::Tier(args) => tier::execute(args),
        BenchCommand::Admission(args) => admission::execute(args),
        BenchCommand::Advise(args) => advise::execute(args),
        BenchCommand::Layout(args) => layout::execute(args),
        BenchCommand::Metadata(args) => metadata::execute(args),
        BenchCommand::Worker(args) => worker::execute(args),
    }
}

/// The result of a benchmark that `signal` interrupted: a shell's status for it.
fn interrupted(signal: i32) -> Failure {
    let status = u8::try_from(128 + signal).unwrap_or(u8::MAX);
    Failure::with_status(status, "interrupted; the scratch directory was removed")
}
