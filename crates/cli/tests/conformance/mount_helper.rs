//! `halocline mount` and `umount` by an ordinary user outside any user namespace: `fusermount3`,
//! which is setuid root, calls `mount(2)` for it. The user gets a `/dev/fuse` of the usual
//! permissions in a mount namespace of the test's own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Output;

use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::copy_program;
use serde_json::Value;
use tempfile::TempDir;

use crate::{mount, programs};

const NOBODY: u32 = 65_534;
const SETUID: u32 = 0o4000;
const OPTIONS: &str = "--policy always --size 8M";

/// Why this cannot be tried here.
fn obstacle() -> Option<String> {
    if let Some(reason) = mount::obstacle() {
        return Some(reason.to_owned());
    }
    for program in ["unshare", "setpriv", "fusermount3"] {
        if !programs::is_installed(program) {
            return Some(format!("{program} is not installed"));
        }
    }
    let found = ["/usr/bin/fusermount3", "/bin/fusermount3"].iter().find_map(|path| {
        let mode = fs::metadata(path).ok()?.mode();
        (mode & SETUID != 0).then_some(())
    });
    found.is_none().then(|| "fusermount3 is not setuid root".to_owned())
}

/// A directory of the ordinary user with `origin`, `cache`, `mnt` and a copy of the program, which
/// the build directory may keep from others.
fn scratch() -> TempDir {
    let scratch = tempfile::tempdir().expect("scratch");
    for name in ["", "origin", "cache", "mnt"] {
        let path = scratch.path().join(name);
        fs::create_dir_all(&path).expect("directory");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("permissions");
        // fusermount3 mounts only where the user may write, and owns what is sticky.
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("owner");
    }
    copy_program(programs::halocline().get_program(), scratch.path().join("halocline"));
    scratch
}

/// Runs `script` as the ordinary user, with `$h` for the program. Whatever happens, nothing stays
/// mounted: the namespace goes with its last process, and the mount with the namespace.
fn as_user(scratch: &Path, script: &str) -> Output {
    as_user_after(scratch, "true", script)
}

/// The same after root ran `before` in the namespace.
fn as_user_after(scratch: &Path, before: &str, script: &str) -> Output {
    let inner = format!("h=$PWD/halocline; {script}");
    let script = format!(
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse && \
         {before} && setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups env HOME=$PWD sh -c '{inner}'; \
         status=$?; umount -l mnt 2>/dev/null; exit $status"
    );
    programs::in_own_namespace(scratch, &script)
}

#[test]
fn an_ordinary_user_mounts_and_unmounts_with_fusermount3() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let scratch = scratch();
    let script = format!(
        "set -e; $h mount origin mnt --cache cache {OPTIONS}; \
         echo bytes > mnt/made; cat mnt/made; stat -c %u mnt/made; mkdir mnt/d; \
         grep -c \" $PWD/mnt .*fuse.halocline \" /proc/self/mountinfo; \
         $h status mnt --json > status.json; \
         (cd mnt && ! $h umount . 2> ../busy); cat mnt/made; \
         $h umount mnt >&2; ls mnt; \
         PATH=/nowhere $h mount origin mnt --cache cache {OPTIONS}; cat mnt/made; \
         PATH=/nowhere $h umount mnt >&2"
    );
    let output = as_user(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, format!("bytes\n{NOBODY}\n1\nbytes\nbytes\n"), "{errors}");
    let at = |name: &str| scratch.path().join(name);
    let busy = fs::read_to_string(at("busy")).expect("a mount in use was not taken away");
    assert!(busy.contains("use the mount"), "{busy}");
    let status = fs::read_to_string(at("status.json")).expect("its owner may ask");
    assert!(status.contains("\"policy\": \"always\""), "{status}");
    assert_eq!(fs::read(at("origin/made")).expect("on the origin"), b"bytes\n");
    assert_eq!(fs::metadata(at("origin/made")).expect("made").uid(), NOBODY);
    assert_eq!(fs::metadata(at("origin/d")).expect("made").uid(), NOBODY);
}

#[test]
fn an_ordinary_user_measures_a_tier_and_nothing_is_left() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let scratch = scratch();
    let bench = "$h bench tier --size 4M --files 20 --small-files 20 --repetitions 1 --dir cache";
    let script = format!(
        "set -e; {bench} --part metadata,moves --json > measured.json; \
         ls -A cache; ! grep \" $PWD/cache\" /proc/self/mountinfo"
    );
    let output = as_user(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{errors}");
    let measured = fs::read(scratch.path().join("measured.json")).expect("measured");
    let measured: Value = serde_json::from_slice(&measured).expect("JSON");
    let rows = measured["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["tier"].as_f64() > Some(0.0)), "{measured}");
    for part in ["metadata", "moves"] {
        assert!(rows.iter().any(|row| row["part"] == part), "{measured}");
    }
}

#[test]
fn without_fusermount3_the_remedy_is_said() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let scratch = scratch();
    let script = format!("$h mount origin mnt --cache cache {OPTIONS}");
    let hide = "mount --bind /dev/null $(readlink -f $(command -v fusermount3))";
    let output = as_user_after(scratch.path(), hide, &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    for part in ["fusermount3", "install fuse3", "halocline run", "mnt"] {
        assert!(errors.contains(part), "{errors}");
    }
}

/// A comma in the origin's name was taken for the end of an option.
#[test]
fn names_with_commas_and_backslashes_are_no_options() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let scratch = scratch();
    let script = format!(
        r#"set -e; o="x,y\\z,allow_other"; mv origin "$o"; $h mount "$o" mnt --cache cache {OPTIONS}; \
         echo bytes > mnt/made; $h umount mnt >&2; cat "$o/made"; mv "$o" origin"#
    );
    let output = as_user(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(fs::read(scratch.path().join("origin/made")).expect("flushed"), b"bytes\n");
}

#[test]
fn what_fusermount3_refuses_is_said() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let scratch = scratch();
    // Not the user's: fusermount3 mounts only where the user may write.
    let others_dir = scratch.path().join("others");
    fs::create_dir(&others_dir).expect("directory");
    fs::set_permissions(&others_dir, Permissions::from_mode(0o755)).expect("permissions");
    let script = format!("$h mount origin others --cache cache {OPTIONS}");
    let output = as_user(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    for part in ["others", "write access"] {
        assert!(errors.contains(part), "{errors}");
    }
    assert!(!errors.contains("install fuse3"), "it is: {errors}");
}

/// Two nodes of a shared tier, both by the same user: what is made read-only is written all the same, by who made it.
#[test]
fn an_ordinary_user_mounts_a_tier_that_nodes_share() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let Some(store) = RedisServer::start(&["--unixsocketperm", "777"]) else { return };
    let scratch = scratch();
    let url = store.url();
    fs::set_permissions(store.place(), Permissions::from_mode(0o755)).expect("open to the user");
    let tier = |node: &str, mountpoint: &str| {
        format!(
            "mkdir -p {node}/ssd {mountpoint} && ln -s ../disk {node}/hdd && $h mount --tier {node} {mountpoint} \
             --cluster {url} --node {node} --peers $PWD/{{node}}/ssd"
        )
    };
    let script = format!(
        "mkdir disk && {} && {} && echo hello > mnt/f && cat mnt2/f && \
         (umask 0222; echo more > mnt/ro) && cat mnt2/ro && chmod 0 mnt2/ro && stat -c %a-%s mnt/ro && \
         mkdir mnt2/d && mv mnt/f mnt/d/g && cat mnt2/d/g && ln mnt2/d/g mnt2/h && stat -c %h-%u mnt/h && \
         ! touch mnt/.halocline 2>/dev/null && rm -r mnt2/d mnt/ro && ls mnt && $h umount mnt && $h umount mnt2",
        tier("one", "mnt"),
        tier("two", "mnt2"),
    );
    let output = as_user(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let told = format!("hello\nmore\n0-5\nhello\n2-{NOBODY}\nh\nunmounted\nunmounted\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), told, "{errors}");
}
