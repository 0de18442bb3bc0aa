//! Servers that take as long as a description may say, and requests as long as a trace may have: everything is simulated.

use std::fmt::Write;
use std::path::Path;

use halocline_model::{admit, tier};
use halocline_sim::{FileLayout, Options, Pace, ServerSet, TracedFiles};
use halocline_sim::{replay, replay_cached, replay_tiered};
use halocline_trace::request::FILE_END_MAX;
use halocline_trace::{Op, Request};

/// A disk and an SSD with these startups, in picoseconds, as long for one byte, and as far away, as can be.
fn servers(startups: [u64; 2]) -> ServerSet {
    let mut text = "[network]\nconnect_us = 60e6\nns_per_byte = 1e6\n".to_owned();
    for (name, startup_ps) in ["disk", "ssd"].into_iter().zip(startups) {
        let times = format!(
            "{{ startup_sequential_ps = {startup_ps}, startup_random_ps = {startup_ps}, per_byte_ps = {} }}",
            1_u64 << 32
        );
        write!(
            text,
            "[[server]]\nname = \"{name}\"\nprofile = \"{name}\"\ncapacity = {}\n\
             [profile.{name}]\nread = {times}\nwrite = {times}\n",
            1_u64 << 61
        )
        .expect("a string takes all");
    }
    ServerSet::parse(&text, Path::new("servers.toml")).expect("servers")
}

/// Short and long ones at random places and one after the other, by eight processes.
fn requests() -> Vec<Request> {
    let lengths = [4096, 4096, 65_536, 1 << 30, 4096, 1 << 40, 65_536, FILE_END_MAX - (1 << 41)];
    let of = |(at, length): (u64, u64)| Request {
        start_ns: at,
        duration_ns: None,
        process: (at % 8) as u32,
        file: (at % 3) as u32,
        op: if at % 4 == 3 { Op::Read } else { Op::Write },
        offset: at * 7 % 5 * (1 << 30),
        length,
    };
    (0..).zip(lengths.into_iter().cycle().take(40)).map(of).collect()
}

/// Regression: with the `adaptive` policy simulating ended with a panic.
#[test]
fn the_slowest_servers_and_the_longest_requests_are_simulated() {
    let requests = || requests().into_iter();
    let mut files = TracedFiles::default();
    requests().for_each(|request| files.push(&request));
    for startups in [[1 << 60, 1], [1 << 60, 1 << 60], [1 << 60, 1 << 50], [0, 0]] {
        let servers = servers(startups);
        let layout = FileLayout::uniform(vec![65_536; 2]).expect("a layout");
        for pace in [Pace::ClosedLoop { think: true }, Pace::OpenLoop] {
            let options = Options { seed: 0, pace };
            let done = replay(requests(), &servers, |_| &layout, &options).expect("a replay");
            assert_eq!(done.requests, 40);
            // Alone on its side, or not.
            if servers.classes().len() < 2 {
                continue;
            }
            for size in [1 << 20, 1 << 60] {
                for policy in admit::POLICIES {
                    // No system call transfers more, and the cache refuses it.
                    let requests = requests().filter(|request| request.length <= 1 << 32);
                    replay_cached(requests, &servers, size, policy.name, &options)
                        .unwrap_or_else(|why| panic!("{}: {why}", policy.name));
                }
                if pace == Pace::OpenLoop {
                    continue;
                }
                for policy in tier::POLICIES {
                    replay_tiered(requests(), &files, &servers, size, policy.name, &options)
                        .unwrap_or_else(|why| panic!("{}: {why}", policy.name));
                }
            }
        }
    }
}
