//! Trees of hard links on a file tier, as snapshots and package stores make them: they go down and
//! come up as one file each, whoever uses them meanwhile and whenever the mount is killed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use halocline_testkit::closes;
use halocline_testkit::waiting::eventually;
use serde_json::Value;

use crate::kill::Random;
use crate::mount::{self, Mount};
use crate::programs;
use crate::tier_migrations::Migrations;

const FILES: u64 = 40;
const KILLS: u64 = 15;

/// Content by path, and the paths of each file by its number.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tree {
    content: BTreeMap<PathBuf, Vec<u8>>,
    files: BTreeMap<u64, Vec<PathBuf>>,
}

impl Tree {
    /// What is below `root`. Asserts that each file has as many names as it says.
    fn read(root: &Path) -> Self {
        let (mut tree, mut links) = (Self::default(), BTreeMap::new());
        let mut dirs = vec![root.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).expect("directory") {
                let path = entry.expect("entry").path();
                let meta = fs::symlink_metadata(&path).expect("attributes");
                if meta.is_dir() {
                    dirs.push(path);
                    continue;
                }
                assert!(meta.is_file(), "{} is not a file", path.display());
                let name = path.strip_prefix(root).expect("below").to_owned();
                tree.content.insert(name.clone(), fs::read(&path).expect("content"));
                tree.files.entry(meta.ino()).or_default().push(name);
                links.insert(meta.ino(), meta.nlink());
            }
        }
        for (number, names) in &mut tree.files {
            names.sort();
            assert_eq!(names.len() as u64, links[number], "st_nlink of {names:?}");
            let content = &tree.content[&names[0]];
            assert!(names.iter().all(|name| tree.content[name] == *content), "{names:?}");
        }
        tree
    }
}

/// Makes the next snapshot, of which two files are new, as `rsync --link-dest` does.
fn snapshot(root: &Path, number: u64) {
    let dir = root.join(format!("snap{number}"));
    if number == 0 {
        fs::create_dir(&dir).expect("directory");
        (0..FILES)
            .for_each(|file| fs::write(file_in(&dir, file), content(file, 0)).expect("write"));
        return;
    }
    let before = root.join(format!("snap{}", number - 1));
    programs::run(Command::new("cp").arg("-al").arg(before).arg(&dir));
    for file in [number % FILES, (number * 7) % FILES] {
        let new = dir.join("new");
        fs::write(&new, content(file, number)).expect("write");
        fs::rename(&new, file_in(&dir, file)).expect("rename");
    }
}

fn file_in(dir: &Path, file: u64) -> PathBuf {
    dir.join(format!("file{file}"))
}

fn content(file: u64, snapshot: u64) -> Vec<u8> {
    format!("{file} of {snapshot}\n").repeat(500).into_bytes()
}

fn moved(mount: &Mount, command: &str) -> Value {
    // What the kernel still has open does not move.
    closes::all_are_told(&mount.path());
    let mut halocline = programs::halocline();
    let output = programs::run(halocline.arg(command).arg(mount.path()).arg("--json"));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn ssd_bytes(mount: &Mount) -> u64 {
    mount.status()["used_bytes"].as_u64().expect("bytes")
}

#[test]
fn snapshots_of_hard_links_go_down_and_come_up() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&[]);
    (0..5).for_each(|number| snapshot(&mount.path(), number));
    let before = Tree::read(&mount.path());
    assert!(before.files.len() < before.content.len() / 3, "most are hard links");
    let report = moved(&mount, "demote");
    assert_eq!(report["files"], before.files.len(), "each file once: {report}");
    // What left it is closed in the background.
    eventually("an empty SSD", || ssd_bytes(&mount) == 0);
    assert!(before == Tree::read(&mount.path()), "below, all is as it was");
    // Links to files below, as the next snapshot makes them, and the oldest goes. What was read may
    // have come up.
    let size = ssd_bytes(&mount);
    snapshot(&mount.path(), 5);
    let grown = ssd_bytes(&mount).saturating_sub(size);
    assert!(grown < 50_000, "what is linked, and not changed, stays below: {grown}");
    fs::remove_dir_all(mount.path().join("snap0")).expect("removed");
    fs::hard_link(mount.path().join("snap5/file3"), mount.path().join("kept")).expect("link");
    let tree = Tree::read(&mount.path());
    for command in ["demote", "warm", "demote"] {
        mount.unmount();
        programs::run(programs::halocline().arg("fsck").arg(mount.root()));
        mount.start();
        assert!(tree == Tree::read(&mount.path()), "after a mount, before {command}");
        moved(&mount, command);
        assert!(tree == Tree::read(&mount.path()), "after {command}");
    }
    // Archivers find the hard links, and a copy of the mount has them.
    let copy = tempfile::tempdir().expect("scratch");
    let pack = "tar -C \"$1\" -cf - . | tar -C \"$2\" -xf -";
    programs::run(Command::new("sh").args(["-c", pack, "sh"]).arg(mount.path()).arg(copy.path()));
    let shape =
        |tree: &Tree| tree.files.values().cloned().collect::<std::collections::BTreeSet<_>>();
    assert_eq!(shape(&Tree::read(copy.path())), shape(&tree));
    mount.unmount();
}

/// Snapshots are made and removed while their files move, and the mount is killed at any moment.
#[test]
fn i10_kills_while_hard_links_move_leave_all_names_of_a_file_one() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--passthrough=false", "--ssd-limit", "4M"]);
    (0..3).for_each(|number| snapshot(&mount.path(), number));
    let (mut random, mut total) = (Random::new(5), 0);
    for round in 0..10 * KILLS {
        // More where other work leaves the migrations little time.
        if round >= KILLS && total > 100 {
            break;
        }
        let before = Tree::read(&mount.path());
        let pid = u32::try_from(mount.status()["pid"].as_u64().expect("a pid")).expect("a pid");
        let migrations = Migrations::start(&mount);
        thread::sleep(Duration::from_millis(30 + random.below(200)));
        mount.kill(pid);
        total += migrations.stop();
        programs::run(programs::halocline().arg("fsck").arg(mount.root()));
        mount.start();
        assert!(before == Tree::read(&mount.path()), "round {round}:\n{}", mount.log());
        let migrations = Migrations::start(&mount);
        snapshot(&mount.path(), round + 3);
        fs::remove_dir_all(mount.path().join(format!("snap{round}"))).expect("removed");
        total += migrations.stop();
        Tree::read(&mount.path());
    }
    assert!(total > 100, "only {total} moves: nothing was attacked");
}
