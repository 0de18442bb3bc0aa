//! What others can do to a copy of a striped origin while it is made, and see of it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_os::beneath::TreeCursor;
use halocline_storage::volume::unstripe::{planned_bytes, unstripe, unstripe_tree};
use halocline_storage::volume::{Origin, OriginFile};
use halocline_testkit::skipping::skip;
use halocline_testkit::small_disk::SmallDisk;
use rustix::fs::{
    AtFlags, Mode, OFlags, XattrFlags, fstat, linkat, mkdirat, openat, setxattr, statat, symlinkat,
};

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };

fn striped(dir: &Path) -> Origin {
    Origin::open_or_create(dir, SHAPE, &|_, device| device).unwrap()
}

fn create(origin: &Origin, name: &str) -> OriginFile {
    let path = origin.namespace_dir().join(name);
    let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    origin.adopt_data(file).unwrap()
}

/// Files in a directory that keeps others out were readable while the tree was copied: the copy's
/// directories were open until they got their attributes.
#[test]
fn nobody_else_gets_into_a_copy_that_is_being_made() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, out) = (dir.path().join("volume"), dir.path().join("out"));
    fs::create_dir(&volume).unwrap();
    let origin = striped(&volume);
    let root = origin.namespace_dir().to_owned();
    fs::create_dir(root.join("closed")).unwrap();
    create(&origin, "closed/secret").write_at(0, &[1; 10_000]).unwrap();
    for (name, mode) in [("closed/secret", 0o644), ("closed", 0o700), ("", 0o755)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let copy = dir.path().join("out.incomplete");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let mut looks = 0;
    unstripe_tree(&volume, &out, &mut |_| {
        assert_eq!((mode(&copy), mode(&copy.join("closed"))), (0o700, 0o700));
        looks += 1;
    })
    .unwrap();
    assert!(looks > 0);
    assert_eq!((mode(&out), mode(&out.join("closed/secret"))), (0o755, 0o644));
}

/// Whoever may write to the directory of the copy had it written elsewhere, by root.
#[test]
fn a_copy_that_is_being_made_does_not_go_where_a_link_leads() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, out) = (dir.path().join("volume"), dir.path().join("out"));
    fs::create_dir(&volume).unwrap();
    let origin = striped(&volume);
    create(&origin, "a").write_at(0, &[1; 10_000]).unwrap();
    create(&origin, "b").write_at(0, &[2; 10_000]).unwrap();
    let (copy, victim) = (dir.path().join("out.incomplete"), dir.path().join("victim"));
    fs::create_dir(&victim).unwrap();
    let mut swap = Some(());
    let told = unstripe_tree(&volume, &out, &mut |_| {
        if swap.take().is_some() {
            fs::rename(&copy, dir.path().join("aside")).unwrap();
            std::os::unix::fs::symlink(&victim, &copy).unwrap();
        }
    });
    let told = told.unwrap_err().to_string();
    assert!(told.contains("in its place"), "{told}");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "nothing was written there");
    assert!(!out.exists());
}

/// Whoever may write to the tree had another directory listed, by putting a link in the place of one.
#[test]
fn what_links_of_a_striped_tree_lead_to_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, out) = (dir.path().join("volume"), dir.path().join("out"));
    fs::create_dir(&volume).unwrap();
    let origin = striped(&volume);
    let root = origin.namespace_dir().to_owned();
    fs::create_dir(root.join("real")).unwrap();
    create(&origin, "real/file").write_at(0, &[1; 100]).unwrap();
    std::os::unix::fs::symlink("real", root.join("link")).unwrap();
    let told = unstripe(&volume, "link/file".as_ref(), &out, &mut |_| ()).unwrap_err().to_string();
    assert!(told.contains("not links"), "{told}");
    create(&origin, "first").write_at(0, &[1; 100]).unwrap();
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    fs::write(dir.path().join("elsewhere/private"), "secret").unwrap();
    let mut swap = Some(());
    let copied = unstripe_tree(&volume, &out, &mut |_| {
        if swap.take().is_some() {
            fs::rename(root.join("real"), root.join("aside")).unwrap();
            std::os::unix::fs::symlink(dir.path().join("elsewhere"), root.join("real")).unwrap();
        }
    });
    copied.unwrap();
    assert_eq!(fs::read_link(out.join("real")).unwrap(), dir.path().join("elsewhere"));
}

/// Users make such trees by moving directories below one another. Regression: the path was too long; with short names, each
/// level took three descriptors and a part of the stack.
#[test]
fn a_tree_deeper_than_paths_are_long_is_copied() {
    const LEVELS: usize = 600;
    let dir = tempfile::tempdir().unwrap();
    let (volume, out) = (dir.path().join("volume"), dir.path().join("out"));
    fs::create_dir(&volume).unwrap();
    let origin = striped(&volume);
    let step = "d".repeat(200);
    let root = File::open(origin.namespace_dir()).unwrap();
    let mut cursor = TreeCursor::new(root).unwrap();
    for level in 0..LEVELS {
        mkdirat(cursor.directory(), step.as_str(), Mode::from_raw_mode(0o750)).unwrap();
        cursor.enter(step.as_ref()).unwrap();
        if level % 50 == 0 || level + 1 == LEVELS {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            let file = openat(cursor.directory(), "f", flags, Mode::RUSR | Mode::WUSR).unwrap();
            let file = origin.adopt_data(File::from(file)).unwrap();
            file.write_at(0, level.to_string().as_bytes()).unwrap();
        }
    }
    let at = cursor.directory();
    linkat(at, "f", at, "g", AtFlags::empty()).unwrap();
    symlinkat("f", at, "l").unwrap();
    let (planned, _) = planned_bytes(&volume, None, &out).unwrap();
    let mut passed = 0;
    unstripe_tree(&volume, &out, &mut |bytes| passed += bytes).unwrap();
    assert_eq!((planned, passed), (36, 36));
    let mut cursor = TreeCursor::new(File::open(&out).unwrap()).unwrap();
    for level in 0..LEVELS {
        cursor.enter(step.as_ref()).unwrap();
        assert_eq!(fstat(cursor.directory()).unwrap().st_mode & 0o777, 0o750);
        let names = cursor.names().unwrap().len();
        let expected = 1 + usize::from(level % 50 == 0);
        assert_eq!(names, if level + 1 == LEVELS { 3 } else { expected }, "{level}");
        if level % 50 == 0 {
            let file = openat(cursor.directory(), "f", OFlags::RDONLY, Mode::empty()).unwrap();
            assert_eq!(std::io::read_to_string(File::from(file)).unwrap(), level.to_string());
        }
    }
    let inode = |name| statat(cursor.directory(), name, AtFlags::empty()).unwrap().st_ino;
    assert_eq!((inode("f"), inode("l")), (inode("g"), inode("f")));
}

/// Regression: one file whose owner had given it more extended attributes than the kernel lists, as tmpfs and XFS keep them, ended the
/// copy of all.
#[test]
fn attributes_that_cannot_be_listed_are_told_and_all_else_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, out) = (dir.path().join("volume"), dir.path().join("out"));
    fs::create_dir(&volume).unwrap();
    let Some(_disk) = SmallDisk::over(volume.clone(), 32 << 20) else { return };
    let origin = striped(&volume);
    for name in ["a", "b"] {
        create(&origin, name).write_at(0, &[1; 10_000]).unwrap();
    }
    let (hostile, none) = (origin.namespace_dir().join("a"), XattrFlags::empty());
    if setxattr(&hostile, "user.kept", b"", none).is_err() {
        return skip("tmpfs keeps no attributes of users here");
    }
    for at in 0..400 {
        setxattr(&hostile, format!("user.{at:0>250}"), b"", none).unwrap();
    }
    fs::set_permissions(&hostile, fs::Permissions::from_mode(0o640)).unwrap();
    let lacking = unstripe_tree(&volume, &out, &mut |_| {}).unwrap();
    let told: Vec<String> = lacking.iter().map(ToString::to_string).collect();
    assert!(told.len() == 1 && told[0].contains("/a: the names of its ext"), "{told:?}");
    for name in ["a", "b"] {
        let copy = fs::read_dir(dir.path()).unwrap().find_map(|entry| {
            fs::read(entry.unwrap().path().join(name)).ok().filter(|bytes| bytes.len() == 10_000)
        });
        assert_eq!(copy, Some(vec![1; 10_000]), "{name}");
    }
}
