//! Mounts whose process may write only short files, or use little memory.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: u64 = 1 << 20;
static CHUNK: [u8; 1 << 20] = [7; 1 << 20];
const MOUNT: [&str; 9] = [
    "mount",
    "origin",
    "mnt",
    "--cache",
    "cache",
    "--policy",
    "always",
    "--rebuild=false",
    "--size=256M",
];

fn limited(command: &mut Command, resource: Resource, limit: Rlimit) -> &mut Command {
    // SAFETY: between fork and exec the closure makes a system call only.
    unsafe { command.pre_exec(move || Ok(setrlimit(resource, limit)?)) }
}

fn hard(bytes: u64) -> Rlimit {
    Rlimit { current: Some(bytes), maximum: Some(bytes) }
}

fn soft(bytes: u64) -> Rlimit {
    Rlimit { current: Some(bytes), maximum: None }
}

/// It was killed by SIGXFSZ, without a word.
#[test]
fn a_mount_of_short_files_goes_on_and_says_what_it_cannot_write() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = limited(&mut scratch.command(&MOUNT), Resource::Fsize, hard(80 * MIB)).output();
    let mount = mount.unwrap();
    assert!(mount.status.success(), "{}", said(&mount));
    assert!(
        said(&mount).contains("80.0 MiB") && said(&mount).contains("ulimit -Hf"),
        "{}",
        said(&mount)
    );
    fs::write(scratch.path("mnt/short"), &CHUNK[..]).unwrap();
    let long = fs::File::create(scratch.path("mnt/long")).unwrap();
    let mut taken = Vec::new();
    for (at, index) in (0..100).map(|number| number * MIB).zip(0..) {
        if long.write_all_at(&CHUNK, at).is_ok() {
            taken.push(index);
        }
    }
    drop(long);
    // What the mount took goes to the origin; what it cannot bring to the origin stays and is told.
    let umount = scratch.once_unused(&["umount", "mnt"]);
    if !umount.status.success() {
        assert_eq!(umount.status.code(), Some(3), "{}", said(&umount));
        assert!(
            said(&umount).contains("long") && said(&umount).contains("ulimit -f"),
            "{}",
            said(&umount)
        );
        scratch.succeed(&["umount", "--force", "--keep-dirty", "mnt"]);
        scratch.succeed(&MOUNT);
        scratch.succeed(&["umount", "mnt"]);
    }
    assert!(fs::read(scratch.path("origin/short")).unwrap() == CHUNK[..]);
    let found = fs::read(scratch.path("origin/long")).unwrap();
    for index in taken {
        assert!(found.chunks(CHUNK.len()).nth(index).unwrap() == CHUNK, "piece {index}");
    }
}

#[test]
fn a_mount_that_may_do_too_little_is_refused_before_it_begins() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for (resource, bytes, named) in [
        (Resource::Fsize, MIB, "ulimit -Hf"),
        (Resource::Fsize, 0, "ulimit -Hf"),
        (Resource::As, 1 << 30, "ulimit -Hv"),
        (Resource::Data, 100 * MIB, "ulimit -Hd"),
    ] {
        for command in
            [&MOUNT[..], &["run", "--origin", "origin", "--cache", "cache", "--", "true"]]
        {
            let refused =
                limited(&mut scratch.command(command), resource, hard(bytes)).output().unwrap();
            assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
            assert!(said(&refused).contains(named), "{}", said(&refused));
        }
    }
    assert!(fs::read_dir(scratch.path("cache")).unwrap().next().is_none(), "nothing was begun");
}

/// A soft limit is the program's, and not that of the mount.
#[test]
fn a_command_of_run_has_the_limits_that_its_caller_gave_and_the_mount_has_not() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let script = "ulimit -f; ulimit -v; grep SigIgn /proc/self/status; dd if=/dev/zero of=new bs=64k count=1 2>&1; \
                  dd if=/dev/zero of=long bs=64k count=40 2>&1; echo $?";
    let run = ["run", "--origin", "origin", "--cache", "cache", "--", "sh", "-c", script];
    let mut command = scratch.command(&run);
    limited(&mut command, Resource::Fsize, soft(2 * MIB));
    let output = limited(&mut command, Resource::As, soft(900 * MIB)).output().unwrap();
    let told = written(&output);
    assert!(output.status.success(), "{told} {}", said(&output));
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[..2], ["4096", &(900 << 10).to_string()], "{told}");
    let ignored = u64::from_str_radix(lines[2].trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(ignored & 1 << (libc::SIGXFSZ - 1), 0, "{told}");
    // By the signal.
    assert_eq!(lines.last(), Some(&"153"), "{told}");
}
