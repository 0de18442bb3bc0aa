//! Clean copies on a shared disk with few inodes, little room, and times in whole seconds: they give way to everything else, and
//! stand for their files all the same.

use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::{ended, said};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{SharedTiers, fsck, mount_with, unmount};
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::fs::{FallocateFlags, fallocate};

const NODES: [&str; 2] = ["one", "two"];
const ARCHIVE: [&str; 4] = ["--copies", "archive", "--archive-after", "1s"];
const MIB: usize = 1 << 20;

/// Two nodes, and a small ext4 as the shared disk or an SSD.
struct Nodes {
    tiers: SharedTiers,
    disk: PathBuf,
}

impl Deref for Nodes {
    type Target = SharedTiers;

    fn deref(&self) -> &SharedTiers {
        &self.tiers
    }
}

impl Nodes {
    /// With a small shared disk; `None`, with the reason, where that cannot be tried.
    fn new(mib: usize, options: &[&str]) -> Option<Self> {
        Self::with_small(("disk", &ARCHIVE), mib, options)
    }

    fn with_small((disk, mounted): (&str, &[&str]), mib: usize, options: &[&str]) -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
        let tiers = SharedTiers::new(scratch, &NODES)?;
        let (disk, image) = (tiers.scratch.path(disk), tiers.scratch.path("image"));
        File::create(&image).unwrap().set_len((mib * MIB) as u64).unwrap();
        let done = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
        let mut make = Command::new("mkfs.ext4");
        let is_mounted = done(make.args(["-q", "-F", "-m", "0"]).args(options).arg(&image))
            && done(Command::new("mount").args(["-o", "loop"]).args([&image, &disk]));
        if !is_mounted {
            skip("no ext4 can be mounted from a file");
            return None;
        }
        // It belongs to the file system.
        fs::remove_dir(disk.join("lost+found")).unwrap();
        // What the second one makes is on the shared disk, and stays there.
        let tiers = tiers.mounted(&NODES[..1], mounted).mounted(&NODES[1..], &["--exclude", "**"]);
        Some(Self { tiers, disk })
    }

    /// How many copies have their final names.
    fn copies(&self) -> usize {
        let listed = fs::read_dir(self.disk.join(".halocline/copies/one"));
        let names = listed.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        names.filter(|name| !name.to_str().unwrap().ends_with('~')).count()
    }

    fn totals(&self) -> rustix::fs::StatVfs {
        rustix::fs::statvfs(&self.disk).unwrap()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in NODES {
            let _ = self.scratch.halocline(&["umount", "--force", node]);
        }
        let _ = Command::new("umount").arg("--lazy").arg(&self.disk).status();
    }
}

/// Fills what the shared disk has left with something of no use.
fn fill(nodes: &Nodes, inodes: bool) {
    let filler = nodes.disk.join(".halocline/tmp");
    if inodes {
        let mut made = (0..).map(|at| File::create(filler.join(format!("filler{at}"))));
        assert!(made.find(Result::is_err).is_some(), "it is full");
        return;
    }
    let file = File::options().create(true).append(true).open(filler.join("filler")).unwrap();
    let (piece, mut at) = (vec![b'x'; 4096], 0);
    while file.write_all_at(&piece, at).is_ok() {
        at += piece.len() as u64;
    }
    file.sync_all().unwrap();
}

/// Makes each kind of thing that takes room on the shared disk.
fn make_all(nodes: &Nodes, round: usize) -> Vec<(&'static str, io::Result<()>)> {
    let at = |name: &str| nodes.at("two", &format!("{name}{round}"));
    let long = "t".repeat(2000);
    vec![
        ("mkdir", fs::create_dir(at("directory"))),
        ("symlink", symlink(&long, at("symlink"))),
        ("file", File::create(at("file")).map(drop)),
        ("mkdir below", fs::create_dir(at("directory").join("below"))),
        ("rename", fs::rename(at("file"), at("directory").join("file"))),
        ("setfattr", {
            let value = vec![b'v'; 1500];
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(at("directory"), "user.much", &value, flags).map_err(Into::into)
        }),
    ]
}

#[track_caller]
fn all_are_made(nodes: &Nodes, rounds: usize) {
    for round in 0..rounds {
        for (what, done) in make_all(nodes, round) {
            assert!(done.is_ok(), "{what}, round {round}, {} copies: {done:?}", nodes.copies());
        }
    }
}

#[test]
fn copies_give_way_to_whatever_finds_no_inode() {
    let Some(nodes) = Nodes::new(32, &["-b", "4096", "-N", "400"]) else { return };
    for at in 0..600 {
        fs::write(nodes.at("one", &format!("small{at}")), format!("{at}")).unwrap();
    }
    let spare = nodes.totals().f_files / 50;
    eventually("files are copied as far as inodes are left", || {
        nodes.totals().f_favail <= spare + 4 && nodes.copies() > 100
    });
    assert!(nodes.totals().f_favail + 4 >= spare, "a part is left free");
    fill(&nodes, true);
    all_are_made(&nodes, 20);
    assert!(nodes.copies() > 0, "no more than needed is removed");
    for at in 0..600 {
        let read = fs::read_to_string(nodes.at("two", &format!("small{at}"))).unwrap();
        assert_eq!(read, at.to_string());
    }
}

#[test]
fn copies_give_way_to_whatever_finds_no_room() {
    let Some(nodes) = Nodes::new(48, &["-b", "4096"]) else { return };
    for at in 0..40 {
        fs::write(nodes.at("one", &format!("large{at}")), vec![b'a'; MIB]).unwrap();
    }
    eventually("files are copied", || nodes.copies() > 20);
    fill(&nodes, false);
    all_are_made(&nodes, 8);
    assert!(nodes.copies() > 0, "no more than needed is removed");
    fill(&nodes, false);
    // A file of the shared disk.
    nodes.scratch.succeed(&["demote", "one/large0"]);
    let file = File::options().write(true).open(nodes.at("two", "large0")).unwrap();
    fill(&nodes, false);
    let before = nodes.copies();
    fallocate(&file, FallocateFlags::empty(), MIB as u64, 2 * MIB as u64).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 3 * MIB as u64);
    assert!(before > nodes.copies());
    // What cannot have room takes none away.
    let before = nodes.copies();
    let much = fallocate(&file, FallocateFlags::empty(), 0, 1 << 30);
    assert_eq!(much, Err(rustix::io::Errno::NOSPC));
    assert_eq!(before, nodes.copies());
    for at in 1..40 {
        let read = fs::read(nodes.at("two", &format!("large{at}"))).unwrap();
        assert!(read == vec![b'a'; MIB], "large{at}");
    }
}

/// Regression: on a disk with times in whole seconds no copy stood for its file, and files were copied again and again.
#[test]
fn i13_copies_on_a_disk_with_whole_seconds_stand_for_their_files() {
    let Some(nodes) = Nodes::new(32, &["-I", "128"]) else { return };
    let names: Vec<String> = (0..8).map(|at| format!("f{at}")).collect();
    for name in &names {
        fs::write(nodes.at("one", name), name).unwrap();
    }
    let archived = || nodes.scratch.status("one")["tier"]["copies"]["archived"]["files"].as_u64();
    eventually("that they are copied", || nodes.copies() == names.len());
    eventually("that this is known", || archived() == Some(names.len() as u64));
    // No second time, after the copies were compared, too.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(archived(), Some(names.len() as u64));
    // What is changed in the same second as it was copied has other bytes, and is copied again.
    fs::write(nodes.at("one", "f0"), "F0").unwrap();
    eventually("that it is copied again", || archived() == Some(names.len() as u64 + 1));
    nodes.scratch.kill("one");
    fs::rename(nodes.scratch.path("one-tiers/ssd"), nodes.scratch.path("lost")).unwrap();
    eventually("that all are on the shared disk", || {
        nodes.scratch.halocline(&["cluster", "drain", "one", "two"]).status.success()
    });
    for name in &names {
        let expected = if name == "f0" { "F0" } else { name };
        assert_eq!(fs::read_to_string(nodes.at("two", name)).unwrap(), expected);
    }
}

/// Attributes of files need blocks of a full SSD, more than the file system reserves for itself.
#[test]
fn extended_attributes_that_find_no_room_on_an_ssd_have_files_leave_it() {
    let small = ("one-tiers/ssd", &ARCHIVE[..]);
    let Some(nodes) = Nodes::with_small(small, 32, &["-b", "4096"]) else { return };
    let large: Vec<String> = (0..8).map(|at| format!("large{at}")).collect();
    let small: Vec<String> = (0..300).map(|at| format!("small{at}")).collect();
    for name in &large {
        fs::write(nodes.at("one", name), vec![b'a'; MIB]).unwrap();
    }
    for name in &small {
        fs::write(nodes.at("one", name), name).unwrap();
    }
    for name in &large {
        nodes.until_closed("one", name);
    }
    fill(&nodes, false);
    // ext4 keeps equal ones of several files in one block.
    let value = |name: &str| format!("{name:v<2000}").into_bytes();
    let flags = rustix::fs::XattrFlags::empty();
    for name in &small {
        let set = rustix::fs::setxattr(nodes.at("one", name), "user.much", &value(name), flags);
        assert_eq!(set, Ok(()), "{name}");
    }
    let on_ssd = large.iter().chain(&small).filter(|name| nodes.disk.join(name).exists()).count();
    assert!(on_ssd < large.len() + small.len(), "some have left");
    for node in NODES {
        for name in &small {
            let mut found = vec![0; 4096];
            let len = rustix::fs::getxattr(nodes.at(node, name), "user.much", &mut found[..]);
            assert!(found[..len.unwrap()] == value(name), "{name} on {node}");
        }
        for name in &large {
            assert!(fs::read(nodes.at(node, name)).unwrap() == vec![b'a'; MIB], "{name} on {node}");
        }
    }
}

/// Regression: a rebuild that found no room after it had begun did not say that mounts are refused from then on, nor what ends that.
#[test]
fn a_rebuild_that_finds_no_room_goes_on_where_it_is_given_some() {
    let Some(nodes) = Nodes::new(32, &["-b", "4096", "-I", "128"]) else { return };
    fs::create_dir(nodes.at("one", "d")).unwrap();
    fs::write(nodes.at("one", "d/f"), "f").unwrap();
    for node in NODES {
        unmount(&nodes.scratch, node);
    }
    // Where the inode has no room for it, the number of a directory needs a block.
    for directory in [nodes.disk.join("d"), nodes.scratch.path("one-tiers/ssd/d")] {
        rustix::fs::removexattr(directory, "user.halocline.directory").unwrap();
    }
    let fsck = |more: &[&str]| fsck(&nodes.scratch, &nodes.store.url(), more);
    // It makes its own directories.
    let _differs = fsck(&[]);
    fill(&nodes, false);
    nodes.store.command(&["flushall"]);
    for _ in 0..2 {
        let refused = fsck(&["--repair"]);
        ended(
            &refused,
            2,
            &["ssd/d/f: its names would be lost", "No space left", "the same command again"],
        );
        let mounted = mount_with(&nodes.scratch, &nodes.store.url(), "one", &[]);
        assert!(
            !mounted.status.success() && said(&mounted).contains("--repair"),
            "{}",
            said(&mounted)
        );
    }
    fs::remove_file(nodes.disk.join(".halocline/tmp/filler")).unwrap();
    let done = fsck(&["--repair"]);
    assert!(done.status.success(), "{}", said(&done));
    let mounted = mount_with(&nodes.scratch, &nodes.store.url(), "one", &[]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    assert_eq!(fs::read_to_string(nodes.at("one", "d/f")).unwrap(), "f");
}

/// Regression: the mark of a move needs a block where the inode has no room for it: nothing left an SSD that others had filled.
#[test]
fn files_leave_an_ssd_that_is_full_to_the_last_block() {
    let small = ("one-tiers/ssd", &["--copies", "none"][..]);
    let Some(nodes) = Nodes::with_small(small, 32, &["-b", "4096"]) else { return };
    let spare = nodes.disk.join(".halocline/room.spare");
    for name in ["large0", "large1"] {
        fs::write(nodes.at("one", name), vec![b'a'; MIB]).unwrap();
        nodes.until_closed("one", name);
    }
    for round in ["large0", "large1"] {
        eventually("that room is set aside", || spare.exists());
        fill(&nodes, false);
        nodes.scratch.succeed(&["demote", &format!("one/{round}")]);
        assert!(!nodes.disk.join(round).exists());
        assert!(fs::read(nodes.at("two", round)).unwrap() == vec![b'a'; MIB], "{round}");
    }
    let filler = nodes.disk.join(".halocline/tmp/filler");
    fs::remove_file(&filler).unwrap();
    // Regression: what else had its name stayed there, and nobody was told.
    let kept = nodes.disk.join(".halocline/tmp/kept");
    fs::write(&kept, "kept").unwrap();
    let plants: [(&str, &dyn Fn() -> io::Result<()>); 4] = [
        ("a link", &|| symlink("/etc/passwd", &spare)),
        ("a directory", &|| fs::create_dir_all(spare.join("below"))),
        ("a file of a user", &|| {
            fs::write(&spare, "theirs").and_then(|()| chown(&spare, Some(65534), None))
        }),
        ("another name", &|| fs::hard_link(&kept, &spare)),
    ];
    let left = || fs::read_dir(spare.with_file_name("leftovers")).map_or(0, Iterator::count);
    for (at, (what, plant)) in plants.iter().enumerate() {
        eventually("that room is set aside", || spare.is_file());
        let _ = fs::remove_file(&spare);
        plant().unwrap();
        let is_ours = || {
            let found = spare.symlink_metadata().ok();
            found.is_some_and(|found| found.is_file() && found.size() > 9 && found.nlink() == 1)
        };
        eventually(what, is_ours);
        assert_eq!(left(), (at + 1).min(3), "{what}");
    }
    // Regression: where there is none, the shared disk was told to be full.
    fs::write(nodes.at("one", "large2"), vec![b'a'; MIB]).unwrap();
    nodes.until_closed("one", "large2");
    fill(&nodes, false);
    // There is too little for another one.
    let _ = fs::remove_file(&spare);
    fill(&nodes, false);
    let refused = nodes.scratch.halocline(&["demote", "one/large2"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    let told = told + &String::from_utf8_lossy(&refused.stdout);
    assert!(told.contains("one-tiers/ssd is full") && !told.contains("shared disk"), "{told:?}");
    // So is one that is mounted full; it is set aside once there is some again.
    unmount(&nodes.scratch, "one");
    let kept = nodes.disk.join(".halocline/kept");
    fs::rename(&filler, &kept).unwrap();
    let mounted = nodes.mount("one", &[]);
    assert!(mounted.status.success() && !spare.exists(), "{}", said(&mounted));
    fs::remove_file(&kept).unwrap();
    eventually("that room is set aside", || spare.exists());
}
