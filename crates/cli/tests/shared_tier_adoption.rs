//! A tier of one node becomes a shared one by commands.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
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

/// Regression: directories on the SSD had no numbers, so that after a rename checks told of differences, and a rebuild gave their
/// files the former names.
#[test]
fn directories_of_an_adopted_tier_are_renamed_by_each_node() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["m", "k"]) else { return };
    let Some(store) = RedisServer::start(&[]) else { return };
    for disk in ["n1/ssd", "n1/hdd", "n2/ssd"] {
        fs::create_dir_all(scratch.path(disk)).unwrap();
    }
    symlink(scratch.path("n1/hdd"), scratch.path("n2/hdd")).unwrap();
    let at = |path: &str| scratch.path(path);
    scratch.succeed(&["mount", "--tier", "n1", "m"]);
    fs::create_dir_all(at("m/d/s")).unwrap();
    for file in ["m/d/f", "m/d/s/g"] {
        fs::write(at(file), file).unwrap();
    }
    scratch.succeed(&["umount", "m"]);
    let done = adopt(&scratch, "n1", &store.url(), &["--repair"]);
    assert!(done.status.success(), "{}", said(&done));
    let (url, peers) = (store.url(), at("{node}/ssd").to_str().unwrap().to_owned());
    let shared = ["--cluster", &url, "--peers", &peers];
    let mount = |root: &str, mountpoint: &str| {
        let of_node = ["mount", "--tier", root, mountpoint, "--node", root];
        scratch.succeed(&[&of_node[..], &shared].concat());
    };
    let check = |more: &[&str]| {
        let fsck = ["cluster", "fsck", "--tier", "n1"];
        scratch.succeed(&[&fsck[..], &shared, more].concat());
    };
    let names = |directory: &str| {
        for (file, text) in [("f", "m/d/f"), ("s/g", "m/d/s/g"), ("of n2", "of n2")] {
            assert_eq!(fs::read_to_string(at(directory).join(file)).unwrap(), text);
        }
        assert_eq!(fs::read_dir(at(directory).parent().unwrap()).unwrap().count(), 1);
    };
    mount("n1", "m");
    mount("n2", "k");
    fs::write(at("k/d/of n2"), "of n2").unwrap();
    fs::rename(at("k/d"), at("k/by n2")).unwrap();
    names("m/by n2");
    fs::rename(at("m/by n2"), at("m/by n1")).unwrap();
    names("k/by n1");
    scratch.succeed(&["umount", "m"]);
    scratch.succeed(&["umount", "k"]);
    check(&[]);
    store.command(&["flushall"]);
    check(&["--repair"]);
    check(&[]);
    mount("n1", "m");
    mount("n2", "k");
    names("m/by n1");
    scratch.succeed(&["umount", "m"]);
    scratch.succeed(&["umount", "k"]);
}

/// Regression: a tier whose adoption had begun was mounted without --cluster, and names were missing. Once the SSD was that of the
/// node, the command that was to complete it was refused.
#[test]
fn a_tier_whose_adoption_was_not_finished_is_not_mounted_alone() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["m"]) else { return };
    let Some(store) = RedisServer::start(&[]) else { return };
    for disk in ["a/ssd", "a/hdd"] {
        fs::create_dir_all(scratch.path(disk)).unwrap();
    }
    scratch.succeed(&["mount", "--tier", "a", "m"]);
    fs::write(scratch.path("m/f"), "f").unwrap();
    fs::create_dir(scratch.path("m/d")).unwrap();
    scratch.succeed(&["umount", "m"]);
    let refused = |args: &[&str], remedy: &str| {
        let refused = scratch.halocline(args);
        assert!(!refused.status.success() && said(&refused).contains(remedy), "{}", said(&refused));
    };
    let mount = ["mount", "--tier", "a", "m"];
    let url = store.url();
    let with_store = [&mount[..], &["--cluster", &url, "--node", "n1"]].concat();
    // One that is refused leaves nothing that a mount would show.
    fs::write(scratch.path("a/hdd/d"), "in the way").unwrap();
    let before = adopt(&scratch, "a", &url, &["--repair"]);
    assert!(said(&before).contains("nothing was changed"), "{}", said(&before));
    assert!(!scratch.path("a/hdd/.halocline-cluster").exists());
    fs::remove_file(scratch.path("a/hdd/d")).unwrap();
    // As it is from before its first change.
    let private = |name: &str| scratch.path("a/hdd/.halocline").join(name);
    fs::write(private("being-adopted"), "n1").unwrap();
    refused(&mount, "--adopt NODE --repair");
    refused(&["fsck", "a", "--repair"], "--adopt NODE --repair");
    refused(&with_store, "--adopt NODE --repair");
    let done = adopt(&scratch, "a", &url, &["--repair"]);
    assert!(done.status.success(), "{}", said(&done));
    assert!(!private("being-adopted").exists());
    // As if it had been killed before the names were in the store.
    store.command(&["flushall"]);
    fs::remove_file(private("names")).unwrap();
    refused(&mount, "--repair");
    let done = adopt(&scratch, "a", &url, &["--repair"]);
    assert!(done.status.success() && said(&done).contains("already"), "{}", said(&done));
    refused(&mount, "--cluster");
    scratch.succeed(&with_store);
    assert_eq!(fs::read_to_string(scratch.path("m/f")).unwrap(), "f");
    scratch.succeed(&["umount", "m"]);
}

/// Regression: after an adoption that ended before its first change, the tier had `.halocline-cluster` among its names, and the same
/// command was then refused with a command that forgets the list. After a repair that was refused, each mount warned of its lock.
#[test]
fn what_a_refused_command_leaves_is_no_name_of_the_tier() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["m"]) else { return };
    let Some(store) = RedisServer::start(&[]) else { return };
    for disk in ["a/ssd", "a/hdd"] {
        fs::create_dir_all(scratch.path(disk)).unwrap();
    }
    let mount = ["mount", "--tier", "a", "m"];
    scratch.succeed(&mount);
    fs::write(scratch.path("m/f"), "f").unwrap();
    scratch.succeed(&["umount", "m"]);
    // The list is made before the store is asked, which does not answer here.
    let silent = adopt(&scratch, "a", "redis://127.0.0.1:1", &["--repair"]);
    assert!(!silent.status.success(), "{}", said(&silent));
    assert!(scratch.path("a/hdd/.halocline-cluster/id").exists());
    let repair = ["cluster", "fsck", "--tier", "a", "--cluster", &store.url(), "--repair"];
    let refused = scratch.halocline(&repair);
    assert!(said(&refused).contains("--adopt NODE"), "{}", said(&refused));
    assert!(scratch.path("a/hdd/.halocline/check/in-use").exists());
    for _ in 0..2 {
        let mounted = scratch.halocline(&mount);
        assert!(mounted.status.success() && said(&mounted).is_empty(), "{}", said(&mounted));
        assert_eq!(fs::read_dir(scratch.path("m")).unwrap().count(), 1);
        scratch.succeed(&["umount", "m"]);
        let checked = scratch.halocline(&["fsck", "a", "--repair"]);
        assert!(
            checked.status.success() && !said(&checked).contains("in-use"),
            "{}",
            said(&checked)
        );
    }
    let done = adopt(&scratch, "a", &store.url(), &["--repair"]);
    assert!(done.status.success(), "{}", said(&done));
    let url = store.url();
    scratch.succeed(&[&mount[..], &["--cluster", &url, "--node", "n1"]].concat());
    assert_eq!(fs::read_to_string(scratch.path("m/f")).unwrap(), "f");
    scratch.succeed(&["umount", "m"]);
}

/// Regression: pins, excludes and announced jobs stayed on the SSD, where nobody read them any more, and nothing said so.
#[test]
fn pins_excludes_and_jobs_are_those_of_the_shared_tier() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["m"]) else { return };
    let Some(store) = RedisServer::start(&[]) else { return };
    for disk in ["a/ssd", "a/hdd"] {
        fs::create_dir_all(scratch.path(disk)).unwrap();
    }
    let job = r#"{"job": "j", "references": ["d/f"]}"#;
    fs::write(scratch.path("job.json"), job).unwrap();
    scratch.succeed(&["mount", "--tier", "a", "m"]);
    fs::create_dir(scratch.path("m/d")).unwrap();
    fs::write(scratch.path("m/d/f"), "f").unwrap();
    scratch.succeed(&["pin", "d/**", "--on", "m"]);
    scratch.succeed(&["exclude", "x/**", "--on", "m"]);
    scratch.succeed(&["jobs", "add", "job.json", "--on", "m"]);
    scratch.succeed(&["umount", "m"]);
    for (more, verb) in [(&[][..], "would be"), (&["--repair"], "are")] {
        let done = adopt(&scratch, "a", &store.url(), more);
        let told = format!("2 globs of pin and exclude, and 1 job announced, {verb} those");
        assert!(done.status.success() && said(&done).contains(&told), "{}", said(&done));
    }
    let kept = |disk: &str| fs::read(scratch.path(disk).join(".halocline/rules.json"));
    assert!(kept("a/ssd").is_err());
    // As an earlier version has left it: the same command again takes it over.
    fs::rename(
        scratch.path("a/hdd/.halocline/rules.json"),
        scratch.path("a/ssd/.halocline/rules.json"),
    )
    .unwrap();
    let done = adopt(&scratch, "a", &store.url(), &["--repair"]);
    assert!(done.status.success(), "{}", said(&done));
    // Regression: it was checked as the tier of one node.
    let check = scratch.halocline(&["fsck", "a"]);
    let told = ["nodes share this tier", "halocline cluster fsck --tier"];
    assert_eq!(check.status.code(), Some(2), "{}", said(&check));
    assert!(told.iter().all(|part| said(&check).contains(part)), "{}", said(&check));
    scratch.succeed(&["mount", "--tier", "a", "m", "--cluster", &store.url(), "--node", "n1"]);
    let jobs = scratch.succeed(&["jobs", "list", "--on", "m"]);
    assert!(jobs.contains('j') && !jobs.contains("no jobs"), "{jobs}");
    let status = scratch.succeed(&["status", "m"]);
    assert!(status.contains("d/**") && status.contains("x/**"), "{status}");
    scratch.succeed(&["umount", "m"]);
}

/// Regression: root was told to give another user's list of sessions to root, after which that user's nodes could not mount. And
/// where hdd led to the SSD of a node, a mount was refused only after it had made files there.
#[test]
fn what_is_another_users_or_a_nodes_stays_as_it_is() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["m"]) else { return };
    let Some(store) = RedisServer::start(&[]) else { return };
    for disk in ["a/ssd", "a/hdd", "b/ssd"] {
        fs::create_dir_all(scratch.path(disk)).unwrap();
    }
    scratch.succeed(&["mount", "--tier", "a", "m", "--cluster", &store.url(), "--node", "n1"]);
    fs::write(scratch.path("m/f"), "f").unwrap();
    scratch.succeed(&["umount", "m"]);
    let names = || {
        let all = |dir| fs::read_dir(scratch.path(dir)).unwrap().map(|name| name.unwrap().path());
        let mut all: Vec<_> = all("a/ssd").chain(all("a/ssd/.halocline")).collect();
        all.sort();
        all
    };
    let before = names();
    symlink("../a/ssd", scratch.path("b/hdd")).unwrap();
    let url = store.url();
    let mount = ["mount", "--tier", "b", "m", "--cluster", &url, "--node", "n2"];
    let refused = scratch.halocline(&mount);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("this is the SSD of node n1"), "{}", said(&refused));
    assert_eq!(names(), before);
    assert!(!scratch.path("b/ssd/.halocline").exists());
    let list = scratch.path("a/hdd/.halocline-cluster");
    if chown(&list, Some(7001), Some(7001)).is_err() {
        return;
    }
    for command in [&["nodes", "a/hdd"][..], &["fsck", "--tier", "a"]] {
        let asked = [&["cluster"], command, &["--cluster", &url]].concat();
        let refused = scratch.halocline(&asked);
        let told = said(&refused);
        assert!(told.contains("setpriv --reuid 7001") && !told.contains("chown"), "{told}");
    }
}
