//! A tier of one node becomes a shared one by commands.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;

/// Adopts the tier in a directory.
fn adopt(scratch: &Scratch, root: &str, url: &str, more: &[&str]) -> Output {
    let adopt = ["cluster", "fsck", "--tier", root, "--cluster", url, "--adopt", "n1"];
    scratch.halocline(&[&adopt[..], more].concat())
}

/// Regression: the links of a tier that was moved lead to where it was. They became links of users, and the files on the disk
/// below had the names of the directories that they had been in.
#[test]
fn a_tier_that_was_moved_keeps_the_names_of_its_files() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["m"]) else { return };
    let Some(store) = RedisServer::start(&[]) else { return };
    for disk in ["a/ssd", "a/hdd"] {
        fs::create_dir_all(scratch.path(disk)).unwrap();
    }
    let at = |path: &str| scratch.path("m").join(path);
    scratch.succeed(&["mount", "--tier", "a", "m"]);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), "below").unwrap();
    fs::write(at("d/two"), "has two names").unwrap();
    fs::hard_link(at("d/two"), at("d/more")).unwrap();
    scratch.succeed(&["demote", "m/d"]);
    fs::rename(at("d"), at("e")).unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), "another").unwrap();
    fs::write(at("hot"), "hot").unwrap();
    fs::hard_link(at("hot"), at("d/hot")).unwrap();
    scratch.succeed(&["umount", "m"]);
    fs::rename(scratch.path("a"), scratch.path("b")).unwrap();
    for more in [&[][..], &["--repair"]] {
        let done = adopt(&scratch, "b", &store.url(), more);
        assert!(done.status.success(), "{}", said(&done));
        assert!(said(&done).contains("3 names below"), "{}", said(&done));
    }
    let mount = ["mount", "--tier", "b", "m", "--cluster", &store.url(), "--node", "n1"];
    scratch.succeed(&mount);
    let text = |path: &str| fs::read_to_string(at(path)).unwrap();
    assert_eq!((text("e/f"), text("d/f")), ("below".to_owned(), "another".to_owned()));
    assert_eq!((text("e/more"), text("hot")), ("has two names".to_owned(), "hot".to_owned()));
    for path in ["e/two", "hot"] {
        assert_eq!(fs::metadata(at(path)).unwrap().nlink(), 2, "{path}");
    }
    // Regression: its bytes stayed with the last name gone, and came back in a rebuild.
    for path in ["e/two", "e/more", "hot", "d/hot"] {
        fs::remove_file(at(path)).unwrap();
    }
    scratch.succeed(&["umount", "m"]);
    let mut find = Command::new("find");
    find.arg(scratch.path("b")).args([
        "-type", "f", "(", "-name", "two", "-o", "-name", "more", "-o", "-name", "hot", ")",
    ]);
    let left = find.output().unwrap();
    assert!(left.stdout.is_empty(), "{left:?}");
    let checked = ["cluster", "fsck", "--tier", "b", "--cluster", &store.url()];
    scratch.succeed(&checked);
}
