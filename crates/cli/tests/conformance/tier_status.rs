//! What `status` and `explain` tell of a real tier mount.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::mount::{self, Mount};
use crate::programs;

/// `halocline explain FILE --json`.
fn explain(file: &Path) -> Value {
    let output = programs::run(programs::halocline().arg("explain").arg(file).arg("--json"));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn says(told: &Value, list: &str, part: &str) -> bool {
    let sentences = told[list].as_array().expect("a list");
    sentences.iter().any(|sentence| sentence.as_str().is_some_and(|text| text.contains(part)))
}

fn halocline(args: &[&str], path: &Path) {
    programs::run(programs::halocline().args(args).arg(path));
}

#[test]
fn status_and_explain_tell_where_files_are_and_why() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--ssd-limit", "8M", "--passthrough=false"]);
    let path = |name: &str| mount.path().join(name);
    for name in ["hot", "cold", "pinned", "left out"] {
        fs::write(path(name), vec![1; 300_000]).expect("write");
    }
    halocline(&["demote"], &path("cold"));
    halocline(&["pin", "pinned", "--on"], &mount.path());
    halocline(&["exclude", "left out", "--on"], &mount.path());
    fs::hard_link(path("hot"), path("second")).expect("link");
    // Below the mount, and larger than the SSD.
    fs::write(mount.root().join("hdd/large"), vec![2; 9 << 20]).expect("write");
    mount.unmount();
    mount.start();
    let path = |name: &str| mount.path().join(name);
    let mut large = File::open(path("large")).expect("open");
    let mut buffer = vec![0; 1 << 20];
    large.read_exact(&mut buffer).expect("read");
    fs::write(path("new"), vec![3; 100_000]).expect("write");

    let told = explain(&path("large"));
    assert_eq!((&told["tier_name"], &told["too_large"]), (&"hdd".into(), &true.into()));
    assert_eq!((&told["handles"], &told["opens"]), (&1.into(), &1.into()));
    assert!(says(&told, "reasons", "larger than the SSD"), "{told}");
    let told = explain(&path("cold"));
    assert_eq!((&told["tier"], &told["opens"]), (&1.into(), &0.into()));
    assert!(says(&told, "remedies", "halocline warm"), "{told}");
    let told = explain(&path("pinned"));
    assert_eq!((&told["tier"], &told["leaves_after"]), (&0.into(), &Value::Null));
    assert!(says(&told, "reasons", "pin glob"), "{told}");
    let told = explain(&path("left out"));
    assert_eq!((&told["tier"], &told["excluded"]), (&1.into(), &true.into()));
    assert!(says(&told, "reasons", "exclude glob"), "{told}");
    let told = explain(&path("hot"));
    assert_eq!((&told["hard_links"], &told["may_leave"]), (&2.into(), &2.into()));
    assert!(says(&told, "reasons", "hard links"), "{told}");

    let status = mount.status();
    let requests = &status["tier"]["requests"];
    assert!(requests["in_place"]["reads"].as_u64() >= Some(1), "{requests}");
    assert!(requests["in_place"]["read_bytes"].as_u64() >= Some(1 << 20), "{requests}");
    assert!(requests["on_ssd"]["written_bytes"].as_u64() >= Some(100_000), "{requests}");
    assert_eq!(status["tier"]["moving"], Value::Array(vec![]), "nothing moves now");
    assert!(status["tier"]["opens"]["in_place"].as_u64() >= Some(1));
    // For people, too.
    let shown = programs::run(programs::halocline().arg("status").arg(mount.path()));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for part in ["in place, on lower tiers: ", "not counted", "moving ", "promoted "] {
        assert!(shown.contains(part), "{shown}");
    }
    let shown = programs::run(programs::halocline().arg("explain").arg(path("hot")));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("because"));
}

#[test]
fn explain_wants_a_range_on_a_cache_and_none_on_a_tier() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let (cache, tier) = (Mount::new(&[]), Mount::tier(&[]));
    let refused = |mount: &Mount, range: &[&str], part: &str| {
        let file = mount.path().join("file");
        fs::write(&file, b"content").expect("write");
        let output = programs::halocline().arg("explain").arg(&file).args(range).output();
        let output = output.expect("starts");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(part), "{message}");
    };
    refused(&cache, &[], "give OFFSET and LENGTH");
    refused(&cache, &["0"], "LENGTH");
    refused(&tier, &["0", "7"], "without OFFSET and LENGTH");
    programs::run(
        programs::halocline().arg("explain").arg(cache.path().join("file")).args(["0", "7"]),
    );
    let output = programs::halocline().arg("explain").arg(tier.path()).output().expect("starts");
    assert!(!output.status.success(), "the root is not a file");
}
