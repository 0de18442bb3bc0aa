//! A mount for all users lets nobody past the origin's permissions, and what somebody makes is
//! theirs. Scripts run as `nobody` on the mount and, to compare, below it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::harness::{
    Kind, Mounted, NOBODY, in_both_modes, mounted_with, open_to_all, shell_as, skip,
};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn as_nobody(mounted: &Mounted, script: &str) -> (Option<i32>, String) {
    let output = shell_as(NOBODY, NOBODY, &mounted.path(""), script);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn nobody_gets_past_permissions() {
    in_both_modes(|mounted| {
        fs::write(mounted.path("secret"), "s").unwrap();
        chmod(&mounted.path("secret"), 0o600);
        fs::create_dir(mounted.path("closed")).unwrap();
        fs::write(mounted.path("closed/f"), "s").unwrap();
        chmod(&mounted.path("closed"), 0o700);
        fs::create_dir(mounted.path("sticky")).unwrap();
        chmod(&mounted.path("sticky"), 0o1777);
        fs::write(mounted.path("sticky/f"), "s").unwrap();
        for script in [
            "cat secret",
            "echo x >> secret",
            "echo x > closed/g",
            "cat closed/f",
            "rm -f sticky/f",
            "mv sticky/f sticky/g",
            "chmod 666 secret",
            "chown 65534 secret",
            "touch -d 2001-01-01 secret",
            "mknod device c 1 3",
        ] {
            let (code, text) = as_nobody(mounted, script);
            assert_ne!(code, Some(0), "{script}: {text}");
        }
        assert_eq!(fs::read(mounted.origin("secret")).unwrap(), b"s");
        assert_eq!(mode(&mounted.origin("secret")), 0o600);
    });
}

/// The kernel leaves it to the file system who may change an ACL that it does not know, and the origin
/// would see the mount process.
#[test]
fn acls_of_other_kinds_are_their_owners_to_change() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("python3 is not installed");
    }
    in_both_modes(|mounted| {
        fs::write(mounted.path("theirs"), "").unwrap();
        fs::write(mounted.path("own"), "").unwrap();
        chown(mounted.path("own"), Some(NOBODY), Some(NOBODY)).unwrap();
        let tried = |call: &str| {
            let (_, text) = as_nobody(
                mounted,
                &format!(
                    "python3 -c 'import os\ntry: os.{call}\nexcept OSError as e: print(e.errno)'"
                ),
            );
            text.trim_end().to_owned()
        };
        // The origin has no such ACLs.
        let (refused, passed) = (libc::EPERM.to_string(), libc::EOPNOTSUPP.to_string());
        for (file, expected) in [("theirs", &refused), ("own", &passed)] {
            let set = tried(&format!("setxattr(\"{file}\", \"system.nfs4_acl\", b\"x\")"));
            let removed = tried(&format!("removexattr(\"{file}\", \"system.nfs4_acl\")"));
            assert_eq!((&set, &removed), (expected, expected), "{file}");
        }
    });
}

#[test]
fn without_allow_other_nobody_enters() {
    let Some(mounted) = mounted_with(Kind::Plain, false, |options| options.allow_other = false)
    else {
        return;
    };
    fs::write(mounted.path("f"), "s").unwrap();
    open_to_all(&mounted.path("f"));
    let script = format!("cat {}", mounted.path("f").display());
    let output = shell_as(NOBODY, NOBODY, Path::new("/"), &script);
    assert!(!output.status.success());
}

#[test]
fn what_is_made_belongs_to_the_caller() {
    in_both_modes(|mounted| {
        let script = "umask 027; echo x > f; mkdir d; ln -s f l; mkfifo p; umask 0; echo x > open";
        let (code, text) = as_nobody(mounted, script);
        assert_eq!(code, Some(0), "{text}");
        for (name, bits) in [("f", 0o640), ("d", 0o750), ("p", 0o640), ("open", 0o666)] {
            let made = fs::metadata(mounted.origin(name)).unwrap();
            assert_eq!((made.uid(), made.gid()), (NOBODY, NOBODY), "{name}");
            assert_eq!(made.mode() & 0o7777, bits, "{name}");
        }
        assert_eq!(fs::symlink_metadata(mounted.origin("l")).unwrap().uid(), NOBODY);
    });
}

#[test]
fn a_set_group_id_directory_gives_its_group() {
    in_both_modes(|mounted| {
        fs::create_dir(mounted.path("d")).unwrap();
        chown(mounted.path("d"), Some(0), Some(1234)).unwrap();
        chmod(&mounted.path("d"), 0o2777);
        let (code, text) = as_nobody(mounted, "echo x > d/f; mkdir d/e");
        assert_eq!(code, Some(0), "{text}");
        let (f, e) = (
            fs::metadata(mounted.origin("d/f")).unwrap(),
            fs::metadata(mounted.origin("d/e")).unwrap(),
        );
        assert_eq!((f.uid(), f.gid()), (NOBODY, 1234));
        assert_eq!((e.gid(), e.mode() & 0o2000), (1234, 0o2000));
    });
}

#[test]
fn a_supplementary_group_is_enough_to_create() {
    in_both_modes(|mounted| {
        fs::create_dir(mounted.path("d")).unwrap();
        chown(mounted.path("d"), Some(0), Some(1234)).unwrap();
        chmod(&mounted.path("d"), 0o770);
        let made = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--groups=1234", "touch"])
            .arg(mounted.path("d/f"))
            .status();
        let Ok(made) = made else {
            return skip("there is no setpriv");
        };
        assert!(made.success());
        assert_eq!(fs::metadata(mounted.origin("d/f")).unwrap().uid(), NOBODY);
        assert_ne!(as_nobody(mounted, "touch d/g").0, Some(0));
    });
}

#[test]
fn a_default_acl_replaces_the_umask() {
    in_both_modes(|mounted| {
        fs::create_dir(mounted.path("d")).unwrap();
        open_to_all(&mounted.path("d"));
        let set = Command::new("setfacl")
            .args(["-d", "-m", "u::rwx,g::rwx,o::r,u:4321:rw"])
            .arg(mounted.path("d"))
            .output();
        if !set.is_ok_and(|set| set.status.success()) {
            return skip("no setfacl, or no ACLs on the scratch file system");
        }
        // The same on the mount and below it, where no background move takes the file away.
        let below = (mounted.kind != Kind::Moving).then(|| mounted.origin("d"));
        for dir in [Some(mounted.path("d")), below].into_iter().flatten() {
            let script = "umask 077; echo x > f; mkdir e; stat -c '%a %u' f e; getfacl -c f e";
            let output = shell_as(NOBODY, NOBODY, &dir, script);
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.starts_with("664 65534\n774 65534\n"), "{}: {text}", dir.display());
            assert!(text.contains("user:4321:rw-"), "{text}");
            fs::remove_file(dir.join("f")).unwrap();
            fs::remove_dir(dir.join("e")).unwrap();
        }
    });
}

#[test]
fn an_acl_is_checked() {
    in_both_modes(|mounted| {
        fs::write(mounted.path("f"), "s").unwrap();
        chmod(&mounted.path("f"), 0o600);
        assert_ne!(as_nobody(mounted, "cat f").0, Some(0));
        let set = Command::new("setfacl").args(["-m", "u:65534:r"]).arg(mounted.path("f")).status();
        if !set.is_ok_and(|set| set.success()) {
            return skip("no setfacl, or no ACLs on the scratch file system");
        }
        assert_eq!(as_nobody(mounted, "cat f"), (Some(0), "s".into()));
        assert_ne!(as_nobody(mounted, "echo x >> f").0, Some(0));
    });
}

#[test]
fn set_id_bits_fall_when_somebody_else_writes() {
    in_both_modes(|mounted| {
        for (name, change) in [
            ("write", "echo x >> write"),
            ("truncate", "truncate -s 1 truncate"),
            ("open", ": > open"),
            ("allocate", "fallocate -l 10000 allocate"),
        ] {
            let path = mounted.path(name);
            // Twice: what was looked at once must be looked at again after a chmod.
            for _ in 0..2 {
                fs::write(&path, "program").unwrap();
                chmod(&path, 0o6777);
                let (code, text) = as_nobody(mounted, change);
                assert_eq!(code, Some(0), "{change}: {text}");
                assert_eq!(mode(&mounted.origin(name)), 0o777, "{change}");
                assert_eq!(mode(&path), 0o777, "{change}");
            }
        }
        fs::write(mounted.path("root"), "program").unwrap();
        chmod(&mounted.path("root"), 0o4755);
        fs::OpenOptions::new().append(true).open(mounted.path("root")).unwrap();
        std::fs::write(mounted.path("root"), "changed by root").unwrap();
        assert_eq!(mode(&mounted.path("root")), 0o4755);
        chown(mounted.path("root"), Some(NOBODY), None).unwrap();
        assert_eq!(mode(&mounted.path("root")), 0o755);
    });
}
