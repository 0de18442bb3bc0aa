//! `halocline bench layout`: small and fast; no time is judged that was measured.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use halocline_api::control::metrics::Section;
use halocline_testkit::plot::Plot;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use serde_json::Value;

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program!());
    command.args(["bench", "layout"]).args(args).current_dir(dir).output().unwrap()
}

#[track_caller]
fn answer(dir: &Path, args: &[&str]) -> Value {
    let output = bench(dir, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn all_layouts_are_measured_on_emulated_servers_and_called_so() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let section = Section::find("halocline bench layout").unwrap();
    let small = ["--data", "2M", "--request-size", "64K", "--processes", "4"];
    for more in [
        &["--workload", "ior", "--random"][..],
        &["--workload", "ior", "--op", "read"],
        &["--workload", "hpio", "--op", "read", "--hdds", "2", "--ssds", "1"],
    ] {
        let results = answer(dir, &[more, &small].concat());
        assert_eq!(section.undescribed(&results), [""; 0], "{more:?}");
        assert_eq!((&results["emulated"], &results["requests"]), (&true.into(), &32.into()));
        for name in ["def", "pa", "psa", "ours"] {
            let layout = &results["layouts"][name];
            for how in ["predicted", "simulated", "measured"] {
                let seconds = layout[format!("{how}_seconds")].as_f64();
                let ratio = layout[format!("{how}_ratio")].as_f64();
                assert!(seconds > Some(0.0) && ratio > Some(0.0), "{name}, {how}: {results}");
            }
        }
        assert!((results["layouts"]["def"]["measured_ratio"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    }
    let told = bench(dir, &[&["--workload", "ior", "--plot", "p.svg"][..], &small].concat());
    let text = written(&told);
    assert!(told.status.success() && text.contains("EMULATED 4 disks and 4 SSDs"), "{text}");
    assert!(text.contains("no real hardware was measured"), "{text}");
    assert!(text.contains("ior: 32 requests, 2.00 MiB together, by 4 processes"), "{text}");
    let plot = Plot::read(&dir.join("p.svg"));
    assert!(plot.mentions("EMULATED") && plot.says("ours, measured"), "{plot:?}");
    assert!(plot.count("rect") > 12, "{plot:?}");
    // Nothing is left of the servers.
    let left: Vec<_> = fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["p.svg"]);
}

#[test]
fn tiles_and_btio_are_simulated_and_what_cannot_be_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    for workload in ["tile", "btio"] {
        let args = ["--workload", workload, "--processes", "4", "--no-measure"];
        let results = answer(dir, &args);
        assert!(results["layouts"]["ours"]["measured_seconds"].is_null(), "{results}");
        assert!(results["layouts"]["ours"]["simulated_ratio"].as_f64() > Some(0.97), "{results}");
    }
    for (args, what) in [
        (&["--workload", "btio", "--processes", "7"][..], "square number"),
        (&[], "--workload"),
        (&["--workload", "ior", "--plot", "p.png"], ".svg"),
        (&["--workload", "ior", "--quick"], "--quick"),
        (&["--figures", "no/such/page"], "no"),
    ] {
        let output = bench(dir, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(what), "{args:?}: {}", said(&output));
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "nothing was made");
}

/// `--data 1M` silently became 8 MiB with 16 processes of 512 KiB.
#[test]
fn a_file_that_has_no_room_for_a_request_of_each_process_is_larger_and_said_to_be() {
    let scratch = tempfile::tempdir().unwrap();
    for (workload, data, raised) in
        [("ior", "1M", true), ("hpio", "1M", true), ("ior", "8M", false)]
    {
        let args = ["--workload", workload, "--data", data, "--no-measure", "--json"];
        let output = bench(scratch.path(), &args);
        let (results, told): (Value, _) =
            (serde_json::from_slice(&output.stdout).unwrap(), said(&output));
        assert_eq!((&results["requests"], &results["bytes"]), (&16.into(), &(8 << 20).into()));
        let notice = "--data 1.00 MiB is less than a request of 512 KiB by each of 16 processes";
        assert_eq!(told.contains(notice), raised, "{told}");
        assert_eq!(told.contains("the file has 8.00 MiB"), raised, "{told}");
    }
}

/// A number such as `+12.3 %` as a ratio.
fn ratio(cell: &str) -> Option<f64> {
    let percent = cell.trim().strip_suffix(" %")?.parse::<f64>().ok()?;
    Some(1.0 + percent / 100.0)
}

/// The paper's settings with a few dozen requests of each; `docs/PSA_FIGURES.md` has them at full size.
#[test]
fn on_no_setting_of_the_paper_is_ours_worse_than_the_best_of_the_papers_layouts() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let output = bench(dir, &["--figures", "page", "--quick", "--no-measure"]);
    assert!(output.status.success(), "{}", said(&output));
    let page = fs::read_to_string(dir.join("page")).unwrap();
    assert!(page.contains("Made with `--quick`"), "{page}");
    never_worse(&page);
}

/// What is in the documents is what the command writes at full size, and holds the same promise.
#[test]
fn the_page_in_the_documents_is_complete_and_keeps_the_promise() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join("docs/PSA_FIGURES.md");
    let page = fs::read_to_string(path).unwrap();
    assert!(!page.contains("Made with `--quick`"));
    assert!(page.contains("No real disk, SSD or network was measured"));
    let [all, unequal] = never_worse(&page);
    // Seeks, and servers of two kinds.
    assert!(unequal >= 12, "{unequal} of {all}");
}

/// Checks each table; answers how many there are, and how many of random IOR where ours is better by 1 %.
#[track_caller]
fn never_worse(page: &str) -> [usize; 2] {
    let (mut tables, mut better) = (0, 0);
    for (figure, part) in page.split("\n## Figure ").skip(1).enumerate() {
        for section in part.split("\n### ").skip(1) {
            let gain = |name: &str| {
                let row = section.lines().find(|line| line.starts_with(&format!("| {name}")))?;
                ratio(row.split('|').nth(8)?)
            };
            let ours = gain("ours").expect(section);
            let papers = ["def", "pa ", "psa"].into_iter().filter_map(gain);
            let best = papers.fold(1.0, f64::max);
            assert!(ours >= best / 1.02 - 0.001, "{ours} of {best}: {section}");
            tables += 1;
            better += usize::from(figure < 4 && ours > best * 1.01);
            let gains = section.contains("The published gain does not appear");
            let printed = !section.contains("published not printed");
            let appears = section.contains("PSA over DEF: published") && !gains;
            assert!(printed || !gains, "{section}");
            assert!(gains || appears, "{section}");
        }
    }
    assert_eq!(tables, 33);
    [tables, better]
}
