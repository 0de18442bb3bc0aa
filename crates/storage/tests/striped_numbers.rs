//! Files of a striped origin that name data which is gone: those that were copied or restored past the mount, whose original was
//! moved or removed since. They read as zeros, without an error.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_model::file_layout::FileLayout;
use halocline_storage::device::Device;
use halocline_storage::volume::origin::relayout::{self, Relayout, Wish};
use halocline_storage::volume::unstripe::unstripe;
use halocline_storage::volume::{Origin, OriginFile};
use rustix::fs::{XattrFlags, getxattr, setxattr};

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 4096 };
const OBJECT: &str = "user.halocline.object";

/// Of the data that is not the file's, and of that which is nowhere.
const OF_ANOTHER: &str = "names the data of another file";
const GONE: &str = "names data that is not there";

fn undecorated(_: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

fn volume(dir: &Path) -> Origin {
    fs::create_dir_all(dir).unwrap();
    Origin::open_or_create(dir, SHAPE, &undecorated).unwrap()
}

fn create(origin: &Origin, name: &str) -> OriginFile {
    let path = origin.namespace_dir().join(name);
    let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    origin.adopt_data(file).unwrap()
}

fn content() -> Vec<u8> {
    (0..30_000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn open(origin: &Origin, name: &str) -> OriginFile {
    let node = File::open(origin.namespace_dir().join(name)).unwrap();
    origin.open_data(node.as_fd(), libc::O_RDWR).unwrap()
}

fn read(origin: &Origin, name: &str) -> io::Result<Vec<u8>> {
    let mut back = vec![0xaa; 1 << 20];
    let len = open(origin, name).read_at(0, &mut back)?;
    back.truncate(len);
    Ok(back)
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

fn number_of(path: &Path) -> String {
    let mut value = [0; 64];
    let len = getxattr(path, OBJECT, &mut value).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}

fn set_number(path: &Path, number: &str) {
    setxattr(path, OBJECT, number.as_bytes(), XattrFlags::empty()).unwrap();
}

/// Moves a file to one server alone, or to the volume's own stripes.
fn relayout(dir: &Path, name: &str, widths: [u64; 2]) {
    let layout = FileLayout::from_parts([(0, widths.to_vec())]).unwrap();
    let volume = Relayout::open(dir).unwrap();
    let wish = Wish { path: name.into(), layout };
    let [change] = &relayout::look(volume.origin(), &[wish], true).unwrap()[..] else { panic!() };
    assert!(!change.agrees());
    volume.relayout(change, &mut |_| Ok(()), &mut |_| ()).unwrap();
}

/// What a file fails with, in everything that reads or changes it.
#[track_caller]
fn fails(dir: &Path, name: &str, why: &str) {
    let origin = volume(dir);
    let told = read(&origin, name).map(drop).unwrap_err().to_string();
    assert!(told.contains(why), "{name}: {told}");
    open(&origin, name).write_at(7, &[1]).unwrap_err();
    open(&origin, name).truncate(7).unwrap_err();
    let layout = FileLayout::from_parts([(0, vec![4096, 0])]).unwrap();
    let wish = Wish { path: name.into(), layout };
    let told = relayout::look(&origin, &[wish], false).unwrap_err().to_string();
    assert!(told.contains(why), "{name}: {told}");
    drop(origin);
    let out = dir.join("out");
    let told = unstripe(dir, name.as_ref(), &out, &mut |_| ()).unwrap_err().to_string();
    assert!(told.contains(why), "{name}: {told}");
    let _ = fs::remove_file(dir.join("out.incomplete"));
    let named = Origin::open_alone(dir).unwrap().unwrap().named_objects().unwrap();
    let is_told = |path: &Path| path == Path::new(name);
    assert!(
        named.unreadable.iter().any(|it| is_told(&it.path) && it.reason.contains(why))
            || named.misnamed.iter().flat_map(|it| &it.named_by).any(|it| is_told(&it.0)),
        "{name}: {named:?}"
    );
}

fn scratch(name: &str) -> (tempfile::TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join(name);
    create(&volume(&dir), "file").write_at(0, &content()).unwrap();
    (scratch, dir)
}

#[test]
fn a_copy_of_a_name_fails_also_when_the_original_is_moved_or_removed() {
    for widths in [[0, 4096], [8192, 4096]] {
        let (_scratch, dir) = scratch("volume");
        let names = dir.join("namespace");
        copy(&names.join("file"), &names.join("copy"));
        fails(&dir, "copy", OF_ANOTHER);
        relayout(&dir, "file", widths);
        fails(&dir, "copy", OF_ANOTHER);
        copy(&names.join("file"), &names.join("later"));
        relayout(&dir, "file", [512, 512]);
        for name in ["copy", "later"] {
            fails(&dir, name, OF_ANOTHER);
        }
        let origin = volume(&dir);
        assert_eq!(read(&origin, "file").unwrap(), content());
        let removed = File::open(names.join("file")).unwrap();
        fs::remove_file(names.join("file")).unwrap();
        origin.remove_data(removed).unwrap();
        drop(origin);
        for name in ["copy", "later"] {
            fails(&dir, name, GONE);
        }
        // It can be emptied, and written anew.
        let origin = volume(&dir);
        for name in ["copy", "later"] {
            open(&origin, name).truncate(0).unwrap();
            assert_eq!(read(&origin, name).unwrap(), b"");
            open(&origin, name).write_at(0, &content()).unwrap();
            assert_eq!(read(&origin, name).unwrap(), content());
        }
    }
}

/// A file whose attributes are restored keeps its inode number, so that it is the one for which the number was made.
#[test]
fn a_number_from_before_a_move_leads_to_no_zeros() {
    let (_scratch, dir) = scratch("volume");
    let path = dir.join("namespace/file");
    let before = number_of(&path);
    relayout(&dir, "file", [0, 4096]);
    let after = number_of(&path);
    assert!(before != after && before[..16] == after[..16], "{before} {after}");
    set_number(&path, &before);
    fails(&dir, "file", OF_ANOTHER);
    // The same digits without the mark of a layout are another number, too.
    set_number(&path, &after.replace('v', ""));
    fails(&dir, "file", OF_ANOTHER);
    let origin = Origin::open_alone(&dir).unwrap().unwrap();
    let named = origin.named_objects().unwrap();
    assert!(named.unnamed.is_empty(), "its data could be removed: {named:?}");
    assert_eq!(named.misnamed.len(), 1, "{named:?}");
    drop(origin);
    set_number(&path, &after);
    assert_eq!(read(&volume(&dir), "file").unwrap(), content());
}

/// What was killed between naming its object and the first byte, and what has holes alone.
#[test]
fn a_file_without_data_reads_as_zeros() {
    let (scratch, dir) = scratch("volume");
    let origin = volume(&dir);
    for name in ["killed", "holes", "wide"] {
        create(&origin, name).truncate(5000).unwrap();
    }
    let killed = create(&origin, "as killed");
    killed.write_at(0, &[1]).unwrap();
    killed.truncate(0).unwrap();
    killed.truncate(5000).unwrap();
    // As it is before the first byte.
    let number = number_of(&dir.join("namespace/as killed"));
    for server in 0..2 {
        let objects = dir.join(format!("server-{server}/objects")).join(&number[..2]);
        for object in fs::read_dir(objects).into_iter().flatten() {
            let object = object.unwrap();
            if object.file_name().to_str().unwrap().starts_with(&number) {
                fs::remove_file(object.path()).unwrap();
            }
        }
    }
    drop((killed, origin));
    relayout(&dir, "holes", [0, 4096]);
    relayout(&dir, "holes", [4096, 4096]);
    relayout(&dir, "wide", [0, 4096]);
    let names = ["killed", "holes", "wide", "as killed"];
    let are_zeros = |dir: &Path, names: &[&str]| {
        let origin = volume(dir);
        for name in names {
            assert_eq!(read(&origin, name).unwrap(), vec![0; 5000], "{name}");
        }
        drop(origin);
        let objects = Origin::open_alone(dir).unwrap().unwrap().named_objects().unwrap();
        assert!(objects.unreadable.is_empty(), "{objects:?}");
    };
    are_zeros(&dir, &names);
    // In a copy of the volume no number is that of its file; what was never killed has no less there.
    fs::remove_file(dir.join("namespace/as killed")).unwrap();
    let backup = scratch.path().join("backup");
    copy(&dir, &backup);
    are_zeros(&backup, &names[..3]);
    assert_eq!(read(&volume(&backup), "file").unwrap(), content());
}

/// All digits of the numbers of earlier versions are random.
#[test]
fn numbers_of_earlier_versions_are_used_as_they_are() {
    let (_scratch, dir) = scratch("volume");
    let tree = dir.join("namespace");
    let (now, then) = (number_of(&tree.join("file")), format!("{:032x}t", u128::MAX / 7));
    for server in 0..2 {
        let objects = dir.join(format!("server-{server}/objects"));
        let found = fs::read_dir(objects.join(&now[..2])).unwrap().next().unwrap().unwrap();
        fs::create_dir(objects.join(&then[..2])).unwrap();
        let name = found.file_name().into_string().unwrap().replace(&now, &then);
        fs::rename(found.path(), objects.join(&then[..2]).join(name)).unwrap();
    }
    set_number(&tree.join("file"), &then);
    let origin = volume(&dir);
    assert_eq!(read(&origin, "file").unwrap(), content());
    open(&origin, "file").write_at(0, &content()).unwrap();
    drop(origin);
    copy(&tree.join("file"), &tree.join("copy"));
    relayout(&dir, "file", [0, 4096]);
    fails(&dir, "copy", OF_ANOTHER);
    assert_eq!(read(&volume(&dir), "file").unwrap(), content());
    fs::remove_file(tree.join("file")).unwrap();
    // Nothing that is left of it is anybody's but the copy's, for all that is known.
    let named = Origin::open_alone(&dir).unwrap().unwrap().named_objects().unwrap();
    assert!(named.unnamed.is_empty() && named.misnamed.len() == 1, "{named:?}");
}

/// Regression: the remedy for a file whose data is gone is to empty it, and then it could not grow by a truncate.
#[test]
fn an_emptied_copy_of_a_name_is_a_file_of_its_own() {
    let (_scratch, dir) = scratch("emptied");
    let origin = volume(&dir);
    create(&origin, "f").write_at(0, &content()).unwrap();
    let names = origin.namespace_dir().to_path_buf();
    for name in ["cut", "grown"] {
        copy(&names.join("f"), &names.join(name));
        assert!(read(&origin, name).is_err(), "{name}");
        open(&origin, name).truncate(0).unwrap();
    }
    open(&origin, "cut").truncate(9000).unwrap();
    assert!(read(&origin, "cut").unwrap() == vec![0; 9000]);
    open(&origin, "grown").prepare_growth(9000).unwrap();
    open(&origin, "grown").write_at(8999, b"x").unwrap();
    let expected = [&[0; 8999][..], b"x"].concat();
    assert!(read(&origin, "grown").unwrap() == expected);
    assert!(read(&origin, "f").unwrap() == content());
    // Nothing of them is the other's, also where both are opened anew.
    drop(origin);
    let origin = Origin::open_or_create(&dir, SHAPE, &undecorated).unwrap();
    assert!(
        read(&origin, "grown").unwrap() == expected && read(&origin, "f").unwrap() == content()
    );
}

/// Regression: a check tells an empty file with a layout of its own, and the whole list was refused for it.
#[test]
fn a_file_with_a_layout_alone_is_given_it() {
    let (scratch, dir) = scratch("layouts");
    create(&volume(&dir), "empty");
    relayout(&dir, "empty", [0, 4096]);
    relayout(&dir, "file", [0, 4096]);
    let to = scratch.path().join("copy");
    copy(&dir, &to);
    for name in ["empty", "file"] {
        let attested = "trusted.halocline.object";
        if rustix::fs::removexattr(to.join("namespace").join(name), attested).is_err() {
            // Who is not root attests nothing.
            return;
        }
    }
    drop(volume(&to));
    let origin = Origin::open_alone(&to).unwrap().unwrap();
    assert!(read(&origin, "file").is_err());
    let told = origin.named_objects().unwrap().misnamed;
    let pairs: Vec<_> =
        told.iter().map(|it| (it.object.to_string(), it.named_by[0].0.clone())).collect();
    assert_eq!(pairs.len(), 2, "{told:?}");
    origin.give_objects(&pairs).unwrap();
    assert!(read(&origin, "file").unwrap() == content());
    assert!(read(&origin, "empty").unwrap().is_empty());
    let found = origin.named_objects().unwrap();
    assert!(found.misnamed.is_empty() && found.unnamed.is_empty(), "{found:?}");
}
