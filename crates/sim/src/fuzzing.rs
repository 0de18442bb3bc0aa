//! Bodies of this crate's fuzz targets (`fuzz/`): descriptions of servers that somebody made to be read wrongly. They
//! are called by cargo-fuzz, and by the tests below over the same seeds (docs/TESTING.md, fuzz targets).

use std::path::Path;

use halocline_trace::request::FILE_END_MAX;
use halocline_trace::{Op, Request};

use crate::servers::SERVERS_MAX;
use crate::{FileLayout, Options, ServerSet, replay};

/// Requests of two processes, up to the end of the largest file there can be.
fn requests() -> impl Iterator<Item = Request> {
    let last = FILE_END_MAX - 65_536;
    [0, 65_536, 1 << 40, last].into_iter().enumerate().map(|(at, offset)| Request {
        start_ns: at as u64 * 1_000,
        duration_ns: None,
        process: u32::from(at % 2 == 1),
        file: 0,
        op: if at % 2 == 0 { Op::Read } else { Op::Write },
        offset,
        length: 65_536,
    })
}

/// Servers that are read can be simulated; whether they were.
fn simulate(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(set) = ServerSet::parse(text, Path::new("servers.toml")) else { return false };
    assert!((1..=SERVERS_MAX).contains(&set.len()));
    let layout = FileLayout::uniform(vec![65_536; set.len()]).expect("a layout");
    let replayed = replay(requests(), &set, |_| &layout, &Options::default());
    let Ok(outcome) = replayed else { return false };
    let served: u64 = outcome.servers.iter().map(|of| of.read_bytes + of.written_bytes).sum();
    assert_eq!(served, 4 * 65_536);
    true
}

/// A description of servers.
pub fn servers(bytes: &[u8]) {
    simulate(bytes);
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use halocline_testkit::fuzz_target::run;

    use super::*;

    const SERVERS: &str = r#"# Three kinds.
[[server]]
name = "disk0"
directory = "/mnt/disk0"
profile = "hdd"
capacity = "1T"

[[server]]
name = "disk1"
profile = "measured"
capacity = 1099511627776

[[server]]
name = "ssd0"
profile = "fast"
capacity = "100G"
network = { connect_us = 50.0, ns_per_byte = 8.5 }

[network]
connect_us = 100.0
ns_per_byte = 8.0

[profile.fast]
kind = "ssd"
channels = 8

[profile.measured]
read = { startup_sequential_ps = 100000000, startup_random_ps = 8000000000, per_byte_ps = 10000 }
write = { startup_sequential_ps = 100000000, startup_random_ps = 8000000000, per_byte_ps = 12000 }
"#;

    #[test]
    fn hostile_servers() {
        let mut simulated = 0;
        let count = |bytes: &[u8]| simulated += usize::from(simulate(bytes));
        run("sim_servers", &[("three-kinds", SERVERS.as_bytes().to_vec())], 10_000, count);
        assert!(simulated > 200, "{simulated} of them say little");
    }

    /// The bound is met before names are compared with each other.
    #[test]
    fn more_servers_than_there_can_be_are_refused() {
        let mut text = String::new();
        for number in 0..100_000 {
            writeln!(text, "[[server]]\nname = \"{number}\"\nprofile = \"hdd\"\ncapacity = 1")
                .expect("a string takes all");
        }
        let error = ServerSet::parse(&text, Path::new("servers.toml")).expect_err("too many");
        assert_eq!(error.what, "more than 4096 servers");
        assert_eq!(error.line, 4 * SERVERS_MAX + 1);
    }
}
