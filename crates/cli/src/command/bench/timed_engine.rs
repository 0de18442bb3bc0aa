//! The extent engine itself on emulated devices, in simulated time: what a mount would do, without waiting for it.
//!
//! To the engine, only the time of the devices is real: they keep no bytes. So data of any size takes no space, and
//! every byte is 0 on both sides; other tests check that the engine returns the right bytes.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use halocline_api::config::{CacheSize, Config, EmulatedDevice, Emulation, VolumeShape};
use halocline_api::control::{Controlled, RequestTotals};
use halocline_cache::Decorations;
use halocline_cache::ExtentEngine;
use halocline_model::request::ByteRange;
use halocline_os::clock::{Clock, Team};
use halocline_os::error::Error;
use halocline_sim::{CacheOutcome, FileLayout};
use halocline_storage::device::emulate::EmulatedServer;
use halocline_storage::device::memory::MemoryServer;
use halocline_storage::device::{Device, Directory, ServerFile, Space};
use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::relayout::{self, Relayout, Wish};
use halocline_trace::{Op, Request};
use halocline_vfs::Allocate;
use halocline_vfs::{Caller, Engine, Maker};
use serde::{Deserialize, Serialize};

/// The process ids begin here: above those that a kernel assigns.
const FIRST_PID: u32 = 0x4000_0000;

/// The servers, and what serves the requests on them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// Emulated devices, in the form of the option `emulate`.
    pub(crate) devices: &'a Emulation,
    /// Bytes of data on the cache.
    pub(crate) capacity: u64,
    /// The admission policy.
    pub(crate) policy: &'a str,
    /// Whether flushes and fetches run concurrently with the requests, as on a mount.
    pub(crate) background: bool,
    /// Whether processes compute between two requests, as recorded.
    pub(crate) think: bool,
    /// Servers that are not all alike; without it, all servers of the origin are the first device, with the usual
    /// stripe.
    pub(crate) placed: Option<Placed<'a>>,
}

/// Where the files are on servers that are not all alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed<'a> {
    /// The device of each server of the origin.
    pub(crate) devices: &'a [EmulatedDevice],
    /// The layouts of files that have their own.
    pub(crate) files: &'a HashMap<u32, FileLayout>,
    /// The layout of all other files.
    pub(crate) default: &'a FileLayout,
}

/// The result of the requests, on the engine or in the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// From the first issue to the last completion, seconds.
    pub(crate) foreground_seconds: f64,
    /// The same until all dirty bytes are written back, seconds.
    pub(crate) total_seconds: f64,
    pub(crate) cache_read_bytes: u64,
    pub(crate) cache_written_bytes: u64,
    pub(crate) origin_read_bytes: u64,
    pub(crate) origin_written_bytes: u64,
}

impl From<&CacheOutcome> for Outcome {
    fn from(of: &CacheOutcome) -> Self {
        Self {
            foreground_seconds: of.foreground_seconds,
            total_seconds: of.total_seconds,
            cache_read_bytes: of.cache_read_bytes,
            cache_written_bytes: of.cache_written_bytes,
            origin_read_bytes: of.origin_read_bytes,
            origin_written_bytes: of.origin_written_bytes,
        }
    }
}

/// Returns zeros for every read; everything else is done by the device below.
#[derive(Debug)]
struct Zeros(Arc<dyn Device>);

impl Device for Zeros {
    fn read_at(&self, _: &ServerFile, _: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut bytes = 0;
        for buf in bufs {
            buf.fill(0);
            bytes += buf.len();
        }
        Ok(bytes)
    }

    fn write_at(&self, _: &ServerFile, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        match how {
            // The object is as long as if it had data, because what lies past its end would be read without a request to a
            // device; blocks would fill the memory.
            Allocate::Reserve | Allocate::ReserveKeepSize => {
                self.0.truncate(file, range.end.max(file.size()?))
            }
            _ => self.0.allocate(file, range, how),
        }
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.0.truncate(file, len)
    }

    fn sync(&self, _: &ServerFile, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }
}

/// One process of the trace: its requests, and how long it computes before each.
type Process = Vec<(Duration, Request)>;

type Handle = <ExtentEngine as Engine>::Handle;

/// Runs `requests`, each process in a thread of its own, one request after the other. The files exist before the run,
/// and end at the last byte that is touched.
pub(crate) fn run(requests: &[Request], setup: &Setup<'_>) -> Result<Outcome, Error> {
    let scratch = scratch_dir().map_err(Error::at(Path::new("/tmp"), "make a directory in"))?;
    let clock = Clock::simulated();
    let opening = clock.work().begin();
    let ends = ends_of(requests);
    let engine = open(scratch.path(), setup, &ends, &clock)?;
    let files = open_files(&engine, &ends)?;
    let processes = processes(requests, setup.think);
    let begun = clock.instant();
    let (team, works) = Team::new(&clock, processes.len());
    drop(opening);
    let done: Result<Vec<Duration>, Error> = thread::scope(|scope| {
        let (engine, files, clock, team) = (&engine, &files, &clock, &team);
        let threads: Vec<_> = processes
            .iter()
            .zip(works)
            .map(|((process, requests), work)| {
                scope.spawn(move || {
                    let working = work.begin();
                    let issued = issue(engine, files, (*process, requests), clock);
                    let took = clock.elapsed(begun);
                    team.leave(working);
                    issued.map(|()| took)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it answers")).collect()
    });
    let foreground = done?.into_iter().max().unwrap_or_default();
    let _working = clock.work().begin();
    drop(team);
    Controlled::flush(&engine, None, false, &mut |_| ControlFlow::Continue(()))?;
    let total = clock.elapsed(begun);
    let report = engine.report();
    let origin = |of: &RequestTotals| of.bytes - of.cache_bytes;
    Ok(Outcome {
        foreground_seconds: foreground.as_secs_f64(),
        total_seconds: total.as_secs_f64(),
        cache_read_bytes: report.read.cache_bytes,
        cache_written_bytes: report.write.cache_bytes,
        origin_read_bytes: origin(&report.read),
        origin_written_bytes: origin(&report.write),
    })
}

/// A directory where the few small files cost the least.
pub(super) fn scratch_dir() -> io::Result<tempfile::TempDir> {
    let (builder, fast) = (tempfile::Builder::new(), Path::new("/dev/shm"));
    builder.tempdir_in(fast).or_else(|_| builder.tempdir())
}

/// Opens the engine on new directories. The files have their layouts.
fn open(
    dir: &Path,
    setup: &Setup<'_>,
    ends: &BTreeMap<u32, u64>,
    clock: &Clock,
) -> Result<ExtentEngine, Error> {
    let (origin, cache) = (dir.join("origin"), dir.join("cache"));
    for dir in [&origin, &cache] {
        std::fs::create_dir(dir).map_err(Error::at(dir, "make"))?;
    }
    let config = Config {
        size: CacheSize::Bytes(setup.capacity),
        policy: setup.policy.to_owned(),
        rebuild: setup.background,
        fill: setup.background,
        emulate: Some(setup.devices.clone()),
        ..Config::default()
    };
    let emulated = |device: EmulatedDevice, below| -> Arc<dyn Device> {
        Arc::new(EmulatedServer::new(device, Arc::new(Zeros(below))).timed_by(clock))
    };
    // They replace the devices of the configuration, which would keep bytes.
    let device = |server: usize| match setup.placed {
        Some(placed) => placed.devices[server],
        None => setup.devices.origin.device,
    };
    let of_origin = |server: usize, below| emulated(device(server), below);
    let of_cache = |_: usize, below| emulated(setup.devices.cache.device, below);
    if let Some(placed) = setup.placed {
        place_files(&origin, config.origin_shape(), ends, placed)?;
    }
    let names = MemoryServer::default();
    let servers = |_: usize| -> (Arc<dyn Directory>, Arc<dyn Device>) {
        (Arc::new(names.clone()), Arc::new(names.clone()))
    };
    let around = Decorations {
        origin: &of_origin,
        cache: &of_cache,
        cache_servers: Some(&servers),
        clock,
        data_bytes: Some(setup.capacity),
        ..Decorations::NONE
    };
    ExtentEngine::open_decorated(&origin, &cache, &config, around)
}

/// The last byte of each file that is touched.
fn ends_of(requests: &[Request]) -> BTreeMap<u32, u64> {
    let mut ends = BTreeMap::<u32, u64>::new();
    for request in requests {
        let end = ends.entry(request.file).or_default();
        *end = (*end).max(request.end());
    }
    ends
}

/// Makes empty files of a striped origin and gives them their layout, as `apply` does.
fn place_files(
    dir: &Path,
    shape: VolumeShape,
    ends: &BTreeMap<u32, u64>,
    placed: Placed<'_>,
) -> Result<(), Error> {
    let origin = Origin::open_or_create(dir, shape, &|_, device| device)?;
    let mut wishes = Vec::new();
    for file in ends.keys() {
        let path = origin.namespace_dir().join(file.to_string());
        let made = File::options().create_new(true).read(true).write(true).open(&path);
        let made = made.map_err(Error::at(&path, "make"))?;
        origin.adopt_data(made).map_err(Error::at(&path, "make"))?;
        let layout = placed.files.get(file).unwrap_or(placed.default).clone();
        wishes.push(Wish { path: file.to_string().into(), layout });
    }
    drop(origin);
    let volume = Relayout::open(dir)?;
    for file in relayout::look(volume.origin(), &wishes, true)? {
        if !file.agrees() {
            volume.relayout(&file, &mut |_| Ok(()), &mut |_| ())?;
        }
    }
    Ok(())
}

/// Opens or creates the files; each ends at the last byte of it that is touched.
fn open_files(
    engine: &ExtentEngine,
    ends: &BTreeMap<u32, u64>,
) -> Result<BTreeMap<u32, Handle>, Error> {
    let by = Maker { caller: caller(0), umask: 0 };
    let opened = ends.iter().map(|(file, end)| {
        let name = OsString::from(file.to_string());
        let flags = libc::O_RDWR | libc::O_CREAT;
        let (_, _, handle) = engine.create((&engine.root(), &name), 0o600, flags, by)?;
        engine.allocate(&handle, 0, *end, Allocate::Reserve)?;
        Ok((*file, handle))
    });
    opened.collect()
}

const fn caller(process: u32) -> Caller {
    Caller { uid: 0, gid: 0, pid: FIRST_PID + process }
}

fn processes(requests: &[Request], think: bool) -> BTreeMap<u32, Process> {
    let begun = requests.first().map_or(0, |request| request.start_ns);
    let mut processes = BTreeMap::<u32, (Process, u64)>::new();
    for request in requests {
        let (process, ended) =
            processes.entry(request.process).or_insert_with(|| (Vec::new(), begun));
        let recorded = request.start_ns + request.duration_ns.unwrap_or(0);
        let pause = if think { request.start_ns.saturating_sub(*ended) } else { 0 };
        process.push((Duration::from_nanos(pause), *request));
        *ended = recorded;
    }
    processes.into_iter().map(|(number, (process, _))| (number, process)).collect()
}

fn issue(
    engine: &ExtentEngine,
    files: &BTreeMap<u32, Handle>,
    (process, requests): (u32, &Process),
    clock: &Clock,
) -> Result<(), Error> {
    let caller = caller(process);
    let mut buf = Vec::new();
    for (pause, request) in requests {
        if !pause.is_zero() {
            clock.sleep(*pause);
        }
        buf.clear();
        buf.resize(usize::try_from(request.length).unwrap_or(usize::MAX), 0);
        let handle = &files[&request.file];
        match request.op {
            Op::Read => drop(engine.read(handle, request.offset, &mut buf, caller)?),
            Op::Write => engine.write(handle, request.offset, &buf, caller)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
