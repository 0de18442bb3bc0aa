//! Origin and cache on one device: what that means is said where somebody would look.

use std::fs;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;

const SAID: &str = "origin and cache lie on one file system";

/// Nothing was cached, and nothing said why.
#[test]
fn everything_that_tells_of_a_cache_says_so() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let run = ["run", "--origin", "origin", "--cache", "cache"];
    let true_ = ["--", "true"];
    let output = scratch.halocline(&[&run[..], &true_].concat());
    assert!(output.status.success() && said(&output).contains(SAID), "{}", said(&output));
    let output = scratch.halocline(&[&run[..], &["-q"], &true_].concat());
    assert!(!said(&output).contains(SAID), "{}", said(&output));
    let output = scratch.halocline(&["mount", "origin", "mnt", "--cache", "cache"]);
    assert!(output.status.success() && said(&output).contains(SAID), "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    assert!(scratch.succeed(&["status", "mnt"]).contains(SAID));
    assert!(scratch.status("mnt")["notes"][0].as_str().unwrap().contains(SAID));
    assert!(scratch.succeed(&["explain", "mnt/data", "0", "4K"]).contains(SAID));
    scratch.succeed(&["umount", "mnt"]);
    // Over the origin itself, which is another device then.
    let output = scratch.halocline(&["mount", "origin", "origin", "--cache", "cache"]);
    assert!(output.status.success() && said(&output).contains(SAID), "{}", said(&output));
    scratch.succeed(&["umount", "origin"]);
    let doctor = scratch.halocline(&["doctor", "--origin", "origin", "--cache", "cache"]);
    assert!(written(&doctor).contains(SAID), "{}", written(&doctor));
}

#[test]
fn emulated_devices_are_two() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::remove_file(scratch.path("origin/data")).unwrap();
    let output =
        scratch.halocline(&["mount", "origin", "mnt", "--cache", "cache", "--emulate", "hdd+ssd"]);
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
    assert_eq!(scratch.status("mnt")["notes"][0], serde_json::Value::Null);
}
