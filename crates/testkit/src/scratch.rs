//! A sandbox to mount in.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Output;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::sandbox::{Sandbox, said, written};
use crate::waiting::{WAIT_LIMIT, eventually};
use crate::{fuse_device, skipping};

/// A [`Sandbox`] with mount points. Dropping it ends the mounts that are left over.
#[derive(Debug)]
pub struct Scratch {
    sandbox: Sandbox,
    mountpoints: &'static [&'static str],
}

impl Deref for Scratch {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.sandbox
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for mountpoint in self.mountpoints {
            let _ = self.halocline(&["umount", "--force", mountpoint]);
        }
    }
}

impl Scratch {
    /// A new one for `program` with `mnt` as its mount point; `None`, with the reason, where no mount can
    /// be made.
    pub fn new(program: PathBuf) -> Option<Self> {
        Self::with_mountpoints(program, &["mnt"])
    }

    /// The same with these mount points, which are unmounted in this order.
    pub fn with_mountpoints(
        program: PathBuf,
        mountpoints: &'static [&'static str],
    ) -> Option<Self> {
        if let Some(reason) = fuse_device::obstacle() {
            skipping::skip(reason);
            return None;
        }
        let sandbox = Sandbox::new(program);
        for mountpoint in mountpoints {
            fs::create_dir_all(sandbox.path(mountpoint)).unwrap();
        }
        Some(Self { sandbox, mountpoints })
    }

    /// Runs the command, which must succeed; returns what it wrote to standard output.
    #[track_caller]
    pub fn succeed(&self, args: &[&str]) -> String {
        let output = self.once_unused(args);
        assert!(output.status.success(), "{args:?}: {:?} {}", output.status, said(&output));
        written(&output)
    }

    /// What the command says, once no program uses the mount that it may be to end: a process that another test starts
    /// has this one's open files until it executes its program.
    pub fn once_unused(&self, args: &[&str]) -> Output {
        let begun = Instant::now();
        loop {
            let output = self.halocline(args);
            let in_use =
                !output.status.success() && said(&output).contains("programs use the mount");
            if !in_use || begun.elapsed() > WAIT_LIMIT {
                return output;
            }
        }
    }

    /// `halocline status --json`.
    #[track_caller]
    pub fn status(&self, mountpoint: &str) -> Value {
        serde_json::from_str(&self.succeed(&["status", mountpoint, "--json"])).unwrap()
    }

    /// The process that serves a mount.
    #[track_caller]
    pub fn pid(&self, mountpoint: &str) -> Pid {
        let pid = self.status(mountpoint)["pid"].as_i64().unwrap();
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    /// Ends the process that serves a mount with `kill -9`; its mount point is free again.
    #[track_caller]
    pub fn kill(&self, mountpoint: &str) {
        kill_process(self.pid(mountpoint), Signal::KILL).unwrap();
        self.clear(mountpoint);
    }

    /// Frees the mount point of a process that was killed.
    #[track_caller]
    pub fn clear(&self, mountpoint: &str) {
        eventually("its mount is gone", || {
            self.halocline(&["umount", "--force", mountpoint]);
            fs::read_dir(self.path(mountpoint)).is_ok_and(|entries| entries.count() == 0)
        });
    }
}
