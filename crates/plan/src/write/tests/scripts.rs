//! The scripts for other file systems are run, with programs in place of those of the file systems.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use super::{K, Plan, Target, commands, named};

/// These files in stripes of 64 KiB on two servers of a pool.
fn plan(files: &[&str]) -> Plan {
    let of = |path: &&str| named(&["1.0", "1.1"], path, &[(None, &[64 * K; 2])]);
    let mut all = of(&files[0]);
    all.file.extend(files[1..].iter().flat_map(|path| of(path).file));
    all
}

/// Runs the script in `dir`, where each program notes that it was called, and makes its last argument if it should.
fn run(dir: &Path, target: Target, plan: &Plan) -> Output {
    let programs = dir.join("programs");
    fs::create_dir_all(&programs).unwrap();
    for (name, makes) in [("setfattr", ""), ("beegfs-ctl", ""), ("lfs", "m"), ("pvfs2-touch", "m")]
    {
        let make = if makes.is_empty() { "" } else { "for last; do :; done; : > \"$last\"" };
        let program = programs.join(name);
        fs::write(&program, format!("#!/bin/sh\necho {name} >> \"$CALLS\"\n{make}\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var_os("PATH").unwrap();
    let path =
        [programs.into_os_string(), ":".into(), path].into_iter().collect::<std::ffi::OsString>();
    let script = commands(target, plan).unwrap().join("\n");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(dir).env("PATH", path).env("CALLS", "calls");
    shell.output().unwrap()
}

/// They made what they could and then failed; and of `BeeGFS`, files that were there kept their layout without a word.
#[test]
fn all_files_are_made_or_none() {
    for target in [Target::Lustre, Target::OrangeFs, Target::CephFs, Target::BeeGfs] {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        let plan = plan(&["new", "sub/its \u{1b}[2J'own'"]);
        let is_refused = |what: &str| {
            let output = run(dir, target, &plan);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{target:?}: {said}");
            assert!(said.contains(what) && !said.contains('\u{1b}'), "{target:?}: {said}");
            assert!(!dir.join("new").exists() && !dir.join("calls").exists(), "{target:?}");
        };
        is_refused("sub/its ?[2J'own': its directory is not there");
        fs::create_dir(dir.join("sub")).unwrap();
        let second = dir.join("sub/its \u{1b}[2J'own'");
        fs::write(&second, "bytes").unwrap();
        is_refused("own': it is there");
        assert_eq!(fs::read(&second).unwrap(), b"bytes");
        // Through a link that leads nowhere another file would be made.
        fs::remove_file(&second).unwrap();
        symlink("elsewhere", &second).unwrap();
        is_refused("own': it is there");
        fs::remove_file(&second).unwrap();
        let output = run(dir, target, &plan);
        assert!(output.status.success(), "{target:?}: {output:?}");
        assert!(dir.join("new").exists() && second.exists(), "{target:?}");
        let calls = fs::read_to_string(dir.join("calls")).unwrap();
        assert_eq!(calls.lines().count() % 2, 0, "{target:?}: {calls}");
    }
}
