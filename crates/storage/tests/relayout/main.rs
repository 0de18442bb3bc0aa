//! Files of a striped origin in layouts of their own: moved there, stopped at every step, copied, forged, damaged.

mod killed_truncates;
mod leftovers;
mod times;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_model::file_layout::FileLayout;
use halocline_os::error::Result;
use halocline_storage::device::Device;
use halocline_storage::volume::origin::relayout::{self, LayoutChange, Relayout, Step, Wish};
use halocline_storage::volume::unstripe::unstripe;
use halocline_storage::volume::{Distribution, Origin, OriginFile};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };
const OBJECT: &str = "user.halocline.object";
const STEPS: [Step; 8] = [
    Step::Note,
    Step::Layout,
    Step::Copy,
    Step::Sync,
    Step::CutOver,
    Step::Settle,
    Step::Remove,
    Step::Forget,
];

fn undecorated(_: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

fn mounted(dir: &Path) -> Origin {
    Origin::open_or_create(dir, SHAPE, &undecorated).unwrap()
}

fn open(origin: &Origin, name: &str) -> OriginFile {
    let node = File::open(origin.namespace_dir().join(name)).unwrap();
    origin.open_data(node.as_fd(), libc::O_RDWR).unwrap()
}

fn create(origin: &Origin, name: &str) -> OriginFile {
    let path = origin.namespace_dir().join(name);
    let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    origin.adopt_data(file).unwrap()
}

fn read(origin: &Origin, name: &str) -> Vec<u8> {
    let mut back = vec![0xaa; 1 << 20];
    let len = open(origin, name).read_at(0, &mut back).unwrap();
    back.truncate(len);
    back
}

/// A hundred thousand bytes that differ from each other, with a hole.
fn content() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..100_000_u32).map(|at| (at * 7 / 3 % 251) as u8 + 1).collect();
    bytes[20_000..60_000].fill(0);
    bytes
}

fn volume(dir: &Path) -> Origin {
    let origin = mounted(dir);
    let (file, bytes) = (create(&origin, "file"), content());
    file.write_at(0, &bytes[..20_000]).unwrap();
    file.write_at(60_000, &bytes[60_000..]).unwrap();
    file.sync(false).unwrap();
    origin
}

fn wish(path: &str, parts: &[(u64, [u64; 3])]) -> Wish {
    let parts = parts.iter().map(|(begin, widths)| (*begin, widths.to_vec()));
    Wish { path: path.into(), layout: FileLayout::from_parts(parts).unwrap() }
}

/// Two disks and an SSD that is full after 48 KiB.
fn two_parts() -> Wish {
    wish("file", &[(0, [4096, 4096, 16384]), (49_152, [8192, 8192, 0])])
}

/// The volume, for a move. A process that another test starts has the lock of an origin that was closed just now, from
/// its fork until it runs its program.
fn to_move(dir: &Path) -> Result<Relayout> {
    let begun = Instant::now();
    loop {
        match Relayout::open(dir) {
            Err(error)
                if error.to_string().contains("in use by another process")
                    && begun.elapsed() < Duration::from_mins(5) =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

fn apply(
    dir: &Path,
    wish: &Wish,
    before: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<LayoutChange> {
    let volume = to_move(dir)?;
    volume.clear_moves(&mut |_| Ok(()))?;
    let found = relayout::look(volume.origin(), std::slice::from_ref(wish), true)?.remove(0);
    relayout::moves(volume.origin(), std::slice::from_ref(&found), &[])?;
    if !found.agrees() {
        let moved = volume.relayout(&found, before, &mut |_| {});
        volume.settle_removals()?;
        moved?;
    }
    Ok(relayout::look(volume.origin(), std::slice::from_ref(wish), false)?.remove(0))
}

fn moved(dir: &Path, wish: &Wish) -> LayoutChange {
    apply(dir, wish, &mut |_| Ok(())).unwrap()
}

/// As if the process were killed before this step.
fn killed_before(stop: Step, dir: &Path, wish: &Wish) {
    let mut before = |step| if step == stop { resume_unwind(Box::new("killed")) } else { Ok(()) };
    let ended = catch_unwind(AssertUnwindSafe(|| apply(dir, wish, &mut before).map(drop)));
    assert!(ended.is_err(), "{stop:?}");
}

/// A volume with a file, whose move into two parts was killed before a step.
fn killed_volume(stop: Step) -> tempfile::TempDir {
    let scratch = tempfile::tempdir().unwrap();
    drop(volume(scratch.path()));
    killed_before(stop, scratch.path(), &two_parts());
    scratch
}

fn local_files(dir: &Path, root: &str) -> Vec<PathBuf> {
    let servers = (0..SHAPE.servers).map(|at| dir.join(format!("server-{at}/{root}")));
    let inside = servers.flat_map(|dir| fs::read_dir(dir).into_iter().flatten());
    let files = inside.flat_map(|entry| fs::read_dir(entry.unwrap().path()).unwrap());
    files.map(|entry| entry.unwrap().path()).collect()
}

fn label(dir: &Path) -> String {
    fs::read_to_string(dir.join("halocline-volume.toml")).unwrap()
}

#[test]
fn a_moved_file_has_its_bytes_its_attributes_and_its_layout() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let origin = volume(dir);
    let path = origin.namespace_dir().join("file");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    rustix::fs::setxattr(&path, "user.note", b"kept", XattrFlags::CREATE).unwrap();
    fs::hard_link(&path, origin.namespace_dir().join("other name")).unwrap();
    drop(origin);
    let before = fs::metadata(&path).unwrap();
    assert!(label(dir).contains("format = 4"));
    let now = moved(dir, &two_parts());
    assert!(now.agrees());
    // Blocks at the ends of the hole count whole.
    assert!((60_000..90_000).contains(&now.data_bytes()), "{now:?}");
    assert!(label(dir).contains("format = 4"), "earlier versions do not know layouts");
    let after = fs::metadata(&path).unwrap();
    let kept = |found: &fs::Metadata| {
        (found.ino(), found.mode(), found.mtime_nsec(), found.len(), found.nlink(), found.uid())
    };
    assert_eq!(kept(&before), kept(&after));
    let mut note = [0; 8];
    assert_eq!(rustix::fs::getxattr(&path, "user.note", &mut note), Ok(4));
    let origin = mounted(dir);
    assert_eq!(read(&origin, "file"), content());
    assert_eq!(read(&origin, "other name"), content());
    assert!(open(&origin, "file").blocks().unwrap() * 512 < 90_000, "holes are kept");
    assert_eq!(local_files(dir, "objects").len(), 3, "the old object is gone");
    // Changed as any other file, beyond its old end too.
    let file = open(&origin, "file");
    let mut want = content();
    want.resize(150_000, 0);
    want[45_000..55_000].fill(9);
    want[140_000..].fill(8);
    file.write_at(45_000, &[9; 10_000]).unwrap();
    file.write_at(140_000, &[8; 10_000]).unwrap();
    file.sync(true).unwrap();
    assert_eq!(read(&origin, "file"), want);
    drop((file, origin));
    // And out of it again, in order.
    unstripe(dir, Path::new("file"), &dir.join("plain"), &mut |_| {}).unwrap();
    assert_eq!(fs::read(dir.join("plain")).unwrap(), want);
    let back = moved(dir, &wish("file", &[(0, [4096; 3])]));
    assert!(matches!(back.now, Distribution::Even(_)), "the volume's own stripe is not a layout");
    assert_eq!(local_files(dir, "layouts").len(), 0);
    assert_eq!(read(&mounted(dir), "file"), want);
}

#[test]
fn stopped_before_any_step_a_file_is_in_its_old_layout_or_its_new_one() {
    for stop in STEPS {
        let scratch = killed_volume(stop);
        let dir = scratch.path();
        // A mount reads and writes it as it is, before anybody clears what is left.
        let origin = mounted(dir);
        assert_eq!(read(&origin, "file"), content(), "{stop:?}");
        open(&origin, "file").write_at(50_000, b"written between").unwrap();
        let mut want = content();
        want[50_000..50_015].copy_from_slice(b"written between");
        drop(origin);
        let volume = to_move(dir).unwrap();
        let found = relayout::look(volume.origin(), &[two_parts()], false).unwrap();
        drop(volume);
        assert_eq!(found[0].agrees(), stop > Step::CutOver, "{stop:?}");
        assert!(moved(dir, &two_parts()).agrees(), "{stop:?}");
        assert_eq!(read(&mounted(dir), "file"), want, "{stop:?}");
        assert_eq!(local_files(dir, "objects").len(), 3, "{stop:?}: nothing is left over");
        assert_eq!(local_files(dir, "layouts").len(), 1, "{stop:?}");
        let alone = Origin::open_alone(dir).unwrap().unwrap();
        assert!(alone.orphans().unwrap().is_empty(), "{stop:?}");
    }
}

/// The file names its new object in memory, and maybe not on disk: as long as that cannot be made durable, both stay.
#[test]
fn a_cutover_that_is_not_durable_removes_neither_object() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    let path = dir.join("namespace/file");
    let number = || {
        let mut number = vec![0; 64];
        let len = rustix::fs::getxattr(&path, OBJECT, &mut number).unwrap();
        number.truncate(len);
        number
    };
    let old = number();
    let mut failing = |step| {
        if step == Step::Settle {
            Err(std::io::Error::from_raw_os_error(libc::EIO).into())
        } else {
            Ok(())
        }
    };
    assert_eq!(apply(dir, &two_parts(), &mut failing).unwrap_err().errno(), libc::EIO);
    let new = number();
    assert_ne!(old, new);
    let volume = to_move(dir).unwrap();
    assert_eq!(volume.clear_moves(&mut failing).unwrap_err().errno(), libc::EIO);
    assert_eq!(local_files(dir, "objects").len(), 6, "the old object and the new one");
    drop(volume);
    // As after a power loss, which takes the name back.
    rustix::fs::setxattr(&path, OBJECT, &old, XattrFlags::REPLACE).unwrap();
    assert_eq!(read(&mounted(dir), "file"), content());
    rustix::fs::setxattr(&path, OBJECT, &new, XattrFlags::REPLACE).unwrap();
    let volume = to_move(dir).unwrap();
    assert_eq!(volume.clear_moves(&mut |_| Ok(())).unwrap().removed, 1, "the note stayed");
    drop(volume);
    assert_eq!(local_files(dir, "objects").len(), 3);
    assert_eq!(read(&mounted(dir), "file"), content());
}

#[test]
fn what_is_removed_takes_its_layout_with_it() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    moved(dir, &two_parts());
    let origin = mounted(dir);
    let file = open(&origin, "file");
    fs::remove_file(origin.namespace_dir().join("file")).unwrap();
    origin.remove_data(file.namespace_file()).unwrap();
    origin.removals().work_off();
    assert!(local_files(dir, "objects").is_empty() && local_files(dir, "layouts").is_empty());
}

#[test]
fn a_file_without_data_gets_its_layout_for_what_is_written_later() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(create(&mounted(dir), "file"));
    assert!(moved(dir, &two_parts()).agrees());
    let origin = mounted(dir);
    open(&origin, "file").write_at(0, &content()).unwrap();
    assert_eq!(read(&origin, "file"), content());
    let ssd =
        local_files(dir, "objects").into_iter().find(|path| path.starts_with(dir.join("server-2")));
    assert_eq!(fs::metadata(ssd.unwrap()).unwrap().len(), 32_768, "two stripes, then it is full");
}

/// As a backup that is restored: other inode numbers.
#[test]
fn a_copied_volume_has_the_layouts_of_its_files() {
    let scratch = tempfile::tempdir().unwrap();
    let (dir, copy) = (scratch.path().join("one"), scratch.path().join("two"));
    fs::create_dir(&dir).unwrap();
    drop(volume(&dir));
    moved(&dir, &two_parts());
    let done = Command::new("cp").arg("-a").args([&dir, &copy]).status().unwrap();
    assert!(done.success());
    let origin = mounted(&copy);
    assert_eq!(read(&origin, "file"), content());
    assert!(label(&copy).contains("format = 4"));
    drop(origin);
    assert!(moved(&copy, &two_parts()).agrees());
}

#[test]
fn a_layout_that_is_damaged_or_gone_is_an_error_and_no_wrong_bytes() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    moved(dir, &two_parts());
    let layout = local_files(dir, "layouts").remove(0);
    let good = fs::read(&layout).unwrap();
    let origin = mounted(dir);
    let mut buf = [0; 16];
    let mut bad = good.clone();
    *bad.last_mut().unwrap() = b'9';
    for bytes in [&bad[..], &good[..good.len() / 2], b""] {
        fs::write(&layout, bytes).unwrap();
        open(&origin, "file").read_at(0, &mut buf).unwrap_err();
        open(&origin, "file").write_at(0, b"x").unwrap_err();
    }
    fs::remove_file(&layout).unwrap();
    let error = open(&origin, "file").read_at(0, &mut buf).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    fs::write(&layout, &good).unwrap();
    fs::set_permissions(&layout, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(read(&origin, "file"), content());
}

/// Whoever may read a file can make another name its object; removing that one takes nothing of the first.
#[test]
fn a_file_that_names_the_object_of_another_reaches_neither_its_data_nor_its_layout() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    moved(dir, &two_parts());
    let origin = mounted(dir);
    let (victim, thief) = (origin.namespace_dir().join("file"), create(&origin, "thief"));
    let mut number = vec![0; 64];
    let len = rustix::fs::getxattr(&victim, OBJECT, &mut number).unwrap();
    rustix::fs::fsetxattr(thief.namespace_file(), OBJECT, &number[..len], XattrFlags::CREATE)
        .unwrap();
    let thief = open(&origin, "thief");
    thief.namespace_file().set_len(100).unwrap();
    thief.read_at(0, &mut [0; 16]).unwrap_err();
    fs::remove_file(origin.namespace_dir().join("thief")).unwrap();
    origin.remove_data(thief.namespace_file()).unwrap();
    origin.removals().work_off();
    assert_eq!(read(&origin, "file"), content());
}

/// Regression: the whole file was one hole then, and was moved as such: what the other servers had of it was removed. Later the
/// message named the file alone, of which nothing was wrong.
#[test]
fn a_file_with_something_else_in_the_place_of_an_object_is_not_moved() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    let objects = fs::read_dir(dir.join("server-1/objects")).unwrap();
    let of_file = objects.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
    let object = of_file.map(|entry| entry.unwrap().path()).next().unwrap();
    fs::remove_file(&object).unwrap();
    let special = |kind| mknodat(CWD, &object, kind, Mode::RWXU, 0).unwrap();
    let makes: [&dyn Fn(); 4] = [
        &|| special(FileType::Socket),
        &|| special(FileType::Fifo),
        &|| fs::create_dir(&object).unwrap(),
        &|| std::os::unix::fs::symlink("elsewhere", &object).unwrap(),
    ];
    for make in makes {
        make();
        let moving = to_move(dir).unwrap();
        let error = relayout::look(moving.origin(), &[two_parts()], true).unwrap_err();
        let error = error.to_string();
        let told = format!("{} is not a regular file: move it away", object.display());
        assert!(error.contains(&told), "{error}");
        drop(moving);
        let copied = unstripe(dir, Path::new("file"), &dir.join("out"), &mut |_| {});
        let error = copied.unwrap_err().to_string();
        assert!(error.contains(&told), "{error}");
        fs::remove_file(dir.join("out.incomplete")).unwrap();
        let _ = fs::remove_file(&object).or_else(|_| fs::remove_dir(&object));
    }
}

#[test]
fn what_cannot_be_moved_is_refused_before_anything_is() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let origin = volume(dir);
    std::os::unix::fs::symlink("file", origin.namespace_dir().join("link")).unwrap();
    fs::hard_link(origin.namespace_dir().join("file"), origin.namespace_dir().join("again"))
        .unwrap();
    let error = Relayout::open(dir).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    drop(origin);
    let volume = to_move(dir).unwrap();
    let origin = volume.origin();
    let of = |path: &str| Wish { path: path.into(), ..two_parts() };
    let narrow = Wish { layout: FileLayout::uniform(vec![4096; 2]).unwrap(), ..two_parts() };
    for (wishes, what) in [
        (vec![of("missing")], "missing"),
        (vec![of("link")], "not a regular file"),
        (vec![of("../server-0/halocline.lock")], "not a path below"),
        (vec![of("file"), of("again")], "two names of one file"),
        (vec![narrow], "over 2 servers; there are 3"),
        (vec![wish("file", &[(0, [4096, 1, 0])])], "a stripe of 1 bytes"),
    ] {
        let error = relayout::look(origin, &wishes, true).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let mut huge = relayout::look(origin, &[two_parts()], true).unwrap();
    huge[0].planned[1] = u64::MAX / 4;
    let error = relayout::moves(origin, &huge, &[]).unwrap_err().to_string();
    assert!(error.contains("server-1") && error.contains("are free"), "{error}");
}

/// Past the volume's lock, in its tree.
#[test]
fn a_file_that_changes_while_it_moves_stays_where_it_is() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let origin = volume(dir);
    let path = origin.namespace_dir().join("file");
    drop(origin);
    let changed = apply(dir, &two_parts(), &mut |step| {
        if step == Step::Sync {
            File::options().write(true).open(&path).unwrap().set_len(90_000).unwrap();
        }
        Ok(())
    });
    let error = changed.unwrap_err().to_string();
    assert!(error.contains("changed meanwhile"), "{error}");
    assert_eq!(to_move(dir).unwrap().outstanding(), 0);
    assert_eq!(local_files(dir, "objects").len(), 3, "the copy is gone at once");
    assert_eq!(read(&mounted(dir), "file"), content()[..90_000]);
    assert!(local_files(dir, "layouts").is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// From any layout to any other, one after the other, with writes between.
    #[test]
    fn moves_between_layouts_change_no_byte(
        moves in proptest::collection::vec((any::<[bool; 3]>(), 1..20_u64, 1..9_u64, 0..90_000_u64), 1..5),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        drop(volume(dir));
        let mut want = content();
        for (uses, width, factor, at) in moves {
            prop_assume!(uses.contains(&true));
            let widths = [0, 1, 2].map(|server: usize| {
                if uses[server] { width * 512 * if server == 2 { factor } else { 1 } } else { 0 }
            });
            let then = [(0, widths), (at.max(1), [512 * factor, 0, 1024])];
            prop_assert!(moved(dir, &wish("file", &then)).agrees());
            let origin = mounted(dir);
            prop_assert_eq!(read(&origin, "file"), want.as_slice());
            let offset = usize::try_from(at).unwrap();
            open(&origin, "file").write_at(at, &[7; 5000]).unwrap();
            want[offset..offset + 5000].fill(7);
        }
        prop_assert_eq!(read(&mounted(dir), "file"), want);
    }
}
