//! `halocline bench tier`: a real mount, small and fast; no figure is judged.

#[path = "bench/plot.rs"]
mod plot;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use plot::Plot;
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn the_papers_figures_are_called_emulated_and_stand_beside_the_papers_ratios() {
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        let _ = writeln!(std::io::stderr(), "SKIP bench tier: /dev/fuse cannot be opened");
        return;
    }
    let dir = TempDir::new().unwrap();
    let bench = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_halocline"))
            .args(["bench", "tier", "--part", "figures", "--size", "16M", "--repetitions", "1"])
            .args(["--seconds", "0.02"])
            .args(more)
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let results: Value = serde_json::from_str(&bench(&["--json"])).unwrap();
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
