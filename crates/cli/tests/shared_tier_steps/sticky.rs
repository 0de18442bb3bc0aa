//! A directory with the sticky bit, in which another node puts another user's file at a name in the moment between the
//! kernel's comparison of owners and the change in the store.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Output;
use std::thread;

use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::fs::{AtFlags, RenameFlags, Uid, renameat_with, unlinkat};
use rustix::io::{Errno, Result};
use rustix::thread::set_thread_res_uid;

use crate::held::Held;

const NODES: [&str; 2] = ["one", "two"];
const NOBODY: u32 = 65534;

/// What a user does in the directory, to which another node gives root's file as `theirs`, or root's directory as `dir`.
const TAKEN: [(&str, fn(&File) -> Result<()>); 6] = [
    ("unlink", |dir| unlinkat(dir, "theirs", AtFlags::empty())),
    ("rmdir", |dir| unlinkat(dir, "dir", AtFlags::REMOVEDIR)),
    ("rename", |dir| rename(dir, ["theirs", "new"], RenameFlags::empty())),
    ("rename over it", |dir| rename(dir, ["mine", "theirs"], RenameFlags::empty())),
    ("exchange", |dir| rename(dir, ["theirs", "mine"], RenameFlags::EXCHANGE)),
    ("exchange with it", |dir| rename(dir, ["mine", "theirs"], RenameFlags::EXCHANGE)),
];

fn rename(dir: &File, [from, to]: [&str; 2], flags: RenameFlags) -> Result<()> {
    renameat_with(dir, from, dir, to, flags)
}

/// What another user gets, through what is open here.
fn as_nobody<T>(act: impl FnOnce() -> T) -> T {
    let nobody = Uid::from_raw(NOBODY);
    set_thread_res_uid(nobody, nobody, nobody).unwrap();
    act()
}

fn mount(scratch: &Scratch, url: &str, node: &str) {
    let (root, peers) = (format!("{node}-tiers"), shared_tiers::peers(scratch));
    let cluster = ["--cluster", url, "--node", node, "--peers", &peers, "--allow-other"];
    let mut command = scratch.command(&[&["mount", "--tier", &root, node][..], &cluster].concat());
    if node == NODES[0] {
        command.env("HALOCLINE_HELD_STEPS", scratch.path("steps"));
    }
    let mounted = command.output().unwrap();
    assert!(mounted.status.success(), "{}", said(&mounted));
}

/// Makes the files of both users, and waits until the store knows that they are closed.
fn make(scratch: &Scratch, sticky: &str) {
    let two = scratch.path(NODES[1]).join(sticky);
    fs::create_dir(&two).unwrap();
    for name in ["theirs", "mine", "roots"] {
        fs::write(two.join(name), name).unwrap();
    }
    for name in ["dir", "roots-dir"] {
        fs::create_dir(two.join(name)).unwrap();
    }
    for name in ["theirs", "mine", "dir"] {
        chown(two.join(name), Some(NOBODY), None).unwrap();
    }
    fs::set_permissions(&two, Permissions::from_mode(0o1777)).unwrap();
    let is_open = |done: &Output| [written(done), said(done)].concat().contains("has it open");
    let path = format!("{}/{sticky}", NODES[1]);
    eventually("that all is closed", || {
        !is_open(&scratch.halocline(&["demote", "--dry-run", &path]))
    });
}

/// Lets node `one` wait just before its first change in the store, and gives the names to root's file and directory
/// meanwhile.
fn taken(scratch: &Scratch, sticky: &str, take: fn(&File) -> Result<()>) -> (Result<()>, String) {
    let [one, two] = NODES.map(|node| scratch.path(node).join(sticky));
    let dir = File::open(one).unwrap();
    let held = Held::step(&scratch.path("steps"), 0);
    thread::scope(|scope| {
        let taking = scope.spawn(|| as_nobody(|| take(&dir)));
        let step = held.wait(|| taking.is_finished()).expect("the user is not done at once");
        for (from, to) in [("roots", "theirs"), ("roots-dir", "dir")] {
            fs::rename(two.join(from), two.join(to)).unwrap();
        }
        held.release();
        (taking.join().unwrap(), step)
    })
}

/// Regression: the kernel had compared with the owner of what was there before, and root's file was removed or replaced.
#[test]
fn i15_a_user_takes_no_name_from_what_another_node_put_there_in_a_sticky_directory() {
    if !rustix::process::geteuid().is_root() {
        skip("mounting for all users needs root");
        return;
    }
    let Some(scratch) = Scratch::with_mountpoints(program!(), &NODES) else { return };
    let Some(store) = RedisServer::start(&[]) else { return };
    shared_tiers::make(&scratch, &NODES);
    // Others reach the mounts by descriptors only.
    fs::set_permissions(scratch.path(""), Permissions::from_mode(0o700)).unwrap();
    for node in NODES {
        mount(&scratch, &store.url(), node);
    }
    for (number, (what, take)) in TAKEN.into_iter().enumerate() {
        let sticky = format!("sticky-{number}");
        make(&scratch, &sticky);
        let (done, step) = taken(&scratch, &sticky, take);
        eprintln!("{what}: held {step}: {done:?}");
        assert_eq!(done, Err(Errno::PERM), "{what}");
        assert!(step.starts_with("before the store's"), "{what}: {step}");
        let is_there = |node: &str, name: &str| scratch.path(node).join(&sticky).join(name);
        for node in NODES {
            let text = fs::read_to_string(is_there(node, "theirs")).unwrap();
            assert_eq!(text, "roots", "{what} on {node}");
            assert!(is_there(node, "dir").is_dir() && is_there(node, "mine").is_file());
        }
    }
    // What nobody changes meanwhile is the user's to take.
    for (number, (what, take)) in TAKEN.into_iter().enumerate() {
        let sticky = format!("own-{number}");
        make(&scratch, &sticky);
        let dir = File::open(scratch.path(NODES[0]).join(&sticky)).unwrap();
        let done = thread::scope(|scope| scope.spawn(|| as_nobody(|| take(&dir))).join().unwrap());
        assert_eq!(done, Ok(()), "{what}");
    }
    assert!(is_clean(&scratch, &store));
}

fn is_clean(scratch: &Scratch, store: &RedisServer) -> bool {
    for node in NODES {
        shared_tiers::unmount(scratch, node);
    }
    let checked = shared_tiers::fsck(scratch, &store.url(), &[]);
    eprintln!("{}{}", written(&checked), said(&checked));
    checked.status.success()
}
