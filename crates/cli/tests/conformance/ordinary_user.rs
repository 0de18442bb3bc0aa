//! `halocline run` by an ordinary user: a private user and mount namespace, the user's own uid.
//! The user gets a `/dev/fuse` of the usual permissions in a mount namespace of the test's own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::mount;
use crate::programs;

const NOBODY: u32 = 65_534;

fn directory_for_all(path: &Path) {
    fs::create_dir_all(path).expect("directory");
    fs::set_permissions(path, Permissions::from_mode(0o777)).expect("permissions");
}

#[test]
fn an_ordinary_user_runs_over_the_own_origin() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if !programs::is_installed("unshare") || !programs::is_installed("setpriv") {
        return programs::skip("there is no unshare or setpriv");
    }
    let scratch = tempfile::tempdir().expect("scratch");
    let at = |name: &str| scratch.path().join(name);
    directory_for_all(scratch.path());
    directory_for_all(&at("origin"));
    directory_for_all(&at("cache"));
    // The build directory may be closed to others: the copy is not.
    fs::copy(programs::halocline().get_program(), at("halocline")).expect("copy");
    let program = "id -u; echo bytes > made; cat made; stat -c %u made; mkdir d; exit 7";
    let script = format!(
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse && cd origin && \
         exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups ../halocline run --quiet \
         --origin . --cache ../cache --policy always --size 8M --report ../cache.json \
         -- sh -c '{program}'"
    );
    let output = programs::in_own_namespace(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "the command's own status: {errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{NOBODY}\nbytes\n{NOBODY}\n"));
    let made = fs::metadata(at("origin/made")).expect("what was made is on the origin");
    assert_eq!((made.uid(), made.len()), (NOBODY, 6));
    assert_eq!(fs::read(at("origin/made")).expect("readable"), b"bytes\n");
    assert_eq!(fs::metadata(at("origin/d")).expect("a directory").uid(), NOBODY);
}
