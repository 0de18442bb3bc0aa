//! Measures the storage layer alone: `cargo run --release -p halocline-storage --example
//! measure_store`. What a volume adds to a system call, and how exactly emulated devices keep
//! their times.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_api::config::{EmulatedDevice, EmulatedHdd, EmulatedSsd};
use halocline_model::striping::Striping;
use halocline_storage::device::emulate::{EmulatedServer, expected};
use halocline_storage::device::{Device, ServerFile};
use halocline_storage::volume::{Server, Volume, VolumeFile};

const ROUNDS: usize = 9;
const SPAN: u64 = 64 << 20;

fn main() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    overhead(dir.path());
    for threads in [1, 4, 16] {
        accuracy("hdd", EmulatedDevice::Hdd(EmulatedHdd::default()), dir.path(), threads);
        accuracy("ssd", EmulatedDevice::Ssd(EmulatedSsd::default()), dir.path(), threads);
    }
}

fn overhead(dir: &Path) {
    let file = new_file(dir);
    file.write_all_at(&vec![1; 64 << 20], 0).expect("write");
    let server = Server::local(dir, "plain", 0, &|_, device| device).expect("server");
    let copy = file.try_clone().expect("clone");
    let plain = VolumeFile::single(server, ServerFile::new(copy).expect("stat"));
    let volume = Volume::in_directory(dir, 4, 65536, &|_, device| device).expect("volume");
    let striped = VolumeFile::lazy(&volume, 0, Striping::new(4, 65536), Path::new("file"));
    striped.write_at(0, &vec![1; 64 << 20]).expect("write");
    for size in [4096_usize, 65536, 1 << 20] {
        let mut buf = vec![2; size];
        let raw = per_call(size, |at| file.read_at(&mut buf, at).map(drop).expect("read"));
        let one = per_call(size, |at| plain.read_at(at, &mut buf).map(drop).expect("read"));
        let four = per_call(size, |at| striped.read_at(at, &mut buf).map(drop).expect("read"));
        println!("read  {size:>7} B: pread {raw:>8} ns, plain {one:>8} ns, striped {four:>8} ns");
        let raw = per_call(size, |at| file.write_all_at(&buf, at).expect("write"));
        let one = per_call(size, |at| plain.write_at(at, &buf).expect("write"));
        let four = per_call(size, |at| striped.write_at(at, &buf).expect("write"));
        println!("write {size:>7} B: pwrite {raw:>7} ns, plain {one:>8} ns, striped {four:>8} ns");
    }
}

/// Nanoseconds of one call: the median of some rounds over the whole file.
fn per_call(size: usize, mut call: impl FnMut(u64)) -> u128 {
    let calls = (SPAN / size as u64).min(4000);
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|at| call(at * size as u64));
            start.elapsed()
        })
        .collect();
    rounds.sort_unstable();
    rounds[ROUNDS / 2].as_nanos() / u128::from(calls)
}

/// Random 8 KiB writes in a closed loop: the time that the device's arithmetic asks for against
/// the time that passed.
fn accuracy(name: &str, device: EmulatedDevice, dir: &Path, threads: u32) {
    let local = halocline_storage::device::local::LocalDevice::open(dir).expect("device");
    let server = EmulatedServer::new(device, Arc::new(local));
    let file = ServerFile::new(new_file(dir)).expect("stat");
    let requests: u32 = if name == "hdd" { 1000 } else { 20_000 };
    let next = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let data = [1; 8192];
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= u64::from(requests) {
                        break;
                    }
                    let offset = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SPAN / 8192) * 8192;
                    let bufs = [std::io::IoSlice::new(&data)];
                    server.write_at(&file, offset, &bufs).expect("write");
                }
            });
        }
    });
    let observed = start.elapsed();
    let service = expected(&device, SPAN).write;
    let one = Duration::from_nanos((service.startup_random_ps + 8192 * service.per_byte_ps) / 1000);
    let channels = match device {
        EmulatedDevice::Hdd(_) => 1,
        EmulatedDevice::Ssd(profile) => profile.channels,
    };
    let wanted = one.mul_f64(f64::from(requests) / f64::from(threads.min(channels)));
    let error = (observed.as_secs_f64() / wanted.as_secs_f64() - 1.0) * 100.0;
    println!(
        "{name}, {threads:>2} threads: expected {wanted:.3?}, observed {observed:.3?}, {error:+.2} %"
    );
}

fn new_file(dir: &Path) -> File {
    tempfile::tempfile_in(dir).expect("a scratch file")
}
