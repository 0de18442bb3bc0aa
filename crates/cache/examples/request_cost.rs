//! What identifying and redirecting add to a request: `request_cost [REQUESTS]` sends 4 KiB
//! requests at random offsets through a whole engine whose devices do nothing, and prints, for
//! each kind, the processor time of its thread, that of all threads, and the time that passed, which
//! is longer on a busy machine, with that of the longest request. Run it in release.

#![expect(clippy::print_stdout, reason = "it is a report")]

use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halocline_api::config::{CacheSize, Config};
use halocline_api::control::Controlled;
use halocline_cache::Decorations;
use halocline_cache::ExtentEngine;
use halocline_storage::device::Device;
use halocline_storage::device::null::NullDevice;
use halocline_vfs::{Caller, Engine};
use rustix::time::{ClockId, clock_gettime};

const FILE_BYTES: u64 = 1 << 30;
const LEN: u64 = 4096;
const PROCESSES: u32 = 16;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// An engine between null devices with one open file.
struct Bench {
    engine: ExtentEngine,
    handle: <ExtentEngine as Engine>::Handle,
    _dirs: (tempfile::TempDir, tempfile::TempDir),
}

impl Bench {
    fn new(policy: &str) -> Outcome<Self> {
        let (origin, cache) = (tempfile::tempdir()?, tempfile::tempdir()?);
        File::create(origin.path().join("file"))?.set_len(FILE_BYTES)?;
        let config = Config {
            size: CacheSize::Bytes(2 * FILE_BYTES),
            policy: policy.to_owned(),
            rebuild: false,
            checksums: std::env::var_os("NO_CHECKSUMS").is_none(),
            verify_reads: std::env::var_os("NO_VERIFY").is_none(),
            ..Config::default()
        };
        let null = |_: usize, _: Arc<dyn Device>| -> Arc<dyn Device> { Arc::new(NullDevice) };
        let around = Decorations { origin: &null, cache: &null, ..Decorations::NONE };
        let engine = ExtentEngine::open_decorated(origin.path(), cache.path(), &config, around)?;
        let (vnode, _) = engine.lookup(&engine.root(), OsStr::new("file"))?;
        let handle = engine.open(&vnode, libc::O_RDWR, caller(0))?;
        Ok(Self { engine, handle, _dirs: (origin, cache) })
    }

    /// Runs `request` at `count` offsets that visit the file's blocks in a scattered order.
    fn time(
        &self,
        what: &str,
        count: u64,
        request: impl Fn(&Self, u64, Caller) -> Outcome,
    ) -> Outcome {
        let blocks = FILE_BYTES / LEN;
        let clocks = [ClockId::ThreadCPUTime, ClockId::ProcessCPUTime];
        let (begun, before) = (Instant::now(), clocks.map(processor_ns));
        let (mut last, mut longest) = (begun, Duration::ZERO);
        for at in 0..count {
            // Odd, so every block comes once before any comes twice.
            let block = at.wrapping_mul(0x9e37_79b9) % blocks;
            request(self, block * LEN, caller(u32::try_from(at % u64::from(PROCESSES))?))?;
            let now = Instant::now();
            longest = longest.max(now - last);
            last = now;
        }
        let [used, all] =
            [0, 1].map(|at| (processor_ns(clocks[at]) - before[at]) / i128::from(count));
        let passed = begun.elapsed().as_nanos() / u128::from(count);
        println!(
            "{what:<44} {used:>6} ns, {all:>6} ns of all, {passed:>6} ns passed, {longest:.1?} at most"
        );
        Ok(())
    }
}

/// Processor time so far.
fn processor_ns(clock: ClockId) -> i128 {
    let used = clock_gettime(clock);
    i128::from(used.tv_sec) * 1_000_000_000 + i128::from(used.tv_nsec)
}

fn caller(pid: u32) -> Caller {
    Caller { uid: 0, gid: 0, pid: pid + 1 }
}

/// Devices that do nothing leave the buffer as it is: what `write` wrote, for its checksum.
fn read(bench: &Bench, offset: u64, caller: Caller) -> Outcome {
    read_over(1, bench, offset, caller)
}

/// The same for what such an origin had.
fn read_warmed(bench: &Bench, offset: u64, caller: Caller) -> Outcome {
    read_over(0, bench, offset, caller)
}

fn read_over(byte: u8, bench: &Bench, offset: u64, caller: Caller) -> Outcome {
    let mut buf = [byte; 4096];
    bench.engine.read(&bench.handle, offset, &mut buf, caller)?;
    Ok(())
}

fn write(bench: &Bench, offset: u64, caller: Caller) -> Outcome {
    Ok(bench.engine.write(&bench.handle, offset, &[1; 4096], caller)?)
}

fn main() -> Outcome {
    let count = std::env::args().nth(1).map_or(Ok(200_000), |count| count.parse())?;
    let never = Bench::new("never")?;
    never.time("read from the origin, policy never", count, read)?;
    never.time("write to the origin, policy never", count, write)?;
    // Nothing emulated: adaptive rightly finds two equal sides, so it is only asked here.
    let adaptive = Bench::new("adaptive")?;
    adaptive.time("write to the origin, policy adaptive", count, write)?;
    let always = Bench::new("always")?;
    always.time("read from the origin, wanted on the cache", count, read)?;
    always.time("write admitted to the cache", count, write)?;
    always.time("write over cached bytes", count, write)?;
    always.time("read from the cache", count, read)?;
    let warmed = Bench::new("always")?;
    let mut silent = |_| ControlFlow::Continue(());
    Controlled::warm(&warmed.engine, &[PathBuf::from("file")], false, &mut silent)?;
    warmed.time("read from the cache, warmed", count, read_warmed)?;
    warmed.time("write over clean cached bytes", count, write)?;
    Ok(())
}
