//! `halocline pin`, `unpin` and `exclude`, from wherever they are typed.

use std::fs;

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;

/// `pin MNT/b` said that `.` is on no mount.
#[test]
fn the_mount_is_found_by_the_beginning_of_the_glob() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::create_dir(scratch.path("origin/sub")).unwrap();
    std::os::unix::fs::symlink("mnt", scratch.path("link")).unwrap();
    scratch.succeed(&["mount", "origin", "mnt", "--cache", "cache"]);
    let absolute = scratch.path("mnt/sub/*.idx").into_os_string().into_string().unwrap();
    for (glob, pinned) in [
        ("mnt/data", "data"),
        ("mnt/not-yet/there", "not-yet/there"),
        ("./link/**/*.log", "**/*.log"),
        (absolute.as_str(), "sub/*.idx"),
    ] {
        let told = scratch.succeed(&["pin", glob]);
        assert!(told.contains(pinned) && !told.contains("mnt/"), "{glob}: {told}");
    }
    let told = scratch.succeed(&["unpin", "mnt/data"]);
    assert!(!told.contains("pin: data"), "{told}");
    for glob in ["nothing/of/that", "*.idx", "/"] {
        let output = scratch.halocline(&["pin", glob]);
        assert_eq!(output.status.code(), Some(2), "{glob}: {}", said(&output));
        for part in ["begin it with the mount point", "--on"] {
            assert!(said(&output).contains(part), "{glob}: {}", said(&output));
        }
    }
}

/// The status was 1, which is that of an operation that failed.
#[test]
fn what_a_mount_does_not_change_is_refused() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    scratch.succeed(&["mount", "origin", "mnt", "--cache", "cache"]);
    for args in
        [&["unpin", "no-such-pin"][..], &["exclude", "--remove", "no-such-exclude"], &["pin", "a["]]
    {
        let output = scratch.halocline(&[args, &["--on", "mnt"]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
    }
}
