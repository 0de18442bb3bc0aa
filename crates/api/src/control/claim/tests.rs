use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use super::super::SOCKET_NAME;
use super::super::mount_lookup::{Directly, MountAccess};
use super::*;

const OTHER_USER: u32 = 54_321;

fn wanted(dir: &Path) -> Result<Claim, DirectoryInUse> {
    Claim::take(&ClaimRequest { dirs: &[dir], cache: Path::new("cache"), use_as: UseAs::OnlyUser })
}

/// Claims `dir` as another user, in a thread of its own.
fn claimed_by_another_user(dir: &Path) -> (mpsc::Sender<()>, JoinHandle<()>) {
    let dir = dir.to_owned();
    by_another_user(move |claim| {
        claim.listen(&dir, &ancestors::of(&dir));
        claim.answer();
    })
}

/// Makes a claim as another user.
fn by_another_user(
    claims: impl FnOnce(&mut Claim) + Send + 'static,
) -> (mpsc::Sender<()>, JoinHandle<()>) {
    let ((ready, is_ready), (end, ended)) = (mpsc::channel(), mpsc::channel());
    let thread = thread::spawn(move || {
        // The system call itself changes this thread only, the function of the C library all.
        // SAFETY: three numbers; it touches no memory of ours.
        let done =
            unsafe { libc::syscall(libc::SYS_setresuid, OTHER_USER, OTHER_USER, OTHER_USER) };
        assert_eq!(done, 0);
        let mut claim = Claim {
            nonce: nonce(),
            access: Access::Change,
            cache: PathBuf::from("theirs"),
            listeners: Vec::new(),
            answering: None,
        };
        claims(&mut claim);
        ready.send(()).unwrap();
        let _: Result<(), _> = ended.recv();
    });
    is_ready.recv().unwrap();
    (end, thread)
}

#[test]
fn i8_a_claim_is_told_until_it_is_dropped() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = fs::canonicalize(scratch.path()).unwrap();
    let mut first = wanted(&dir).unwrap();
    assert!(!wanted(&dir).unwrap_err().answers);
    first.answer();
    let taken = wanted(&dir).unwrap_err();
    assert_eq!((&taken.dir, &taken.cache), (&dir, &PathBuf::from("cache")));
    assert_eq!(taken.pid, std::process::id());
    drop(first);
    wanted(&dir).unwrap();
}

/// Regression: claims that began at the same moment all gave way, collided again when they retried, and in the end none
/// of them got the directory.
#[test]
fn i8_of_claims_that_begin_at_the_same_moment_one_stays() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = fs::canonicalize(scratch.path()).unwrap();
    let (dirs, cache) = ([&*dir], Path::new("cache"));
    let request = ClaimRequest { dirs: &dirs, cache, use_as: UseAs::OnlyUser };
    let deadline = Instant::now() + Duration::from_mins(5);
    let begun = [3, 1, 2].map(|nonce| Claim::begin(&request, nonce));
    let settled = thread::scope(|scope| {
        let settle = |(claim, above): (Claim, Vec<_>)| {
            let request = &request;
            scope.spawn(move || claim.settle(request, &above, deadline))
        };
        let ended = begun.map(settle).map(|thread| thread.join().unwrap());
        ended.map(|settled| settled.ok().map(|claim| claim.nonce))
    });
    assert_eq!(settled, [None, Some(1), None]);
}

#[test]
fn i8_nodes_of_a_cluster_share_a_directory_but_no_cache_and_with_nobody_else() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = fs::canonicalize(scratch.path()).unwrap();
    let [cache, other, part] = ["cache", "other", "part"].map(|name| dir.join(name));
    for made in [&cache, &other, &part] {
        fs::create_dir(made).unwrap();
    }
    let claim = |dir: &Path, cache: &Path, use_as| {
        Claim::take(&ClaimRequest { dirs: &[dir], cache, use_as })
    };
    let _first = claim(&dir, &cache, UseAs::Node).unwrap();
    let _beside = claim(&dir, &other, UseAs::Node).unwrap();
    claim(&dir, &cache, UseAs::Node).unwrap_err();
    claim(&part, &part, UseAs::Node).unwrap_err();
    claim(&dir, &part, UseAs::Reader).unwrap_err();
    claim(&dir, &part, UseAs::OnlyUser).unwrap_err();
}

/// Regression: a command reached the ending process of an earlier mount, whose device number the next mount had reused.
#[test]
fn a_process_that_names_another_mount_point_is_not_believed() {
    let scratch = tempfile::tempdir().unwrap();
    let mut claim = wanted(&fs::canonicalize(scratch.path()).unwrap()).unwrap();
    let (uid, device) = (rustix::process::geteuid().as_raw(), (u64::MAX, 77));
    claim.listen_on(Kind::Mount, device, Path::new("/mnt/old"), Path::new(""));
    claim.answer();
    let line = |point: &str| {
        let table = format!("40 22 0:77 / {point} rw - fuse.halocline /o rw,user_id={uid}\n");
        let mut line = MountLine::on(table.as_bytes(), Path::new(point)).unwrap();
        line.device = device;
        line
    };
    let old = owner_of(&line("/mnt/old"), &Directly).unwrap();
    assert_eq!((old.pid, old.cache), (std::process::id(), Some("cache".into())));
    assert_eq!(owner_of(&line("/mnt/new"), &Directly), None);
}

/// Regression: a healthy mount was reported not to answer, after ten seconds, because the process of an earlier mount,
/// whose device number it had reused, was stopped.
#[test]
fn who_stands_still_does_not_use_up_the_time_of_who_serves_the_device_now() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = fs::canonicalize(scratch.path()).unwrap();
    let [origin, cache] = ["origin", "cache"].map(|name| dir.join(name));
    for made in [&origin, &cache] {
        fs::create_dir(made).unwrap();
    }
    let (uid, device) = (rustix::process::geteuid().as_raw(), (u64::MAX, 80));
    let still = |number: u32| {
        let dir = dir.join(number.to_string());
        fs::create_dir(&dir).unwrap();
        let mut claim = wanted(&dir).unwrap();
        claim.listen_on(Kind::Mount, device, Path::new("/mnt/x"), Path::new(""));
        claim
    };
    let _still: Vec<_> = (0..9).map(still).collect();
    let mut now = wanted(&origin).unwrap();
    now.cache.clone_from(&cache);
    now.listen_on(Kind::Mount, device, Path::new("/mnt/x"), Path::new(""));
    now.answer();
    let listener = UnixListener::bind(cache.join(SOCKET_NAME)).unwrap();
    let server = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut asked = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(&client), &mut asked).unwrap();
        client.write_all(b"{\"ok\":false}\n").unwrap();
    });
    let line = format!("40 22 0:77 / /mnt/x rw - fuse.halocline /o rw,user_id={uid}\n");
    let mut line = MountLine::on(line.as_bytes(), Path::new("/mnt/x")).unwrap();
    line.device = device;
    assert_eq!(owner_of(&line, &Directly).unwrap().cache, Some(cache));
    server.join().unwrap();
}

/// Hangs at everything.
#[derive(Default)]
struct Hangs {
    looked_at: RefCell<Vec<PathBuf>>,
}

impl Hangs {
    fn look<T>(&self, path: &Path) -> io::Result<T> {
        self.looked_at.borrow_mut().push(path.to_owned());
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl MountAccess for Hangs {
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.look(path)
    }

    fn socket(&self, root: &Path) -> io::Result<Option<PathBuf>> {
        self.look(root)
    }

    fn wait_for(&self, point: &Path) -> io::Result<()> {
        self.look(point)
    }

    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        self.look(path)
    }

    fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        self.look(path)
    }
}

/// Regression: commands unrelated to a detached mount connected to its socket, on a disk that hung, and no signal ended
/// them. Any user could have blocked root's `status` this way.
#[test]
fn nobody_is_asked_whose_socket_lies_on_what_hangs() {
    let scratch = tempfile::tempdir().unwrap();
    let cache = scratch.path().join("cache");
    fs::create_dir(&cache).unwrap();
    let socket = cache.join(SOCKET_NAME);
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut claim = wanted(&fs::canonicalize(scratch.path()).unwrap()).unwrap();
    claim.cache.clone_from(&cache);
    let (uid, device) = (rustix::process::geteuid().as_raw(), (u64::MAX, 79));
    claim.listen_on(Kind::Mount, device, Path::new("/mnt/detached"), Path::new(""));
    claim.answer();
    let line = format!("40 22 0:77 / /mnt/x rw - fuse.halocline /o rw,user_id={uid}\n");
    let mut line = MountLine::on(line.as_bytes(), Path::new("/mnt/x")).unwrap();
    line.device = device;
    let look = Hangs::default();
    assert_eq!(owner_of(&line, &look), None);
    assert_eq!(*look.looked_at.borrow(), [socket]);
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// Regression: a claim waited for each name of a user without write permission: a second, and ten for a mount's name.
#[test]
fn who_squats_names_keeps_nobody_waiting() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let dir = fs::canonicalize(scratch.path()).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    let (own, point) = (ancestors::of(&dir)[0].id, dir.clone());
    let device = (u64::MAX, 78);
    let (end, thread) = by_another_user(move |claim| {
        let nothing = Path::new("");
        for nonce in 0..300 {
            claim.nonce = nonce;
            assert!(claim.listen_on(Kind::At, own, &point, nothing));
            assert!(claim.listen_on(Kind::Below, own, &point, nothing));
            assert!(claim.listen_on(Kind::Mount, device, &point, nothing));
        }
    });
    let begun = Instant::now();
    let mut claim = wanted(&dir).unwrap();
    let line = format!("40 22 0:77 / {} rw - fuse.halocline /o rw,user_id=0\n", dir.display());
    let mut line = MountLine::on(line.as_bytes(), &dir).unwrap();
    line.device = device;
    assert_eq!(owner_of(&line, &Directly), None);
    claim.listen_on(Kind::Mount, device, &dir, Path::new(""));
    claim.answer();
    assert_eq!(owner_of(&line, &Directly).unwrap().pid, std::process::id());
    let taken = begun.elapsed();
    // It would be an hour if each were waited for.
    assert!(taken < Duration::from_mins(5), "{taken:?} with 900 names");
    drop(end);
    thread.join().unwrap();
}

/// Regression: a user who may only read an origin could have kept its owner from using it.
#[test]
fn a_claim_counts_only_of_users_who_may_write() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let root = fs::canonicalize(scratch.path()).unwrap();
    let below = root.join("below");
    fs::create_dir(&below).unwrap();
    let (end, thread) = claimed_by_another_user(&below);
    wanted(&below).unwrap();
    wanted(&root).unwrap();
    fs::set_permissions(&below, Permissions::from_mode(0o777)).unwrap();
    assert_eq!(wanted(&below).unwrap_err().uid, OTHER_USER);
    assert_eq!(wanted(&root).unwrap_err().dir, below, "one below is theirs to use");
    drop(end);
    thread.join().unwrap();
    wanted(&root).unwrap();
}

/// Regression: any user could claim `/tmp`, or another directory where everybody may create names, and so keep others
/// from their directories there.
#[test]
fn who_may_make_names_beside_an_origin_cannot_claim_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o1777)).unwrap();
    let root = fs::canonicalize(scratch.path()).unwrap();
    let [group, own] = ["group", "group/own"].map(|name| root.join(name));
    fs::create_dir_all(&own).unwrap();
    for dir in [&group, &own] {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    let (end, thread) = claimed_by_another_user(&root);
    wanted(&own).unwrap();
    wanted(&root).unwrap_err();
    for (dir, mode) in [(&own, 0o1777), (&group, 0o777), (&root, 0o777)] {
        let closed = fs::metadata(dir).unwrap().permissions();
        fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap();
        assert_eq!(wanted(&own).unwrap_err().uid, OTHER_USER, "{dir:?}");
        fs::set_permissions(dir, closed).unwrap();
        wanted(&own).unwrap();
    }
    drop(end);
    thread.join().unwrap();
}
