//! The scripts for other file systems are run, with programs in place of those of the file systems.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use halocline_model::profile::DeviceProfile;
use halocline_plan::layout::{Layout, Part};
use halocline_plan::plan_file::{Expected, Plan, PlannedFile, Trace, VERSION};
use halocline_plan::servers::{Network, Server};
use halocline_plan::write::{Target, commands};

const STRIPE: u64 = 64 << 10;

/// These files in stripes of 64 KiB on two servers of a pool.
fn plan(files: &[&str]) -> Plan {
    let parts = vec![Part { begin: 0, end: None, widths: vec![STRIPE; 2] }];
    let layout = Layout::new(parts, 2).unwrap();
    let server = |name: &str| Server {
        name: name.into(),
        directory: None,
        capacity: None,
        channels: 1,
        profile: DeviceProfile::ssd_generic(),
        network: Network::default(),
    };
    Plan {
        version: VERSION,
        chosen: "ours".into(),
        files: None,
        trace: Trace { digest: String::new(), requests: 1 },
        expected: Expected {
            predicted_seconds: 1.0,
            simulated_seconds: 1.0,
            def_simulated_seconds: 2.0,
            gain_over_def: 1.0,
            spread: 0.1,
        },
        server: ["1.0", "1.1"].map(server).into(),
        file: files.iter().map(|path| PlannedFile::new(path.as_bytes(), 1, &layout)).collect(),
    }
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
