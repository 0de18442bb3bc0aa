//! A scratch origin and a mount of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use halocline_api::control::Controlled;
use halocline_fuse::transport::uring;
use halocline_fuse::{MountOptions, MountedSession, Transport, mount};
use halocline_testkit::fuse_device;
pub(crate) use halocline_testkit::skipping::skip;
use halocline_tier::{FileTier, TierOptions, TierSet};
use halocline_vfs::uncached::Uncached;

/// Somebody without rights.
pub(crate) const NOBODY: u32 = 65534;

/// A mounted scratch directory.
#[derive(Debug)]
pub(crate) struct Mounted {
    // Dropped in this order: the session unmounts before the directory is removed.
    pub(crate) session: Option<MountedSession>,
    _migrations: Option<Migrations>,
    pub(crate) kind: Kind,
    pub(crate) dir: tempfile::TempDir,
}

/// Moves the files of a tier at random until it is dropped.
#[derive(Debug)]
struct Migrations {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Migrations {
    fn start(tier: Arc<FileTier>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut random = 0x2545_F491_4F6C_DD1D_u64;
            let mut moved = 0;
            while !stopped.load(Ordering::Relaxed) {
                let files = tier.files(Path::new("")).unwrap_or_default();
                for _ in 0..16.min(files.len()) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let at = usize::try_from(random % files.len() as u64).expect("an index");
                    let path = files[at].path.clone();
                    let mut silent = |_| std::ops::ControlFlow::Continue(());
                    let done = match random & 1 {
                        0 => tier.evict(&path, false, &mut silent),
                        _ => tier.warm(&[path], false, &mut silent),
                    };
                    moved += done.map_or(0, |done| done.files);
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            moved
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Migrations {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let moved = self.thread.take().map(std::thread::JoinHandle::join);
        eprintln!("files moved meanwhile: {moved:?}");
    }
}

impl Mounted {
    /// A path in the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("mount").join(name)
    }

    /// The same path below the mount.
    pub(crate) fn origin(&self, name: &str) -> PathBuf {
        self.dir.path().join("origin").join(name)
    }
}

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory as it is.
    Plain,
    /// A file tier whose files all fit the SSD, which is the origin here.
    Tier,
    /// A file tier whose files are moved up and down all the time.
    Moving,
}

/// Mounts a scratch directory for all users; `None`, after saying why, where that is impossible.
pub(crate) fn mounted(direct: bool) -> Option<Mounted> {
    mounted_with(Kind::Plain, direct, |_| {})
}

pub(crate) fn mounted_with(
    kind: Kind,
    direct: bool,
    adjust: impl FnOnce(&mut MountOptions),
) -> Option<Mounted> {
    if let Some(reason) = reason_to_skip() {
        skip(reason);
        return None;
    }
    let dir = tempfile::tempdir().expect("a scratch directory");
    open_to_all(dir.path());
    for name in ["origin", "mount"] {
        fs::create_dir(dir.path().join(name)).expect("make a directory");
        open_to_all(&dir.path().join(name));
    }
    let mut options = MountOptions::new(dir.path().join("mount"));
    options.allow_other = true;
    options.threads = 4;
    options.transport = Transport::Device;
    adjust(&mut options);
    let origin = dir.path().join("origin");
    let mut migrations = None;
    let session = match kind {
        Kind::Plain => {
            mount(Arc::new(Uncached::open(&origin, direct).expect("open the origin")), &options)
        }
        Kind::Tier | Kind::Moving => {
            fs::create_dir(dir.path().join("hdd")).expect("make a directory");
            let set = TierSet::below(dir.path(), &["origin", "hdd"]).expect("two directories");
            // What the kernel serves by itself does not move.
            let passthrough = kind == Kind::Tier;
            let how = TierOptions { passthrough, ..TierOptions::default() };
            let tier = FileTier::open(&set, how).expect("open the tier");
            let tier = Arc::new(tier);
            migrations = (kind == Kind::Moving).then(|| Migrations::start(tier.clone()));
            mount(tier, &options)
        }
    };
    let session = session.expect("mount");
    Some(Mounted { session: Some(session), _migrations: migrations, kind, dir })
}

/// Runs a test in both cache modes and on a file tier, with each way of requests.
pub(crate) fn in_both_modes(test: impl Fn(&Mounted)) {
    use Transport::{Device, Ring};
    for (kind, direct, transport) in [
        (Kind::Plain, false, Device),
        (Kind::Plain, true, Device),
        (Kind::Plain, false, Ring),
        (Kind::Plain, true, Ring),
        (Kind::Tier, false, Device),
        (Kind::Tier, false, Ring),
        (Kind::Moving, false, Device),
        (Kind::Moving, false, Ring),
    ] {
        if let Some(obstacle) = uring::obstacle().filter(|_| transport == Ring) {
            skip(obstacle);
            continue;
        }
        let with_transport = |options: &mut MountOptions| options.transport = transport;
        let Some(mounted) = mounted_with(kind, direct, with_transport) else { return };
        let session = mounted.session.as_ref().expect("mounted");
        assert_eq!(session.transport(), transport);
        eprintln!("{kind:?}, direct I/O: {direct}, {transport:?}");
        test(&mounted);
    }
}

pub(crate) fn reason_to_skip() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting for all users needs root");
    }
    fuse_device::obstacle()
}

/// A shell script run as another user without supplementary groups.
pub(crate) fn shell_as(uid: u32, gid: u32, dir: &Path, script: &str) -> Output {
    Command::new("sh")
        .args(["-c", script])
        .uid(uid)
        .gid(gid)
        .current_dir(dir)
        .output()
        .expect("run sh")
}

pub(crate) fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("chmod");
}

/// The errno of a failed call.
pub(crate) fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("must fail").raw_os_error().expect("an errno")
}
