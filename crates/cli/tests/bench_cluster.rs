//! `halocline bench cluster`: nodes, ranks and a store that are real, small and fast.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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
const SMALL: [&str; 6] = ["--dir", "data", "--data", "2M", "--processes", "4"];

struct Scratch(TempDir);

impl Scratch {
    /// `None`, with the reason, where no mount can be made or there is no server.
    fn new() -> Option<Self> {
        if let Some(reason) = fuse_device::obstacle() {
            skip(reason);
            return None;
        }
        if Command::new("redis-server").arg("--version").output().is_err() {
            skip("there is no redis-server");
            return None;
        }
        let dir = TempDir::new().unwrap();
        for name in ["data", "tmp"] {
            fs::DirBuilder::new().mode(0o700).create(dir.path().join(name)).unwrap();
        }
        Some(Self(dir))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program!());
        command.args(["bench", "cluster"]).args(args);
        command.current_dir(self.0.path()).env("TMPDIR", self.path("tmp"));
        command
    }

    fn bench(&self, args: &[&str]) -> Output {
        self.command(&[&SMALL, args].concat()).output().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Servers that listen below this directory.
    fn servers(&self) -> usize {
        let dir = self.path("tmp");
        let of_ours = |entry: &fs::DirEntry| {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            words.contains("redis-server") && words.contains(dir.to_str().unwrap())
        };
        fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(of_ours).count()
    }

    fn left(&self) -> Vec<PathBuf> {
        let of = |name| fs::read_dir(self.path(name)).unwrap().map(|entry| entry.unwrap().path());
        of("data").chain(of("tmp")).collect()
    }

    #[track_caller]
    fn assert_clean(&self) {
        assert!(self.left().is_empty(), "{:?}", self.left());
        assert_eq!(self.servers(), 0);
    }
}

fn phase<'a>(run: &'a Value, name: &str) -> &'a Value {
    let phases = run["phases"].as_array().unwrap();
    phases.iter().find(|phase| phase["name"] == name).unwrap_or_else(|| panic!("no {name}: {run}"))
}

/// Of a small run over two nodes.
fn check_simulation(simulation: &Value) {
    assert!(simulation["request_us"].as_f64().unwrap() > 0.0, "{simulation}");
    assert_eq!(simulation["points"].as_array().unwrap().len(), 3, "each pattern");
    let rows = simulation["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 2);
    for row in rows.iter().filter(|row| row["pattern"] != "strided") {
        assert!(row["cached"].as_f64().unwrap() > 0.99, "{row}");
    }
}

#[test]
fn every_byte_of_nodes_with_tokens_is_compared_with_those_of_mounts_without() {
    let Some(scratch) = Scratch::new() else { return };
    let done = scratch.bench(&[
        "--nodes",
        "1,2",
        "--json",
        "--plot",
        "p.svg",
        "--policy",
        "always",
        "--simulate",
        "--quick",
    ]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&done.stdout).unwrap();
    let section = Section::find("halocline bench cluster").unwrap();
    assert_eq!(section.undescribed(&results), [""; 0], "keys that docs/METRICS.md does not have");
    assert_eq!((&results["emulated"], &results["own_store"]), (&true.into(), &true.into()));
    let shared = results["shared"].as_str().unwrap();
    assert!(
        shared.contains("emulated devices (8xhdd+4xssd): no real hardware was measured"),
        "{shared}"
    );
    assert!(shared.contains("all nodes share 8xhdd"), "{shared}");
    assert!(said.contains(shared), "the table says so, too: {said}");
    let runs = results["runs"].as_array().unwrap();
    let setups: Vec<_> = runs.iter().map(|run| run["setup"].as_str().unwrap()).collect();
    let expected = [
        &["single", "private", "cluster"][..],
        &["origin", "single", "private", "cluster"],
        &["origin", "cluster"],
    ];
    assert_eq!(setups, expected.concat());
    check_simulation(&results["simulation"]);
    let mut shifted_from_peers = 0;
    for run in runs {
        assert_eq!(run["verified_origin_bytes"], DATA, "{run}");
        assert_eq!(phase(run, "write")["requests"], DATA / 8192);
        let is_cluster = run["setup"] == "cluster";
        let asked = phase(run, "write")["store_operations"].as_u64().unwrap();
        assert_eq!(asked > 0, is_cluster, "{run}");
        if run["setup"] == "origin" {
            assert_eq!(phase(run, "write")["cache_bytes"], 0);
        }
        if is_cluster && run["pattern"] == "segmented" {
            let shifted = phase(run, "shifted_read");
            let [own, peers, hits] = ["cache_bytes", "peer_bytes", "hit_bytes"]
                .map(|key| shifted[key].as_u64().unwrap());
            assert_eq!(own + peers, hits, "{shifted}");
            shifted_from_peers += peers;
        }
        if run["setup"] == "private" {
            assert_eq!(phase(run, "read")["cache_bytes"], DATA);
        }
    }
    // On a busy machine an answer may come too late for one of them.
    assert!(shifted_from_peers > 0, "{results}");
    let whats: Vec<_> = results["comparisons"].as_array().unwrap().iter().collect();
    for what in ["speed of private mounts", "gain of a single mount", "hits of the unshifted run"] {
        assert!(whats.iter().any(|one| one["what"] == what), "{what}");
    }
    let plot = Plot::read(&scratch.path("p.svg"));
    assert!(plot.mentions("no real hardware"), "the picture says so, too");
    scratch.assert_clean();
}

#[test]
fn a_byte_that_is_not_what_it_was_is_found_on_the_origin() {
    let Some(scratch) = Scratch::new() else { return };
    let pattern = ["--nodes", "2", "--pattern", "file-per-process", "--canary"];
    let done = scratch.bench(&pattern);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("verification failed on the origin"), "{said}");
    scratch.assert_clean();
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_remedy() {
    let Some(scratch) = Scratch::new() else { return };
    for (args, remedy) in [
        (&["--nodes", "3"][..], "give a multiple"),
        (&["--nodes", "2", "--emulate", "hdd+ssd"], "give more with --emulate"),
        (&["--data", "4K"], "give at least"),
        (&["--cluster", "redis://127.0.0.1:1", "--nodes", "2"], "--cluster"),
    ] {
        let done =
            scratch.command(&[&["--dir", "data", "--processes", "4"], args].concat()).output();
        let done = done.unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(remedy), "{args:?}: {said}");
    }
    let mut without = scratch.command(&["--dir", "data", "--quick"]);
    let done = without.env("PATH", "/nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("apt-get install redis-server"), "{said}");
    scratch.assert_clean();
}

#[test]
fn a_benchmark_that_is_interrupted_or_killed_leaves_no_server() {
    let Some(scratch) = Scratch::new() else { return };
    let begin = || {
        let mut command = scratch.command(&["--dir", "data", "--processes", "4", "--nodes", "2"]);
        let command = signals::by_default(&mut command).stdout(Stdio::null());
        let running = command.stderr(Stdio::null()).spawn().unwrap();
        eventually("nodes are mounted", || {
            let entries = fs::read_dir(scratch.path("data")).unwrap();
            entries.flatten().any(|entry| entry.path().join("nodes/origin-0").exists())
        });
        assert_eq!(scratch.servers(), 1);
        running
    };
    let mut running = begin();
    let pid = Pid::from_raw(i32::try_from(running.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    scratch.assert_clean();
    let mut running = begin();
    running.kill().unwrap();
    running.wait().unwrap();
    eventually("its server ends with it", || scratch.servers() == 0);
    assert!(!scratch.left().is_empty());
    let done = scratch.bench(&["--nodes", "2", "--pattern", "segmented"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("its benchmark was killed"), "{said}");
    scratch.assert_clean();
}
