//! What recording costs a request, in processor time of the thread that serves it:
//! `cargo run --release -p halocline-trace --example record_cost -- FILE`.

use std::fs::{self, File};
use std::hint::black_box;
use std::io;
use std::thread;
use std::time::Instant;

use halocline_trace::record::Recorder;
use halocline_trace::{Kind, Op, Source};

const REQUESTS: u64 = 500_000;

/// What stands for serving a request.
fn serve(spin: u64) -> u64 {
    (0..spin).fold(0, |sum, i| black_box(sum ^ i))
}

/// Nanoseconds that this thread was on a processor.
fn on_processor() -> f64 {
    let told = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}

/// Nanoseconds a request.
#[expect(clippy::cast_precision_loss, reason = "a mean")]
fn each(requests: u64, mut one: impl FnMut(u64)) -> f64 {
    let begun = on_processor();
    (0..requests).for_each(&mut one);
    (on_processor() - begun) / requests as f64
}

/// Nanoseconds a request of each thread, with and without recording.
fn run(threads: u64, spin: u64, recorder: Option<&Recorder>) -> f64 {
    let served = |thread| {
        let file = recorder.map(|recorder| recorder.file((thread, 0), || b"/f".into()));
        each(REQUESTS / threads, |i| match (recorder, file) {
            (Some(recorder), Some(file)) => {
                let asked = (file, Op::Read, i * 4096, 1);
                black_box(recorder.request(asked, || serve(spin), |_| 4096));
            }
            _ => {
                black_box(serve(spin));
            }
        })
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || served(thread))).collect();
        let times = all.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN));
        times.fold(0.0, f64::max)
    })
}

fn main() -> io::Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "/dev/null".into());
    let clock = each(REQUESTS, |_| {
        black_box(Instant::now());
    });
    println!("the clock alone takes {clock:.0} ns, twice a request");
    println!("| threads | a request alone | recorded | cost | not recorded |");
    println!("| --- | --- | --- | --- | --- |");
    for (threads, spin) in [(1, 0), (1, 2_000), (2, 2_000)] {
        let bare = run(threads, spin, None);
        let recorder = Recorder::start(File::create(&file)?, &Source::new(Kind::Mount));
        let recorder = recorder.map_err(io::Error::other)?;
        let with = run(threads, spin, Some(&recorder));
        let (cost, lost) = (with - bare, recorder.finish().lost);
        println!(
            "| {threads} | {bare:.0} ns | {with:.0} ns | {cost:.0} ns | {lost} of {REQUESTS} |"
        );
    }
    Ok(())
}
