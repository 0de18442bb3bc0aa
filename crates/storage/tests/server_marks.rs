//! The directories of a striped volume's servers are those of its servers: an empty one, as the mount point of a server
//! that is not mounted, would be a server on which every file has holes.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
use std::sync::Arc;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_model::file_layout::FileLayout;
use halocline_storage::device::Device;
use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::marking::{Evidence, mark_servers};
use halocline_storage::volume::origin::relayout::{self, Relayout, Wish};
use halocline_testkit::waiting::eventually;

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };
const LABEL: &str = "halocline-volume.toml";
const MARK: &str = "halocline-server";

fn undecorated(_: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

fn opened(dir: &Path) -> Origin {
    Origin::open_or_create(dir, SHAPE, &undecorated).unwrap()
}

fn content() -> Vec<u8> {
    (0..100_000_u32).flat_map(u32::to_le_bytes).collect()
}

/// A volume with a file on all servers.
fn volume(dir: &Path) {
    let origin = opened(dir);
    let path = origin.namespace_dir().join("file");
    let node = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    origin.adopt_data(node).unwrap().write_at(0, &content()).unwrap();
}

fn read(dir: &Path) -> Vec<u8> {
    let origin = Origin::open_volume(dir).unwrap();
    let node = File::open(origin.namespace_dir().join("file")).unwrap();
    let mut back = vec![0; content().len()];
    let got =
        origin.open_data(node.as_fd(), libc::O_RDONLY).unwrap().read_at(0, &mut back).unwrap();
    assert_eq!(got, back.len());
    back
}

/// What each way to open the volume says.
fn refused(dir: &Path) -> Vec<String> {
    let opened = [
        Origin::open_or_create(dir, SHAPE, &undecorated).map(drop),
        Origin::open_volume(dir).map(drop),
        Origin::open_alone(dir).map(drop),
        Relayout::open(dir).map(drop),
    ];
    opened.into_iter().map(|opened| opened.unwrap_err().to_string()).collect()
}

/// A file that was moved meanwhile lost what was on the server, without a word.
#[test]
fn a_server_that_is_not_mounted_is_refused_and_no_file_moved() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    volume(dir);
    for server in ["server-0", "server-1", "server-2"] {
        fs::rename(dir.join(server), dir.join("aside")).unwrap();
        fs::create_dir(dir.join(server)).unwrap();
        for error in refused(dir) {
            assert!(error.contains(server) && error.contains("mount that server"), "{error}");
        }
        assert_eq!(fs::read_dir(dir.join(server)).unwrap().count(), 0, "nothing was made in it");
        fs::remove_dir(dir.join(server)).unwrap();
        fs::rename(dir.join("aside"), dir.join(server)).unwrap();
    }
    let layout = FileLayout::from_parts([(0, vec![4096, 8192, 4096])]).unwrap();
    let mut volume = Err(());
    // A process that another test starts has the lock until it runs its program.
    eventually("the volume", || {
        volume = Relayout::open(dir).map_err(drop);
        volume.is_ok()
    });
    let volume = volume.unwrap();
    let wishes = [Wish { path: "file".into(), layout }];
    let file = relayout::look(volume.origin(), &wishes, true).unwrap().remove(0);
    volume.relayout(&file, &mut |_| Ok(()), &mut |_| ()).unwrap();
    drop(volume);
    assert_eq!(read(dir), content());
}

#[test]
fn servers_that_were_swapped_and_those_of_another_volume_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let (dir, other) = (scratch.path().join("volume"), scratch.path().join("other"));
    for dir in [&dir, &other] {
        fs::create_dir(dir).unwrap();
        volume(dir);
    }
    let swap = |a: &Path, b: &Path| {
        let aside = scratch.path().join("aside");
        fs::rename(a, &aside).unwrap();
        fs::rename(b, a).unwrap();
        fs::rename(&aside, b).unwrap();
    };
    for with in [dir.join("server-2"), other.join("server-1")] {
        swap(&dir.join("server-1"), &with);
        for error in refused(&dir) {
            assert!(error.contains("server-1 is another server"), "{error}");
        }
        swap(&dir.join("server-1"), &with);
    }
    assert_eq!(read(&dir), content());
}

/// The remedy of the refusal, and what a copy and a volume of an earlier format have.
#[test]
fn what_is_no_other_server_is_taken() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    volume(dir);
    fs::rename(dir.join("server-1"), dir.join("lost")).unwrap();
    fs::create_dir(dir.join("server-1")).unwrap();
    fs::copy(dir.join("lost").join(MARK), dir.join("server-1").join(MARK)).unwrap();
    assert_ne!(read(dir), content(), "what was on the lost server is a hole");
    fs::remove_dir_all(dir.join("server-1")).unwrap();
    fs::rename(dir.join("lost"), dir.join("server-1")).unwrap();
    unmark(dir);
    assert_eq!(read(dir), content());
}

/// Before format 4 servers had no marks.
fn unmark(dir: &Path) {
    let label = fs::read_to_string(dir.join(LABEL)).unwrap();
    let before = label.lines().filter(|line| !line.starts_with("volume = "));
    let before = before.collect::<Vec<_>>().join("\n");
    fs::write(dir.join(LABEL), before.replace("format = 4", "format = 2")).unwrap();
    for server in 0..SHAPE.servers {
        fs::remove_file(dir.join(format!("server-{server}")).join(MARK)).unwrap();
    }
}

/// What marking the servers says; a process that another test starts has the volume's lock until it runs its program.
fn marked(dir: &Path, evidence: Evidence) -> Result<bool, String> {
    let mut said = None;
    eventually("the volume", || {
        let marked =
            mark_servers(dir, evidence).map(|it| it.servers).map_err(|error| error.to_string());
        let is_free =
            marked.is_ok() || marked.as_ref().is_err_and(|error| !error.contains("in use"));
        said = Some(marked);
        is_free
    });
    said.unwrap()
}

#[test]
fn the_servers_of_an_earlier_volume_are_marked_by_what_they_hold() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    volume(dir);
    assert_eq!(marked(dir, Evidence::Contents), Ok(false), "they are");
    unmark(dir);
    let label = fs::read_to_string(dir.join(LABEL)).unwrap();
    let unchanged = || {
        assert_eq!(fs::read_to_string(dir.join(LABEL)).unwrap(), label);
        let is_marked = |server| dir.join(format!("server-{server}")).join(MARK).exists();
        assert!(!(0..SHAPE.servers).any(is_marked));
    };
    // A server that is not mounted.
    fs::rename(dir.join("server-1"), dir.join("aside")).unwrap();
    fs::create_dir(dir.join("server-1")).unwrap();
    let error = marked(dir, Evidence::Contents).unwrap_err();
    assert!(error.contains("server-1: nothing is there of 1 files"), "{error}");
    unchanged();
    fs::remove_dir_all(dir.join("server-1")).unwrap();
    // Two in each other's place: the file ends on server 1, of which server 2 has less.
    fs::rename(dir.join("server-2"), dir.join("server-1")).unwrap();
    fs::rename(dir.join("aside"), dir.join("server-2")).unwrap();
    for evidence in [Evidence::Contents, Evidence::UserKnows] {
        let error = marked(dir, evidence).unwrap_err();
        assert!(error.contains("is another server"), "{error}");
    }
    unchanged();
    fs::rename(dir.join("server-1"), dir.join("aside")).unwrap();
    fs::rename(dir.join("server-2"), dir.join("server-1")).unwrap();
    fs::rename(dir.join("aside"), dir.join("server-2")).unwrap();
    // What an interrupted marking left is no obstacle; a mark of another place is.
    fs::write(dir.join("server-2").join(MARK), "0123 1\n").unwrap();
    fs::set_permissions(dir.join("server-2").join(MARK), Permissions::from_mode(0o600)).unwrap();
    let error = marked(dir, Evidence::Contents).unwrap_err();
    assert!(error.contains("server-2: its mark"), "{error}");
    fs::write(dir.join("server-2").join(MARK), "0123 2\n").unwrap();
    assert_eq!(marked(dir, Evidence::Contents), Ok(true));
    assert_eq!(read(dir), content());
    fs::rename(dir.join("server-1"), dir.join("aside")).unwrap();
    fs::create_dir(dir.join("server-1")).unwrap();
    assert!(refused(dir).iter().all(|error| error.contains("server-1 has no mark")));
}

/// Regression: the first server was called another one, though the file was shortened past the mount.
#[test]
fn a_file_that_was_shortened_past_the_mount_is_told_from_another_server() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    volume(dir);
    unmark(dir);
    let namespace = opened(dir).namespace_dir().to_owned();
    let file = File::options().write(true).open(namespace.join("file")).unwrap();
    file.set_len(1000).unwrap();
    for evidence in [Evidence::Contents, Evidence::UserKnows] {
        let error = marked(dir, evidence).unwrap_err();
        let told = "is 1000 bytes long, and the servers have 400000 of it: it was shortened past";
        assert!(error.contains(told), "{error}");
    }
    // The remedy that it names.
    file.set_len(content().len() as u64).unwrap();
    assert_eq!(marked(dir, Evidence::Contents), Ok(true));
    assert_eq!(read(dir), content());
}

/// What a truncate has not cut yet is no sign that a server is in another one's place.
#[test]
fn a_file_that_was_truncated_keeps_no_server_from_being_marked() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    volume(dir);
    let node = File::open(opened(dir).namespace_dir().join("file")).unwrap();
    opened(dir).open_data(node.as_fd(), libc::O_RDWR).unwrap().truncate(1000).unwrap();
    unmark(dir);
    assert_eq!(marked(dir, Evidence::Contents), Ok(true));
}

#[test]
fn an_empty_server_is_marked_only_for_one_who_knows_it() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(opened(dir));
    unmark(dir);
    assert_eq!(marked(dir, Evidence::Contents), Ok(true), "without files nothing is missing");
    unmark(dir);
    let path = opened(dir).namespace_dir().join("holes");
    let node = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    let data = opened(dir).adopt_data(node).unwrap();
    data.write_at(20_000, b"x").unwrap();
    drop(data);
    marked(dir, Evidence::Contents).unwrap_err();
    assert_eq!(marked(dir, Evidence::UserKnows), Ok(true));
}

/// Names and modes of everything in `dir`.
fn everything(dir: &Path) -> BTreeMap<PathBuf, u32> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        let kind = fs::symlink_metadata(&path).unwrap();
        if kind.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(path, kind.permissions().mode());
    }
    found
}

/// On servers that are mounted read-only, any change is refused by the system.
#[test]
fn who_looks_at_a_volume_changes_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    volume(dir);
    fs::remove_file(dir.join("server-0/halocline.lock")).unwrap();
    for server in ["server-0", "server-1", "server-2"] {
        fs::set_permissions(dir.join(server), Permissions::from_mode(0o755)).unwrap();
        let mark = dir.join(server).join(MARK);
        fs::set_permissions(mark, Permissions::from_mode(0o644)).unwrap();
    }
    let before = everything(dir);
    let layout = FileLayout::from_parts([(0, vec![4096, 8192, 4096])]).unwrap();
    let wish = Wish { path: "file".into(), layout };
    let look = || {
        let origin = Origin::open_to_look(dir)?;
        relayout::look(&origin, slice::from_ref(&wish), false)
    };
    let found = look().unwrap().remove(0);
    assert!(!found.agrees() && found.used.iter().all(|bytes| *bytes > 0), "{found:?}");
    assert_eq!(everything(dir), before);
    // What others could have put there is not believed.
    fs::set_permissions(dir.join("server-1"), Permissions::from_mode(0o777)).unwrap();
    let error = look().unwrap_err().to_string();
    assert!(error.contains("server-1: others may write"), "{error}");
    fs::set_permissions(dir.join("server-1"), Permissions::from_mode(0o755)).unwrap();
    // A copy has other inode numbers, and would look as if nothing had data.
    fs::rename(dir.join("namespace"), dir.join("before")).unwrap();
    let mut copy = Command::new("cp");
    let copied = copy.arg("-a").args([dir.join("before"), dir.join("namespace")]).status();
    assert!(copied.unwrap().success());
    let error = look().unwrap_err().to_string();
    assert!(
        error.contains("copy of a striped volume") && error.contains("mount it once"),
        "{error}"
    );
}

/// Whoever makes a volume is killed before the label is there.
#[test]
fn making_a_volume_goes_on() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(opened(dir));
    let mark = fs::read(dir.join("server-2").join(MARK)).unwrap();
    fs::remove_file(dir.join(LABEL)).unwrap();
    fs::remove_file(dir.join("server-0/halocline.lock")).unwrap();
    fs::remove_file(dir.join("server-1").join(MARK)).unwrap();
    fs::write(dir.join("server-2").join(format!("{MARK}.new")), "").unwrap();
    drop(opened(dir));
    assert_eq!(fs::read(dir.join("server-2").join(MARK)).unwrap(), mark, "the same volume");
}
