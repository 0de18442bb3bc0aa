//! A sandbox in which a person may try the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A directory with an origin that has a file, a cache and a mount point.
#[derive(Debug)]
pub struct Sandbox {
    dir: TempDir,
    program: PathBuf,
}

impl Sandbox {
    /// A new one for `program`; see [`crate::program!`].
    pub fn new(program: PathBuf) -> Self {
        let dir = TempDir::new().unwrap();
        for name in ["origin", "cache", "mnt"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("origin/data"), "precious").unwrap();
        Self { dir, program }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command under test.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The command, to be run here without anybody's own configuration.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.root()).env("XDG_CONFIG_HOME", self.path("config"));
        command
    }

    /// Runs the command here to its end.
    pub fn halocline(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

/// Copies a program to where it is run from. A process of its own writes the copy: ours would be open for writing in every
/// process that another test starts meanwhile, and so long no program is run from it (`ETXTBSY`).
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status();
    assert!(copied.is_ok_and(|status| status.success()), "cp {}", to.as_ref().display());
}

/// What a command said on standard error.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Compares the exit status of a command with `code`, and looks for each part in what it wrote and said.
///
/// # Panics
/// If it ended otherwise, or a part is missing.
#[track_caller]
pub fn ended(output: &Output, code: i32, parts: &[&str]) {
    let all = written(output) + &said(output);
    assert_eq!(output.status.code(), Some(code), "{all}");
    for part in parts {
        assert!(all.contains(part), "{part}: {all}");
    }
}

/// What a command wrote to standard output.
pub fn written(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The last lines of a file, for people: whatever follows a whole log is not found.
pub fn last_lines(file: &Path) -> String {
    const LINES: usize = 40;
    let text = fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    format!("{}, the last of {} lines:\n{}", file.display(), lines.len(), last.join("\n"))
}
