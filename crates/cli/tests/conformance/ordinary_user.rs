//! `halocline run` by an ordinary user: a private user and mount namespace, the user's own uid.
//! The user gets a `/dev/fuse` of the usual permissions in a mount namespace of the test's own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use halocline_testkit::sandbox::copy_program;

use crate::mount;
use crate::programs;

const NOBODY: u32 = 65_534;

fn directory_for_all(path: &Path) {
    fs::create_dir_all(path).expect("directory");
    fs::set_permissions(path, Permissions::from_mode(0o777)).expect("permissions");
}

fn cache_of_the_user(path: &Path) {
    fs::create_dir(path).expect("directory");
    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("the user's own");
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
    cache_of_the_user(&at("cache"));
    // The build directory may be closed to others: the copy is not.
    copy_program(programs::halocline().get_program(), at("halocline"));
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

/// With `fusermount3` and without: a private mount is made in different ways then.
#[test]
fn runs_of_an_ordinary_user_share_an_engine() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if !programs::is_installed("unshare") || !programs::is_installed("setpriv") {
        return programs::skip("there is no unshare or setpriv");
    }
    let hidden = "for f in /usr/bin/fusermount3 /bin/fusermount3 /usr/bin/fusermount /bin/fusermount; \
                  do [ ! -e $f ] || mount --bind /dev/null $f; done";
    for before in ["true", hidden] {
        let scratch = tempfile::tempdir().expect("scratch");
        let at = |name: &str| scratch.path().join(name);
        directory_for_all(scratch.path());
        directory_for_all(&at("origin"));
        cache_of_the_user(&at("cache"));
        copy_program(programs::halocline().get_program(), at("halocline"));
        let run = "./halocline run --origin origin --cache cache --policy always --rebuild=false";
        let user = format!(
            "({run} -- sh -c \"echo first > origin/a; touch up1; \
                for i in \\$(seq 15000); do [ -e up2 ] && break; sleep 0.02; done; cat origin/b\" 2> said1) & \
             for i in $(seq 15000); do [ -e up1 ] && break; sleep 0.02; done; \
             {run} -- sh -c \"cat origin/a; echo second > origin/b; touch up2; sleep 0.2; \
                cat origin/b\" 2> said2; wait"
        );
        let script = format!(
            "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse && {before} && \
             exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -c '{user}'"
        );
        let output = programs::in_own_namespace(scratch.path(), &script);
        let said = |name: &str| fs::read_to_string(at(name)).unwrap_or_default();
        let errors = format!("{}{}", said("said1"), said("said2"));
        let mut lines: Vec<_> = output.stdout.split(|byte| *byte == b'\n').collect();
        lines.sort_unstable();
        assert_eq!(lines, [&b""[..], b"first", b"second", b"second"], "{errors}");
        assert!(said("said2").contains("joined the engine of process"), "{errors}");
        assert_eq!(fs::read(at("origin/a")).expect("flushed"), b"first\n");
        assert_eq!(fs::read(at("origin/b")).expect("flushed"), b"second\n");
    }
}

/// Groups of the user besides the own one.
const PROJECT: u32 = 4_242;
const OTHERS: u32 = 4_243;
/// A group that the user is not in, and somebody else.
const CLOSED: u32 = 4_999;
const COLLEAGUE: u32 = 70_002;

/// Why an ordinary user's mount with all groups cannot be tried here.
fn obstacle_to_groups() -> Option<String> {
    if let Some(reason) = mount::obstacle() {
        return Some(reason.to_owned());
    }
    let missing = |program: &&&str| !programs::is_installed(program);
    if let Some(program) =
        ["unshare", "setpriv", "fusermount3", "setfacl", "pgrep"].iter().find(missing)
    {
        return Some(format!("{program} is not installed"));
    }
    let setuid = |path: &&&str| fs::metadata(path).is_ok_and(|it| it.mode() & 0o4000 != 0);
    let found = ["/usr/bin/fusermount3", "/bin/fusermount3"].iter().find(setuid);
    found.is_none().then(|| "fusermount3 is not setuid root".to_owned())
}

/// A project directory as clusters have them: a colleague's, set-group-id, of a group of the user's.
fn project() -> tempfile::TempDir {
    let scratch = tempfile::tempdir().expect("scratch");
    let at = |name: &str| scratch.path().join(name);
    directory_for_all(scratch.path());
    cache_of_the_user(&at("cache"));
    copy_program(programs::halocline().get_program(), at("halocline"));
    let own = |name: &str, group: u32, mode: u32| {
        std::os::unix::fs::chown(at(name), Some(COLLEAGUE), Some(group)).expect("owner");
        fs::set_permissions(at(name), Permissions::from_mode(mode)).expect("permissions");
    };
    for directory in ["origin", "origin/acl-dir"] {
        fs::create_dir(at(directory)).expect("directory");
    }
    own("origin/acl-dir", PROJECT, 0o2770);
    for (name, group, mode) in [
        ("shared", PROJECT, 0o660),
        ("by-acl", CLOSED, 0o600),
        ("closed", CLOSED, 0o660),
        ("readable", CLOSED, 0o664),
    ] {
        let name = format!("origin/{name}");
        fs::write(at(&name), "old\n").expect("file");
        own(&name, group, mode);
    }
    own("origin", PROJECT, 0o2775);
    let acl = |rule: &str, name: &str| {
        programs::run(std::process::Command::new("setfacl").args(["-m", rule]).arg(at(name)));
    };
    acl(&format!("g:{OTHERS}:rw"), "origin/by-acl");
    acl(&format!("d:g:{OTHERS}:rwx,d:m:rwx"), "origin/acl-dir");
    scratch
}

/// `halocline run OPTIONS -- sh -c PROGRAM` as the user with both groups, after root ran `before`.
fn run_as_member(
    scratch: &Path,
    before: &str,
    options: &str,
    program: &str,
) -> std::process::Output {
    let script = format!(
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse && {before} && \
         cd origin && exec setpriv --reuid={NOBODY} --regid={NOBODY} --groups={PROJECT},{OTHERS} \
         env TMPDIR=/tmp ../halocline run --origin . --cache ../cache --policy always --size 8M \
         {options} -- sh -c '{program}'"
    );
    let output = programs::in_own_namespace(scratch, &script);
    fs::remove_file(scratch.join("fuse")).expect("the device's node");
    output
}

/// The mount knew one group, and the kernel refused to write files of every other.
#[test]
fn an_ordinary_user_writes_what_all_groups_permit() {
    if let Some(reason) = obstacle_to_groups() {
        return programs::skip(&reason);
    }
    for transport in ["--io-uring=false", "--io-uring=true"] {
        let scratch = project();
        let at = |name: &str| scratch.path().join("origin").join(name);
        let program = "umask 007; echo new >> shared && echo new >> by-acl && cat by-acl && \
             echo made > made && mkdir made-dir && echo made > made-dir/f && echo made > acl-dir/f && \
             chmod g+s made && truncate -s 2 made && mv shared renamed && cp -p by-acl copy && \
             for refused in closed readable; do echo no >> $refused; done; \
             cat readable && ! cat closed && ! chmod 666 readable && ! rm -rf /nowhere/x made/x; \
             ! touch -d @1 readable; sleep 0.1; exit 7";
        let output = run_as_member(scratch.path(), "true", transport, program);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{errors}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "old\nnew\nold\n", "{errors}");
        // Origin and cache lie on one file system.
        let mut ours = errors.lines().filter(|line| !line.starts_with("halocline: note:"));
        assert!(!ours.any(|line| line.contains("halocline:") || line.contains("WARN")), "{errors}");
        let read = |name: &str| fs::read_to_string(at(name)).expect("on the origin");
        for (name, text) in [
            ("renamed", "old\nnew\n"),
            ("by-acl", "old\nnew\n"),
            ("closed", "old\n"),
            ("readable", "old\n"),
            ("made-dir/f", "made\n"),
            ("made", "ma"),
        ] {
            assert_eq!(read(name), text, "{name} with {transport}: {errors}");
        }
        let of = |name: &str| fs::metadata(at(name)).expect("on the origin");
        for (name, owner, group, mode) in [
            ("renamed", COLLEAGUE, PROJECT, 0o660),
            ("by-acl", COLLEAGUE, CLOSED, 0o660),
            ("made-dir", NOBODY, PROJECT, 0o2770),
            ("made-dir/f", NOBODY, PROJECT, 0o660),
            ("acl-dir/f", NOBODY, PROJECT, 0o660),
        ] {
            let found = (of(name).uid(), of(name).gid(), of(name).mode() & 0o7777);
            assert_eq!(found, (owner, group, mode), "{name} with {transport}");
        }
        let listed =
            programs::run(std::process::Command::new("getfacl").arg("-nc").arg(at("acl-dir/f")));
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.contains(&format!("group:{OTHERS}:rwx")), "inherited: {listed}");
    }
}

/// The mount is seen by the command alone, and nothing of it stays, however it ends.
#[test]
fn nobody_else_sees_an_ordinary_users_mount_and_nothing_of_it_stays() {
    if let Some(reason) = obstacle_to_groups() {
        return programs::skip(&reason);
    }
    let scratch = project();
    // While the command waits, root looks from outside; then the run is killed. What is left of it
    // is its command, which root ends by its number.
    let script = format!(
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse && mkdir -m 777 tmp && \
         (cd origin && exec setpriv --reuid={NOBODY} --regid={NOBODY} --groups={PROJECT},{OTHERS} \
         env TMPDIR=$PWD/../tmp ../halocline run --origin . --cache ../cache --policy always \
         --size 8M -- sh -c 'echo $$ > pid; sync pid; touch in; exec sleep 100') & \
         run=$!; \
         for i in $(seq 3000); do [ -e origin/in ] && break; sleep 0.1; done; \
         children=$(pgrep -P $run | wc -l); echo $children children; \
         grep \"$PWD.*fuse.halocline\" /proc/self/mountinfo; ls -A tmp; \
         keeper=$(pgrep -P $run -x halocline); command=$(pgrep -P $run -x sleep); kill -9 $run; \
         for i in $(seq 3000); do [ -e /proc/$keeper ] || break; sleep 0.1; done; \
         [ -e /proc/$keeper ] && echo the keeper stays; kill -9 $command"
    );
    let output = programs::in_own_namespace(scratch.path(), &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 children\n", "{errors}");
}

/// Who ends the keeper of the mount's namespaces takes nothing from the run.
#[test]
fn a_run_outlives_the_keeper_of_its_namespaces() {
    if let Some(reason) = obstacle_to_groups() {
        return programs::skip(&reason);
    }
    let scratch = project();
    let program = "echo kept > kept; kill -9 $(pgrep -P $PPID -x halocline); cat kept";
    let output = run_as_member(scratch.path(), "true", "--quiet", program);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kept\n", "{errors}");
    let kept = fs::read_to_string(scratch.path().join("origin/kept")).expect("flushed");
    assert_eq!(kept, "kept\n", "{errors}");
}

/// Where `fusermount3` is missing, a run works as far as it can, and what is lost is said.
#[test]
fn without_fusermount3_a_run_says_what_it_cannot_write() {
    if let Some(reason) = obstacle_to_groups() {
        return programs::skip(&reason);
    }
    let scratch = project();
    fs::set_permissions(scratch.path().join("origin"), Permissions::from_mode(0o2777))
        .expect("mode");
    let hide = "mount --bind /dev/null $(readlink -f $(command -v fusermount3))";
    let output = run_as_member(scratch.path(), hide, "", "cat readable");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "old\n", "{errors}");
    assert!(
        errors.contains("files of other users and groups") && errors.contains("fuse3"),
        "{errors}"
    );
}
