//! The directory with the names of a striped volume is that of its names: by an empty one, as the mount point of a file system
//! that is not mounted, all data would seem to belong to no file.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_storage::device::Device;
use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::marking::{Evidence, mark_servers};
use halocline_storage::volume::origin::relayout::Relayout;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 4096 };
const LABEL: &str = "halocline-volume.toml";
const MARK: &str = "user.halocline.tree";

fn undecorated(_: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

/// A volume with these files.
fn volume(dir: &Path, files: &[&str]) {
    fs::create_dir_all(dir).unwrap();
    let origin = Origin::open_or_create(dir, SHAPE, &undecorated).unwrap();
    for name in files {
        let path = origin.namespace_dir().join(name);
        let node = File::options().create_new(true).read(true).write(true).open(path).unwrap();
        origin.adopt_data(node).unwrap().write_at(0, &content(name)).unwrap();
    }
}

fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(20_000).collect()
}

fn is_whole(dir: &Path, files: &[&str]) -> bool {
    let origin = Origin::open_volume(dir).unwrap();
    files.iter().all(|name| {
        let node = File::open(origin.namespace_dir().join(name)).unwrap();
        let mut back = vec![0; 20_000];
        let data = origin.open_data(node.as_fd(), libc::O_RDONLY).unwrap();
        data.read_at(0, &mut back).unwrap() == 20_000 && back == content(name)
    })
}

/// What each use of the volume says.
fn refused(dir: &Path) -> Vec<String> {
    let opened = [
        Origin::open_or_create(dir, SHAPE, &undecorated).map(drop),
        Origin::open_volume(dir).map(drop),
        Origin::open_to_look(dir).map(drop),
        Relayout::open(dir).map(drop),
        Origin::open_alone(dir).and_then(|origin| origin.unwrap().check_tree()),
    ];
    opened.into_iter().map(|opened| opened.unwrap_err().to_string()).collect()
}

fn mark(dir: &Path) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    let len = getxattr(dir.join("namespace"), MARK, &mut value).ok()?;
    Some(value[..len].to_vec())
}

/// The tree as an earlier version made it.
fn unmark(dir: &Path) {
    removexattr(dir.join("namespace"), MARK).unwrap();
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

const FILES: [&str; 4] = ["a", "b", "c", "d"];

/// Regression: such a tree was taken for the volume's, and a repair removed all data.
#[test]
fn a_tree_that_is_not_mounted_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("volume");
    volume(&dir, &FILES);
    let label = fs::read_to_string(dir.join(LABEL)).unwrap();
    for is_marked in [true, false] {
        let (tree, aside) = (dir.join("namespace"), dir.join("aside"));
        if !is_marked {
            unmark(&dir);
        }
        fs::rename(&tree, &aside).unwrap();
        fs::create_dir(&tree).unwrap();
        // One that was used by mistake has some names, too.
        fs::write(tree.join("new"), "new").unwrap();
        let told = format!("{}: its files name 0 of the 4 objects", tree.display());
        for error in refused(&dir) {
            assert!(error.contains(&told), "{error}");
            assert!(error.contains("mount the file system with the names there"), "{error}");
        }
        assert_eq!(fs::read_to_string(dir.join(LABEL)).unwrap(), label);
        fs::remove_dir_all(&tree).unwrap();
        fs::rename(&aside, &tree).unwrap();
        assert!(is_whole(&dir, &FILES));
        assert!(mark(&dir).is_some(), "marked at its first opening");
    }
}

/// Also where its inode number is the same, as those of the roots of two file systems are.
#[test]
fn the_tree_of_another_volume_is_refused_and_a_copy_is_not() {
    let scratch = tempfile::tempdir().unwrap();
    let [one, two, backup] = ["one", "two", "backup"].map(|name| scratch.path().join(name));
    volume(&one, &FILES);
    volume(&two, &["x"]);
    copy(&one, &backup);
    assert!(is_whole(&backup, &FILES));
    for is_marked in [true, false] {
        if !is_marked {
            unmark(&two);
        }
        fs::rename(one.join("namespace"), one.join("aside")).unwrap();
        fs::rename(two.join("namespace"), one.join("namespace")).unwrap();
        let inode = |dir: &str| {
            let found = fs::metadata(one.join(dir)).unwrap();
            format!("tree = \"{}\"", std::os::unix::fs::MetadataExt::ino(&found))
        };
        let label = fs::read_to_string(one.join(LABEL)).unwrap();
        for label in [&label, &label.replace(&inode("aside"), &inode("namespace"))] {
            fs::write(one.join(LABEL), label).unwrap();
            let told = refused(&one);
            assert!(told.iter().all(|error| error.contains("name 0 of the 4")), "{told:?}");
        }
        fs::write(one.join(LABEL), label).unwrap();
        fs::rename(one.join("namespace"), two.join("namespace")).unwrap();
        fs::rename(one.join("aside"), one.join("namespace")).unwrap();
    }
    assert!(is_whole(&one, &FILES) && is_whole(&two, &["x"]));
    // A copy made before the tree was marked shows itself by its files.
    unmark(&one);
    fs::remove_dir_all(&backup).unwrap();
    copy(&one, &backup);
    assert!(is_whole(&backup, &FILES));
    assert!(mark(&backup).is_some());
}

/// A tree that lost most of its names is used by one who says so, as the error does.
#[test]
fn a_tree_with_few_names_is_used_once_it_is_marked() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("volume");
    volume(&dir, &FILES);
    let name = mark(&dir).unwrap();
    unmark(&dir);
    for file in &FILES[1..] {
        fs::remove_file(dir.join("namespace").join(file)).unwrap();
    }
    let command = format!("-n {MARK} -v {} ", String::from_utf8_lossy(&name));
    for error in refused(&dir) {
        assert!(error.contains("name 1 of the 4") && error.contains(&command), "{error}");
    }
    setxattr(dir.join("namespace"), MARK, &name, XattrFlags::CREATE).unwrap();
    assert!(is_whole(&dir, &FILES[..1]));
    let origin = Origin::open_alone(&dir).unwrap().unwrap();
    origin.check_tree().unwrap();
    assert_eq!((origin.orphans().unwrap().len(), origin.object_count().unwrap()), (3, 4));
}

/// Volumes of formats 1 to 3 have no name: any mark says that somebody knows the tree, and marking the servers writes the right one.
#[test]
fn a_volume_without_a_name_gets_its_mark_with_those_of_the_servers() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("volume");
    volume(&dir, &FILES);
    let label = fs::read_to_string(dir.join(LABEL)).unwrap();
    let old = label.replace("format = 4", "format = 2");
    let old: Vec<_> = old.lines().filter(|line| !line.starts_with("volume")).collect();
    fs::write(dir.join(LABEL), old.join("\n")).unwrap();
    unmark(&dir);
    assert!(is_whole(&dir, &FILES));
    assert_eq!(mark(&dir), None);
    let (tree, aside) = (dir.join("namespace"), dir.join("aside"));
    fs::rename(&tree, &aside).unwrap();
    fs::create_dir(&tree).unwrap();
    assert!(refused(&dir).iter().all(|error| error.contains("-v known ")));
    setxattr(&tree, MARK, b"known", XattrFlags::CREATE).unwrap();
    drop(Origin::open_to_look(&dir).map_err(|error| assert!(error.to_string().contains("copy"))));
    fs::remove_dir(&tree).unwrap();
    fs::rename(&aside, &tree).unwrap();
    for server in ["server-0", "server-1"] {
        fs::remove_file(dir.join(server).join("halocline-server")).unwrap();
    }
    assert!(mark_servers(&dir, Evidence::Contents).unwrap().servers);
    assert!(mark(&dir).is_some_and(|name| name.len() == 32));
    assert!(is_whole(&dir, &FILES));
}
