//! `halocline plan --html`: the page as a browser sees it.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::skipping::skip;

/// A name that would be a script if it were not text.
const EVIL: &str = "/data/<script>document.title='evil'</script><img src=x onerror=alert(1)>&'.h5";
const BROWSERS: [&str; 3] = ["chromium-headless-shell", "chromium", "chromium-browser"];

fn halocline(dir: &Path, args: &[&str]) -> Output {
    Command::new(program!()).args(args).current_dir(dir).output().unwrap()
}

/// Random reads of a file with an evil name, then writes of it, and writes of another file.
fn trace(dir: &Path) {
    let mut csv = "time_s,process,file,op,offset,length,duration_s\n".to_owned();
    for n in 0..256_u64 {
        let (offset, process) = (n * 151 % 256 * 65_536, n % 4);
        writeln!(csv, "{n}.0,{process},\"{EVIL}\",read,{offset},65536,0.5").unwrap();
    }
    for n in 0..16_u64 {
        let (at, offset) = (256 + n, (16 + n) << 20);
        writeln!(csv, "{at}.0,0,\"{EVIL}\",write,{offset},1048576,0.5").unwrap();
        writeln!(csv, "{at}.0,1,/data/other,write,{},4096,0.5", n * 4096).unwrap();
    }
    fs::write(dir.join("t.csv"), csv).unwrap();
    let output = halocline(dir, &["trace", "import", "t.csv", "-o", "t.hct"]);
    assert!(output.status.success(), "{}", said(&output));
}

fn servers(dir: &Path, count: usize) {
    let mut text = String::new();
    for index in 0..count {
        let (profile, capacity) = if index % 3 == 2 { ("ssd", "8M") } else { ("hdd", "1T") };
        writeln!(text, "[[server]]\nname = \"<b>s{index}\"\nprofile = \"{profile}\"").unwrap();
        writeln!(text, "capacity = \"{capacity}\"").unwrap();
    }
    fs::write(dir.join("servers.toml"), text).unwrap();
}

/// Writes the page of a plan, and answers it.
fn page(dir: &Path) -> String {
    let plan = ["plan", "t.hct", "--servers", "servers.toml", "--html", "page.html"];
    let output = halocline(dir, &plan);
    assert!(output.status.success(), "{}", said(&output));
    fs::read_to_string(dir.join("page.html")).unwrap()
}

#[test]
fn a_page_has_its_figures_and_no_markup_of_others() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    servers(dir, 3);
    let page = page(dir);
    let figures = [
        "throughput",
        "sizes",
        "load-def",
        "load-pa",
        "load-psa",
        "load-ours",
        "map-0-reads",
        "map-0-writes",
        "map-1-writes",
    ];
    for id in figures {
        let figure = page.split(&format!("<figure id=\"{id}\">")).nth(1).expect(id);
        let figure = figure.split("</figure>").next().unwrap();
        assert!(figure.contains("<svg role=\"img\" aria-label=\""), "{id}: {figure}");
        assert!(figure.contains("<rect ") && figure.contains("<figcaption>"), "{id}: {figure}");
    }
    assert_eq!(page.matches("<figure").count(), figures.len());
    for part in ["<script", "<img", "<b>", "onerror=alert(1)>", "http://", "url("] {
        let found = page.replace("http://www.w3.org/2000/svg", "").contains(part);
        assert!(!found, "{part}");
    }
    assert!(page.contains("&lt;script&gt;document.title=&#39;evil&#39;"), "names are shown");
    assert!(page.contains("the trace, measured"), "{page}");
    let verdict = page.split("<strong>").nth(1).and_then(|rest| rest.split('<').next());
    assert!(["Leave the layout alone", "ours: "].iter().any(|it| verdict.unwrap().starts_with(it)));
    // Written like other results: whole or not at all, and where it can be.
    let output = halocline(dir, &["plan", "t.hct", "--servers", "servers.toml", "--html", "no/p"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    fs::write(dir.join("t.hct"), "junk").unwrap();
    halocline(dir, &["plan", "t.hct", "--servers", "servers.toml", "--html", "page.html"]);
    assert_eq!(fs::read_to_string(dir.join("page.html")).unwrap(), page);
}

#[test]
fn many_servers_are_shown_by_their_kind() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    servers(dir, 15);
    let page = page(dir);
    assert!(page.contains("10 servers (hdd)") && page.contains("5 servers (ssd)"), "{page}");
}

/// What a person with a narrow screen sees, measured by a script in a page around it: the page itself may have none.
const AROUND: &str = r#"<!DOCTYPE html><title>measuring</title>
<iframe src="page.html" width="400" height="800" style="border:0"></iframe><p id="seen"></p><script>
window.onload = () => {
  const page = document.querySelector('iframe').contentDocument;
  const shown = [...page.querySelectorAll('figure svg')].filter(svg => {
    const box = svg.getBoundingClientRect();
    return box.width > 200 && box.right <= 400 && box.height > 20 && svg.querySelectorAll('rect').length > 0;
  });
  const text = [...page.querySelectorAll('svg text')].map(text => text.getBoundingClientRect());
  document.getElementById('seen').textContent = JSON.stringify({
    figures: page.querySelectorAll('figure').length, shown: shown.length,
    wide: page.documentElement.scrollWidth - page.documentElement.clientWidth, cut: text.filter(box => box.left < 0 || box.right > 400).length,
    small: text.filter(box => Math.min(box.width, box.height) < 5).length,
    scripts: page.scripts.length, images: page.images.length, title: page.title,
    table: page.querySelectorAll('table').length });
};
</script>"#;

#[test]
fn a_browser_shows_all_figures_on_a_narrow_screen_and_complains_of_nothing() {
    let found = BROWSERS.into_iter().find(|browser| {
        Command::new(browser).arg("--version").output().is_ok_and(|it| it.status.success())
    });
    let Some(browser) = found else { return skip("chromium is not installed") };
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    trace(dir);
    servers(dir, 3);
    page(dir);
    fs::write(dir.join("around.html"), AROUND).unwrap();
    let browse = |page: &str| {
        let address = format!("file://{}", dir.join(page).display());
        let mut command = Command::new("timeout");
        command.args(["300", browser, "--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--disable-dev-shm-usage", "--allow-file-access-from-files"]);
        command.arg(format!("--user-data-dir={}", dir.join("profile").display()));
        command.args(["--enable-logging=stderr", "--dump-dom", &address]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        // What pages and their policies complain of is written there so.
        assert!(!said(&output).contains("CONSOLE"), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let alone = browse("page.html");
    assert_eq!(alone.matches("<figure").count(), 9, "{alone}");
    let dom = browse("around.html");
    let seen = dom.split("<p id=\"seen\">").nth(1).and_then(|rest| rest.split("</p>").next());
    let seen = seen.expect("a measurement").replace("&lt;", "<").replace("&gt;", ">");
    let seen: serde_json::Value = serde_json::from_str(&seen).expect(&seen);
    for (key, expected) in
        [("figures", 9), ("shown", 9), ("wide", 0), ("cut", 0), ("small", 0), ("scripts", 0)]
    {
        assert_eq!(seen[key], expected, "{key}: {seen}");
    }
    assert_eq!((&seen["images"], &seen["title"]), (&0.into(), &"Plan for t.hct".into()));
    assert!(seen["table"].as_u64() > Some(5), "each figure has its numbers: {seen}");
}

/// All servers of a kind had the same stripes: four files of four processes on four disks took 16 times as long.
#[test]
fn files_that_get_a_disk_each_are_told_in_words() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let halocline = |args: &[&str]| {
        let output = Command::new(program!()).args(args).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        output
    };
    let disk =
        |name| format!("[[server]]\nname = \"{name}\"\nprofile = \"hdd\"\ncapacity = \"1T\"\n");
    fs::write(dir.join("servers.toml"), ["a", "b", "c", "d"].map(disk).concat()).unwrap();
    halocline(&["trace", "make", "-o", "t.hct", "ior", "-p", "4", "-b", "4M", "-t", "64K", "-F"]);
    let plan = ["plan", "t.hct", "--servers", "servers.toml", "--html", "page.html", "--json"];
    let json: serde_json::Value = serde_json::from_slice(&halocline(&plan).stdout).unwrap();
    let seconds = |name: &str| json["layouts"][name]["simulated_seconds"].as_f64().unwrap();
    assert!(seconds("ours") * 10.0 < seconds("def"), "{json}");
    let note = "ach file lies on one server, so that";
    assert!(json["notes"][0].as_str().unwrap().contains(note), "{json}");
    let page = fs::read_to_string(dir.join("page.html")).unwrap();
    assert!(page.contains(&format!("E{note}")), "{page}");
}
