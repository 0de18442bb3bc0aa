//! What somebody who can write to directories of the tiers past the mount may try. The mount's
//! owner has more rights; no file of another's may be lost, made or shown by them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use tempfile::TempDir;

use halocline_api::control::tier::{PRIVATE, Problem};
use halocline_os::error::Result;
use halocline_tier::FileTier;
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{CALLER, Fixture, limited};

const OTHER_USER: u32 = 12_345;

/// Tiers with the directories of two users, and something outside.
struct Scene {
    fixture: Fixture,
    outside: TempDir,
}

impl Scene {
    fn new() -> Self {
        let fixture = Fixture::new(limited(1 << 20));
        for dir in ["u", "u/d", "bob"] {
            fs::create_dir(fixture.ssd(dir)).unwrap();
        }
        fixture.write("bob/report", b"bob's");
        fixture.write("u/d/f", b"own");
        fixture.write("u/d/g", b"own");
        for path in ["bob/report", "u/d/f"] {
            assert_eq!(fixture.demote(path).files, 1);
        }
        let outside = tempfile::tempdir().unwrap();
        for name in ["f", "g", "victim"] {
            fs::write(outside.path().join(name), "precious").unwrap();
        }
        Self { fixture, outside }
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = self.fixture.at(path);
        self.fixture.tier().unlink(&dir, name, CALLER)?;
        self.fixture.reap()
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.fixture.at(from), self.fixture.at(to));
        self.fixture.tier().rename((&from.0, from.1), (&to.0, to.1), 0, CALLER)?;
        self.fixture.reap()
    }

    /// Nothing outside, and nothing of the other user, was touched.
    fn check(&self) {
        for name in ["f", "g", "victim"] {
            assert_eq!(fs::read(self.outside.path().join(name)).unwrap(), b"precious", "{name}");
        }
        assert_eq!(fs::read_dir(self.outside.path()).unwrap().count(), 3);
        assert_eq!(fs::read(self.fixture.hdd("bob/report")).unwrap(), b"bob's");
        assert_eq!(self.fixture.content("bob/report").unwrap(), b"bob's");
    }
}

/// Somebody swaps a directory of the HDD for a link that leads elsewhere.
#[test]
fn a_directory_that_became_a_link_leads_nowhere() {
    let scene = Scene::new();
    let fixture = &scene.fixture;
    fs::rename(fixture.hdd("u/d"), fixture.hdd("u/aside")).unwrap();
    symlink(scene.outside.path(), fixture.hdd("u/d")).unwrap();
    // Reading, changing, moving, renaming and removing.
    assert!(fixture.content("u/d/f").is_none());
    let vnode = fixture.vnode("u/d/f");
    assert_eq!(vnode.map(drop).unwrap_err().errno(), libc::EIO);
    assert_eq!(fixture.demote("u/d/g").files, 1, "it goes where no link is in the way");
    assert!(fixture.hdd(PRIVATE).join("files").read_dir().unwrap().count() == 1);
    let (dir, name) = fixture.at("u/d");
    let dir = fixture.tier().lookup(&dir, name).unwrap().0;
    let closed = SetAttr { mode: Some(0o711), uid: Some(OTHER_USER), ..SetAttr::default() };
    if rustix::process::geteuid().is_root() {
        fixture.tier().set_attr(&dir, None, &closed, CALLER).unwrap();
    }
    scene.rename("u/d/g", "u/d/h").unwrap();
    scene.unlink("u/d/h").unwrap();
    scene.check();
    // A sweep of the directory itself.
    fs::remove_file(fixture.ssd("u/d/f")).unwrap();
    let (above, name) = fixture.at("u/d");
    fixture.tier().remove_dir(&above, name, CALLER).unwrap();
    scene.check();
}

/// Somebody makes links that look like ours, to get at what they name.
#[test]
fn links_that_we_did_not_make_are_not_believed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    let fixture = &scene.fixture;
    let forge = |path: &str| {
        symlink(fixture.hdd("bob/report"), fixture.ssd(path)).unwrap();
        lchown(fixture.ssd(path), Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    };
    forge("u/x");
    let vnode = fixture.vnode("u/x").unwrap();
    let target = fixture.tier().read_link(&vnode).unwrap();
    assert_eq!(target, fixture.hdd("bob/report"), "programs see a symbolic link");
    drop(vnode);
    scene.unlink("u/x").unwrap();
    scene.check();
    // Renamed over, in two orders; moved; linked.
    forge("u/x");
    scene.rename("u/d/g", "u/x").unwrap();
    scene.check();
    forge("u/y");
    scene.rename("u/y", "u/d/f").unwrap();
    scene.unlink("u/d/f").unwrap();
    scene.check();
    forge("u/z");
    assert_eq!(fixture.warm("u/z").files + fixture.demote("u/z").files, 0);
    scene.check();
}

/// With hard links to everything allowed, somebody can give a link of ours a second name.
#[test]
fn a_second_name_of_a_link_of_ours_is_not_believed() {
    let mut scene = Scene::new();
    fs::hard_link(scene.fixture.ssd("bob/report"), scene.fixture.ssd("u/x")).unwrap();
    // Not before the other name is known either.
    scene.fixture.open();
    let unowned = |found: &Problem| matches!(found, Problem::UnownedLink { path, .. } if path == Path::new("u/x"));
    assert_eq!(scene.fixture.found.problems.iter().filter(|found| unowned(found)).count(), 1);
    assert_eq!(scene.fixture.found.problems.len(), 1);
    scene.unlink("u/x").unwrap();
    scene.check();
    fs::hard_link(scene.fixture.ssd("bob/report"), scene.fixture.ssd("u/x")).unwrap();
    scene.rename("u/d/g", "u/x").unwrap();
    scene.check();
}

/// An intent names a file whose only link is not believed: it stays.
#[test]
fn what_a_doubtful_link_names_is_no_leftover() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut scene = Scene::new();
    symlink("1/bob/report", scene.fixture.ssd(PRIVATE).join("intents/1-1")).unwrap();
    lchown(scene.fixture.ssd("bob/report"), Some(OTHER_USER), None).unwrap();
    scene.fixture.open();
    assert_eq!(fs::read(scene.fixture.hdd("bob/report")).unwrap(), b"bob's");
    assert_eq!(scene.fixture.found.removed, 0);
}

/// Who owns the root of a tier can rename what is in it.
#[test]
fn a_private_directory_that_is_not_ours_is_refused() {
    let mut scene = Scene::new();
    scene.fixture.held.lock().clear();
    scene.fixture.tier = None;
    let set = scene.fixture.set();
    let refused = || FileTier::open(&set, limited(1 << 20)).map(drop).unwrap_err().to_string();
    for tier in ["ssd", "hdd"] {
        let private = scene.fixture.dir.path().join(tier).join(PRIVATE);
        let aside = scene.fixture.dir.path().join(tier).join("aside");
        fs::rename(&private, &aside).unwrap();
        let wanted = scene.outside.path().join("tmp");
        fs::create_dir_all(&wanted).unwrap();
        fs::write(wanted.join("file"), "precious").unwrap();
        symlink(scene.outside.path(), &private).unwrap();
        assert!(refused().contains("symbolic link"), "{tier}: {}", refused());
        fs::remove_file(&private).unwrap();
        fs::create_dir(&private).unwrap();
        symlink(&wanted, private.join("tmp")).unwrap();
        assert!(!refused().is_empty());
        fs::remove_dir_all(&private).unwrap();
        fs::rename(&aside, &private).unwrap();
        fs::rename(private.join("tmp"), private.join("old")).unwrap();
        symlink(&wanted, private.join("tmp")).unwrap();
        assert!(refused().contains("symbolic link"), "{tier}: {}", refused());
        fs::remove_file(private.join("tmp")).unwrap();
        fs::rename(private.join("old"), private.join("tmp")).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&private, Some(OTHER_USER), None).unwrap();
            assert!(refused().contains("belongs to user 12345"), "{tier}: {}", refused());
            chown(&private, Some(0), None).unwrap();
        }
        fs::set_permissions(&private, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused().contains("anybody may write"), "{tier}: {}", refused());
        // As earlier versions made it.
        fs::set_permissions(&private, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(fs::read(wanted.join("file")).unwrap(), b"precious");
        fs::remove_dir_all(&wanted).unwrap();
    }
    scene.fixture.open();
    for tier in ["ssd", "hdd"] {
        let private = scene.fixture.dir.path().join(tier).join(PRIVATE);
        assert_eq!(fs::metadata(private).unwrap().mode() & 0o777, 0o700);
    }
    scene.check();
}

/// A mirrored directory is made like its directory only where it is one.
#[test]
fn a_directory_of_somebody_else_gets_no_owner_of_ours() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    let fixture = &scene.fixture;
    // Moved there by somebody who may.
    fs::rename(fixture.hdd("u/d"), fixture.hdd("u/aside")).unwrap();
    fs::create_dir(fixture.hdd("u/d")).unwrap();
    chown(fixture.hdd("u/d"), Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    let change = |uid: u32| {
        let dir = fixture.vnode("u/d").unwrap();
        let change = SetAttr { uid: Some(uid), mode: Some(0o777), ..SetAttr::default() };
        fixture.tier().set_attr(&dir, None, &change, CALLER).unwrap();
        let now = fs::metadata(fixture.hdd("u/d")).unwrap();
        (now.uid(), now.mode() & 0o777)
    };
    assert_eq!(change(777), (OTHER_USER, 0o755));
    // A true one follows from owner to owner.
    fs::remove_dir(fixture.hdd("u/d")).unwrap();
    fs::rename(fixture.hdd("u/aside"), fixture.hdd("u/d")).unwrap();
    assert_eq!(change(777), (777, 0o777));
    assert_eq!(change(778), (778, 0o777));
}
