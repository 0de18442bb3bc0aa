//! One policy and cache size over one workload: mount, phases, unmount, comparison of the origin.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::{CacheSize, Config, Shares, VolumeKind};
use halocline_api::control::{Controlled, Report};
use halocline_cache::ExtentEngine;
use halocline_model::request::Direction;
use halocline_os::error::Error;

use super::bare_origin::BareOrigin;
use super::record::{self, Key, Phase, Run};
use super::scratch::{self, Scratch};
use super::worker::{self, Job, WorkerResult};
use super::worker_processes::{self, Watch};
use super::workload::{Instance, Workload};
use crate::failure::Failure;
use crate::host::Host;
use crate::mount_paths::MountPaths;
use crate::open_engine;
use crate::text;

/// The data is written once; a later generation would differ in every byte.
const GENERATION: u64 = 1;
/// How often a request to stop is checked for.
const TICK: Duration = Duration::from_millis(2);

/// What serves the programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Setup {
    /// The origin's directory, without a mount.
    Bare,
    /// A mount that caches nothing: everything but the cache is as in [`Setup::Cached`].
    Origin,
    /// A mount with a cache.
    Cached {
        policy: String,
        /// Its limit as the user gave it.
        limit: String,
        bytes: u64,
    },
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phases {
    /// A write, then a read of the same data by a second run.
    WriteRead,
    Write,
    /// Data that existed before is read twice; in between, the cache fetches what it wants.
    Read,
}

/// Where a byte is flipped, to prove that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Canary {
    /// Before the second run reads.
    Read,
    /// After unmount, before the origin is compared.
    Origin,
}

/// One measurement.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) workload: &'a Workload,
    pub(super) setup: &'a Setup,
    pub(super) phases: Phases,
    /// Whether all is flushed between write and read.
    pub(super) flush: bool,
    /// Whether the instances run at the same time.
    pub(super) concurrent: bool,
    /// Options of the mount.
    pub(super) config: &'a Config,
    pub(super) canary: Option<Canary>,
    pub(super) repetition: u32,
}

impl Case<'_> {
    /// Bytes that its programs transfer.
    pub(super) fn transfers(&self) -> u64 {
        let passes = match self.phases {
            Phases::Write => 1,
            Phases::WriteRead => 2,
            Phases::Read => 3,
        };
        self.workload.bytes() * passes
    }

    /// Its parameters, for people to read.
    pub(super) fn key(&self) -> Key {
        let (setup, policy, cache_limit, cache_size) = match self.setup {
            Setup::Bare => ("bare", None, "none", 0),
            Setup::Origin => ("origin", Some("never".to_owned()), "none", 0),
            Setup::Cached { policy, limit, bytes } => {
                ("cached", Some(policy.clone()), limit.as_str(), *bytes)
            }
        };
        let Workload { pattern, shape, .. } = self.workload;
        Key {
            pattern: pattern.to_string(),
            request_size: shape.request_size,
            setup,
            policy,
            cache_limit: cache_limit.to_owned(),
            cache_size,
        }
    }

    /// Runs the measurement.
    pub(super) fn run(&self, scratch: &Scratch, watch: &mut impl Watch) -> Result<Run, Failure> {
        let paths = scratch.paths()?;
        if self.phases == Phases::Read {
            self.prepare(&paths, watch)?;
        }
        let mut run = Run {
            key: self.key(),
            repetition: self.repetition,
            data_bytes: self.workload.bytes(),
            phases: Vec::new(),
            report: None,
            verified_origin_bytes: 0,
        };
        if *self.setup == Setup::Bare {
            self.go_through(&mut Bench { dir: &paths.origin, paths: &paths, engine: None }, watch)
                .map(|phases| run.phases = phases)?;
        } else {
            let config = self.mount_config();
            let (phases, report) = mounted(&paths, &config, watch, |engine, watch| {
                let dir = &paths.mountpoint;
                self.go_through(&mut Bench { dir, paths: &paths, engine: Some(engine) }, watch)
            })?;
            (run.phases, run.report) = (phases, Some(report));
        }
        if self.canary == Some(Canary::Origin) {
            self.bare_origin(&paths)?.flip(self.workload)?;
        }
        let origin = self.bare_origin(&paths)?;
        run.verified_origin_bytes = origin.compare(self.workload, GENERATION, watch)?;
        Ok(run)
    }

    fn mount_config(&self) -> Config {
        let (policy, bytes) = match self.setup {
            Setup::Cached { policy, bytes, .. } => (policy.clone(), *bytes),
            Setup::Bare | Setup::Origin => ("never".to_owned(), self.workload.bytes()),
        };
        Config { policy, size: room_for(bytes), ..self.config.clone() }
    }

    /// Writes the data without emulated devices and without a cache.
    fn prepare(&self, paths: &MountPaths, watch: &mut impl Watch) -> Result<(), Failure> {
        if *self.setup == Setup::Bare {
            self.all_instances(&paths.origin, Direction::Write, watch)?;
            return Ok(());
        }
        let config = Config {
            policy: "never".to_owned(),
            size: room_for(self.workload.bytes()),
            emulate: None,
            origin: self.config.origin_shape(),
            cache: self.config.cache_shape(),
            ..self.config.clone()
        };
        mounted(paths, &config, watch, |_, watch| {
            self.all_instances(&paths.mountpoint, Direction::Write, watch)
        })?;
        scratch::clear(&paths.cache)?;
        Ok(())
    }

    fn go_through(
        &self,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) -> Result<Vec<Phase>, Failure> {
        let mut phases = Vec::new();
        if self.phases == Phases::Read {
            self.forget_pages(bench)?;
            phases.push(self.transfer("first_read", Direction::Read, bench, watch)?);
            phases.extend(bench.fetch(watch)?);
        } else {
            phases.push(self.transfer("write", Direction::Write, bench, watch)?);
            if self.flush
                && let Some(flush) = bench.flush(watch)?
            {
                drained(&mut phases[0], flush.seconds);
                phases.push(flush);
            }
        }
        if self.phases != Phases::Write {
            if self.canary == Some(Canary::Read) {
                self.bare_origin(bench.paths)?.flip(self.workload)?;
            }
            self.forget_pages(bench)?;
            phases.push(self.transfer("read", Direction::Read, bench, watch)?);
        }
        if !self.flush && self.phases != Phases::Read {
            phases.extend(bench.flush(watch)?);
        }
        Ok(phases)
    }

    /// Emulated devices take their time in any case; real ones must not be answered from memory.
    fn forget_pages(&self, bench: &Bench<'_>) -> Result<(), Failure> {
        if self.config.emulate.is_none() {
            scratch::forget_pages(&bench.paths.origin)?;
            scratch::forget_pages(&bench.paths.cache)?;
        }
        Ok(())
    }

    /// Lets all programs read or write everything.
    fn transfer(
        &self,
        name: &'static str,
        direction: Direction,
        bench: &Bench<'_>,
        watch: &mut impl Watch,
    ) -> Result<Phase, Failure> {
        let before = bench.state();
        let Passed { all, sequential, random } = self.all_instances(bench.dir, direction, watch)?;
        let mut phase = Phase::new(name, all.bytes, all.requests, all.seconds);
        let rate = |part: &Totals| record::rate(part.bytes, part.seconds);
        if sequential.bytes > 0 && random.bytes > 0 {
            phase.sequential_mb_per_s = Some(rate(&sequential));
            phase.random_mb_per_s = Some(rate(&random));
        }
        if let (Some(before), Some(after)) = (before, bench.state()) {
            let totals = |report: &Report| match direction {
                Direction::Read => report.read,
                Direction::Write => report.write,
            };
            phase.served = Some(record::difference(totals(&before.report), totals(&after.report)));
            phase.ssd_bytes_written = record::ssd_difference(&before.report, &after.report);
            phase.cached_share_before = Some(share(before.mapped_bytes, self.workload.bytes()));
        }
        if direction == Direction::Write {
            phase.fsynced_seconds = Some(all.seconds + all.fsync_seconds);
        }
        Ok(phase)
    }

    /// Runs all instances as separate programs: one after the other, or all at once.
    fn all_instances(
        &self,
        dir: &Path,
        direction: Direction,
        watch: &mut impl Watch,
    ) -> Result<Passed, Failure> {
        let instances = &self.workload.instances;
        let at_once = if self.concurrent { instances.len() } else { 1 };
        let mut passed = Passed::default();
        for group in instances.chunks(at_once) {
            let mut jobs = Vec::new();
            for instance in group {
                let path = dir.join(instance.file_name());
                if direction == Direction::Write {
                    File::create(&path).map_err(Error::at(&path, "create"))?;
                }
                jobs.extend(self.jobs(instance, &path, direction));
            }
            let done = worker_processes::run(worker::COMMAND, &jobs, watch)?;
            if let Some(wrong) = done.iter().find_map(|done| done.wrong.as_ref()) {
                return Err(wrong.failure("read through the mount"));
            }
            passed.add(&jobs, &done);
        }
        Ok(passed)
    }

    fn jobs(
        &self,
        instance: &Instance,
        path: &Path,
        direction: Direction,
    ) -> impl Iterator<Item = Job> {
        let (instance, shape, path) = (*instance, self.workload.shape, path.to_owned());
        (0..shape.processes).map(move |rank| Job {
            path: path.clone(),
            instance,
            shape,
            rank,
            direction,
            generation: GENERATION,
        })
    }

    /// The origin below all devices and caches.
    fn bare_origin(&self, paths: &MountPaths) -> Result<BareOrigin, Failure> {
        let striped = self.config.origin_shape().kind == VolumeKind::Striped;
        BareOrigin::open(&paths.origin, striped && *self.setup != Setup::Bare)
    }
}

/// What one phase works on.
struct Bench<'a> {
    /// Where programs see the files.
    dir: &'a Path,
    paths: &'a MountPaths,
    engine: Option<&'a Arc<ExtentEngine>>,
}

/// State of the engine between phases.
struct State {
    report: Report,
    mapped_bytes: u64,
}

impl Bench<'_> {
    fn state(&self) -> Option<State> {
        let engine = self.engine?;
        Some(State { report: engine.report(), mapped_bytes: engine.status().mapped_bytes })
    }

    /// Waits until everything is on the origin.
    fn flush(&self, watch: &mut impl Watch) -> Result<Option<Phase>, Failure> {
        let Some(engine) = self.engine.cloned() else { return Ok(None) };
        let start = Instant::now();
        let report = in_background(watch, move |stop| {
            let go_on = |_| {
                let stopped = stop.load(Ordering::Relaxed);
                if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            Controlled::flush(&*engine, None, false, &mut { go_on })
        })?;
        let seconds = start.elapsed().as_secs_f64();
        if report.left_bytes > 0 {
            let left = text::bytes(report.left_bytes);
            return Err(Failure::failed(format!("{left} could not be flushed")));
        }
        Ok(Some(Phase::new("flush", report.bytes, 0, seconds)))
    }

    /// Waits until the cache has fetched what it wants, as the rebuilder does when everything is idle.
    fn fetch(&self, watch: &mut impl Watch) -> Result<Option<Phase>, Failure> {
        let (Some(engine), Some(before)) = (self.engine, self.state()) else { return Ok(None) };
        let start = Instant::now();
        let fetching = Arc::clone(engine);
        let bytes = in_background(watch, move |_| fetching.fetch_wanted())?;
        let mut phase = Phase::new("fetch", bytes, 0, start.elapsed().as_secs_f64());
        phase.ssd_bytes_written = record::ssd_difference(&before.report, &engine.report());
        Ok(Some(phase))
    }
}

/// Does `work` in a separate thread, so that a request to stop is noticed and passed on.
pub(super) fn in_background<T: Send + 'static>(
    watch: &mut impl Watch,
    work: impl FnOnce(&AtomicBool) -> Result<T, Error> + Send + 'static,
) -> Result<T, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&stop);
    let working = thread::spawn(move || work(&heard));
    while !working.is_finished() {
        if let Err(interrupted) = watch.go_on() {
            stop.store(true, Ordering::Relaxed);
            // Its result does not matter any more.
            let _ = working.join();
            return Err(interrupted);
        }
        thread::sleep(TICK);
    }
    let done = working.join().map_err(|_| Failure::failed("a thread of the benchmark died"))?;
    Ok(done?)
}

/// What programs did.
#[derive(Debug, Default)]
struct Totals {
    bytes: u64,
    requests: u64,
    seconds: f64,
    fsync_seconds: f64,
}

impl Totals {
    /// Adds what ran together; the time is that of the slowest process.
    fn add<'a>(&mut self, done: impl Iterator<Item = &'a WorkerResult>) {
        let (mut io_ns, mut synced_ns) = (0, 0);
        for done in done {
            self.bytes += done.bytes;
            self.requests += done.requests;
            io_ns = io_ns.max(done.io_ns);
            synced_ns = synced_ns.max(done.io_ns + done.fsync_ns);
        }
        self.seconds += Duration::from_nanos(io_ns).as_secs_f64();
        self.fsync_seconds += Duration::from_nanos(synced_ns - io_ns).as_secs_f64();
    }
}

/// What the programs of a phase did: all, the sequential and the random ones.
#[derive(Debug, Default)]
struct Passed {
    all: Totals,
    sequential: Totals,
    random: Totals,
}

impl Passed {
    /// Adds the results of a group of processes; the answers are in the order of its jobs.
    fn add(&mut self, jobs: &[Job], done: &[WorkerResult]) {
        let of = |random: bool| {
            let both = jobs.iter().zip(done);
            both.filter(move |(job, _)| job.instance.random == random).map(|(_, done)| done)
        };
        self.all.add(done.iter());
        self.sequential.add(of(false));
        self.random.add(of(true));
    }
}

fn drained(write: &mut Phase, flush_seconds: f64) {
    let seconds = write.fsynced_seconds.unwrap_or(write.seconds) + flush_seconds;
    write.drained_seconds = Some(seconds);
    write.drained_mb_per_s = Some(record::rate(write.bytes, seconds));
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Mounts, does `work`, then flushes and unmounts, whatever the result of the work.
fn mounted<T, W: Watch>(
    paths: &MountPaths,
    config: &Config,
    watch: &mut W,
    work: impl FnOnce(&Arc<ExtentEngine>, &mut W) -> Result<T, Failure>,
) -> Result<(T, Report), Failure> {
    let claim = open_engine::claim(paths, config, true)
        .map_err(|taken| Failure::refused(Error::from(taken)))?;
    let engine = Arc::new(open_engine::open(paths, config, None).map_err(Failure::refused)?);
    let host = Host::start((Arc::clone(&engine), claim), config, (paths, None), false)?;
    let worked = work(&engine, watch);
    // What will be deleted need not be flushed.
    let go_on = worked.is_ok();
    let finished = host.finish_with_report(move |_| {
        if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let worked = worked?;
    Ok((worked, finished?.0))
}

/// The `--size` of a cache with room for `bytes` bytes of data; records come on top of them.
pub(super) fn room_for(bytes: u64) -> CacheSize {
    CacheSize::Bytes(Shares::size_for(bytes))
}
