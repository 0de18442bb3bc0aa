//! A place where a person may try the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::command;

/// A directory with an origin that has a file, a cache and a mount point.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        for name in ["origin", "cache", "mnt"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("origin/data"), "precious").unwrap();
        Self { dir }
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command, to be run here without anybody's own configuration.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = command::halocline();
        command.args(args).current_dir(self.root()).env("XDG_CONFIG_HOME", self.path("config"));
        command
    }

    pub(crate) fn halocline(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}
