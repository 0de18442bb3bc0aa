//! `halocline plan`: from a trace and a description of servers to a plan.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};

use halocline_api::control::metrics::Section;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_trace::{Kind, Op, Process, Request, Source, Writer};

fn halocline(dir: &Path, args: &[&str]) -> Output {
    Command::new(program!()).args(args).current_dir(dir).output().unwrap()
}

/// Random reads of 64 KiB by four processes over 16 MiB.
fn trace(dir: &Path) {
    let mut csv = "time_s,process,file,op,offset,length\n".to_owned();
    for n in 0..256_u64 {
        let (offset, process) = (n * 151 % 256 * 65_536, n % 4);
        writeln!(csv, "{}.0,{process},/data/a,read,{offset},65536", n / 4).unwrap();
    }
    fs::write(dir.join("t.csv"), csv).unwrap();
    let output = halocline(dir, &["trace", "import", "t.csv", "-o", "t.hct"]);
    assert!(output.status.success(), "{}", said(&output));
}

fn servers(dir: &Path, kinds: &[(&str, &str)]) {
    let mut text = String::new();
    for (index, (profile, capacity)) in kinds.iter().enumerate() {
        let server =
            format!("name = \"s{index}\"\nprofile = \"{profile}\"\ncapacity = \"{capacity}\"");
        writeln!(text, "[[server]]\n{server}\n").unwrap();
    }
    fs::write(dir.join("servers.toml"), text).unwrap();
}

/// The directories are one file system here, which is told and does no harm to the test.
#[test]
fn what_was_calibrated_is_planned_on() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    for name in ["disk", "deep/disk"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    let calibrate = ["calibrate", "disk", "deep/disk", "--span", "4M", "--requests", "2"];
    let output = halocline(dir, &[&calibrate[..], &["--servers", "servers.toml", "-n"]].concat());
    assert!(output.status.success() && !dir.join("servers.toml").exists(), "{}", said(&output));
    let output = halocline(dir, &[&calibrate[..], &["--servers", "servers.toml"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("lie on one file system"), "{}", said(&output));
    let text = fs::read_to_string(dir.join("servers.toml")).unwrap();
    for part in ["name = \"disk\"", "name = \"disk-1\"", "[profile.disk]", "capacity = "] {
        assert!(text.contains(part), "{text}");
    }
    let plan = ["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"];
    let output = halocline(dir, &plan);
    assert!(output.status.success(), "{}", said(&output));
    let plan = fs::read_to_string(dir.join("plan.toml")).unwrap();
    assert!(plan.contains("disk-1"), "{plan}");
    // A configuration is not written beside it, and both at once are refused.
    let both = ["--servers", "s.toml", "--config", "c.toml"];
    assert_eq!(halocline(dir, &[&calibrate[..], &both].concat()).status.code(), Some(2));
}

/// Regression: a file in place of a directory failed with status 1 and no remedy, the second directory after the first was
/// measured, and a file that cannot be written after all of them.
#[test]
fn what_cannot_be_calibrated_is_refused_before_anything_is_measured() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::create_dir(dir.join("disk")).unwrap();
    fs::write(dir.join("file"), "").unwrap();
    for (args, what) in [
        (["file", "s.toml"], "file: Not a directory (os error 20); correct the path"),
        (["none", "s.toml"], "none: there is no such directory; create it"),
        (["disk", "none/s.toml"], "none"),
        (["disk", "disk"], "is a directory; name a file in it"),
    ] {
        let calibrate = ["calibrate", "disk", args[0], "--servers", args[1]];
        // No test waits for as many requests.
        let output = halocline(dir, &[&calibrate[..], &["--requests", "100000"]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(what), "{args:?}: {}", said(&output));
        assert!(!said(&output).contains("measuring"), "{args:?}: {}", said(&output));
        assert!(!dir.join("s.toml").exists());
    }
    // Found after all was measured; a configuration got the device under the name of another directory.
    let name = OsStr::from_bytes(b"disk-\xff");
    fs::create_dir(dir.join(name)).unwrap();
    for to in ["--servers", "--config"] {
        let mut calibrate = Command::new(program!());
        calibrate.args(["calibrate", "disk"]).arg(name).args([
            to,
            "s.toml",
            "--requests",
            "100000",
        ]);
        let output = calibrate.current_dir(dir).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{to}: {}", said(&output));
        assert!(
            said(&output).contains("not UTF-8") && !said(&output).contains("measuring"),
            "{}",
            said(&output)
        );
        assert!(!dir.join("s.toml").exists());
    }
}

/// What calibration finds of three equal disks and two equal SSDs differs a little: each was a kind of its own. Then a
/// single disk was the disks of a cache and of the paper's layouts.
#[test]
fn what_was_measured_of_equal_servers_is_one_kind() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    let mut text = String::new();
    for (name, startup_us, capacity) in [
        ("d0", 9000, "1T"),
        ("d1", 9400, "1T"),
        ("s0", 60, "1M"),
        ("d2", 8800, "1T"),
        ("s1", 63, "1M"),
    ] {
        let times = format!(
            "startup_sequential_ps = 60000000, startup_random_ps = {startup_us}000000, per_byte_ps = 2000"
        );
        writeln!(
            text,
            "[[server]]\nname = \"{name}\"\nprofile = \"{name}\"\ncapacity = \"{capacity}\""
        )
        .unwrap();
        writeln!(text, "[profile.{name}]\nread = {{ {times} }}\nwrite = {{ {times} }}").unwrap();
    }
    fs::write(dir.join("servers.toml"), text).unwrap();
    let output = halocline(dir, &["plan", "t.hct", "--servers", "servers.toml"]);
    assert!(
        written(&output).contains("5 servers of 2 kinds"),
        "{}{}",
        written(&output),
        said(&output)
    );
    let output = halocline(dir, &["plan", "t.hct", "--servers", "servers.toml", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in ["pa", "psa"] {
        let widths = &json["layouts"][name]["stripes"][0]["parts"][0]["widths"];
        assert_eq!((&widths[0], &widths[0]), (&widths[1], &widths[3]), "{name}: {json}");
        assert_eq!(widths[2], widths[4], "{name}: {json}");
    }
    // The fast side has what the two SSDs hold, and no byte more.
    let cache = ["simulate", "t.hct", "--servers", "servers.toml", "--cache-size"];
    let output = halocline(dir, &[&cache[..], &["3M"]].concat());
    assert!(said(&output).contains("hold 2097152 bytes, not 3145728"), "{}", said(&output));
    assert!(halocline(dir, &[&cache[..], &["2M"]].concat()).status.success());
}

#[test]
fn a_plan_is_told_and_written_and_the_same_each_time() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    servers(dir, &[("hdd", "1T"), ("hdd", "1T"), ("ssd", "1G")]);
    let plan = ["plan", "t.hct", "--servers", "servers.toml", "--json", "-o"];
    let output = halocline(dir, &[&plan[..], &["one.toml"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let section = Section::find("halocline plan").unwrap();
    assert_eq!(section.undescribed(&json), [""; 0]);
    assert_eq!(json["requests"], 256);
    // All fits on the SSD, which the paper's layout finds as well.
    let chosen = json["chosen"].as_str().unwrap();
    assert!(["pa", "ours"].contains(&chosen), "{json}");
    let seconds = |name: &str| json["layouts"][name]["simulated_seconds"].as_f64().unwrap();
    assert!(seconds("ours") <= seconds("def").min(seconds("pa")).min(seconds("psa")));
    let gain = seconds("def") / seconds(chosen) - 1.0;
    assert!((json["gain_over_def"].as_f64().unwrap() - gain).abs() < 1e-9);
    assert_eq!(json["layouts"]["ours"]["stripes"][0]["file"], "/data/a");
    let output = halocline(dir, &[&plan[..], &["two.toml"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let written_plan = fs::read_to_string(dir.join("one.toml")).unwrap();
    assert_eq!(written_plan, fs::read_to_string(dir.join("two.toml")).unwrap());
    assert!(written_plan.contains("digest = \"xxh3-128:"), "{written_plan}");
    let output = halocline(dir, &["plan", "t.hct", "--servers", "servers.toml"]);
    let orangefs = ["plan", "t.hct", "--servers", "servers.toml", "--for", "orangefs"];
    let commands = written(&halocline(dir, &orangefs));
    assert!(commands.contains("pvfs2-touch -l s2 /data/a\n"), "{commands}");
    let recommended = format!("recommended: {chosen}, with");
    assert!(written(&output).contains(&recommended), "{}", written(&output));
}

#[test]
fn what_cannot_be_planned_is_refused_and_nothing_written() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    fs::write(dir.join("empty.csv"), "time_s,process,file,op,offset,length\n").unwrap();
    halocline(dir, &["trace", "import", "empty.csv", "-o", "empty.hct"]);
    fs::write(dir.join("junk.hct"), "junk").unwrap();
    servers(dir, &[("hdd", "1M"), ("ssd", "1M")]);
    for (file, what) in [
        ("t.hct", "fit on no server"),
        ("empty.hct", "no requests"),
        ("junk.hct", "not a trace"),
        ("none.hct", "none.hct"),
    ] {
        let output = halocline(dir, &["plan", file, "--servers", "servers.toml", "-o", "p.toml"]);
        assert!(!output.status.success(), "{file}");
        assert!(said(&output).contains(what), "{file}: {}", said(&output));
        assert!(!dir.join("p.toml").exists());
    }
    servers(dir, &[("tape", "1T")]);
    let output = halocline(dir, &["plan", "t.hct", "--servers", "servers.toml"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("servers.toml, line 3"), "{}", said(&output));
    // A device has no size, and no end.
    for command in [&["plan"][..], &["simulate"], &["advise"]] {
        let output = halocline(dir, &[command, &["t.hct", "--servers", "/dev/zero"]].concat());
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", said(&output));
        assert!(said(&output).contains("/dev/zero: it has more than"), "{}", said(&output));
    }
}

/// Plans `t.hct` for `servers.toml` into `p.toml`.
#[track_caller]
fn planned(dir: &Path) {
    let planned = halocline(dir, &["plan", "t.hct", "--servers", "servers.toml", "-o", "p.toml"]);
    assert!(planned.status.success(), "{}", said(&planned));
}

#[test]
fn a_plan_is_simulated_beside_the_default_layout() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    servers(dir, &[("hdd", "1T"), ("hdd", "1T"), ("ssd", "1G")]);
    planned(dir);
    let simulate = ["simulate", "t.hct", "--servers", "servers.toml"];
    let json = |more: &[&str]| -> serde_json::Value {
        let output = halocline(dir, &[&simulate[..], &["--json"], more].concat());
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let both = json(&["--plan", "p.toml"]);
    let section = Section::find("halocline simulate").unwrap();
    assert_eq!(section.undescribed(&both), [""; 0]);
    assert_eq!((&both["plan"]["files"], &both["plan"]["other_files"]), (&1.into(), &0.into()));
    assert_eq!(both["plan"]["default"]["seconds"], json(&[])["seconds"], "the same replay");
    assert_eq!(both["plan"]["default"]["bytes"], both["bytes"]);
    let gain = both["plan"]["gain_over_default"].as_f64().unwrap();
    let promised = both["plan"]["promised_gain"].as_f64().unwrap();
    // The trace is short enough for the planner to replay all of it.
    assert!(gain > 1.0 && (gain - promised).abs() < 0.01 * promised, "{both}");

    let told = halocline(dir, &[&simulate[..], &["--plan", "p.toml"]].concat());
    assert!(written(&told).contains("SIMULATED"), "{}", written(&told));
    // What its spread does not include.
    let plan = ["plan", "t.hct", "--servers", "servers.toml", "--html", "page.html"];
    let told = written(&halocline(dir, &plan));
    let page = fs::read_to_string(dir.join("page.html")).unwrap();
    assert!([&told, &page].iter().all(|it| it.contains("took turns in this trace")), "{told}");

    let refused = |text: &str, what: &str| {
        fs::write(dir.join("wrong.toml"), text).unwrap();
        let output = halocline(dir, &[&simulate[..], &["--plan", "wrong.toml"]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(what), "{}", said(&output));
    };
    let plan = fs::read_to_string(dir.join("p.toml")).unwrap();
    refused(&plan.replace("/data/a", "/data/b"), "none of the files of the trace");
    refused(&plan.replace("name = \"s2\"", "name = \"s3\""), "other servers");
    refused("version = 1", "not a plan");
}

/// Regression: the default layout of the comparison had all that it wanted of SSDs that hold a part of it, and a plan that
/// promised much was slower than that.
#[test]
fn where_ssds_fill_up_the_default_layout_of_a_simulation_is_that_of_the_plan() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    let simulated = |more: &[&str]| -> serde_json::Value {
        let simulate = ["simulate", "t.hct", "--servers", "servers.toml", "--json"];
        let output = halocline(dir, &[&simulate[..], more].concat());
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for ssd in ["256K", "1M"] {
        servers(dir, &[("hdd", "1T"), ("ssd", ssd)]);
        planned(dir);
        let both = simulated(&["--plan", "p.toml"]);
        let held = both["plan"]["default"]["servers"][1]["held_bytes"].as_u64().unwrap();
        assert!(held <= 1 << 20, "{held} bytes on an SSD of {ssd}");
        let gain = both["plan"]["gain_over_default"].as_f64().unwrap();
        let promised = both["plan"]["promised_gain"].as_f64().unwrap();
        assert!((gain - promised).abs() < 1e-9, "{ssd}: {gain}, and {promised} were promised");
        // Whoever asks for stripes alone is told when they fill a server.
        let alone = simulated(&[]);
        assert!(alone["servers"][1]["full_at_seconds"].is_number(), "{alone}");
    }
    // What the plan says nothing of has what room is left.
    let write = |begin: u64| {
        let mut run = Writer::new(Vec::new(), &Source::new(Kind::Generated)).unwrap();
        for name in ["/data/a", "/data/other"] {
            run.file(name.as_bytes()).unwrap();
        }
        run.process(&Process { number: 1, node: Vec::new() }).unwrap();
        for at in 0..128 {
            let (start_ns, file, op) = (at, u32::from(at % 2 == 1), Op::Write);
            let (offset, length) = (begin + at / 2 * 65_536, 65_536);
            let one = Request { start_ns, duration_ns: None, process: 0, file, op, offset, length };
            run.push(&one).unwrap();
        }
        fs::write(dir.join("t.hct"), run.finish().unwrap()).unwrap();
    };
    write(0);
    let both = simulated(&["--plan", "p.toml"]);
    assert_eq!(both["plan"]["other_files"], 1, "{both}");
    for replayed in [&both, &both["plan"]["default"]] {
        assert!(replayed["servers"][1]["held_bytes"].as_u64().unwrap() <= 1 << 20, "{both}");
        assert!(replayed["servers"][1]["full_at_seconds"].is_null(), "{both}");
    }
    write(1 << 40);
    let simulate = ["simulate", "t.hct", "--servers", "servers.toml", "--plan", "p.toml"];
    let output = halocline(dir, &simulate);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("fit on no server"), "{}", said(&output));
}

/// `apply` and `verify` had it: of a run with another mount point the plan had no file.
#[test]
fn a_run_below_another_mount_is_simulated_under_the_plan() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    servers(dir, &[("hdd", "1T"), ("hdd", "1T"), ("ssd", "1G")]);
    planned(dir);
    let source = Source { name: "/elsewhere".into(), ..Source::new(Kind::MountDirect) };
    let mut run = Writer::new(Vec::new(), &source).unwrap();
    for name in ["/elsewhere/a", "/elsewhere/b"] {
        run.file(name.as_bytes()).unwrap();
    }
    run.process(&Process { number: 1, node: Vec::new() }).unwrap();
    for at in 0..64 {
        let (start_ns, file, op) = (at, u32::from(at == 63), Op::Read);
        let (offset, length) = (at * 37 % 64 * 65_536, 65_536);
        let one = Request { start_ns, duration_ns: None, process: 0, file, op, offset, length };
        run.push(&one).unwrap();
    }
    fs::write(dir.join("run.hct"), run.finish().unwrap()).unwrap();
    let simulate = ["simulate", "run.hct", "--servers", "servers.toml", "--json"];
    let output = halocline(dir, &[&simulate[..], &["--plan", "p.toml"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("take it off with --below"), "{}", said(&output));
    let output =
        halocline(dir, &[&simulate[..], &["--plan", "p.toml", "--below", "/data"]].concat());
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["plan"]["files"], &answer["plan"]["other_files"]), (&1.into(), &1.into()));
    assert!(answer["plan"]["gain_over_default"].as_f64().unwrap() > 1.0, "{answer}");
}

#[test]
fn requests_that_no_stripe_divides_are_planned_and_the_papers_layouts_say_why_they_are_not_there() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let mut csv = "time_s,process,file,op,offset,length\n".to_owned();
    for n in 0..64_u64 {
        writeln!(csv, "{n},{},/data/a,write,{},65537", n % 2, n * 37 % 64 * 65_537).unwrap();
    }
    fs::write(dir.join("t.csv"), csv).unwrap();
    let import = ["trace", "import", "t.csv", "-o", "t.hct"];
    assert!(halocline(dir, &import).status.success());
    servers(dir, &[("hdd", "1T"), ("hdd", "1T"), ("ssd", "1M"), ("ssd", "1M")]);
    let plan = ["plan", "t.hct", "--servers", "servers.toml", "--json", "--html", "page.html"];
    let output = halocline(dir, &plan);
    assert!(output.status.success(), "{}", said(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = json["layouts"]["psa"]["unavailable"].as_str().unwrap();
    assert!(why.contains("divide its requests of 65537 bytes"), "{why}");
    assert!(json["layouts"]["ours"]["simulated_seconds"].as_f64() > Some(0.0), "{json}");
    let page = fs::read_to_string(dir.join("page.html")).unwrap();
    assert!(page.contains("There is no layout psa: no stripes"), "the page says it, too");
    // Times that run backwards, and no requests at all, name what is wrong.
    let backwards = "time_s,process,file,op,offset,length\n5,0,/a,read,0,7\n1,0,/a,read,7,13\n";
    fs::write(dir.join("t.csv"), backwards).unwrap();
    let output = halocline(dir, &import);
    assert!(!output.status.success());
    assert!(said(&output).contains("line 3: time runs backwards"), "{}", said(&output));
    fs::write(dir.join("t.csv"), "time_s,process,file,op,offset,length\n").unwrap();
    let output = halocline(dir, &import);
    assert_eq!(output.status.code(), Some(2), "it replaces no trace with requests");
    fs::remove_file(dir.join("t.hct")).unwrap();
    assert!(halocline(dir, &import).status.success());
    for command in ["plan", "advise", "simulate"] {
        let output = halocline(dir, &[command, "t.hct", "--servers", "servers.toml"]);
        assert!(!output.status.success() && said(&output).contains("no requests"), "{command}");
    }
}

/// What a job computes between its requests is not made faster: 1357 % more throughput were promised to one that is done 1.5 %
/// sooner.
#[test]
fn the_gain_of_a_job_that_computes_is_told_beside_that_of_its_requests() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    servers(dir, &[("hdd", "1T"), ("hdd", "1T"), ("ssd", "1G")]);
    let planned = |every_ms: u64, more: &[&str]| {
        let mut csv = "time_s,process,file,op,offset,length,duration_s\n".to_owned();
        for n in 0..256_u64 {
            let (offset, at_ms) = (n * 151 % 256 * 65_536, n * every_ms);
            writeln!(
                csv,
                "{}.{:03},0,/data/a,read,{offset},65536,0.010",
                at_ms / 1000,
                at_ms % 1000
            )
            .unwrap();
        }
        fs::write(dir.join("t.csv"), csv).unwrap();
        assert!(halocline(dir, &["trace", "import", "t.csv", "-o", "t.hct"]).status.success());
        let plan = ["plan", "t.hct", "--servers", "servers.toml", "--html", "page.html"];
        let output = halocline(dir, &[&plan[..], more].concat());
        assert!(output.status.success(), "{}", said(&output));
        written(&output)
    };
    let json = |every_ms| -> serde_json::Value {
        let answer = serde_json::from_str(&planned(every_ms, &["--json"])).unwrap();
        assert_eq!(Section::find("halocline plan").unwrap().undescribed(&answer), [""; 0]);
        answer
    };
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let mut worth = Vec::new();
    for (every_ms, share) in [(10, 1.0), (100, 0.1), (5000, 0.002)] {
        let answer = json(every_ms);
        assert!((number(&answer["io_share"]) - share).abs() < share * 0.05, "{answer}");
        assert!(number(&answer["best_gain"]) > 1.0, "the requests gain: {answer}");
        assert!(number(&answer["job"]["gain"]) < number(&answer["best_gain"]) + 0.1, "{answer}");
        worth.push(number(&answer["job"]["gain"]));
        let is_left = answer["chosen"] == "def";
        assert_eq!(is_left, every_ms == 5000, "{answer}");
        assert_eq!(is_left, number(&answer["gain_over_def"]) == 0.0, "{answer}");
    }
    assert!(worth[0] > 1.0 && (0.01..0.2).contains(&worth[1]) && worth[2] < 0.01, "{worth:?}");
    let told = planned(100, &[]);
    assert!(told.contains("a request under way in 10.0 % of its time"), "{told}");
    assert!(told.contains(": it gains "), "{told}");
    let told = planned(5000, &[]);
    assert!(
        told.contains("leave the layout alone; the job, which also computes, would gain"),
        "{told}"
    );
    // A line that is printed stays one: its break was shown instead.
    assert!(!told.contains("\\n"), "{told}");
    let page = fs::read_to_string(dir.join("page.html")).unwrap();
    assert!(page.contains("The job had a request under way in 0.2 %"), "{page}");
    // Without durations nobody knows what was computed.
    trace(dir);
    let output = halocline(dir, &["plan", "t.hct", "--servers", "servers.toml"]);
    assert!(written(&output).contains("the trace does not say how long"), "{}", written(&output));
    assert!(!said(&output).contains("too few"), "{}", said(&output));
}

/// "16608 % more, give or take 1868 %" was all that was said of two requests.
#[test]
fn a_plan_from_a_few_requests_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    servers(dir, &[("hdd", "1T"), ("ssd", "1G")]);
    let csv =
        "time_s,process,file,op,offset,length\n0,0,/a,read,0,65536\n1,0,/a,read,1048576,65536\n";
    fs::write(dir.join("t.csv"), csv).unwrap();
    assert!(halocline(dir, &["trace", "import", "t.csv", "-o", "t.hct"]).status.success());
    let plan = ["plan", "t.hct", "--servers", "servers.toml", "--json", "--html", "page.html"];
    let output = halocline(dir, &plan);
    assert!(said(&output).contains("t.hct: 2 requests: too few"), "{}", said(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["few_requests"], &json["job"]), (&true.into(), &serde_json::Value::Null));
    let page = fs::read_to_string(dir.join("page.html")).unwrap();
    assert!(page.contains("too few to say"), "the page says it, too");
}
