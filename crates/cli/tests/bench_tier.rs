//! `halocline bench tier`: a real mount, small and fast; no figure is judged. And its end, however it
//! comes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

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

/// Whether no mount can be made; says so.
fn cannot_mount() -> bool {
    fuse_device::obstacle().inspect(|reason| skip(reason)).is_some()
}

fn bench_in(dir: &Path) -> Command {
    let mut command = Command::new(program!());
    command.args(["bench", "tier"]).current_dir(dir);
    command
}

#[test]
fn the_papers_figures_are_called_emulated_and_stand_beside_the_papers_ratios() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let bench = |more: &[&str]| {
        let output = bench_in(dir.path())
            .args(["--part", "figures", "--size", "16M", "--repetitions", "1"])
            .args(["--seconds", "0.02"])
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let results: Value = serde_json::from_str(&bench(&["--json"])).unwrap();
    let section = Section::find("halocline bench tier").unwrap();
    assert_eq!(section.undescribed(&results), [""; 0], "keys that docs/METRICS.md does not have");
    assert!(!results["command"].as_str().unwrap().contains("--inside"), "{results}");
    let figures = &results["figures"];
    assert_eq!(figures["emulated"], true);
    assert_eq!(figures["hdd"]["rpm"], 7200.0);
    let lines = figures["lines"].as_array().unwrap();
    for line in lines {
        let rate = |name: &str| line[name].as_f64().filter(|rate| *rate > 0.0).unwrap();
        let (tier, hdd, ssd) = (rate("tier"), rate("hdd_alone"), rate("ssd_alone"));
        let near = |ratio: f64, name| (rate(name) / ratio - 1.0).abs() < 1e-9;
        assert!(near(tier / hdd, "ratio") && near(tier / ssd, "of_ssd"), "{line}");
    }
    for figure in ["Fig. 9", "Fig. 12", "Fig. 14", "Table 2"] {
        let mut of_figure = lines.iter().filter(|line| line["figure"] == figure);
        assert!(of_figure.any(|line| line["paper_ratio"].is_f64()), "{figure}: {figures}");
    }
    let plot = TempDir::new().unwrap();
    let file = plot.path().join("p.svg");
    // Without --dir scratch directories are made here, by a name that is not absolute.
    let table = bench(&["--part", "policies", "--plot", file.to_str().unwrap()]);
    assert!(table.contains("EMULATED devices") && table.contains("Table 2"), "{table}");
    check_plot(&file, lines.len());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "scratch directories are left");
}

/// The plot has a bar for each line, at least one of the paper's beside, and a curve for each
/// policy.
fn check_plot(file: &Path, lines: usize) {
    let plot = Plot::read(file);
    assert!(plot.mentions("EMULATED devices"), "{plot:?}");
    for name in ["lru", "lfu", "heuristic", "foresight", "the optimum", "the paper"] {
        assert!(plot.says(name), "{name}: {plot:?}");
    }
    assert!(plot.count("rect") > lines, "{plot:?}");
    assert!(plot.count("polyline") >= 9, "{plot:?}");
}

/// Names in `dir`.
fn entries(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    fs::read_dir(dir).unwrap().map(|entry| name(entry).into_string().unwrap()).collect()
}

/// A benchmark in `dir` that has begun to read and write through its mount.
fn benchmark_at_work(dir: &Path) -> Child {
    let before = entries(dir);
    let child = signals::by_default(&mut bench_in(dir))
        .args(["--part", "files", "--size", "4M"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let made = |name: &String| !before.contains(name) && dir.join(name).join("ssd/job0").exists();
    eventually("the first file", || entries(dir).iter().any(made));
    child
}

fn send(signal: Signal, child: &Child) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Mounts below `dir` that others see, and processes that work for it.
fn mounts_and_processes(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = fs::read(entry.unwrap().path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    let all = mounts.lines().map(str::to_owned).chain(processes);
    all.filter(|line| line.contains(dir)).collect()
}

#[test]
fn a_benchmark_that_is_told_to_stop_leaves_nothing_behind() {
    if cannot_mount() {
        return;
    }
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let dir = TempDir::new().unwrap();
        let child = benchmark_at_work(dir.path());
        send(signal, &child);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(mounts_and_processes(dir.path()), [""; 0], "{signal:?}: {said}");
        assert_eq!(entries(dir.path()), [""; 0], "{signal:?}: {said}");
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains("interrupted"), "{said}");
    }
}

#[test]
fn a_killed_benchmark_takes_its_mounts_along_and_the_next_one_removes_its_files() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let mut child = benchmark_at_work(dir.path());
    send(Signal::KILL, &child);
    child.wait().unwrap();
    eventually("the end of all", || mounts_and_processes(dir.path()).is_empty());
    let left = entries(dir.path()).pop().unwrap();
    fs::create_dir(dir.path().join("halocline-bench-old")).unwrap();
    let mut alive = benchmark_at_work(dir.path());
    let mut working = entries(dir.path());
    working.retain(|name| name != "halocline-bench-old");
    assert!(working.len() == 1 && working[0] != left, "{left}: {working:?}");
    let next = bench_in(dir.path())
        .args(["--part", "metadata", "--files", "10", "--repetitions", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&next.stderr);
    assert!(next.status.success(), "{said}");
    assert!(said.contains("rm -r") && said.contains("halocline-bench-old"), "{said}");
    assert!(dir.path().join(&working[0]).exists(), "{said}");
    send(Signal::TERM, &alive);
    alive.wait().unwrap();
    let mut told = String::new();
    std::io::Read::read_to_string(&mut alive.stderr.take().unwrap(), &mut told).unwrap();
    assert!(told.contains("removed") && told.contains(&left), "{told}");
    assert_eq!(entries(dir.path()), ["halocline-bench-old"]);
}

#[test]
fn many_small_files_are_moved_and_copied() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let output = bench_in(dir.path())
        .args(["--part", "moves", "--size", "1M", "--small-files", "20", "--repetitions", "2"])
        .arg("--json")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    for what in ["demote, 20 files of 4 KiB", "promote, 20 files of 4 KiB"] {
        let rows = results["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["what"] == what).unwrap();
        assert_eq!(row["baseline_name"], "cp -a and sync");
        assert!(row["tier"].as_f64().unwrap() > 0.0 && row["ratio"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn what_measures_nothing_is_refused_with_the_remedy() {
    let dir = TempDir::new().unwrap();
    for (args, words) in [
        (&["--part", "files", "--size", "2M"][..], &["--size", "4194304", "--part"][..]),
        (&["--repetitions", "0"], &["--repetitions"]),
    ] {
        let output = bench_in(dir.path()).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}
