//! Copies of whole striped volumes: each file keeps its data, whoever had a file of his own name that of others, and however
//! the copy was made.

mod marks;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_storage::device::Device;
use halocline_storage::volume::origin::marking::{Evidence, Marked, UnmarkedFile, mark_servers};
use halocline_storage::volume::unstripe::{planned_bytes, unstripe_tree};
use halocline_storage::volume::{Origin, OriginFile};
use halocline_testkit::skipping::skip;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use tempfile::TempDir;

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };
const OBJECT: &str = "user.halocline.object";
const ATTESTED: &str = "trusted.halocline.object";
const LABEL: &str = "halocline-volume.toml";
const RECORD: &str = "server-0/halocline-tree";
/// An ordinary user.
const USER: u32 = 7112;

fn undecorated(_: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

fn opened(dir: &Path) -> Origin {
    Origin::open_or_create(dir, SHAPE, &undecorated).unwrap()
}

fn create(origin: &Origin, name: &str, byte: u8) {
    let path = origin.namespace_dir().join(name);
    let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    origin.adopt_data(file).unwrap().write_at(0, &vec![byte; 20_000]).unwrap();
}

fn open(origin: &Origin, name: &str) -> OriginFile {
    let node = File::open(origin.namespace_dir().join(name)).unwrap();
    origin.open_data(node.as_fd(), libc::O_RDONLY).unwrap()
}

fn read(origin: &Origin, name: &str) -> io::Result<Vec<u8>> {
    let mut back = vec![0xaa; 30_000];
    let len = open(origin, name).read_at(0, &mut back)?;
    back.truncate(len);
    Ok(back)
}

#[track_caller]
fn has(origin: &Origin, name: &str, byte: u8) {
    let found = read(origin, name).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(found == vec![byte; 20_000], "{name}: {} of {} bytes", found[0], found.len());
}

#[track_caller]
fn has_nothing(origin: &Origin, name: &str) {
    let seen = read(origin, name).map(|bytes| bytes.first().copied());
    assert!(seen.as_ref().is_err_and(|error| error.to_string().contains("--give")), "{seen:?}");
}

fn attribute(path: &Path, name: &str) -> Vec<u8> {
    let mut value = vec![0; 64];
    let len = getxattr(path, name, &mut value).unwrap();
    value.truncate(len);
    value
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

/// A directory for volumes, the root of one that is made, and where its names are; `None` if attestations are not possible here.
fn volume() -> Option<(TempDir, PathBuf, PathBuf)> {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("volume");
    if setxattr(scratch.path(), "trusted.probe", b"", XattrFlags::empty()).is_err() {
        skip("only root can set trusted attributes");
        return None;
    }
    fs::create_dir(&dir).unwrap();
    drop(opened(&dir));
    let tree = dir.join("namespace");
    Some((scratch, dir, tree))
}

/// Runs `what` as an ordinary user.
fn as_user<R: Send>(what: impl FnOnce() -> R + Send) -> R {
    let user = rustix::thread::Uid::from_raw(USER);
    let run = move || {
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        what()
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// A file of an ordinary user, who makes it name the object `number`, and tries to attest that.
fn forge(tree: &Path, name: &str, number: &[u8]) {
    let path = tree.join(name);
    File::create_new(&path).unwrap().set_len(20_000).unwrap();
    chown(&path, Some(USER), Some(USER)).unwrap();
    as_user(|| {
        setxattr(&path, OBJECT, number, XattrFlags::empty()).unwrap();
        let attested = setxattr(&path, ATTESTED, number, XattrFlags::empty());
        assert_eq!(attested, Err(Errno::PERM));
    });
}

/// Files below a directory, with their contents' lengths and times.
fn state(dir: &Path) -> Vec<(PathBuf, u64, i64, i64, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            found.extend(state(&path));
        }
        found.push((path, stat.len(), stat.ctime(), stat.ctime_nsec(), stat.mode()));
    }
    found.sort();
    found
}

/// Regression: in a copy the only file that named an object got it, whoever had written the name.
#[test]
fn a_forged_name_gets_no_data_in_a_copy() {
    let Some((scratch, dir, tree)) = volume() else { return };
    let origin = opened(&dir);
    create(&origin, "theirs", 7);
    create(&origin, "away", 8);
    drop(origin);
    let away = attribute(&tree.join("away"), OBJECT);
    assert_eq!(attribute(&tree.join("away"), ATTESTED), away);
    forge(&tree, "forged-theirs", &attribute(&tree.join("theirs"), OBJECT));
    forge(&tree, "forged-away", &away);
    fs::hard_link(tree.join("forged-away"), tree.join("second-name")).unwrap();
    symlink("theirs", tree.join("link")).unwrap();
    // He owns the directory, and took the file out of the tree while the copy was made.
    fs::rename(tree.join("away"), scratch.path().join("aside")).unwrap();
    let mut from = dir.clone();
    for again in ["copy", "copy-of-copy"] {
        let to = scratch.path().join(again);
        copy(&from, &to);
        let origin = opened(&to);
        has(&origin, "theirs", 7);
        for forged in ["forged-theirs", "forged-away", "second-name"] {
            has_nothing(&origin, forged);
        }
        // Nor later: the object of the file that is not there stays as it is.
        let named = origin.named_objects().unwrap();
        assert_eq!(named.misnamed.len(), 1, "{named:?}");
        from = to;
    }
    fs::rename(scratch.path().join("aside"), tree.join("away")).unwrap();
    has(&opened(&dir), "away", 8);
}

/// One that root restored beside the first one has its attestation, too: nobody can tell which of them it was.
#[test]
fn of_a_file_that_was_restored_beside_itself_neither_gets_the_data_in_a_copy() {
    let Some((scratch, dir, tree)) = volume() else { return };
    let origin = opened(&dir);
    create(&origin, "file", 7);
    copy(&tree.join("file"), &tree.join("restored"));
    has(&origin, "file", 7);
    has_nothing(&origin, "restored");
    drop(origin);
    let to = scratch.path().join("copy");
    copy(&dir, &to);
    let origin = opened(&to);
    for name in ["file", "restored"] {
        has_nothing(&origin, name);
    }
    drop(origin);
    let origin = Origin::open_alone(&to).unwrap().unwrap();
    let named = origin.named_objects().unwrap();
    let [it] = &named.misnamed[..] else { panic!("{named:?}") };
    origin.give_objects(&[(it.object.to_string(), "file".into())]).unwrap();
    has(&origin, "file", 7);
    drop(origin);
    has(&opened(&dir), "file", 7);
}

/// What is asked for of one file, as a check tells it.
fn pair(origin: &Origin, file: &str) -> (String, PathBuf) {
    let named = origin.named_objects().unwrap();
    let of = |path: &Path| path == Path::new(file);
    let it = named.misnamed.iter().find(|it| it.named_by.iter().any(|by| of(&by.0))).unwrap();
    (it.object.to_string(), file.into())
}

#[test]
fn what_was_copied_without_attestations_is_given_all_at_once() {
    let Some((scratch, dir, tree)) = volume() else { return };
    let names: Vec<_> = (0..40).map(|at| format!("f{at}")).collect();
    let origin = opened(&dir);
    for (name, byte) in names.iter().zip(1..) {
        create(&origin, name, byte);
    }
    drop(origin);
    let to = scratch.path().join("copy");
    copy(&dir, &to);
    for name in &names {
        // As tar does without --xattrs-include.
        removexattr(to.join("namespace").join(name), ATTESTED).unwrap();
    }
    let unbound = Origin::open_alone(&to).unwrap().unwrap();
    let told = unbound.give_objects(&[("x".into(), "f0".into())]).unwrap_err().to_string();
    assert!(told.contains("mount it once"), "{told}");
    drop(unbound);
    drop(opened(&to));
    let origin = Origin::open_alone(&to).unwrap().unwrap();
    let mut pairs: Vec<_> = names.iter().map(|name| pair(&origin, name)).collect();
    let before = state(&to);
    let refused = |pairs: &[(String, PathBuf)], what: &str| {
        let told = origin.give_objects(pairs).unwrap_err().to_string();
        assert!(told.contains(what), "{told}");
        assert!(state(&to) == before, "nothing was given");
    };
    let twice = [&pairs[..], &pairs[..1]].concat();
    refused(&twice, "is given both");
    let hard_link = to.join("namespace/other-name");
    fs::hard_link(to.join("namespace/f0"), &hard_link).unwrap();
    let told =
        origin.give_objects(&[&pairs[..1], &[(pairs[0].0.clone(), "other-name".into())]].concat());
    assert!(told.unwrap_err().to_string().contains("is given both"));
    fs::remove_file(hard_link).unwrap();
    let mut wrong = pairs.clone();
    wrong[39].1 = "f0".into();
    let told = origin.give_objects(&wrong).unwrap_err().to_string();
    assert!(told.contains("f0 does not name the object"), "{told}");
    has_nothing(&origin, "f1");
    // Of an interrupted call all may be done but the last step for some.
    let all = pairs.split_off(5);
    origin.give_objects(&pairs).unwrap();
    let half = to.join("namespace/f0");
    let number = attribute(&half, OBJECT);
    setxattr(&half, OBJECT, &[&number[..], b"g"].concat(), XattrFlags::empty()).unwrap();
    origin.give_objects(&[pairs, all].concat()).unwrap();
    for (name, byte) in names.iter().zip(1..) {
        has(&origin, name, byte);
    }
    let found = origin.named_objects().unwrap();
    assert!(found.misnamed.is_empty() && found.unnamed.is_empty(), "{found:?}");
    drop(origin);
    // They are attested by that.
    let again = scratch.path().join("again");
    copy(&to, &again);
    has(&opened(&again), "f7", 8);
    has(&opened(&dir), "f7", 8);
    assert!(tree.exists());
}

/// He has no trusted attributes, and all that he copies is his.
#[test]
fn an_ordinary_user_copies_his_volume() {
    let Some((scratch, _, _)) = volume() else { return };
    let home = scratch.path().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), None).unwrap();
    fs::set_permissions(scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    as_user(|| {
        let (dir, to) = (home.join("volume"), home.join("copy"));
        fs::create_dir(&dir).unwrap();
        create(&opened(&dir), "file", 7);
        copy(&dir, &to);
        has(&opened(&to), "file", 7);
    });
    // Nor does one lose it whom root gave a volume in which files are attested.
    let root = scratch.path().join("volume");
    create(&opened(&root), "file", 9);
    let done = Command::new("chown").args(["-R", &USER.to_string()]).arg(&root).status().unwrap();
    assert!(done.success());
    as_user(|| {
        let to = home.join("second");
        copy(&root, &to);
        has(&opened(&to), "file", 9);
    });
}

/// Volumes that an earlier version made are used as it does, until they are marked.
#[test]
fn files_of_an_earlier_version_are_attested_by_one_who_asks_for_it() {
    let Some((scratch, dir, tree)) = volume() else { return };
    let origin = opened(&dir);
    create(&origin, "file", 7);
    create(&origin, "away", 8);
    drop(origin);
    for name in ["file", "away"] {
        removexattr(tree.join(name), ATTESTED).unwrap();
    }
    fs::remove_file(dir.join(RECORD)).unwrap();
    let number = attribute(&tree.join("away"), OBJECT);
    forge(&tree, "forged", &number);
    // This version has made another one since.
    create(&opened(&dir), "new", 9);
    forge(&tree, "forged-new", &attribute(&tree.join("new"), OBJECT));
    let earlier = scratch.path().join("earlier");
    copy(&dir, &earlier);
    let origin = opened(&earlier);
    has(&origin, "file", 7);
    has(&origin, "new", 9);
    has_nothing(&origin, "forged-new");
    assert!(read(&origin, "away").is_err() && read(&origin, "forged").is_err());
    drop(origin);
    let ctime = || fs::metadata(tree.join("file")).unwrap().ctime_nsec();
    let before = ctime();
    drop(opened(&dir));
    assert_eq!(ctime(), before, "nothing is marked by use");
    for files in [2, 0] {
        let marked = mark_servers(&dir, Evidence::Contents).unwrap();
        assert_eq!((marked.servers, marked.files), (false, Some(files)));
        let told: Vec<_> = marked.unmarked.iter().map(|it| it.path.to_str().unwrap()).collect();
        assert_eq!(told, ["forged", "forged-new"]);
        let why = "it names the data of another file";
        let is_told = |it: &UnmarkedFile| !it.has_data && it.reason.contains(why);
        assert!(marked.unmarked.iter().all(is_told), "{marked:?}");
    }
    let later = scratch.path().join("later");
    copy(&dir, &later);
    let origin = opened(&later);
    has(&origin, "file", 7);
    has(&origin, "away", 8);
    has_nothing(&origin, "forged");
    drop(origin);
    // A copy that is not bound yet has none that could be attested.
    let unbound = scratch.path().join("unbound");
    copy(&dir, &unbound);
    let told = mark_servers(&unbound, Evidence::Contents).unwrap_err().to_string();
    assert!(told.contains("mount it once"), "{told}");
}

/// Local files of all objects.
fn local_files(dir: &Path) -> Vec<PathBuf> {
    let all = state(dir).into_iter().map(|it| it.0);
    let is_object =
        |path: &PathBuf| path.is_file() && path.components().any(|it| it.as_os_str() == "objects");
    all.filter(is_object).collect()
}

/// Their objects have no birth time in their names: in a copy another file could have the inode number.
#[test]
fn an_object_of_an_earlier_version_is_nobodys_in_a_copy_where_its_file_is_missing() {
    let Some((scratch, dir, tree)) = volume() else { return };
    create(&opened(&dir), "file", 7);
    create(&opened(&dir), "away", 8);
    for file in local_files(&dir) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let earlier = name.split_once('.').unwrap().0.replace('t', "");
        fs::rename(&file, file.with_file_name(earlier)).unwrap();
    }
    for name in ["file", "away"] {
        let number = attribute(&tree.join(name), OBJECT);
        setxattr(tree.join(name), OBJECT, &number[..32], XattrFlags::empty()).unwrap();
    }
    // What is attested is another number.
    let marked = mark_servers(&dir, Evidence::Contents).unwrap();
    assert_eq!(marked, Marked { servers: false, files: Some(2), unmarked: Vec::new() });
    let inode = fs::metadata(tree.join("away")).unwrap().ino();
    let number = attribute(&tree.join("away"), OBJECT);
    forge(&tree, "forged", &number);
    fs::rename(tree.join("away"), scratch.path().join("aside")).unwrap();
    let to = scratch.path().join("copy");
    copy(&dir, &to);
    let origin = opened(&to);
    has(&origin, "file", 7);
    has_nothing(&origin, "forged");
    let is_left = |file: &PathBuf| file.to_str().unwrap().ends_with(&format!("-{inode}"));
    assert!(!local_files(&to).iter().any(is_left), "{:?}", local_files(&to));
}

/// The root of a file system has the same inode number in each copy of it.
#[test]
fn a_copy_whose_tree_has_the_same_inode_number_is_told_by_its_birth_time() {
    let Some((scratch, dir, tree)) = volume() else { return };
    create(&opened(&dir), "file", 7);
    let inode = |tree: &Path| format!("tree = \"{}\"", fs::metadata(tree).unwrap().ino());
    for is_noted in [true, false] {
        let to = scratch.path().join(format!("copy-{is_noted}"));
        copy(&dir, &to);
        let (before, now) = (inode(&tree), inode(&to.join("namespace")));
        let label = fs::read_to_string(to.join(LABEL)).unwrap();
        fs::write(to.join(LABEL), label.replace(&before, &now)).unwrap();
        let noted = fs::read_to_string(to.join(RECORD)).unwrap();
        let (noted_inode, rest) = noted.split_once(' ').unwrap();
        assert_eq!(before, format!("tree = \"{noted_inode}\""));
        let now = now.split('"').nth(1).unwrap();
        fs::write(to.join(RECORD), format!("{now} {rest}")).unwrap();
        if !is_noted {
            fs::remove_file(to.join(RECORD)).unwrap();
        }
        let is_told = Origin::open_to_look(&to)
            .is_err_and(|error| error.to_string().contains("mount it once"));
        assert_eq!(is_told, is_noted);
        let origin = opened(&to);
        assert_eq!(read(&origin, "file").is_ok(), is_noted);
        drop(origin);
        Origin::open_to_look(&to).unwrap();
        assert_eq!(fs::read_to_string(to.join(RECORD)).unwrap().split(' ').next(), Some(now));
    }
    // An earlier version bound the objects of a copy anew, and knows nothing of the note.
    let noted = fs::read_to_string(dir.join(RECORD)).unwrap();
    fs::write(dir.join(RECORD), format!("1{noted}")).unwrap();
    has(&opened(&dir), "file", 7);
    assert_eq!(fs::read_to_string(dir.join(RECORD)).unwrap(), noted);
    fs::write(dir.join(RECORD), "nonsense\n").unwrap();
    let told = Origin::open_volume(&dir).unwrap_err().to_string();
    assert!(told.contains("halocline-tree: not what this version"), "{told}");
}

/// A dry run bound the objects, and a real one needs servers that can be written.
#[test]
fn a_dry_run_changes_nothing_in_a_copy() {
    let Some((scratch, dir, _)) = volume() else { return };
    create(&opened(&dir), "file", 7);
    let to = scratch.path().join("copy");
    copy(&dir, &to);
    let (before, out) = (state(&to), scratch.path().join("out"));
    assert_eq!(planned_bytes(&to, None, &out).unwrap().0, 20_000);
    assert_eq!(planned_bytes(&to, Some("file".as_ref()), &out).unwrap().0, 20_000);
    assert!(state(&to) == before);
    unstripe_tree(&to, &out, &mut |_| ()).unwrap();
    assert_eq!(fs::read(out.join("file")).unwrap(), vec![7; 20_000]);
}
