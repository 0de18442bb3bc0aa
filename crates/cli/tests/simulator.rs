//! What the simulator says of an extent cache, and what the engine itself does on emulated devices in simulated time.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use halocline_core::clock::Clock;
use halocline_core::config::{CacheSize, Config, OptionSpec};
use halocline_core::control::{Controlled, RequestTotals};
use halocline_core::device::memory::MemoryServer;
use halocline_core::device::{Device, Directory};
use halocline_core::engine::extents::ExtentEngine;
use halocline_core::engine::{Caller, Decorations, Engine, Maker};
use halocline_sim::workload::{Ior, Workload};
use halocline_sim::{Options, ServerSet, replay_cached};
use halocline_trace::{Op, Request};

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// What the requests of a trace came to.
#[derive(Debug)]
struct Outcome {
    /// Until the last request was done, and until all dirty bytes were on the origin, seconds.
    seconds: [f64; 2],
    /// Written to the cache, written to the origin, read from the cache, read from the origin.
    bytes: [u64; 4],
}

fn simulated(requests: &[Request], capacity: u64, policy: &str) -> Outcome {
    let servers = "[[server]]\nname = \"h\"\nprofile = \"hdd\"\ncapacity = \"1T\"\n\
                   [[server]]\nname = \"s\"\nprofile = \"ssd\"\ncapacity = \"1T\"\n";
    let servers = ServerSet::parse(servers, Path::new("servers.toml")).unwrap();
    let requests = requests.iter().copied();
    let done = replay_cached(requests, &servers, capacity, policy, &Options::default()).unwrap();
    let written = [done.cache_written_bytes, done.origin_written_bytes];
    Outcome {
        seconds: [done.foreground_seconds, done.total_seconds],
        bytes: [written[0], written[1], done.cache_read_bytes, done.origin_read_bytes],
    }
}

/// The engine on a disk and an SSD. Its background is still: what it does there would depend on the threads of this
/// machine.
fn run(requests: &[Request], capacity: u64, policy: &str) -> Outcome {
    let memory = || {
        let (builder, fast) = (tempfile::Builder::new(), Path::new("/dev/shm"));
        if fast.is_dir() { builder.tempdir_in(fast) } else { builder.tempdir() }.unwrap()
    };
    let (origin, cache) = (memory(), memory());
    let mut config = Config {
        size: CacheSize::Bytes(capacity),
        policy: policy.to_owned(),
        rebuild: false,
        fill: false,
        ..Config::default()
    };
    config.set(OptionSpec::find("emulate").unwrap(), "hdd+ssd").unwrap();
    let (clock, server) = (Clock::simulated(), MemoryServer::default());
    let servers = |_: usize| -> (Arc<dyn Directory>, Arc<dyn Device>) {
        (Arc::new(server.clone()), Arc::new(server.clone()))
    };
    let around = Decorations { cache_servers: Some(&servers), clock: &clock, ..Decorations::NONE };
    let engine =
        ExtentEngine::open_decorated(origin.path(), cache.path(), &config, around).unwrap();
    let by = Maker { caller: ME, umask: 0 };
    let name = (&engine.root(), OsStr::new("file"));
    let (_, _, handle) = engine.create(name, 0o644, libc::O_RDWR | libc::O_CREAT, by).unwrap();
    let begun = clock.instant();
    let mut buf = vec![7; 16 << 20];
    for request in requests {
        let buf = &mut buf[..usize::try_from(request.length).unwrap()];
        match request.op {
            Op::Read => {
                let read = engine.read(&handle, request.offset, buf, ME).unwrap();
                assert_eq!(read, buf.len());
            }
            Op::Write => engine.write(&handle, request.offset, buf, ME).unwrap(),
        }
    }
    let foreground = clock.elapsed(begun);
    Controlled::flush(&engine, None, false, &mut |_| ControlFlow::Continue(())).unwrap();
    let drained = clock.elapsed(begun);
    let report = engine.report();
    let sides = |of: &RequestTotals| [of.cache_bytes, of.bytes - of.cache_bytes];
    let ([a, b], [c, d]) = (sides(&report.write), sides(&report.read));
    Outcome { seconds: [foreground, drained].map(|time| time.as_secs_f64()), bytes: [a, b, c, d] }
}

fn assert_agree(what: &str, requests: &[Request], capacity: u64, policy: &str) {
    let (model, engine) = (simulated(requests, capacity, policy), run(requests, capacity, policy));
    for (model, engine) in model.bytes.iter().zip(engine.bytes) {
        let most = requests.iter().map(|request| request.length).sum::<u64>() / 10;
        assert!(model.abs_diff(engine) <= most, "{what}, {policy}: {model} {engine} bytes");
    }
    for (model, engine) in model.seconds.iter().zip(engine.seconds) {
        let off = (model - engine).abs() / engine;
        assert!(off <= 0.1, "{what}, {policy}: {model} s where the engine takes {engine} s");
    }
}

fn requests(ior: &Ior) -> Vec<Request> {
    ior.requests().collect()
}

#[test]
fn random_writes_agree() {
    for (size, bytes) in [(8 << 10, 32 << 20), (64 << 10, 128 << 20), (256 << 10, 128 << 20)] {
        let requests = requests(&Ior::new(1, bytes, size, 1).unwrap().random(1));
        for policy in ["never", "always", "adaptive"] {
            assert_agree(&format!("random writes of {size}"), &requests, 512 << 20, policy);
        }
    }
}

/// A flush rests for a moment after the last request: long traces, so that it is no tenth of the time.
#[test]
fn sequential_writes_agree() {
    let requests = requests(&Ior::new(1, 256 << 20, 64 << 10, 1).unwrap());
    for policy in ["never", "always", "adaptive"] {
        assert_agree("sequential writes", &requests, 1 << 30, policy);
    }
}
