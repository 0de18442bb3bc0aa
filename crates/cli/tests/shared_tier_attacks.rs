//! What nodes of a shared tier do to each other's open files and renames, a store without memory, a node that stands still for
//! longer than its lease (I12, I13, I15).

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{SharedTiers, fsck};
use halocline_testkit::standstill::Standstill;
use halocline_testkit::waiting::{SetOnDrop, eventually, within};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags, mkdirat, openat,
    renameat, setxattr, utimensat,
};

const NODES: [&str; 3] = ["one", "two", "three"];
const NOW: Timestamps = {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
};

/// The first `count` of the nodes, mounted; `None`, with the reason, where that cannot be tried.
fn mounted(count: usize) -> Option<SharedTiers> {
    let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
    Some(SharedTiers::new(scratch, &NODES)?.mounted(&NODES[..count], &[]))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// All names in a directory, sorted.
fn names(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap();
    let mut names: Vec<_> =
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn i15_an_open_file_that_another_node_renames_is_the_same_file() {
    let Some(nodes) = mounted(3) else { return };
    fs::write(nodes.at("one", "old"), "hello").unwrap();
    let held = File::options().read(true).write(true).open(nodes.at("one", "old")).unwrap();
    fs::rename(nodes.at("two", "old"), nodes.at("two", "new")).unwrap();
    assert_eq!(held.metadata().unwrap().nlink(), 1, "it has a name");
    held.set_permissions(PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(mode(&nodes.at("two", "new")), 0o600);
    // Once more, into a directory, and with one name of several.
    fs::create_dir(nodes.at("three", "d")).unwrap();
    fs::rename(nodes.at("three", "new"), nodes.at("three", "d/newer")).unwrap();
    held.set_permissions(PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(mode(&nodes.at("two", "d/newer")), 0o640);
    (&held).write_all(b"J").unwrap();
    held.set_len(3).unwrap();
    drop(held);
    assert_eq!(fs::read_to_string(nodes.at("two", "d/newer")).unwrap(), "Jel");
    // The close is noted: it can be moved.
    eventually("it is moved", || nodes.demotes("two", "d/newer"));
    assert_eq!(fs::read_to_string(nodes.at("one", "d/newer")).unwrap(), "Jel");
}

#[test]
fn i15_a_change_of_an_open_file_whose_names_are_unknown_is_refused_and_not_lost() {
    let Some(nodes) = mounted(2) else { return };
    fs::write(nodes.at("one", "file"), "hello").unwrap();
    let held = File::open(nodes.at("one", "file")).unwrap();
    fs::hard_link(nodes.at("two", "file"), nodes.at("two", "other")).unwrap();
    fs::remove_file(nodes.at("two", "file")).unwrap();
    let changed = held.set_permissions(PermissionsExt::from_mode(0o600));
    let is_there = mode(&nodes.at("two", "other")) == 0o600;
    assert_eq!(changed.is_ok(), is_there, "{changed:?}");
}

#[test]
fn directories_whose_names_were_seen_at_different_times_are_found() {
    let Some(nodes) = mounted(2) else { return };
    fs::create_dir_all(nodes.at("one", "a/b")).unwrap();
    let open = |path: &str| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, nodes.at("one", path), flags, Mode::empty()).unwrap()
    };
    let (a, b) = (open("a"), open("a/b"));
    fs::rename(nodes.at("two", "a/b"), nodes.at("two", "b")).unwrap();
    fs::rename(nodes.at("two", "a"), nodes.at("two", "b/a")).unwrap();
    // Node one knows b in a, and finds a in b, which its kernel does not take (ELOOP).
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let _refused = openat(&b, "a", flags, Mode::empty());
    mkdirat(&a, "new", Mode::RWXU).unwrap();
    assert_eq!(names(&nodes.at("two", "b/a")), ["new"]);
}

#[test]
fn i15_nodes_that_rename_one_directory_at_once_leave_it_where_the_store_has_it() {
    const ROUNDS: usize = 60;
    let Some(nodes) = mounted(3) else { return };
    fs::create_dir_all(nodes.at("one", "all/d0")).unwrap();
    fs::write(nodes.at("one", "all/d0/file"), "text").unwrap();
    assert!(nodes.demotes("one", "all/d0/file"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = openat(CWD, nodes.at("three", "all/d0"), flags, Mode::empty()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let file = openat(&held, "file", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                let text = std::io::read_to_string(File::from(file.unwrap())).unwrap();
                assert_eq!(text, "text");
            }
        });
        let renamers: Vec<_> = ["one", "two", "one", "two"]
            .into_iter()
            .enumerate()
            .map(|(at, node)| {
                let all = nodes.at(node, "all");
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let Some(now) = names(&all).pop() else { continue };
                        let to = all.join(format!("d{}", (round + at) % 5));
                        match renameat(CWD, all.join(now), CWD, to) {
                            // Another one was faster.
                            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for renamer in renamers {
            renamer.join().unwrap();
        }
        drop(over);
        reader.join().unwrap();
    });
    drop(held);
    let left = names(&nodes.at("one", "all"));
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(names(&nodes.scratch.path("disk/all")), left);
    for node in NODES {
        let path = nodes.at(node, "all").join(&left[0]).join("file");
        assert_eq!(fs::read_to_string(path).unwrap(), "text");
    }
    assert_eq!(names(&nodes.scratch.path("disk/.halocline/renaming")), [""; 0]);
}

#[test]
fn i15_links_that_nodes_make_rename_and_remove_at_once_are_on_the_disk_as_in_the_store() {
    const ROUNDS: usize = 150;
    let Some(nodes) = mounted(2) else { return };
    fs::create_dir(nodes.at("one", "links")).unwrap();
    std::thread::scope(|scope| {
        for (seed, node) in [(0, "one"), (1, "two"), (2, "one"), (3, "two")] {
            let links = nodes.at(node, "links");
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let name = |at: usize| links.join(format!("l{}", at % 3));
                    // What another one did first is no failure.
                    let _done = match (round * 7 + seed) % 4 {
                        0 | 1 => symlink(format!("{seed}-{round}"), name(round)),
                        2 => fs::rename(name(round), name(round + 1 + seed)),
                        _ => fs::remove_file(name(round)),
                    };
                }
            });
        }
    });
    let told = |dir: PathBuf| {
        let targets = names(&dir).into_iter().map(|name| {
            let target = fs::read_link(dir.join(&name)).unwrap();
            // A name that was taken for a moment has a number behind it.
            (name.split('~').next().unwrap().to_owned(), target)
        });
        targets.collect::<Vec<_>>()
    };
    assert_eq!(told(nodes.scratch.path("disk/links")), told(nodes.at("one", "links")));
}

/// Regression: the kernel looks a name up and opens it by two requests, tries that twice, and then programs got `ESTALE`: a
/// quarter of these creates, and one in thirty of the reads of a file that another node replaced.
#[test]
fn names_that_nodes_make_replace_and_remove_at_once_are_there_or_not() {
    const ROUNDS: usize = 200;
    let Some(nodes) = mounted(2) else { return };
    let [one, two] = ["one", "two"].map(|node| nodes.at(node, "f"));
    let is_over = AtomicBool::new(false);
    let until_over = |act: &dyn Fn() -> std::io::Result<()>| {
        while !is_over.load(Ordering::SeqCst) {
            let done = act();
            let is_fine =
                done.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::NotFound);
            assert!(is_fine, "{done:?}");
        }
    };
    std::thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        let makers = [&one, &two].map(|file| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let make = File::options()
                        .create(true)
                        .write(true)
                        .truncate(round % 2 == 0)
                        .open(file);
                    make.unwrap().write_all(b"text").unwrap();
                }
            })
        });
        let others = [
            scope.spawn(|| until_over(&|| fs::remove_file(&one))),
            scope.spawn(|| until_over(&|| fs::remove_file(&two))),
            scope.spawn(|| until_over(&|| fs::read(&two).map(drop))),
            scope.spawn(|| until_over(&|| fs::metadata(&one).map(drop))),
            scope.spawn(|| {
                until_over(&|| fs::set_permissions(&two, PermissionsExt::from_mode(0o600)));
            }),
        ];
        for maker in makers {
            maker.join().unwrap();
        }
        drop(over);
        for other in others {
            other.join().unwrap();
        }
    });
    // Programs replace files by renames: there is always one.
    fs::write(&one, "text").unwrap();
    is_over.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                assert_eq!(fs::read_to_string(&two).unwrap(), "text");
            }
        });
        for _ in 0..ROUNDS {
            fs::write(nodes.at("one", "new"), "text").unwrap();
            fs::rename(nodes.at("one", "new"), &one).unwrap();
        }
        drop(over);
        reader.join().unwrap();
    });
    // What was kept for the kernel is closed again, or the node could not move it.
    eventually("it is demoted", || nodes.demotes("one", "f"));
}

/// Regression: the kernel looks up the old name and then the new one of a rename. If the other node made that rename in
/// between, both led to one inode, and the kernel told the program, without a request, that it had renamed it, too: of jobs
/// that programs on two nodes claim by renames, one in six was claimed twice.
#[test]
fn what_two_nodes_rename_to_one_name_is_renamed_by_one_of_them() {
    const JOBS: usize = 120;
    let Some(nodes) = mounted(2) else { return };
    // In one directory, into another one, over something that is there, and directories.
    let cases = [("todo", false, false), ("done", false, false), ("todo", true, false)];
    for (to, is_there, is_directory) in cases.into_iter().chain([("todo", false, true)]) {
        let case = format!("to {to}, over something: {is_there}, directories: {is_directory}");
        let at = |node, directory: &str, name: &str| nodes.at(node, directory).join(name);
        for directory in ["todo", "done"] {
            fs::create_dir(nodes.at("one", directory)).unwrap();
        }
        for job in 0..JOBS {
            let from = at("one", "todo", &format!("j{job}"));
            if is_directory {
                fs::create_dir(from).unwrap();
            } else {
                fs::write(from, "job").unwrap();
            }
            if is_there {
                fs::write(at("one", to, &format!("k{job}")), "older").unwrap();
            }
        }
        let barrier = Barrier::new(2);
        let claims = |node| {
            let claim = |job: usize| {
                let [from, to] = [("todo", format!("j{job}")), (to, format!("k{job}"))]
                    .map(|(directory, name)| at(node, directory, &name));
                // So that its kernel knows both names from before.
                let _known = (fs::metadata(&from), fs::metadata(&to));
                barrier.wait();
                fs::rename(from, to)
            };
            (0..JOBS).map(claim).collect::<Vec<_>>()
        };
        let [one, two] = std::thread::scope(|scope| {
            let claimants = ["one", "two"].map(|node| scope.spawn(move || claims(node)));
            claimants.map(|claimant| claimant.join().unwrap())
        });
        for (job, (one, two)) in one.iter().zip(&two).enumerate() {
            let lost = match (one, two) {
                (Ok(()), Err(lost)) | (Err(lost), Ok(())) => lost,
                both => panic!("{case}: job {job}: {both:?}"),
            };
            assert_eq!(lost.kind(), ErrorKind::NotFound, "{case}: job {job}");
        }
        for directory in ["todo", "done"] {
            fs::remove_dir_all(nodes.at("two", directory)).unwrap();
        }
    }
}

/// Regression: where another node replaced a file by renames, changes of it by its path got `ESTALE`, or `ENOENT` although
/// there is always one.
#[test]
fn a_file_that_another_node_replaces_can_be_changed_by_its_path() {
    const CHANGES: usize = 300;
    let Some(nodes) = mounted(2) else { return };
    let [one, two] = ["one", "two"].map(|node| nodes.at(node, "doc"));
    fs::write(&one, "text").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        let replacer = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                fs::write(nodes.at("one", "new"), "text").unwrap();
                fs::rename(nodes.at("one", "new"), &one).unwrap();
            }
        });
        for _ in 0..CHANGES {
            fs::set_permissions(&two, PermissionsExt::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&two, None, Some(5)).unwrap();
            utimensat(CWD, &two, &NOW, AtFlags::empty()).unwrap();
            setxattr(&two, "user.a", b"b", XattrFlags::empty()).unwrap();
            fs::hard_link(&two, nodes.at("two", "linked")).unwrap();
            fs::remove_file(nodes.at("two", "linked")).unwrap();
        }
        drop(over);
        replacer.join().unwrap();
    });
}

#[test]
fn a_store_without_memory_is_a_full_disk_to_programs() {
    let Some(nodes) = mounted(1) else { return };
    fs::write(nodes.at("one", "before"), "kept").unwrap();
    fs::create_dir(nodes.at("one", "dir")).unwrap();
    fs::hard_link(nodes.at("one", "before"), nodes.at("one", "dir/other")).unwrap();
    let full = |limit: &str| {
        let done = nodes.store.command(&["config", "set", "maxmemory", limit]);
        assert!(done.contains("OK"), "{done}");
    };
    full("1");
    for name in ["a", "b", "c"] {
        let refused = fs::write(nodes.at("one", name), "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    }
    let refused = fs::create_dir(nodes.at("one", "d")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    // What is there can be read and removed, and other nodes can join.
    let status = nodes.scratch.succeed(&["status", "one"]);
    assert!(status.contains("the store of names is full"), "{status}");
    let joined = nodes.mount("two", &[]);
    assert!(joined.status.success(), "{}", said(&joined));
    for node in ["one", "two"] {
        assert_eq!(fs::read_to_string(nodes.at(node, "before")).unwrap(), "kept");
    }
    fs::remove_file(nodes.at("two", "dir/other")).unwrap();
    fs::remove_dir(nodes.at("one", "dir")).unwrap();
    full("0");
    assert_eq!(names(&nodes.scratch.path("one-tiers/ssd")), [".halocline", "before"]);
    assert!(!nodes.scratch.path("disk/d").exists());
    fs::write(nodes.at("one", "a"), "x").unwrap();
    assert_eq!(fs::read_to_string(nodes.at("one", "before")).unwrap(), "kept");
}

/// A shell that has a file open, of which this process has none: it writes when it is told to, and says whether it could.
const WRITER: &str = r#"exec 3>>"$1"; echo open
while read text; do if printf %s "$text" >&3; then echo wrote; else echo refused; fi; done"#;

#[test]
fn i12_a_node_that_stood_still_for_longer_than_its_lease_writes_nothing_through_old_handles() {
    let Some(nodes) = mounted(2) else { return };
    let path = nodes.at("one", "file");
    fs::write(&path, "").unwrap();
    let mut writer = Command::new("sh")
        .args(["-c", WRITER, "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said_lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut asked = writer.stdin.take().unwrap();
    let mut says = move || said_lines.next().unwrap().unwrap();
    assert_eq!(says(), "open");
    writeln!(asked, "acknowledged").unwrap();
    assert_eq!(says(), "wrote");
    let refused = nodes.scratch.halocline(&["demote", "two/file"]);
    assert!(!refused.status.success(), "it is open: {}", said(&refused));
    let one = nodes.scratch.pid("one");
    let still = Standstill::of(one);
    // This write is on its way while the node stands still.
    writeln!(asked, "late").unwrap();
    within(Duration::from_mins(10), "its lease is over", || nodes.demotes("two", "file"));
    assert_eq!(fs::read_to_string(nodes.at("two", "file")).unwrap(), "acknowledged");
    let mut more = File::options().append(true).open(nodes.at("two", "file")).unwrap();
    more.write_all(b", and more").unwrap();
    drop(more);
    drop(still);
    assert_eq!(says(), "refused", "the write that was late");
    writeln!(asked, "later").unwrap();
    assert_eq!(says(), "refused", "its handle is of before");
    drop(asked);
    writer.wait().unwrap();
    for node in ["one", "two"] {
        let mut text = String::new();
        eventually("it is read again", || {
            text = fs::read_to_string(nodes.at(node, "file")).unwrap_or_default();
            !text.is_empty()
        });
        assert_eq!(text, "acknowledged, and more", "{node}");
    }
    let mut again = File::options().append(true).open(nodes.at("one", "file")).unwrap();
    again.write_all(b"; opened again").unwrap();
    drop(again);
    let text = fs::read_to_string(nodes.at("two", "file")).unwrap();
    assert_eq!(text, "acknowledged, and more; opened again");
}

/// Regression: what one node had open of the tree was ESTALE to it once the other had removed it, and files stayed.
#[test]
fn two_nodes_remove_one_tree_at_once() {
    let Some(nodes) = mounted(2) else { return };
    for round in 0..4 {
        for at in 0..40 {
            fs::create_dir_all(nodes.at("one", &format!("t/d{at}/below"))).unwrap();
            fs::write(nodes.at("one", &format!("t/d{at}/f")), "").unwrap();
        }
        let remove = |node: &str| {
            let mut rm = Command::new("rm");
            rm.arg("-rf").arg(nodes.at(node, "t")).stderr(Stdio::piped()).spawn().unwrap()
        };
        let both = ["one", "two"].map(remove).map(|rm| rm.wait_with_output().unwrap());
        let told = both.map(|done| said(&done)).join("");
        assert!(!told.contains("Stale"), "{round}: {told}");
        assert!(!nodes.at("one", "t").exists(), "{round}: {told}");
    }
}

/// Regression: each check ended with 1 for good, and a rebuild, which gives the name to nobody, with 0.
#[test]
fn a_check_notes_a_name_that_only_the_store_keeps_and_a_rebuild_without_it_fails() {
    let Some(nodes) = mounted(1) else { return };
    fs::create_dir(nodes.at("one", "mine")).unwrap();
    fs::write(nodes.at("one", "f"), "text").unwrap();
    fs::set_permissions(nodes.at("one", "f"), PermissionsExt::from_mode(0o666)).unwrap();
    eventually("it is on the shared disk", || nodes.demotes("one", "f"));
    fs::hard_link(nodes.at("one", "f"), nodes.at("one", "mine/g")).unwrap();
    nodes.scratch.succeed(&["umount", "one"]);
    let ends = |more: &[&str], code: i32, text: &str| {
        let done = fsck(&nodes.scratch, &nodes.store.url(), more);
        let told = String::from_utf8_lossy(&done.stdout).into_owned() + &said(&done);
        assert_eq!(
            (done.status.code(), told.contains(text)),
            (Some(code), true),
            "{more:?}: {told}"
        );
    };
    let note = "mine/g: a rebuild from the disks would not give this name back";
    for more in [&[][..], &["--repair"], &["--confirm"]] {
        ends(more, 0, note);
    }
    nodes.store.command(&["FLUSHALL"]);
    ends(&["--repair"], 1, "it does not get its further name g back");
    ends(&[], 0, "the names and the disks agree");
}
