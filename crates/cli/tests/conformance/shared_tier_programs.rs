//! Developers' programs on one node of a shared tier while another node reads what they write.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use halocline_testkit::waiting::SetOnDrop;

use crate::mount;
use crate::programs;
use crate::shared_tier_suites::nodes;
use crate::source_tree::{self, Checkout};

/// Reads all files below a directory, which come and go; answers how many bytes there were.
fn read_all(root: &Path) -> u64 {
    let (mut bytes, mut todo) = (0, vec![root.to_owned()]);
    while let Some(directory) = todo.pop() {
        // What went meanwhile is no error, and everything else is.
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if is_gone(&error) => continue,
            Err(error) => panic!("{}: {error}", directory.display()),
        };
        for entry in entries {
            let entry = entry.expect("an entry");
            match entry.metadata().map(|stat| stat.is_dir()) {
                Ok(true) => todo.push(entry.path()),
                Ok(false) => match fs::read(entry.path()) {
                    Ok(read) => bytes += read.len() as u64,
                    Err(error) if is_gone(&error) => {}
                    Err(error) => panic!("{}: {error}", entry.path().display()),
                },
                Err(error) if is_gone(&error) => {}
                Err(error) => panic!("{}: {error}", entry.path().display()),
            }
        }
    }
    bytes
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

#[test]
fn i15_git_make_and_tar_on_one_node_while_another_reads() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let Some(nodes) = nodes(&["one", "two"], &[]) else { return };
    let [one, two] = [0, 1].map(|at: usize| nodes.mounts[at].path());
    let aside = tempfile::tempdir().expect("scratch");
    let archive = aside.path().join("tree.tar");
    let tar = |what: &str, place: &Path| {
        programs::run(
            Command::new("tar").arg(what).arg(&archive).arg("-C").arg(place).arg("clone"),
        );
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = 0;
            while !is_over.load(Ordering::SeqCst) {
                bytes += read_all(&two);
            }
            bytes
        });
        let over = SetOnDrop(&is_over);
        let clone = Checkout::new(one.join("clone"));
        source_tree::assert_runs(&clone.build_project());
        clone.commit_project();
        tar("-cf", &one);
        drop(over);
        assert!(reader.join().expect("the reader found nothing wrong") > 0);
    });
    let seen = Checkout::seen_at(two.join("clone"));
    seen.git(&["fsck", "--full"]);
    assert!(seen.git(&["status", "--porcelain"]).stdout.is_empty());
    source_tree::assert_runs(&two.join("clone/project"));
    tar("-df", &two);
}
