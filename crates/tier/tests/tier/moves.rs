//! What moves where, what stays, and what survives it.

use std::ffi::OsStr;
use std::fs;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use halocline_api::control::Controlled;
use halocline_api::control::tier::{PRIVATE, Problem};
use halocline_os::error::Result;
use halocline_tier::{FileTier, TierSet};
use halocline_vfs::{Engine, Make, SetAttr};

use crate::fixture::{BY, CALLER, Fixture, files_below, limited};

#[test]
fn a_file_keeps_its_attributes_holes_and_number_when_it_moves() {
    let fixture = Fixture::new(limited(64 << 20));
    let tier = fixture.tier();
    let handle = fixture.create("sparse");
    tier.write(&handle, 8 << 20, b"end", CALLER).unwrap();
    let vnode = fixture.vnode("sparse").unwrap();
    tier.set_xattr(&vnode, "user.note".as_ref(), b"kept", 0).unwrap();
    let acl: &[u8] = &[
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255,
        255, 255, 16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    tier.set_xattr(&vnode, "system.posix_acl_access".as_ref(), acl, 0).unwrap();
    let change = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
    tier.set_attr(&vnode, None, &change, CALLER).unwrap();
    let before = tier.stat(&vnode, None).unwrap().raw;
    let key = tier.key(&vnode);
    for step in ["demote", "warm", "demote"] {
        let moved =
            if step == "demote" { fixture.demote("sparse") } else { fixture.warm("sparse") };
        assert_eq!((moved.files, moved.skipped.len()), (1, 0), "{step}: {moved:?}");
        let now = tier.stat(&vnode, None).unwrap().raw;
        for (name, one, other) in [
            ("mode", u64::from(before.st_mode), u64::from(now.st_mode)),
            ("uid", u64::from(before.st_uid), u64::from(now.st_uid)),
            ("gid", u64::from(before.st_gid), u64::from(now.st_gid)),
            ("nlink", before.st_nlink, now.st_nlink),
            ("size", before.st_size.cast_unsigned(), now.st_size.cast_unsigned()),
            ("mtime", before.st_mtime_nsec.cast_unsigned(), now.st_mtime_nsec.cast_unsigned()),
            ("atime", before.st_atime_nsec.cast_unsigned(), now.st_atime_nsec.cast_unsigned()),
        ] {
            assert_eq!(one, other, "{name} after {step}");
        }
        assert!(now.st_blocks < 64, "holes stay holes: {} blocks after {step}", now.st_blocks);
        assert_eq!(tier.get_xattr(&vnode, "user.note".as_ref()).unwrap(), b"kept");
        assert_eq!(tier.get_xattr(&vnode, "system.posix_acl_access".as_ref()).unwrap(), acl);
        let names = tier.list_xattr(&vnode).unwrap();
        assert!(!String::from_utf8_lossy(&names).contains("halocline"), "ours is hidden");
        assert_eq!(tier.key(&fixture.vnode("sparse").unwrap()), key, "the same inode to programs");
    }
    let number = key.1;
    drop((vnode, handle));
    let mut fixture = fixture;
    fixture.open();
    let vnode = fixture.vnode("sparse").unwrap();
    assert_eq!(fixture.tier().key(&vnode).1, number, "also after the next mount");
    fixture.warm("sparse");
    drop(vnode);
    fixture.open();
    assert_eq!(fixture.tier().key(&fixture.vnode("sparse").unwrap()).1, number);
}

#[test]
fn two_files_never_have_one_number() {
    let mut fixture = Fixture::new(limited(1 << 20));
    let mut numbers = Vec::new();
    for name in ["a", "b", "c", "d"] {
        // Going down frees the number on the SSD, which the next file gets.
        fixture.write(name, name.as_bytes());
        fixture.demote(name);
    }
    for _ in 0..2 {
        let now: Vec<u64> = ["a", "b", "c", "d"]
            .map(|name| fixture.tier().key(&fixture.vnode(name).unwrap()).1)
            .to_vec();
        let distinct: std::collections::BTreeSet<u64> = now.iter().copied().collect();
        assert_eq!(distinct.len(), 4, "{now:?}");
        assert!(numbers.is_empty() || numbers == now, "{numbers:?} became {now:?}");
        numbers = now;
        fixture.open();
    }
}

#[test]
fn the_trees_are_plain_files_and_links() {
    let fixture = Fixture::new(limited(1 << 20));
    let (root, name) = fixture.at("dir");
    fixture.tier().make((&root, name), Make::Directory(0o750), BY).unwrap();
    fixture.write("dir/file", b"plain");
    fixture.demote("dir/file");
    assert_eq!(fs::read_link(fixture.ssd("dir/file")).unwrap(), fixture.hdd("dir/file"));
    assert_eq!(fs::read(fixture.ssd("dir/file")).unwrap(), b"plain", "D5: read without us");
    assert_eq!(fs::metadata(fixture.hdd("dir")).unwrap().permissions().mode() & 0o7777, 0o750);
    // A rename moves the file below too; a directory's rename is one rename.
    let (dir, from) = fixture.at("dir/file");
    fixture.tier().rename((&dir, from), (&dir, "new".as_ref()), 0, CALLER).unwrap();
    assert_eq!(fs::read_link(fixture.ssd("dir/new")).unwrap(), fixture.hdd("dir/new"));
    assert!(!fixture.hdd("dir/file").exists());
    fixture.tier().rename((&root, "dir".as_ref()), (&root, "moved".as_ref()), 0, CALLER).unwrap();
    assert_eq!(fs::read_link(fixture.ssd("moved/new")).unwrap(), fixture.hdd("dir/new"));
    assert_eq!(fixture.content("moved/new").unwrap(), b"plain");
    // Promoted and demoted again it goes to its present name, and the old directory goes.
    fixture.warm("moved/new");
    fixture.check_places();
    assert!(!fixture.hdd("dir").exists(), "an empty directory without a mirror goes");
    fixture.demote("moved/new");
    assert_eq!(fs::read_link(fixture.ssd("moved/new")).unwrap(), fixture.hdd("moved/new"));
    fixture.check_places();
}

/// A directory that was closed after something in it had moved stayed open below, with what moved
/// later; and its group had there what its ACL gives to others.
#[test]
fn directories_below_let_in_whom_the_tree_lets_in() {
    let fixture = Fixture::new(limited(1 << 20));
    let tier = fixture.tier();
    let (root, name) = fixture.at("dir");
    let (dir, _) = tier.make((&root, name), Make::Directory(0o755), BY).unwrap();
    let acl: &[u8] = &[
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 1, 0, 0, 0, 4, 0, 0, 0, 255, 255,
        255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    let name: &OsStr = "system.posix_acl_access".as_ref();
    let set_acl = || tier.set_xattr(&dir, name, acl, 0).unwrap();
    let set_mode = |mode| {
        let change = SetAttr { mode: Some(mode), uid: Some(7), ..SetAttr::default() };
        tier.set_attr(&dir, None, &change, CALLER).unwrap();
    };
    let assert_alike = |when: &str| {
        let [here, below] = [fixture.ssd("dir"), fixture.hdd("dir")].map(|dir| {
            let (meta, dir) = (fs::metadata(&dir).unwrap(), File::open(dir).unwrap());
            let acl = halocline_vfs::namespace::xattr::get_on(&dir, name).ok();
            (meta.mode(), meta.uid(), meta.gid(), acl)
        });
        assert_eq!(here, below, "{when}");
    };
    set_acl();
    fixture.write("dir/file", b"x");
    fixture.demote("dir/file");
    assert_alike("made");
    set_mode(0o710);
    assert_alike("with another mode and owner");
    tier.remove_xattr(&dir, name).unwrap();
    set_mode(0o700);
    assert_alike("without an ACL");
    set_acl();
    assert_alike("with an ACL again");
    fixture.check_places();
}

#[test]
fn a_move_shows_no_change_and_a_rename_shows_one() {
    // pjdfstest found a renamed file with its old ctime where it had just been demoted.
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", b"x");
    let ctime = |path: &str| {
        let stat = fixture.tier().stat(&fixture.vnode(path).unwrap(), None).unwrap();
        (stat.raw.st_ctime, stat.raw.st_ctime_nsec)
    };
    // The mount knows the inode, and with it the time, while somebody has the file.
    let held = fixture.open_file("file", libc::O_RDONLY);
    let before = ctime("file");
    std::thread::sleep(std::time::Duration::from_millis(20));
    fixture.demote("file");
    assert_eq!(ctime("file"), before, "a move is none of the programs' business");
    let (root, name) = fixture.at("file");
    fixture.tier().rename((&root, name), (&root, "new".as_ref()), 0, CALLER).unwrap();
    assert!(ctime("new") > before, "a rename changes the file");
    drop(held);
}

/// Not every file system has links of more than 1023 bytes: demoting a file so deep down failed.
#[test]
fn a_file_far_down_has_a_place_that_a_link_can_name() {
    let fixture = Fixture::new(limited(1 << 20));
    let name = "n".repeat(200);
    let mut path = String::new();
    for _ in 0..6 {
        path += &name;
        let (dir, name) = fixture.at(&path);
        fixture.tier().make((&dir, name), Make::Directory(0o755), BY).unwrap();
        path += "/";
    }
    path += "file";
    fixture.write(&path, b"deep");
    assert_eq!(fixture.demote(&path).files, 1);
    let target = fs::read_link(fixture.ssd(&path)).unwrap();
    assert!(target.as_os_str().len() < 1024 && target.starts_with(fixture.hdd(PRIVATE)));
    assert_eq!(fixture.content(&path).unwrap(), b"deep");
    let (dir, old) = fixture.at(&path);
    fixture.tier().rename((&dir, old), (&dir, "new".as_ref()), 0, CALLER).unwrap();
    assert_eq!(fixture.content(&path.replace("file", "new")).unwrap(), b"deep");
    fixture.check_places();
}

/// A journal of a database lost its name while it was copied, and with it its path.
#[test]
fn a_file_that_loses_its_name_while_it_is_copied_has_no_place() {
    let fixture = Fixture::new(limited(1 << 20));
    let (root, name) = fixture.at("journal");
    fixture.write("journal", b"x");
    let sink = &mut |_| {
        fixture.tier().unlink(&root, name, CALLER).unwrap();
        ControlFlow::Continue(())
    };
    let report = fixture.tier().evict(Path::new("journal"), false, sink).unwrap();
    assert_eq!(report.files, 0, "{report:?}");
    assert!(files_below(&fixture.hdd("")).is_empty());
    fixture.check_places();
}

#[test]
fn a_users_link_to_a_file_below_stays_a_link_and_keeps_its_target() {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", b"x");
    fixture.demote("file");
    let (root, name) = fixture.at("link");
    let target = fixture.hdd("file").into_os_string();
    let (vnode, stat) = fixture.tier().make((&root, name), Make::Symlink(&target), BY).unwrap();
    assert_eq!(stat.kind(), libc::S_IFLNK);
    assert_eq!(fixture.tier().read_link(&vnode).unwrap(), target, "as it was made");
    assert_eq!(fs::read(fixture.ssd("link")).unwrap(), b"x", "and leads there without us");
    fixture.tier().unlink(&root, name, CALLER).unwrap();
    fixture.check_places();
    assert_eq!(fixture.content("file").unwrap(), b"x");
}

#[test]
fn open_files_follow_their_file() {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", b"one");
    let reader = fixture.open_file("file", libc::O_RDONLY);
    let writer = fixture.open_file("file", libc::O_WRONLY | libc::O_APPEND);
    fixture.demote("file");
    fixture.tier().write(&writer, 0, b"two", CALLER).unwrap();
    assert_eq!(fixture.read(&reader), b"onetwo");
    fixture.warm("file");
    fixture.tier().write(&writer, 0, b"three", CALLER).unwrap();
    assert_eq!(fixture.read(&reader), b"onetwothree");
    fixture.demote("file");
    // Removed while open: data lives as long as the handles.
    let (root, name) = fixture.at("file");
    let vnode = fixture.vnode("file").unwrap();
    fixture.tier().unlink(&root, name, CALLER).unwrap();
    // Its data was removed later, and counted as a name until then.
    assert_eq!(fixture.tier().stat(&vnode, Some(&reader)).unwrap().raw.st_nlink, 0);
    fixture.check_places();
    fixture.tier().write(&writer, 0, b"!", CALLER).unwrap();
    assert_eq!(fixture.read(&reader), b"onetwothree!");
    assert!(!fixture.hdd("file").exists());
}

/// `link` failed with EMLINK when somebody else brought the file first, or took the room that was
/// made for it.
#[test]
fn hard_links_are_made_while_files_move() {
    let fixture = Fixture::new(limited(512 << 10));
    let names: Vec<String> = (0..24).map(|number| format!("file{number}")).collect();
    for name in &names {
        fixture.write(name, &vec![1; 20_000]);
    }
    let linked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for direction in 0..2 {
            let (fixture, names, linked) = (&fixture, &names, &linked);
            scope.spawn(move || {
                for name in names.iter().cycle().take_while(|_| !linked.load(Ordering::Relaxed)) {
                    if direction == 0 {
                        fixture.demote(name)
                    } else {
                        fixture.warm(name)
                    };
                }
            });
        }
        let root = fixture.tier().root();
        let made: Result<()> = (0..10)
            .flat_map(|round| {
                let (fixture, root) = (&fixture, &root);
                names.iter().map(move |name| {
                    let second = format!("{name}-{round}");
                    fixture.tier().link(&fixture.vnode(name)?, root, second.as_ref())?;
                    fixture.tier().unlink(root, second.as_ref(), CALLER)
                })
            })
            .collect();
        linked.store(true, Ordering::Relaxed);
        made.unwrap();
    });
    fixture.check_places();
}

/// What somebody put there is adopted as it is: nothing is deleted, conflicts are listed (I10).
#[test]
fn i10_a_tree_made_by_hand_is_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("ssd/only", "ssd");
    write("ssd/both", "ssd");
    write("hdd/both", "hdd");
    write("hdd/deep/er/only", "hdd");
    write("hdd/linked", "hdd");
    fs::hard_link(dir.path().join("hdd/deep/er/only"), dir.path().join("hdd/deep/two")).unwrap();
    symlink(dir.path().join("hdd/linked"), dir.path().join("ssd/linked")).unwrap();
    symlink(dir.path().join("hdd/linked"), dir.path().join("ssd/second")).unwrap();
    symlink(dir.path().join("hdd/gone"), dir.path().join("ssd/lost")).unwrap();
    symlink("only", dir.path().join("ssd/users")).unwrap();
    let options = limited(1 << 20);
    let fixture = Fixture::over(dir, &["ssd", "hdd"], options);
    let problems: Vec<String> = fixture
        .found
        .problems
        .iter()
        .map(|problem| match problem {
            Problem::Conflict { path, .. } => format!("conflict {}", path.display()),
            Problem::Lost { path, .. } => format!("lost {}", path.display()),
            Problem::SecondLink { path, .. } => format!("second {}", path.display()),
            Problem::ManyNames { names, .. } => format!("{names} names"),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(problems, ["conflict both", "lost lost", "second second", "2 names"]);
    assert_eq!(fixture.found.adopted, ["deep/er/only", "deep/two"].map(PathBuf::from));
    for (path, content) in
        [("only", "ssd"), ("both", "ssd"), ("deep/er/only", "hdd"), ("linked", "hdd")]
    {
        assert_eq!(fixture.content(path).unwrap(), content.as_bytes(), "{path}");
    }
    assert_eq!(fs::read(fixture.hdd("both")).unwrap(), b"hdd", "nothing is deleted");
    assert_eq!(fs::read(fixture.ssd("second")).unwrap(), b"hdd");
    // Demoting what is in conflict takes another place and leaves the other file alone.
    fixture.demote("both");
    assert_eq!(fixture.where_is("both"), 1);
    assert_eq!(fixture.content("both").unwrap(), b"ssd");
    assert_eq!(fs::read(fixture.hdd("both")).unwrap(), b"hdd");
}

#[test]
fn tiers_that_do_not_belong_together_are_refused() {
    let mut fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", b"x");
    fixture.demote("file");
    fixture.tier = None;
    let set = TierSet::below(fixture.dir.path(), &["ssd", "hdd"]).unwrap();
    // The SSD is not mounted: an empty directory is there.
    fs::rename(fixture.ssd(""), fixture.dir.path().join("elsewhere")).unwrap();
    fs::create_dir(fixture.ssd("")).unwrap();
    let refused = FileTier::open(&set, limited(1 << 20)).unwrap_err().to_string();
    assert!(refused.contains("no label") && refused.contains("mount its device"), "{refused}");
    // It is lost: the files below are ordinary files, and adopted once the label is taken away.
    assert_eq!(fs::read(fixture.hdd("file")).unwrap(), b"x");
    fs::remove_file(fixture.hdd(".halocline/tier.json")).unwrap();
    fixture.open();
    assert_eq!(fixture.found.adopted, [PathBuf::from("file")]);
    assert_eq!(fixture.content("file").unwrap(), b"x");
}

/// Symbolic links, special files and empty directories of a lower tier stayed there unseen.
#[test]
fn links_and_special_files_below_are_adopted() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["ssd/taken", "hdd/deep/empty"] {
        fs::create_dir_all(dir.path().join(path)).unwrap();
    }
    let hdd = |path: &str| dir.path().join("hdd").join(path);
    symlink("../elsewhere", hdd("deep/link")).unwrap();
    symlink(hdd("deep/link"), hdd("into")).unwrap();
    symlink("other", hdd("taken")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        hdd("deep/pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let mut fixture = Fixture::over(dir, &["ssd", "hdd"], limited(1 << 20));
    let taken = Problem::Conflict { path: "taken".into(), other: fixture.hdd("taken") };
    assert_eq!(fixture.found.problems, [taken]);
    assert_eq!(fixture.found.adopted, ["deep/link", "deep/pipe", "into"].map(PathBuf::from));
    let target = |path| fixture.tier().read_link(&fixture.vnode(path).unwrap()).unwrap();
    assert_eq!(target("deep/link"), "../elsewhere");
    assert_eq!(target("into"), fixture.hdd("deep/link"), "a user's, though it leads there");
    let pipe = fixture.tier().stat(&fixture.vnode("deep/pipe").unwrap(), None).unwrap();
    assert_eq!(pipe.raw.st_mode, libc::S_IFIFO | 0o700);
    assert!(fixture.ssd("deep/empty").is_dir());
    assert!(fixture.hdd("deep/link").symlink_metadata().is_err(), "it is in one place");
    // What is removed on the mount does not come back, nor do directories that are left over.
    for path in ["into", "deep/pipe"] {
        let (dir, name) = fixture.at(path);
        fixture.tier().unlink(&dir, name, CALLER).unwrap();
    }
    fs::remove_dir(fixture.ssd("deep/empty")).unwrap();
    fs::create_dir_all(fixture.hdd("deep/empty")).unwrap();
    // A mount that was killed before it removed one.
    symlink("../elsewhere", fixture.hdd("deep/link")).unwrap();
    fixture.open();
    assert!(fixture.vnode("into").is_err() && fixture.vnode("deep/pipe").is_err());
    assert!(!fixture.ssd("deep/empty").exists());
    assert!(fixture.hdd("deep/link").symlink_metadata().is_err());
    assert_eq!(fixture.found.problems.len(), 1);
}

/// A first mount that was killed, or whose power failed, while it labelled the tiers.
#[test]
fn a_first_mount_that_was_interrupted_is_no_obstacle() {
    let mut fixture = Fixture::with(&["ssd", "hdd", "tape"], limited(1 << 20));
    fixture.write("file", b"x");
    fixture.demote("file");
    for missing in [&["ssd"][..], &["ssd", "hdd"], &["ssd", "hdd", "tape"]] {
        fixture.tier = None;
        for tier in missing {
            fs::remove_file(fixture.dir.path().join(tier).join(".halocline/tier.json")).unwrap();
        }
        fixture.open();
        assert_eq!(fixture.content("file").unwrap(), b"x", "without {missing:?}");
        assert!(fixture.dir.path().join("tape/.halocline/tier.json").exists());
    }
}

#[test]
fn i8_two_mounts_never_share_tiers() {
    let fixture = Fixture::new(limited(1 << 20));
    let set = TierSet::below(fixture.dir.path(), &["ssd", "hdd"]).unwrap();
    assert!(FileTier::open(&set, limited(1 << 20)).is_err());
}

#[test]
fn three_tiers_take_files_in_their_order() {
    let fixture = Fixture::with(&["ssd", "hdd", "tape"], limited(1 << 20));
    fixture.write("a", b"a");
    fixture.demote("a");
    assert_eq!(fixture.where_is("a"), 1);
    fixture.write("b", b"b");
    fixture.set_room(1, 0);
    fixture.demote("b");
    assert_eq!((fixture.where_is("a"), fixture.where_is("b")), (1, 2));
    assert_eq!(fixture.content("b").unwrap(), b"b");
    fixture.check_places();
    drop(fixture.open_file("b", libc::O_RDONLY));
    assert_eq!(fixture.where_is("b"), 0, "an open brings it up");
    fixture.check_places();
}

/// Whether the data of removed files goes before their directory or after it.
#[test]
fn a_removed_directory_is_gone_below_too() {
    let fixture = Fixture::new(limited(1 << 20));
    let tier = fixture.tier();
    for data_first in [true, false] {
        let (root, name) = fixture.at("dir");
        tier.make((&root, name), Make::Directory(0o755), BY).unwrap();
        fixture.write("dir/file", b"x");
        fixture.demote("dir/file");
        let (dir, file) = fixture.at("dir/file");
        tier.unlink(&dir, file, CALLER).unwrap();
        if data_first {
            fixture.reap().unwrap();
        }
        assert!(fixture.hdd("dir").exists());
        tier.remove_dir(&root, name, CALLER).unwrap();
        fixture.reap().unwrap();
        assert!(!fixture.hdd("dir").exists(), "data first: {data_first}");
        fixture.check_places();
    }
}
