//! Commands on a shared tier beside programs that are at work.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{SharedTiers, fsck};
use halocline_testkit::waiting::{SetOnDrop, eventually};

const NODES: [&str; 2] = ["one", "two"];

fn mounted() -> Option<SharedTiers> {
    let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
    Some(SharedTiers::new(scratch, &NODES)?.mounted(&NODES, &[]))
}

/// Makes, writes, renames, changes and removes files, links and directories below a directory of its own.
fn work(at: &Path) -> io::Result<()> {
    let [dir, other] = ["d", "e"].map(|name| at.join(name));
    fs::create_dir_all(dir.join("below"))?;
    for file in 0..6 {
        let path = dir.join(format!("f{file}"));
        fs::write(&path, vec![b'x'; 1 + 3000 * file])?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        fs::hard_link(&path, dir.join("below/second"))?;
        symlink("nowhere", dir.join("below/link"))?;
        fs::write(&path, "again")?;
        fs::remove_file(dir.join("below/second"))?;
        fs::remove_file(dir.join("below/link"))?;
        fs::rename(&path, dir.join("below").join(format!("g{file}")))?;
    }
    fs::rename(&dir, &other)?;
    fs::remove_dir_all(&other)
}

/// Regression: what programs were just making, renaming, writing and removing was told, with the advice to build the names
/// again.
#[test]
fn a_check_beside_programs_tells_only_what_stays() {
    let Some(nodes) = mounted() else { return };
    let check = || fsck(&nodes.scratch, &nodes.store.url(), &[]);
    let told = |done: &Output| [written(done), said(done)].concat();
    fs::write(nodes.at("one", "wrong"), "text").unwrap();
    nodes.until_closed("one", "wrong");
    let on_disk = nodes.scratch.path("one-tiers/ssd/wrong");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        for node in NODES {
            for worker in 0..2 {
                let at = nodes.at(node, &format!("{node}{worker}"));
                fs::create_dir(&at).unwrap();
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        work(&at).unwrap();
                    }
                });
            }
        }
        for _ in 0..3 {
            let done = check();
            assert!(done.status.success(), "{}", told(&done));
            assert!(told(&done).contains("the names and the disks agree"), "{}", told(&done));
        }
        fs::set_permissions(&on_disk, PermissionsExt::from_mode(0o640)).unwrap();
        let done = check();
        assert_eq!(done.status.code(), Some(1), "{}", told(&done));
        assert!(told(&done).contains("wrong: mode 640 on the disk, 644"), "{}", told(&done));
        drop(over);
    });
}

/// Regression: a command with many paths, as a shell makes them of a glob, failed at the first one that was removed since, and
/// left all that follow where they were.
#[test]
fn what_is_removed_meanwhile_is_not_left_on_an_ssd() {
    const FILES: usize = 60;
    let Some(nodes) = mounted() else { return };
    fs::create_dir(nodes.at("one", "dir")).unwrap();
    let name = |file: usize| format!("one/dir/f{file}");
    for file in 0..FILES {
        fs::write(nodes.scratch.path(&name(file)), vec![b'x'; 5000]).unwrap();
    }
    nodes.until_closed("one", "dir");
    let done = thread::scope(|scope| {
        let removed = scope.spawn(|| {
            // By then the command has found its files.
            let first = nodes.scratch.path("disk/dir/f0");
            eventually("that the first one is demoted", || first.exists());
            (FILES / 2..FILES - 1)
                .try_for_each(|file| fs::remove_file(nodes.at("two", &format!("dir/f{file}"))))
        });
        let names: Vec<String> = (0..FILES).map(name).collect();
        let names = names.iter().map(String::as_str);
        let args: Vec<&str> = std::iter::once("demote").chain(names).collect();
        let done = nodes.scratch.halocline(&args);
        removed.join().unwrap().unwrap();
        done
    });
    assert!(done.status.success(), "{}", [written(&done), said(&done)].concat());
    assert!(nodes.scratch.path(&format!("disk/dir/f{}", FILES - 1)).exists());
}
