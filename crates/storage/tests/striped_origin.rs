//! A striped origin against plain files: the same operations, the same bytes; what lies on disk;
//! and the way back to plain files.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_model::request::ByteRange;
use halocline_storage::device::Device;
use halocline_storage::device::fault::{Effect, Faults, FaultyDevice, Operation, When};
use halocline_storage::volume::unstripe::{planned_bytes, unstripe, unstripe_tree};
use halocline_storage::volume::{Origin, OriginFile};
use halocline_testkit::skipping::skip;
use halocline_vfs::Allocate;
use halocline_vfs::Seek;
use proptest::prelude::*;

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };
const PLAIN: VolumeShape = VolumeShape { kind: VolumeKind::Plain, ..SHAPE };

fn undecorated(_: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

fn striped(dir: &Path) -> Origin {
    Origin::open_or_create(dir, SHAPE, &undecorated).unwrap()
}

fn create(origin: &Origin, name: &str) -> OriginFile {
    let path = origin.namespace_dir().join(name);
    let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    origin.adopt_data(file).unwrap()
}

fn open(origin: &Origin, name: &str, flags: i32) -> OriginFile {
    let node = File::open(origin.namespace_dir().join(name)).unwrap();
    origin.open_data(node.as_fd(), flags).unwrap()
}

fn content(file: &OriginFile) -> Vec<u8> {
    let mut back = vec![0xaa; 1 << 20];
    let len = file.read_at(0, &mut back).unwrap();
    back.truncate(len);
    back
}

fn objects_on_disk(dir: &Path) -> usize {
    let count = |dir: &Path| fs::read_dir(dir).map_or(0, Iterator::count);
    let servers = (0..SHAPE.servers).map(|at| dir.join(format!("server-{at}/objects")));
    let inside = servers.flat_map(|dir| fs::read_dir(dir).into_iter().flatten());
    inside.map(|entry| count(&entry.unwrap().path())).sum()
}

#[derive(Debug, Clone)]
enum Op {
    Write { offset: u64, len: usize, byte: u8 },
    Truncate { len: u64 },
    Allocate { range: ByteRange, how: Allocate },
    Sync,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..100_000_u64, 1..30_000_u64);
    let how = prop_oneof![
        Just(Allocate::PunchHole),
        Just(Allocate::Reserve),
        Just(Allocate::ReserveKeepSize),
        Just(Allocate::Zero { keep_size: false }),
        Just(Allocate::Zero { keep_size: true }),
    ];
    prop_oneof![
        5 => (range(), 1..=255_u8).prop_map(|((offset, len), byte)| Op::Write {
            offset,
            len: usize::try_from(len).unwrap(),
            byte
        }),
        2 => (0..120_000_u64).prop_map(|len| Op::Truncate { len }),
        3 => (range(), how).prop_map(|((offset, len), how)| Op::Allocate {
            range: ByteRange::at(offset, len),
            how
        }),
        1 => Just(Op::Sync),
        1 => Just(Op::Reopen),
    ]
}

fn apply(file: &OriginFile, op: &Op) {
    match *op {
        Op::Write { offset, len, byte } => file.write_at(offset, &vec![byte; len]).unwrap(),
        Op::Truncate { len } => file.truncate(len).unwrap(),
        Op::Allocate { range, how } => file.allocate(range, how).unwrap(),
        Op::Sync => file.sync(false).unwrap(),
        Op::Reopen => {}
    }
}

/// The bytes that `seek` calls data, with the rest as zeros, must be the content: a hole may
/// never hide data.
fn by_seeking(file: &OriginFile, content: &[u8]) -> Vec<u8> {
    let mut seen = vec![0; content.len()];
    let mut at = 0;
    while let Ok(start) = file.seek(at, Seek::Data) {
        let end = file.seek(start, Seek::Hole).unwrap();
        assert!(start < end, "data from {start} to {end}");
        let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        seen[range.clone()].copy_from_slice(&content[range]);
        at = end;
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn i1_a_striped_file_holds_what_a_plain_file_holds(
        ops in proptest::collection::vec(op(), 1..25),
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("plain")).unwrap();
        fs::create_dir(dir.path().join("striped")).unwrap();
        let plain = Origin::open_or_create(&dir.path().join("plain"), PLAIN, &undecorated).unwrap();
        let origin = striped(&dir.path().join("striped"));
        let (same, mut file) = (create(&plain, "f"), create(&origin, "f"));
        for op in &ops {
            apply(&same, op);
            apply(&file, op);
            if matches!(op, Op::Reopen) {
                file = open(&origin, "f", libc::O_RDWR);
            }
            let bytes = content(&file);
            prop_assert_eq!(&bytes, &content(&same), "after {:?}", op);
            prop_assert_eq!(bytes.len() as u64, file.namespace_file().metadata().unwrap().len());
            prop_assert_eq!(by_seeking(&file, &bytes), bytes, "after {:?}", op);
        }
        let out = dir.path().join("out");
        unstripe(&dir.path().join("striped"), "f".as_ref(), &out, &mut |_| ()).unwrap();
        prop_assert_eq!(fs::read(out).unwrap(), content(&same));
    }
}

#[test]
fn handles_of_one_file_see_each_other_before_and_after_the_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let origin = striped(dir.path());
    let writer = create(&origin, "f");
    let reader = open(&origin, "f", libc::O_RDONLY);
    assert_eq!(content(&reader), b"");
    assert_eq!(objects_on_disk(dir.path()), 0, "a file without data has no object");
    writer.write_at(9000, b"there").unwrap();
    assert_eq!(&content(&reader)[9000..], b"there");
    assert_eq!(objects_on_disk(dir.path()), 1, "one stripe, one server");
    fs::rename(origin.namespace_dir().join("f"), origin.namespace_dir().join("g")).unwrap();
    assert_eq!(content(&open(&origin, "g", libc::O_RDONLY)), content(&writer));
}

#[test]
fn writers_that_grow_a_file_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let origin = striped(dir.path());
    create(&origin, "f");
    std::thread::scope(|scope| {
        for writer in 0..8_u8 {
            let origin = &origin;
            scope.spawn(move || {
                let file = open(origin, "f", libc::O_RDWR);
                for round in 0..50_u64 {
                    let offset = (round * 8 + u64::from(writer)) * 1000;
                    file.write_at(offset, &[writer + 1; 1000]).unwrap();
                }
            });
        }
    });
    let bytes = content(&open(&origin, "f", libc::O_RDONLY));
    assert_eq!(bytes.len(), 400_000);
    for (chunk, writer) in bytes.chunks(1000).zip((0..8_u8).cycle()) {
        assert_eq!(chunk, [writer + 1; 1000]);
    }
}

#[test]
fn a_failed_append_leaves_the_size_and_a_later_hole_is_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let faults: Arc<Faults> = Arc::default();
    let decorate = |_: usize, device: Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(FaultyDevice::new(device, Arc::clone(&faults)))
    };
    let origin = Origin::open_or_create(dir.path(), SHAPE, &decorate).unwrap();
    let file = create(&origin, "f");
    file.write_at(0, &[1; 100]).unwrap();
    faults.set(Some(Operation::Write), Effect::Short, When::Nth(0));
    let error = file.write_at(100, &[2; 1000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(file.namespace_file().metadata().unwrap().len(), 100);
    file.truncate(5000).unwrap();
    assert!(content(&file)[100..].iter().all(|&byte| byte == 0), "what half arrived is gone");
}

#[test]
fn a_write_changes_the_modification_time() {
    let dir = tempfile::tempdir().unwrap();
    let file = create(&striped(dir.path()), "f");
    file.write_at(0, b"abc").unwrap();
    for change in [0, 1] {
        file.namespace_file().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        match change {
            0 => file.write_at(0, b"x").unwrap(),
            _ => file.allocate(ByteRange::at(0, 1), Allocate::PunchHole).unwrap(),
        }
        assert!(file.namespace_file().metadata().unwrap().mtime() > 0);
    }
}

#[test]
fn removing_data_leaves_no_object() {
    let dir = tempfile::tempdir().unwrap();
    let origin = striped(dir.path());
    let file = create(&origin, "f");
    file.write_at(0, &vec![1; 20_000]).unwrap();
    assert_eq!(objects_on_disk(dir.path()), 3);
    assert_eq!(file.blocks().unwrap() * 512 / 4096, 5);
    assert!(origin.object_of(file.namespace_file()).unwrap().is_some());
    fs::remove_file(origin.namespace_dir().join("f")).unwrap();
    assert_eq!(content(&file), vec![1; 20_000], "open files live on");
    origin.remove_data(file.namespace_file()).unwrap();
    origin.removals().work_off();
    assert_eq!(objects_on_disk(dir.path()), 0);
}

#[test]
fn opening_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let open = |shape| Origin::open_or_create(dir.path(), shape, &undecorated);
    fs::write(dir.path().join("mine"), b"data").unwrap();
    let refused = open(SHAPE).unwrap_err().to_string();
    assert!(refused.contains("mine") && refused.contains("plain"), "{refused}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made");
    assert!(!open(PLAIN).unwrap().is_striped());
    fs::remove_file(dir.path().join("mine")).unwrap();

    create(&open(SHAPE).unwrap(), "f").write_at(0, b"abc").unwrap();
    let found = open(PLAIN).unwrap();
    assert!(found.is_striped(), "a striped volume says so itself");
    assert_eq!(found.striping().servers(), 3);
    let other = VolumeShape { servers: 4, ..SHAPE };
    assert!(open(other).unwrap_err().to_string().contains("3 servers"));

    let label = dir.path().join("halocline-volume.toml");
    for (text, says) in [("format = 9\nservers = 1\nstripe = 1\n", "format 9"), ("form", "restore")]
    {
        fs::write(&label, text).unwrap();
        let error = open(SHAPE).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("halocline-volume.toml"), "{error}");
    }
}

/// Whoever may write to the directory had root empty a file, or give a directory away, by links.
#[test]
fn what_others_prepared_is_not_followed() {
    use std::os::unix::fs::symlink;
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("victim")).unwrap();
    fs::set_permissions(at("victim"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(at("precious"), "precious").unwrap();
    let victim = || {
        let seen = fs::metadata(at("victim")).unwrap();
        (seen.mode() & 0o777, fs::read_dir(at("victim")).unwrap().count())
    };
    let refused = |dir: &Path| {
        Origin::open_or_create(dir, SHAPE, &undecorated).map(drop).unwrap_err().to_string()
    };
    for name in ["namespace", "server-1"] {
        let dir = at(&format!("with-{name}"));
        fs::create_dir(&dir).unwrap();
        symlink(at("victim"), dir.join(name)).unwrap();
        assert!(refused(&dir).contains(name));
        assert_eq!(victim(), (0o700, 0), "{name}");
    }
    let dir = at("with-label");
    fs::create_dir(&dir).unwrap();
    symlink(at("precious"), dir.join("halocline-volume.toml.new")).unwrap();
    drop(striped(&dir));
    assert_eq!(fs::read(at("precious")).unwrap(), b"precious");
    // A volume whose tree or server was replaced later.
    for name in ["namespace", "server-2"] {
        fs::rename(dir.join(name), dir.join("aside")).unwrap();
        symlink(at("victim"), dir.join(name)).unwrap();
        assert!(refused(&dir).contains(name));
        assert!(Origin::open_volume(&dir).is_err());
        fs::remove_file(dir.join(name)).unwrap();
        fs::rename(dir.join("aside"), dir.join(name)).unwrap();
    }
    drop(striped(&dir));
    // A link to somebody else's label would be read.
    fs::rename(dir.join("halocline-volume.toml"), at("label")).unwrap();
    symlink(at("label"), dir.join("halocline-volume.toml")).unwrap();
    assert!(refused(&dir).contains("halocline-volume.toml"));
}

/// A pipe was waited for, for ever, by each mount of the directory.
#[test]
fn a_label_that_is_no_file_or_another_users_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let label = scratch.path().join("halocline-volume.toml");
    let refused = || {
        let plain = Origin::open_or_create(scratch.path(), PLAIN, &undecorated).map(drop);
        assert!(Origin::open_alone(scratch.path()).is_err());
        plain.unwrap_err().to_string()
    };
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, &label, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(refused().contains("halocline-volume.toml"));
    fs::remove_file(&label).unwrap();
    fs::create_dir(&label).unwrap();
    assert!(refused().contains("halocline-volume.toml"));
    fs::remove_dir(&label).unwrap();
    if rustix::process::geteuid().is_root() {
        fs::write(&label, "format = 1\nservers = 1\nstripe = 4096\n").unwrap();
        std::os::unix::fs::chown(&label, Some(54_321), None).unwrap();
        assert!(refused().contains("54321"));
    }
}

#[test]
fn a_missing_server_is_named() {
    let dir = tempfile::tempdir().unwrap();
    drop(striped(dir.path()));
    fs::rename(dir.path().join("server-1"), dir.path().join("gone")).unwrap();
    let error = Origin::open_volume(dir.path()).unwrap_err().to_string();
    assert!(error.contains("server-1"), "{error}");
}

#[test]
fn a_whole_tree_comes_back_plain() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, out) = (dir.path().join("volume"), dir.path().join("out"));
    fs::create_dir(&volume).unwrap();
    let origin = striped(&volume);
    let root = origin.namespace_dir().to_owned();
    fs::create_dir(root.join("sub")).unwrap();
    let data: Vec<u8> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
    create(&origin, "sub/data").write_at(1 << 30, &data).unwrap();
    create(&origin, "empty");
    fs::hard_link(root.join("sub/data"), root.join("link")).unwrap();
    std::os::unix::fs::symlink("sub/data", root.join("symlink")).unwrap();
    let odd = root.join("sub/data");
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o640)).unwrap();
    rustix::fs::setxattr(&odd, "user.mine", b"kept", rustix::fs::XattrFlags::empty()).unwrap();
    let past = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    File::options().write(true).open(&odd).unwrap().set_modified(past).unwrap();
    fs::set_permissions(root.join("sub"), fs::Permissions::from_mode(0o550)).unwrap();

    let (planned, _) = planned_bytes(&volume, None, &out).unwrap();
    let mut passed = 0;
    unstripe_tree(&volume, &out, &mut |bytes| passed += bytes).unwrap();
    assert_eq!(passed, planned);
    let file = File::open(out.join("sub/data")).unwrap();
    let found = file.metadata().unwrap();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 1 << 30).unwrap();
    assert_eq!(back, data);
    assert_eq!((found.len(), found.mode() & 0o7777), ((1 << 30) + 50_000, 0o640));
    assert!(found.blocks() * 512 < 100_000, "the hole stayed a hole");
    assert_eq!(found.modified().unwrap(), past);
    assert_eq!(found.ino(), fs::metadata(out.join("link")).unwrap().ino(), "one file, two names");
    assert_eq!(fs::read_link(out.join("symlink")).unwrap(), Path::new("sub/data"));
    assert_eq!(fs::metadata(out.join("sub")).unwrap().mode() & 0o7777, 0o550);
    assert_eq!(fs::metadata(out.join("empty")).unwrap().len(), 0);
    let mut names = vec![0_u8; 200];
    let len = rustix::fs::listxattr(out.join("sub/data"), &mut names).unwrap();
    assert_eq!(&names[..len], b"user.mine\0", "ours is gone, the user's is kept");

    let again = unstripe_tree(&volume, &out, &mut |_| ()).unwrap_err().to_string();
    assert!(again.contains("out"), "an existing directory is not touched: {again}");
    let outside = unstripe(&volume, "../x".as_ref(), &dir.path().join("x"), &mut |_| ());
    assert!(outside.unwrap_err().to_string().contains("below the origin"));
}

#[test]
fn the_recipe_in_the_format_document_works() {
    if std::process::Command::new("getfattr").arg("--version").output().is_err() {
        // The package "attr" is not on every machine; Halocline itself does not need it.
        return;
    }
    let document = include_str!("../../../docs/FORMAT.md");
    let recipe = document.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let origin = striped(dir.path());
    let file = create(&origin, "FILE");
    for (at, byte) in [(0, 1), (20_000, 2), (70_001, 3)] {
        file.write_at(at, &[byte; 9999]).unwrap();
    }
    let mut shell = std::process::Command::new("bash");
    shell.env("M", "3").env("S", "4096").current_dir(dir.path()).args(["-c", recipe]);
    match shell.status() {
        Ok(status) => assert!(status.success(), "the recipe ends with {status}"),
        Err(error) => panic!("bash: {error}"),
    }
    assert_eq!(fs::read(dir.path().join("OUT")).unwrap(), content(&file));
}

/// What a crash leaves between an unlink and the end of the last open file.
#[test]
fn objects_without_a_name_are_found_and_removed_alone() {
    let dir = tempfile::tempdir().unwrap();
    let origin = striped(dir.path());
    for name in ["kept", "linked", "gone"] {
        create(&origin, name).write_at(0, &vec![7; 40_000]).unwrap();
    }
    let tree = origin.namespace_dir().to_owned();
    fs::create_dir(tree.join("d")).unwrap();
    fs::hard_link(tree.join("linked"), tree.join("d/other")).unwrap();
    fs::remove_file(tree.join("linked")).unwrap();
    let gone = origin.object_of(File::open(tree.join("gone")).unwrap()).unwrap().unwrap();
    fs::remove_file(tree.join("gone")).unwrap();
    fs::write(dir.path().join("server-0/objects/unknown"), "not ours").unwrap();
    let mounted = Origin::open_alone(dir.path()).unwrap_err().to_string();
    assert!(mounted.contains("in use"), "{mounted}");
    drop(origin);

    let origin = Origin::open_alone(dir.path()).unwrap().unwrap();
    let orphans = origin.orphans().unwrap();
    assert_eq!(orphans.keys().collect::<Vec<_>>(), [&gone]);
    assert!(orphans[&gone] >= 40_000);
    origin.remove_orphan(gone).unwrap();
    assert!(origin.orphans().unwrap().is_empty());
    for name in ["kept", "d/other"] {
        assert_eq!(content(&open(&origin, name, libc::O_RDONLY)), vec![7; 40_000], "{name}");
    }
    let in_use = Origin::open_volume(dir.path()).unwrap_err().to_string();
    assert!(in_use.contains("in use"), "{in_use}");
}

/// A name that says nothing must not make the object of its file an orphan.
#[test]
fn a_damaged_name_makes_no_orphan() {
    let dir = tempfile::tempdir().unwrap();
    let origin = striped(dir.path());
    create(&origin, "f").write_at(0, &[7; 100]).unwrap();
    let attribute = "user.halocline.object";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(origin.namespace_dir().join("f"), attribute, b"what", flags).unwrap();
    assert!(origin.orphans().unwrap().is_empty());
}

/// Objects by which somebody else would have us read and write another file.
#[test]
fn objects_that_others_prepared_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let origin = striped(dir.path());
    create(&origin, "file").write_at(0, b"data").unwrap();
    let object = first_object(dir.path());
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let prepare: [&dyn Fn(); 3] = [
        &|| fs::hard_link(&victim, &object).unwrap(),
        &|| std::os::unix::fs::symlink(&victim, &object).unwrap(),
        &|| fs::create_dir(&object).unwrap(),
    ];
    for (turn, prepare) in prepare.into_iter().enumerate() {
        let _ = fs::remove_file(&object);
        prepare();
        let file = open(&origin, "file", libc::O_RDWR);
        let read = file.read_at(0, &mut [0; 4]);
        let written = file.write_at(0, b"evil");
        assert!(read.is_err() && written.is_err(), "{turn}: {read:?}, {written:?}");
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn servers_of_somebody_else_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(striped(dir.path()));
    let server = dir.path().join("server-1");
    if std::os::unix::fs::chown(&server, Some(65534), None).is_err() {
        return skip("only root can give a directory away");
    }
    let opened = Origin::open_or_create(dir.path(), SHAPE, &undecorated);
    let message = opened.unwrap_err().to_string();
    assert!(message.contains("server-1") && message.contains("user 65534"), "{message}");
    std::os::unix::fs::chown(&server, Some(0), None).unwrap();
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).unwrap();
    drop(striped(dir.path()));
    let mode = server.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "it is closed, as earlier versions did not");
}

fn first_object(dir: &Path) -> std::path::PathBuf {
    let servers = (0..SHAPE.servers).map(|at| dir.join(format!("server-{at}/objects")));
    let inside = servers.flat_map(|dir| fs::read_dir(dir).into_iter().flatten());
    let mut files = inside.flat_map(|entry| fs::read_dir(entry.unwrap().path()).unwrap());
    files.next().expect("an object").unwrap().path()
}
