use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::thread;

use super::*;

/// Regression: after the SSD was removed under a mount, the mount was reported not to exist.
#[test]
fn a_socket_that_is_gone_is_told_from_a_mount_that_is() {
    let (mountpoint, socket) = (PathBuf::from("/mnt/x"), PathBuf::from("/nowhere/control.sock"));
    let user = geteuid().as_raw();
    let mounted = MountedPath { mountpoint, socket, user, inside: PathBuf::new() };
    let error = mounted.connect().unwrap_err().to_string();
    assert!(error.contains("/mnt/x") && error.contains("umount"), "{error}");
    let named_by_cache = MountedPath { mountpoint: PathBuf::new(), ..mounted };
    let error = named_by_cache.connect().unwrap_err().to_string();
    assert!(error.contains("no mount process answers"), "{error}");
}

/// Regression: an ordinary user was told that the control socket of root's mount was gone, and to end that mount.
#[test]
fn a_mount_of_somebody_else_is_told_from_one_whose_socket_is_gone() {
    if !geteuid().is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let [open, cache] = ["open", "open/cache"].map(|name| scratch.path().join(name));
    fs::create_dir_all(&cache).unwrap();
    let let_in = |dir: &Path, mode| fs::set_permissions(dir, fs::Permissions::from_mode(mode));
    let_in(scratch.path(), 0o755).unwrap();
    let_in(&open, 0o755).unwrap();
    let_in(&cache, 0o700).unwrap();
    let socket = cache.join(SOCKET_NAME);
    let listener = UnixListener::bind(&socket).unwrap();
    let_in(&socket, 0o600).unwrap();
    let asked_by_others = || {
        let ask = || {
            // The system call itself changes this thread only, the function of the C library all.
            // SAFETY: three numbers; it touches no memory of ours.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, 54_321, 54_321, 54_321) };
            assert_eq!(done, 0);
            let (mountpoint, socket) = (PathBuf::from("/mnt/x"), socket.clone());
            let mounted = MountedPath { mountpoint, socket, user: 0, inside: PathBuf::new() };
            let own = MountedPath { user: 54_321, ..mounted.clone() };
            let by_cache = MountedPath::find(&cache).and_then(|mounted| mounted.connect());
            [mounted.connect(), own.connect(), by_cache].map(|asked| {
                let error = asked.unwrap_err();
                assert_eq!(error.errno(), libc::EACCES, "{error}");
                error.to_string()
            })
        };
        thread::scope(|scope| scope.spawn(ask).join().unwrap())
    };
    let [by_mount, own, by_cache] = asked_by_others();
    assert!(by_mount.contains("/mnt/x belongs to user 0, not to you (user 54321)"), "{by_mount}");
    assert!(own.contains("chmod u+x"), "{own}");
    assert!(by_cache.contains("may not look into"), "{by_cache}");
    // The directory of the socket is open, and the socket is not.
    let_in(&cache, 0o755).unwrap();
    let [by_mount, _, by_cache] = asked_by_others();
    assert!(by_mount.contains("belongs to user 0"), "{by_mount}");
    assert!(by_cache.contains("belongs to user 0"), "{by_cache}");
    drop(listener);
}

#[test]
fn a_path_elsewhere_is_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let error = MountedPath::find(dir.path()).unwrap_err().to_string();
    assert!(error.contains("is not on a halocline mount"), "{error}");
}

#[test]
fn a_path_is_followed_up_to_a_mount_and_not_into_it() {
    let scratch = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(scratch.path()).unwrap();
    fs::create_dir_all(root.join("a/b")).unwrap();
    symlink("../mnt/x", root.join("a/link")).unwrap();
    symlink(root.join("a"), root.join("abs")).unwrap();
    symlink("self", root.join("self")).unwrap();
    let mounted = root.join("mnt");
    let table = format!(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
         40 22 0:40 / {} rw - fuse.halocline /o rw,user_id=7,group_id=0\n",
        mounted.display()
    );
    let of = |path: &str| follow(table.as_bytes(), &root.join(path), &Directly);
    let line = || MountLine::on(table.as_bytes(), &mounted).unwrap();
    assert_eq!(line().user, Some(7));
    let inside = |rest: &str| FollowedPath::Mount(line(), rest.into());
    assert_eq!(of("a/./b/..").unwrap(), FollowedPath::Whole(root.join("a")));
    assert_eq!(of("mnt").unwrap(), inside(""), "it need not be there");
    assert_eq!(of("mnt/d/../e").unwrap(), inside("d/../e"));
    assert_eq!(of("a/link/y").unwrap(), inside("x/y"));
    assert_eq!(of("abs/link").unwrap(), inside("x"));
    assert_eq!(of("self").unwrap_err().raw_os_error(), Some(libc::ELOOP));
    assert!(of("nowhere/mnt").is_err());
}
