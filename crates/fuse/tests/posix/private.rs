//! The private namespace of `halocline run`, entered by an ordinary user: the test binary runs
//! itself again as `nobody`, with a `/dev/fuse` of the usual permissions bound over the real one
//! in a mount namespace of its own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use halocline_core::engine::passthrough::Passthrough;
use halocline_fuse::{MountOptions, Unmounted, mount, private_namespace};

use crate::harness::{NOBODY, open_to_all, reason_to_skip};

const ORIGIN: &str = "HALOCLINE_TEST_ORIGIN";

#[test]
fn an_ordinary_user_mounts_privately_over_the_origin() {
    if let Some(reason) = reason_to_skip() {
        eprintln!("SKIP: {reason}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let origin = dir.path().join("origin");
    fs::create_dir(&origin).unwrap();
    open_to_all(&origin);
    // The build directory may be closed to others: the copy is not.
    let binary = dir.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let script = format!(
        "mknod {dir}/fuse c 10 229 && chmod 666 {dir}/fuse && mount --bind {dir}/fuse /dev/fuse && \
         exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups \
         {dir}/test --exact private::inside --ignored --test-threads=1 --nocapture",
        dir = dir.path().display()
    );
    let run = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .env(ORIGIN, &origin)
        .output();
    let Ok(run) = run else {
        eprintln!("SKIP: there is no unshare");
        return;
    };
    let text = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
    let made = fs::metadata(origin.join("made")).expect("what was made privately is on the origin");
    assert_eq!((made.uid(), made.len()), (NOBODY, 5));
}

#[test]
#[ignore = "run by the test above, as nobody and alone in its process"]
fn inside() {
    let origin = PathBuf::from(std::env::var_os(ORIGIN).expect("set by the test above"));
    let before = fs::metadata(&origin).unwrap().dev();
    if let Err(error) = private_namespace() {
        eprintln!("SKIP: {error}");
        fs::write(origin.join("made"), "bytes").unwrap();
        return;
    }
    assert_eq!(rustix::process::geteuid().as_raw(), NOBODY, "the user stays the same");
    let engine = Passthrough::open(&origin, false).unwrap();
    let mut options = MountOptions::new(&origin);
    options.threads = 4;
    let session = mount(Arc::new(engine), &options).unwrap();
    assert_ne!(fs::metadata(&origin).unwrap().dev(), before);
    fs::write(origin.join("made"), "bytes").unwrap();
    assert_eq!(fs::read(origin.join("made")).unwrap(), b"bytes");
    fs::create_dir(origin.join("d")).unwrap();
    assert_eq!(fs::metadata(origin.join("d")).unwrap().uid(), NOBODY);
    assert!(child_sees(&origin.join("made")));
    assert!(matches!(session.unmount().unwrap(), Unmounted::Clean));
    assert_eq!(fs::metadata(&origin).unwrap().dev(), before);
}

fn child_sees(path: &Path) -> bool {
    Command::new("cat").arg(path).output().is_ok_and(|output| output.stdout == b"bytes")
}
