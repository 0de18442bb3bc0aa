//! Names that are not UTF-8: whatever is written down or told about a file works with them, too.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use serde_json::{Value, json};

const ODD: &[u8] = b"odd\xff";

/// What was saved of a conflict could not be written down, which ended the thread that flushed: the
/// flush never ended, nor did the unmount.
#[test]
fn a_conflict_is_told_and_saved() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let odd = OsStr::from_bytes(ODD);
    fs::write(scratch.path("origin").join(odd), vec![1; 65536]).unwrap();
    let keep = ["--policy", "always", "--max-dirty-age", "1h", "--rebuild=false"];
    scratch.succeed(&[&["mount", "origin", "mnt", "--cache", "cache"][..], &keep].concat());
    let write = |dir: &str, byte, at| {
        let file = File::options().write(true).open(scratch.path(dir).join(odd)).unwrap();
        file.write_all_at(&[byte; 4096], at).unwrap();
    };
    write("mnt", 2, 8192);
    write("origin", 3, 16384);
    let output = scratch.command(&["flush", "mnt", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let told: Value = serde_json::from_str(&written(&output)).unwrap();
    assert_eq!(told["conflicts"][0]["path"], json!(ODD), "{told}");
    scratch.succeed(&["umount", "mnt"]);
    let saved = fs::read_dir(scratch.path("cache/conflicts")).unwrap();
    let saved = saved.map(|entry| entry.unwrap().path());
    let told = saved.into_iter().find(|path| path.extension() == Some("json".as_ref())).unwrap();
    let told: Value = serde_json::from_slice(&fs::read(told).unwrap()).unwrap();
    assert_eq!((&told["path"], &told["extents"]), (&json!(ODD), &json!([[8192, 4096]])));
    assert_eq!(fs::read(scratch.path("origin").join(odd)).unwrap()[16384], 3);
}

/// `fsck --json` failed, and `fsck --repair` ended in a panic.
#[test]
fn a_check_tells_of_it() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let odd = OsStr::from_bytes(ODD);
    let keep = ["--policy", "always", "--max-dirty-age", "1h", "--rebuild=false"];
    scratch.succeed(&[&["mount", "origin", "mnt", "--cache", "cache"][..], &keep].concat());
    fs::write(scratch.path("mnt").join(odd), vec![1; 65536]).unwrap();
    let output = scratch.once_unused(&["umount", "mnt", "--keep-dirty"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    fs::remove_file(scratch.path("origin").join(odd)).unwrap();
    let output = scratch.halocline(&["fsck", "cache", "--json"]);
    let told: Value = serde_json::from_str(&written(&output)).unwrap();
    assert_eq!(told["problems"][0]["path"], json!(ODD), "{told}");
}

/// The mount ended in a panic.
#[test]
fn a_tier_lies_below_it() {
    let Some(place) = Scratch::new(program!()) else { return };
    let root = place.root().join(OsStr::from_bytes(ODD));
    for tier in ["ssd", "hdd"] {
        fs::create_dir_all(root.join(tier)).unwrap();
    }
    fs::write(root.join("hdd/file"), "bytes").unwrap();
    for _ in 0..2 {
        let mut mount = place.command(&["mount", "mnt", "--tier"]);
        let output = mount.arg(&root).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(fs::read(place.path("mnt/file")).unwrap(), b"bytes");
        assert!(place.halocline(&["umount", "mnt"]).status.success());
    }
    let output = place.command(&["fsck", "--json"]).arg(&root).output().unwrap();
    let told: Value = serde_json::from_str(&written(&output)).unwrap();
    assert_eq!(told["problems"], json!([]), "{told}");
}
