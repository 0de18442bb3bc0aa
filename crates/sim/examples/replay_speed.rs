//! Requests a second that the simulator replays, for layouts of few and many servers, and through caches and tiers:
//!
//! ```text
//! cargo run --release -p halocline-sim --example replay_speed
//! ```

use std::path::Path;
use std::time::Instant;

use halocline_sim::workload::{Ior, Workload};
use halocline_sim::{
    FileLayout, Options, ServerSet, TracedFiles, replay, replay_cached, replay_tiered,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:34}{:>12}{:>16}{:>18}", "", "requests", "requests/s", "simulated MB/s");
    for (hdds, ssds) in [(1, 1), (6, 2), (8, 8), (48, 16)] {
        let mut text = String::new();
        for (count, kind) in [(hdds, "hdd"), (ssds, "ssd")] {
            for number in 0..count {
                text += "[[server]]\n";
                text +=
                    &["name = \"", kind, &number.to_string(), "\"\nprofile = \"", kind].concat();
                text += "\"\ncapacity = \"1T\"\n";
            }
        }
        let servers = ServerSet::parse(&text, Path::new("servers.toml"))?;
        let layout = FileLayout::uniform(vec![64 << 10; servers.len()])?;
        for (transfer, random) in [(64 << 10, false), (64 << 10, true), (512 << 10, false)] {
            let ior = Ior::new(16, 1 << 30, transfer, (transfer >> 14).clamp(1, 8))?;
            let ior = if random { ior.random(1) } else { ior };
            let begun = Instant::now();
            let outcome = replay(ior.requests(), &servers, |_| &layout, &Options::default())?;
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = outcome.requests as f64 / begun.elapsed().as_secs_f64();
            let order = if random { "random" } else { "in order" };
            let what = format!("{hdds}+{ssds} servers, {}K {order}", transfer >> 10);
            println!("{what:34}{:>12}{rate:>16.0}{:>18.1}", outcome.requests, outcome.mb_per_s);
        }
    }
    cache_and_tier()
}

/// A quarter of the bytes fits.
fn cache_and_tier() -> Result<(), Box<dyn std::error::Error>> {
    let text = "[[server]]\nname = \"h\"\nprofile = \"hdd\"\ncapacity = \"1T\"\n\
                [[server]]\nname = \"s\"\nprofile = \"ssd\"\ncapacity = \"1T\"\n";
    let servers = ServerSet::parse(text, Path::new("servers.toml"))?;
    let options = Options::default();
    for random in [false, true] {
        let ior = Ior::new(16, 1 << 30, 64 << 10, 4)?;
        let ior = if random { ior.random(1) } else { ior };
        let order = if random { "random" } else { "in order" };
        for policy in ["adaptive", "always", "foresight"] {
            let mut files = TracedFiles::default();
            for request in ior.requests() {
                files.push(&request);
            }
            let begun = Instant::now();
            let (requests, bytes, seconds) = if policy == "foresight" {
                let done =
                    replay_tiered(ior.requests(), &files, &servers, 1 << 34, policy, &options)?;
                (done.requests, done.bytes, done.foreground_seconds)
            } else {
                let done = replay_cached(ior.requests(), &servers, 1 << 34, policy, &options)?;
                (done.requests, done.bytes, done.foreground_seconds)
            };
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let (rate, speed) =
                (requests as f64 / begun.elapsed().as_secs_f64(), bytes as f64 / 1e6 / seconds);
            let what = format!("{policy}, 64K {order}");
            println!("{what:34}{requests:>12}{rate:>16.0}{speed:>18.1}");
        }
    }
    Ok(())
}
