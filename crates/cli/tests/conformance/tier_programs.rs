//! Real programs on a file tier while their files are demoted and promoted under them.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::mount::{self, Mount};
use crate::source_tree::Checkout;
use crate::tier_migrations::Migrations;
use crate::{programs, sqlite};

const MOVING: [&str; 1] = ["--passthrough=false"];

#[test]
fn sqlite_on_a_tier_equals_sqlite_on_a_directory() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if !programs::is_installed("sqlite3") {
        return programs::skip("sqlite3 is not installed");
    }
    let plain = tempfile::tempdir().expect("scratch");
    for options in [&MOVING[..], &["--passthrough=false", "--ssd-limit", "1M"], &[]] {
        let mount = Mount::tier(options);
        let migrations = Migrations::start(&mount);
        for journal in ["delete", "wal"] {
            for root in [plain.path(), &mount.path()] {
                let _ = fs::remove_file(root.join(journal));
                sqlite::query(&root.join(journal), &sqlite::fill(journal));
            }
            let file = mount.path().join(journal);
            assert_eq!(sqlite::query(&file, "pragma integrity_check"), "ok\n");
            let [left, right] = [plain.path(), &mount.path()]
                .map(|root| sqlite::query(&root.join(journal), ".dump"));
            assert!(left == right, "{journal}, {options:?}: the dumps differ");
        }
        assert!(migrations.stop() > 0, "nothing moved");
    }
}

#[test]
fn git_and_make_on_a_tier_whose_files_move() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--passthrough=false", "--ssd-limit", "8M"]);
    let migrations = Migrations::start(&mount);
    let clone = Checkout::new(mount.path().join("clone"));
    let project = clone.build_project();
    programs::run(&mut Command::new(project.join("program")));
    clone.git(&["add", "project"]);
    clone.git(&["gc", "--quiet"]);
    clone.git(&["fsck", "--full"]);
    assert!(migrations.stop() > 0, "nothing moved");
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}

/// Ten thousand files with links and extended attributes, packed, unpacked and compared.
#[test]
fn tar_of_a_large_tree_on_a_tier_whose_files_move() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--passthrough=false", "--ssd-limit", "16M"]);
    let plain = tempfile::tempdir().expect("scratch");
    let source = plain.path().join("tree");
    for folder in 0..40 {
        let dir = source.join(format!("d{folder}"));
        fs::create_dir_all(&dir).expect("directory");
        for file in 0..100 {
            let path = dir.join(format!("f{file}"));
            fs::write(&path, format!("{folder}/{file}\n").repeat(1 + file * 3)).expect("file");
            match file % 10 {
                0 => {
                    let value = format!("{file}").into_bytes();
                    let flags = rustix::fs::XattrFlags::empty();
                    rustix::fs::setxattr(&path, "user.number", &value, flags).expect("xattr");
                }
                1 => fs::hard_link(&path, dir.join(format!("h{file}"))).expect("hard link"),
                2 => symlink(format!("f{file}"), dir.join(format!("l{file}"))).expect("link"),
                _ => {}
            }
        }
    }
    let archive = plain.path().join("tree.tar");
    let tar = |arguments: &[&str]| {
        programs::run(Command::new("tar").args(["--xattrs", "--sort=name"]).args(arguments));
    };
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    tar(&["-cf", &text(&archive), "-C", &text(plain.path()), "tree"]);
    let migrations = Migrations::start(&mount);
    tar(&["-xf", &text(&archive), "-C", &text(&mount.path())]);
    let compare = || {
        programs::run(Command::new("diff").arg("-r").arg(&source).arg(mount.path().join("tree")));
        tar(&["--compare", "-f", &text(&archive), "-C", &text(&mount.path())]);
    };
    compare();
    assert!(migrations.stop() > 0, "nothing moved");
    compare();
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}
