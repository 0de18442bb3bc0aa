//! Directories and files that someone else prepared.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use rustix::fs::mkfifoat;

use super::*;

const OTHER_USER: u32 = 12_345;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn refusal<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("it is refused").to_string()
}

#[test]
fn what_was_made_too_open_is_closed() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir_all(at("cache/meta/deep")).unwrap();
    fs::write(at("cache/meta/deep/file"), "x").unwrap();
    for (name, open) in [
        ("cache", 0o775),
        ("cache/meta", 0o755),
        ("cache/meta/deep", 0o755),
        ("cache/meta/deep/file", 0o664),
    ] {
        chmod(&at(name), open);
    }
    let dir = PrivateDir::make(&at("cache")).unwrap();
    dir.sub("meta").unwrap().check_below().unwrap();
    for (name, closed) in
        [("cache", 0o700), ("cache/meta/deep", 0o700), ("cache/meta/deep/file", 0o600)]
    {
        assert_eq!(mode(&at(name)), closed, "{name}");
    }
    // Created with this mode, whatever the umask.
    dir.replace("told", b"once").unwrap();
    dir.replace("told", b"twice").unwrap();
    assert_eq!(dir.read("told", 100).unwrap().unwrap(), b"twice");
    assert!(refusal(dir.read("told", 4)).contains("more than 4 bytes"));
    drop(dir.file("log", Use::Append).unwrap());
    assert_eq!((mode(&at("cache/told")), mode(&at("cache/log"))), (0o600, 0o600));
    drop(PrivateDir::make(&at("new/below")).unwrap());
    assert_eq!(mode(&at("new/below")), 0o700);
}

#[test]
fn links_fifos_and_other_names_of_files_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("victim"), "precious").unwrap();
    chmod(&at("victim"), 0o640);
    let dir = PrivateDir::make(&at("cache")).unwrap();
    symlink(at("victim"), at("cache/link")).unwrap();
    symlink(at("nothing"), at("cache/dangling")).unwrap();
    fs::hard_link(at("victim"), at("cache/second")).unwrap();
    mkfifoat(CWD, at("cache/fifo"), Mode::RWXU).unwrap();
    fs::create_dir(at("cache/dir")).unwrap();
    for using in [Use::Read, Use::Write, Use::Append, Use::New] {
        for name in ["link", "dangling", "second", "fifo", "dir"] {
            let said = refusal(dir.file(name, using));
            assert!(using == Use::New || said.contains("move it away"), "{name}: {said}");
        }
    }
    assert!(!at("nothing").exists());
    dir.replace("link", b"ours").unwrap();
    assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
    assert_eq!(mode(&at("victim")), 0o640, "nothing was done to it");
    assert!(refusal(dir.check_below()).contains("move it away"));
    // A directory that is a link, and one below a link.
    symlink(at("cache"), at("linked")).unwrap();
    assert!(refusal(PrivateDir::make(&at("linked"))).contains("symbolic link"));
    symlink(scratch.path(), at("cache/sub")).unwrap();
    assert!(refusal(dir.sub("sub")).contains("symbolic link"));
}

#[test]
fn what_others_may_have_put_there_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("open")).unwrap();
    chmod(&at("open"), 0o777);
    drop(PrivateDir::make(&at("open")).expect("it is empty"));
    assert_eq!(mode(&at("open")), 0o700);
    chmod(&at("open"), 0o777);
    fs::write(at("open/file"), "x").unwrap();
    assert!(refusal(PrivateDir::make(&at("open"))).contains("anybody may write"));
    if own_uid() != 0 {
        return;
    }
    fs::create_dir(at("others")).unwrap();
    fs::create_dir(at("own")).unwrap();
    fs::write(at("own/file"), "x").unwrap();
    chown(at("others"), Some(OTHER_USER), None).unwrap();
    chown(at("own/file"), Some(OTHER_USER), None).unwrap();
    assert!(refusal(PrivateDir::make(&at("others"))).contains("belongs to user 12345"));
    let own = PrivateDir::make(&at("own")).unwrap();
    assert!(refusal(own.file("file", Use::Write)).contains("belongs to user 12345"));
    if !is_initial_namespace() {
        return;
    }
    // The owner of a directory above could replace it.
    fs::create_dir(at("others/cache")).unwrap();
    assert!(refusal(check_above(&at("others/cache"))).contains("another user owns"));
    chmod(&at("own"), 0o777);
    fs::create_dir(at("own/cache")).unwrap();
    assert!(refusal(check_above(&at("own/cache"))).contains("others may write"));
    // As in /tmp.
    chmod(&at("own"), 0o1777);
    check_above(&at("own/cache")).unwrap();
}
