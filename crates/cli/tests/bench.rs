//! `halocline bench ior`: real mounts and processes, small and fast.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use halocline_api::control::metrics::Section;
use halocline_testkit::fuse_device;
use halocline_testkit::plot::Plot;
use halocline_testkit::program;
use halocline_testkit::signals;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const DATA: u64 = 2 << 20;
/// Devices that are emulated, but fast; the disk is still slower than the flash.
const FAST: &str = "
[profile.disk]
kind = \"hdd\"
seek_ms_min = 0.05
seek_ms_max = 0.2
rpm = 600000.0
mb_per_s = 2000.0

[profile.flash]
kind = \"ssd\"
read_startup_us = 1.0
write_startup_us = 1.0
read_mb_per_s = 8000.0
write_mb_per_s = 8000.0
";

struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// `None`, with the reason, where no mount can be made.
    fn new() -> Option<Self> {
        if let Some(reason) = fuse_device::obstacle() {
            skip(reason);
            return None;
        }
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("scratch")).unwrap();
        fs::write(dir.path().join("fast.toml"), FAST).unwrap();
        Some(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program!());
        command.args(["bench", "ior", "--config", "fast.toml"]).args(args);
        for (flag, value) in [("--dir", "scratch"), ("--processes", "2"), ("--data", "2M")] {
            if !args.contains(&flag) {
                command.args([flag, value]);
            }
        }
        command.current_dir(self.dir.path());
        command
    }

    fn bench(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    #[track_caller]
    fn results(&self, args: &[&str]) -> (Value, String) {
        let output = self.bench(&[args, &["--json", "r.json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json = fs::read(self.path("r.json")).unwrap();
        let json = serde_json::from_slice(&json).unwrap();
        let section = Section::find("halocline bench ior").unwrap();
        assert_eq!(section.undescribed(&json), [""; 0], "keys that docs/METRICS.md does not have");
        (json, String::from_utf8(output.stdout).unwrap())
    }

    #[track_caller]
    fn assert_clean(&self) {
        let left: Vec<_> = fs::read_dir(self.path("scratch")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn phase<'a>(run: &'a Value, name: &str) -> &'a Value {
    let phases = run["phases"].as_array().unwrap();
    phases.iter().find(|phase| phase["name"] == name).unwrap_or_else(|| panic!("no {name}: {run}"))
}

#[track_caller]
fn refused(output: &Output, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message}");
    }
}

#[test]
fn an_emulated_run_says_so_everywhere_and_compares_with_the_origin() {
    let Some(scratch) = Scratch::new() else { return };
    let (results, table) = scratch.results(&[
        "--emulate",
        "disk+flash",
        "--request-size",
        "8K,64K",
        "--policy",
        "always",
        "--cache-size",
        "30%,400%",
        "--plot",
        "p.svg",
    ]);
    assert_eq!(results["emulated"], true);
    assert_eq!(results["devices"], "disk+flash");
    assert!(table.contains("emulated devices (disk+flash)"), "{table}");
    let runs = results["runs"].as_array().unwrap();
    let setups: Vec<_> = runs.iter().map(|run| run["setup"].as_str().unwrap()).collect();
    assert_eq!(setups, ["origin", "cached", "cached", "origin", "cached", "cached"]);
    assert_eq!(table.lines().count(), 2 + runs.len());
    for run in runs {
        assert_eq!(run["data_bytes"], DATA);
        assert_eq!(run["verified_origin_bytes"], DATA);
        let write = phase(run, "write");
        assert_eq!(write["bytes"], DATA);
        assert_eq!(write["requests"].as_u64(), Some(DATA / run["request_size"].as_u64().unwrap()));
        assert!(write["mb_per_s"].as_f64().unwrap() > 0.0);
        assert!(write["drained_seconds"].as_f64() >= write["fsynced_seconds"].as_f64());
        assert!(write["fsynced_seconds"].as_f64() >= write["seconds"].as_f64());
        assert_eq!(phase(run, "read")["bytes"], DATA);
        if run["setup"] == "origin" {
            assert_eq!(write["ratio"], 1.0);
            assert_eq!(write["served"]["cache_bytes"], 0);
            assert_eq!(
                run["report"]["ssd_bytes_written"].as_u64().map(|bytes| bytes < DATA / 8),
                Some(true)
            );
        }
    }
    let full = &runs[2];
    assert_eq!(phase(full, "write")["served"]["cache_bytes"], DATA);
    assert_eq!(phase(full, "read")["served"]["cache_bytes"], DATA);
    assert_eq!(phase(full, "flush")["bytes"], DATA);
    assert_eq!(phase(full, "read")["cached_share_before"], 1.0);
    assert_eq!(full["report"]["layouts"]["1dh"], DATA);
    let part = phase(&runs[1], "read");
    assert!(part["cached_share_before"].as_f64().unwrap() <= 0.3);
    assert!(part["allowed_mb_per_s"].as_f64().unwrap() > 0.0);
    check_plot(&scratch.path("p.svg"), 6 * 3);
    scratch.assert_clean();
}

/// The plot is a document with so many bars, labelled as emulated.
#[track_caller]
fn check_plot(file: &Path, bars: usize) {
    let plot = Plot::read(file);
    assert!(plot.mentions("emulated devices (disk+flash)"), "{plot:?}");
    assert!(plot.says("always, cache 30 %") && plot.says("8.00 KiB"), "{plot:?}");
    // The background and three swatches of the legend are rectangles, too.
    assert_eq!(plot.count("rect"), bars + 1 + 3);
}

#[test]
fn real_devices_are_compared_with_the_bare_directory_too() {
    let Some(scratch) = Scratch::new() else { return };
    let (results, table) = scratch.results(&[
        "--request-size",
        "1M",
        "--pattern",
        "sequential",
        "--policy",
        "always",
        "--cache-size",
        "4M",
        "--repeat",
        "3",
        "--no-flush",
    ]);
    assert_eq!(results["emulated"], false);
    assert!(table.starts_with("real devices"), "{table}");
    assert_eq!(results["runs"].as_array().unwrap().len(), 9);
    let medians = results["medians"].as_array().unwrap();
    let setups: Vec<_> = medians.iter().map(|run| run["setup"].as_str().unwrap()).collect();
    assert_eq!(setups, ["origin", "bare", "cached"]);
    for median in medians {
        let seconds = |run: &Value| phase(run, "read")["seconds"].as_f64().unwrap();
        let all = results["runs"].as_array().unwrap().iter();
        let same: Vec<_> = all.filter(|run| run["setup"] == median["setup"]).map(seconds).collect();
        let below = same.iter().filter(|other| **other < seconds(median)).count();
        assert_eq!((same.len(), below), (3, 1), "{same:?}");
    }
    scratch.assert_clean();
}

#[test]
fn a_second_run_reads_what_the_first_run_made_the_cache_fetch() {
    let Some(scratch) = Scratch::new() else { return };
    let (results, _) = scratch.results(&[
        "--emulate",
        "2xdisk+2xflash",
        "--read",
        "--request-size",
        "64K",
        "--policy",
        "always",
        "--cache-size",
        "200%",
    ]);
    let cached = &results["runs"][1];
    let phases = cached["phases"].as_array().unwrap().iter();
    let names: Vec<_> = phases.map(|phase| phase["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["first_read", "fetch", "read"]);
    assert_eq!(phase(cached, "first_read")["cached_share_before"], 0.0);
    assert_eq!(phase(cached, "read")["served"]["cache_bytes"], DATA);
    scratch.assert_clean();
}

#[test]
fn a_mix_runs_ten_programs() {
    let Some(scratch) = Scratch::new() else { return };
    for flags in [&[][..], &["--concurrent"]] {
        let (results, _) = scratch.results(
            &[
                flags,
                &["--emulate", "disk+flash", "--pattern", "mix:60", "--request-size", "8K"],
                &["--cache-size", "20%", "--write"],
            ]
            .concat(),
        );
        let write = phase(&results["runs"][0], "write");
        // Whole requests for each of two processes in each of ten programs.
        assert_eq!(write["bytes"], DATA / 10 / 16_384 * 16_384 * 10);
        assert!(write["sequential_mb_per_s"].as_f64().unwrap() > 0.0);
        assert!(write["random_mb_per_s"].as_f64().unwrap() > 0.0);
    }
    scratch.assert_clean();
}

#[test]
fn a_flipped_byte_is_found_where_it_is() {
    let Some(scratch) = Scratch::new() else { return };
    for devices in ["disk+flash", "2xdisk+flash"] {
        for (canary, place) in [("read", "through the mount"), ("origin", "on the origin")] {
            let output =
                scratch.bench(&["--emulate", devices, "--request-size", "64K", "--canary", canary]);
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{message}");
            let found = format!("first at offset {}", DATA / 2);
            assert!(message.contains(place) && message.contains(&found), "{message}");
        }
    }
    scratch.assert_clean();
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let Some(scratch) = Scratch::new() else { return };
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        interrupt(&scratch, signal, status);
    }
}

fn interrupt(scratch: &Scratch, signal: Signal, status: i32) {
    let mut command =
        scratch.command(&["--emulate", "hdd+ssd", "--data", "256M", "--request-size", "4K"]);
    let child = signals::by_default(&mut command)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let made = || fs::read_dir(scratch.path("scratch")).unwrap().count() > 0;
    eventually("the making of a scratch directory", made);
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), signal).unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(message.contains("interrupted"), "{message}");
    scratch.assert_clean();
}

#[test]
fn bad_options_are_refused_with_the_remedy() {
    let Some(scratch) = Scratch::new() else { return };
    for (args, words) in [
        (&["--policy", "always,fastest"][..], &["--policy", "\"fastest\"", "adaptive"][..]),
        (&["--pattern", "mix:101"], &["mix:101", "mix:60"]),
        (&["--request-size", "0"], &["\"0\"", "64K"]),
        (&["--request-size", "2M"], &["--data", "at least 4194304 bytes"]),
        (&["--data", "60T", "--request-size", "1M"], &["--dir", "are free", "--data"]),
        (&["--data", "900T"], &["--data", "\"900T\"", "at most 64T"]),
        (&["--cache-size", "0%"], &["0%", "30%"]),
        (&["--size", "1G"], &["--size", "--cache-size"]),
        (&["--plot", "p.png"], &["--plot", "p.png", ".svg"]),
        (&["--json", "missing/r.json"], &["missing", "create it"]),
        (&["--emulate", "tape+ssd"], &["tape", "hdd"]),
        (&["--dir", "missing"], &["missing"]),
        (&["--processes", "0"], &["--processes"]),
        (&["--write", "--read"], &["--write", "--read"]),
    ] {
        refused(&scratch.bench(args), words);
    }
    scratch.assert_clean();
}
