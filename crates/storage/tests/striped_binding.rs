//! What another user does with the attribute that names a file's object, and with the locks of a
//! striped origin: no file's data is reached through another file, and nobody keeps a mount away.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_model::request::ByteRange;
use halocline_storage::device::Device;
use halocline_storage::volume::unstripe::{unstripe, unstripe_tree};
use halocline_storage::volume::{Origin, OriginFile};
use halocline_vfs::Allocate;
use halocline_vfs::Seek;
use rustix::fs::{FlockOperation, XattrFlags, flock};

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };
const OBJECT: &str = "user.halocline.object";
const LABEL: &str = "halocline-volume.toml";
const RECORD: &str = "server-0/halocline-tree";

/// What somebody does with a file that names the object of another.
type Attack<'a> = &'a dyn Fn(&OriginFile);

fn undecorated(_: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

fn open_volume(dir: &Path) -> Origin {
    Origin::open_or_create(dir, SHAPE, &undecorated).unwrap()
}

fn create(origin: &Origin, name: &str, data: &[u8]) -> OriginFile {
    let path = origin.namespace_dir().join(name);
    let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    let file = origin.adopt_data(file).unwrap();
    if !data.is_empty() {
        file.write_at(0, data).unwrap();
    }
    file
}

fn open(origin: &Origin, name: &str) -> OriginFile {
    let node = File::open(origin.namespace_dir().join(name)).unwrap();
    origin.open_data(node.as_fd(), libc::O_RDWR).unwrap()
}

fn read(file: &OriginFile) -> io::Result<Vec<u8>> {
    let mut back = vec![0xaa; 1 << 20];
    let len = file.read_at(0, &mut back)?;
    back.truncate(len);
    Ok(back)
}

fn named_by(path: &Path) -> Vec<u8> {
    let mut value = vec![0; 64];
    let len = rustix::fs::getxattr(path, OBJECT, &mut value).unwrap();
    value.truncate(len);
    value
}

/// Makes the file at `path` name the object of another.
fn name(path: &Path, object: &[u8]) {
    rustix::fs::setxattr(path, OBJECT, object, XattrFlags::empty()).unwrap();
}

/// Local files of all objects.
fn local_files(dir: &Path) -> Vec<PathBuf> {
    let servers = (0..SHAPE.servers).map(|at| dir.join(format!("server-{at}/objects")));
    let inside = servers.flat_map(|dir| fs::read_dir(dir).into_iter().flatten());
    let files = inside.flat_map(|entry| fs::read_dir(entry.unwrap().path()).unwrap());
    files.map(|entry| entry.unwrap().path()).collect()
}

/// Copies a directory as a backup does that keeps attributes but no inode numbers.
fn copy_volume(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_forged_object_reaches_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let origin = open_volume(dir.path());
    let secret = vec![7; 30_000];
    create(&origin, "theirs", &secret);
    let tree = origin.namespace_dir().to_owned();
    let attacks: [(&str, Attack<'_>); 6] = [
        ("read", &|file| {
            let seen = read(file);
            assert!(seen.is_err(), "{:?}", seen.map(|bytes| bytes.len()));
        }),
        ("write", &|file| assert!(file.write_at(0, b"evil").is_err())),
        ("truncate", &|file| assert!(file.truncate(10).is_err())),
        ("empty", &|file| file.truncate(0).unwrap()),
        ("punch", &|file| {
            assert!(file.allocate(ByteRange::at(0, 9000), Allocate::PunchHole).is_err());
        }),
        ("seek", &|file| assert!(file.seek(0, Seek::Data).is_err())),
    ];
    for (attack, make) in attacks {
        create(&origin, attack, &[1; 5000]);
        name(&tree.join(attack), &named_by(&tree.join("theirs")));
        let file = open(&origin, attack);
        make(&file);
        assert_eq!(file.blocks().unwrap(), 0, "{attack}: it has none of its own");
        fs::remove_file(tree.join(attack)).unwrap();
        origin.remove_data(file.namespace_file()).unwrap();
        origin.removals().work_off();
        assert_eq!(read(&open(&origin, "theirs")).unwrap(), secret, "{attack}");
    }
}

/// The copy of a tree file past the mount has the attribute, and the right size, but no data.
#[test]
fn a_copy_made_past_the_mount_is_told_and_can_be_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let origin = open_volume(dir.path());
    create(&origin, "file", &vec![7; 30_000]);
    let tree = origin.namespace_dir().to_owned();
    copy_volume(&tree.join("file"), &tree.join("copy"));
    let copy = open(&origin, "copy");
    let told = read(&copy).unwrap_err().to_string();
    assert!(told.contains("past the mount"), "{told}");
    let out = dir.path().join("out");
    let told = unstripe(dir.path(), "copy".as_ref(), &out, &mut |_| ()).unwrap_err().to_string();
    assert!(told.contains("namespace/copy: cannot read the data: "), "{told}");
    fs::remove_file(dir.path().join("out.incomplete")).unwrap();
    // As a program that overwrites it does.
    copy.truncate(0).unwrap();
    copy.write_at(0, &vec![8; 20_000]).unwrap();
    assert_eq!(read(&open(&origin, "copy")).unwrap(), vec![8; 20_000]);
    assert_eq!(read(&open(&origin, "file")).unwrap(), vec![7; 30_000]);
    assert!(origin.orphans().unwrap().is_empty());
}

#[test]
fn a_copy_of_a_whole_volume_is_bound_anew() {
    let scratch = tempfile::tempdir().unwrap();
    let (volume, backup) = (scratch.path().join("volume"), scratch.path().join("backup"));
    fs::create_dir(&volume).unwrap();
    let origin = open_volume(&volume);
    let tree = origin.namespace_dir().to_owned();
    fs::create_dir(tree.join("d")).unwrap();
    for (at, path) in ["one", "two", "d/three", "forged"].into_iter().enumerate() {
        create(&origin, path, &vec![u8::try_from(at).unwrap() + 1; 20_000]);
    }
    fs::hard_link(tree.join("one"), tree.join("d/other")).unwrap();
    name(&tree.join("forged"), &named_by(&tree.join("two")));
    drop(origin);
    // As one that an earlier version made; of others `striped_copies.rs`.
    fs::remove_file(volume.join(RECORD)).unwrap();
    let _ = rustix::fs::removexattr(tree.join("two"), "trusted.halocline.object");
    // Its inode numbers must be other ones, so the first volume stays.
    copy_volume(&volume, &backup);
    let origin = open_volume(&backup);
    for (at, path) in [(1, "one"), (3, "d/three"), (1, "d/other")] {
        assert_eq!(read(&open(&origin, path)).unwrap(), vec![at; 20_000], "{path}");
    }
    // Nobody can tell whose it is.
    assert!(read(&open(&origin, "two")).is_err() && read(&open(&origin, "forged")).is_err());
    drop(origin);
    fs::remove_file(backup.join("namespace/forged")).unwrap();
    let origin = Origin::open_alone(&backup).unwrap().unwrap();
    // The other one may be elsewhere: only who knows gives it.
    let named = origin.named_objects().unwrap();
    let [misnamed] = &named.misnamed[..] else { panic!("{named:?}") };
    assert_eq!(misnamed.named_by.iter().map(|it| &*it.0).collect::<Vec<_>>(), [Path::new("two")]);
    assert!(read(&open(&origin, "two")).is_err());
    origin.give_objects(&[(misnamed.object.to_string(), "two".into())]).unwrap();
    assert_eq!(read(&open(&origin, "two")).unwrap(), vec![2; 20_000]);
    drop(origin);
    unstripe_tree(&backup, &scratch.path().join("out"), &mut |_| ()).unwrap();
    assert_eq!(fs::read(scratch.path().join("out/two")).unwrap(), vec![2; 20_000]);
    let origin = open_volume(&volume);
    assert_eq!(read(&open(&origin, "two")).unwrap(), vec![2; 20_000], "the first one is as it was");
}

/// A tree that was copied in part had the name of a whole one.
#[test]
fn a_copy_that_fails_is_not_taken_for_a_whole_one() {
    let scratch = tempfile::tempdir().unwrap();
    let (volume, out) = (scratch.path().join("volume"), scratch.path().join("out"));
    fs::create_dir(&volume).unwrap();
    let origin = open_volume(&volume);
    create(&origin, "a", &vec![7; 30_000]);
    let tree = origin.namespace_dir().to_owned();
    copy_volume(&tree.join("a"), &tree.join("b"));
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("c"), kind, mode, 0).unwrap();
    let lacking = unstripe_tree(&volume, &out, &mut |_| ()).unwrap();
    let told: Vec<_> = lacking.iter().map(ToString::to_string).collect();
    assert!(told.len() == 1 && told[0].contains("namespace/b: cannot read the data: "), "{told:?}");
    let partial = scratch.path().join("out.incomplete");
    assert!(!out.exists());
    // The rest is there, also what comes after it.
    assert_eq!(fs::read(partial.join("a")).unwrap(), vec![7; 30_000]);
    assert!(fs::symlink_metadata(partial.join("c")).is_ok() && !partial.join("b").exists());
    let told = unstripe_tree(&volume, &out, &mut |_| ()).unwrap_err().to_string();
    assert!(told.contains("interrupted"), "{told}");
    fs::remove_dir_all(&partial).unwrap();
    fs::remove_file(tree.join("b")).unwrap();
    assert!(unstripe_tree(&volume, &out, &mut |_| ()).unwrap().is_empty());
    assert_eq!(fs::read(out.join("a")).unwrap(), vec![7; 30_000]);
    assert!(fs::symlink_metadata(out.join("c")).is_ok() && !partial.exists());
}

/// Inode numbers come round again: of a file that was removed past the mount the object stays.
#[test]
fn a_later_file_with_the_same_inode_number_gets_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let origin = open_volume(dir.path());
    let tree = origin.namespace_dir().to_owned();
    let theirs = create(&origin, "theirs", &vec![7; 30_000]);
    let (number, inode) =
        (named_by(&tree.join("theirs")), fs::metadata(tree.join("theirs")).unwrap().ino());
    assert_ne!(
        halocline_os::birth_time::born_ns_of(theirs.namespace_file()),
        Ok(0),
        "no birth times"
    );
    drop(theirs);
    fs::remove_file(tree.join("theirs")).unwrap();
    let same = (0..2000).map(|at| tree.join(at.to_string())).find(|path| {
        File::create_new(path).unwrap();
        fs::metadata(path).unwrap().ino() == inode
    });
    let Some(same) = same else {
        return halocline_testkit::skipping::skip("inode numbers do not come round again");
    };
    File::options().write(true).open(&same).unwrap().set_len(30_000).unwrap();
    name(&same, &number);
    let seen = read(&open(&origin, same.file_name().unwrap().to_str().unwrap()));
    assert!(seen.is_err(), "{:?}", seen.map(|bytes| bytes[0]));
    // Without the suffix of the number it is another one's, too.
    name(&same, number.strip_suffix(b"t").unwrap_or(&number));
    let seen = read(&open(&origin, same.file_name().unwrap().to_str().unwrap()));
    assert!(seen.is_err() || seen.unwrap().iter().all(|byte| *byte == 0));
}

/// Earlier versions did not say whose an object is.
#[test]
fn a_volume_of_an_earlier_version_is_bound() {
    let dir = tempfile::tempdir().unwrap();
    let origin = open_volume(dir.path());
    let tree = origin.namespace_dir().to_owned();
    create(&origin, "file", &vec![7; 30_000]);
    create(&origin, "gone", &vec![8; 30_000]);
    let inode = fs::metadata(tree.join("file")).unwrap().ino();
    fs::remove_file(tree.join("gone")).unwrap();
    drop(origin);
    for file in local_files(dir.path()) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        fs::rename(&file, file.with_file_name(&name[..32])).unwrap();
    }
    name(&tree.join("file"), &named_by(&tree.join("file"))[..32]);
    fs::remove_file(dir.path().join(RECORD)).unwrap();
    fs::write(dir.path().join(LABEL), "format = 1\nservers = 3\nstripe = 4096\n").unwrap();
    let ctime = |path: &Path| fs::metadata(path).map(|stat| (stat.ctime(), stat.ctime_nsec()));
    let before = ctime(&tree.join("file")).unwrap();
    // A check changes nothing.
    let origin = Origin::open_alone(dir.path()).unwrap().unwrap();
    assert_eq!(origin.orphans().unwrap().len(), 1);
    drop(origin);
    let unbound = |file: &PathBuf| file.file_name().unwrap().len() == 32;
    assert!(local_files(dir.path()).iter().all(unbound));
    let origin = open_volume(dir.path());
    assert_eq!(read(&open(&origin, "file")).unwrap(), vec![7; 30_000]);
    assert_eq!(ctime(&tree.join("file")).unwrap(), before, "the tree is only read");
    let bound = |file: &PathBuf| file.to_str().unwrap().ends_with(&format!("-{inode}"));
    assert_eq!(local_files(dir.path()).iter().filter(|file| bound(file)).count(), 3);
    assert!(fs::read_to_string(dir.path().join(LABEL)).unwrap().contains("format = 2"));
    // Objects without a name, of both versions, are found and removed.
    let orphans = origin.orphans().unwrap();
    assert_eq!(orphans.len(), 1);
    for id in orphans.keys() {
        origin.remove_orphan(*id).unwrap();
    }
    assert_eq!(local_files(dir.path()).len(), 3);
}

/// Programs can make directories whose paths no system call takes; what follows one ended there.
#[test]
fn a_directory_with_a_very_long_path_keeps_nobody_from_using_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let origin = open_volume(dir.path());
    let tree = origin.namespace_dir().to_owned();
    for path in ["file", "gone"] {
        create(&origin, path, &vec![7; 30_000]);
    }
    let mut deepest = File::open(&tree).unwrap();
    for _ in 0..30 {
        let (name, mode) = ("n".repeat(200), rustix::fs::Mode::RWXU);
        rustix::fs::mkdirat(&deepest, &name, mode).unwrap();
        let (flags, none) = (rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        deepest = rustix::fs::openat(&deepest, &name, flags, none).unwrap().into();
    }
    // The only name of this data is down there.
    rustix::fs::renameat(rustix::fs::CWD, tree.join("file"), &deepest, "deep").unwrap();
    drop(origin);
    fs::remove_file(tree.join("gone")).unwrap();
    let is_bound = fs::read_to_string(dir.path().join(LABEL)).unwrap();
    let inode = fs::metadata(&tree).unwrap().ino();
    let is_copied = is_bound.replace(&format!("tree = \"{inode}\""), "tree = \"1\"");
    assert_ne!(is_copied, is_bound);
    for label in [is_bound, is_copied] {
        fs::write(dir.path().join(LABEL), label).unwrap();
        let origin = Origin::open_volume(dir.path()).unwrap();
        assert_eq!(origin.orphans().unwrap().len(), 1);
    }
}

/// Whoever may write to one file can write nonsense there, past the mount.
#[test]
fn nonsense_in_one_file_keeps_nobody_from_checking_the_others() {
    for nonsense in [&b"zz"[..], b"", &[b'7'; 100], &[0xff; 32]] {
        let dir = tempfile::tempdir().unwrap();
        let origin = open_volume(dir.path());
        let tree = origin.namespace_dir().to_owned();
        for path in ["file", "gone", "theirs"] {
            create(&origin, path, &vec![7; 30_000]);
        }
        let number = named_by(&tree.join("theirs"));
        drop(origin);
        fs::remove_file(tree.join("gone")).unwrap();
        name(&tree.join("theirs"), nonsense);
        let origin = Origin::open_alone(dir.path()).unwrap().unwrap();
        let orphans = origin.orphans().unwrap();
        assert_eq!(orphans.len(), 1, "{nonsense:?}: {orphans:?}");
        for id in orphans.keys() {
            origin.remove_orphan(*id).unwrap();
        }
        assert_eq!(read(&open(&origin, "file")).unwrap(), vec![7; 30_000]);
        let error = read(&open(&origin, "theirs")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{nonsense:?}");
        // Its data is still there for who writes the number again.
        name(&tree.join("theirs"), &number);
        assert_eq!(read(&open(&origin, "theirs")).unwrap(), vec![7; 30_000]);
    }
}

/// Any user can open the label, and whoever has a file open can lock it.
#[test]
fn who_locks_the_label_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(open_volume(dir.path()));
    let readable = [dir.path().to_owned(), dir.path().join(LABEL), dir.path().join("namespace")];
    let _locks: Vec<File> = readable
        .iter()
        .map(|path| {
            let file = File::open(path).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            file
        })
        .collect();
    let origin = open_volume(dir.path());
    assert!(Origin::open_alone(dir.path()).is_err(), "it is in use");
    drop(origin);
    assert!(Origin::open_alone(dir.path()).unwrap().is_some());
    // What does lock is for nobody else to open.
    let others = |path: &Path| fs::metadata(path).unwrap().mode() & 0o077;
    assert_eq!(others(&dir.path().join("server-0")), 0);
    assert_eq!(others(&dir.path().join("server-0/halocline.lock")), 0);
}
