//! Developers' work inside a mount: git clone, a parallel C build, git's own check.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::mount::{self, Mount};
use crate::programs;

const UNITS: u32 = 60;

/// A C program of many small files whose output depends on each of them.
fn write_c_project(folder: &Path) {
    fs::create_dir(folder).expect("directory");
    let mut main = String::from("#include <stdio.h>\n");
    let mut sum = String::from("0");
    for unit in 0..UNITS {
        let text = format!("int unit{unit}(int x) {{ return x * {unit} + 1; }}\n");
        fs::write(folder.join(format!("unit{unit}.c")), text).expect("source");
        writeln!(main, "int unit{unit}(int);").expect("text");
        write!(sum, " + unit{unit}(2)").expect("text");
    }
    writeln!(main, "int main(void) {{ printf(\"%d\\n\", {sum}); return 0; }}").expect("text");
    fs::write(folder.join("main.c"), main).expect("source");
    let rules = "objects := $(patsubst %.c,%.o,$(filter unit%,$(wildcard *.c)))\n\
                 program: main.o libunits.a\n\t$(CC) -o $@ main.o -L. -lunits\n\
                 libunits.a: $(objects)\n\t$(AR) rcs $@ $^\n";
    fs::write(folder.join("Makefile"), rules).expect("Makefile");
}

/// A clone of this repository.
pub(crate) struct Checkout(PathBuf);

impl Checkout {
    /// Clones into `folder` and checks the clone.
    pub(crate) fn new(folder: PathBuf) -> Self {
        programs::run(
            git().args(["clone", "--quiet", "--no-local"]).arg(programs::repository()).arg(&folder),
        );
        let clone = Self(folder);
        clone.git(&["fsck", "--full"]);
        clone
    }

    /// The same, as it is found in another place.
    pub(crate) fn seen_at(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Runs git in the clone.
    pub(crate) fn git(&self, arguments: &[&str]) -> Output {
        programs::run(git().arg("-C").arg(&self.0).args(arguments))
    }

    /// Writes the C project into the clone and builds it; where it lies.
    pub(crate) fn build_project(&self) -> PathBuf {
        let project = self.0.join("project");
        write_c_project(&project);
        programs::run(Command::new("make").args(["--silent", "-j4", "-C"]).arg(&project));
        project
    }

    /// Commits it, and packs all that there is.
    pub(crate) fn commit_project(&self) {
        let name = ["-c", "user.name=Test", "-c", "user.email=test@example.org"];
        self.git(&["add", "project"]);
        self.git(&[&name[..], &["commit", "--quiet", "-m", "Add a project"]].concat());
        self.git(&["gc", "--quiet"]);
        self.git(&["fsck", "--full"]);
        assert!(self.git(&["status", "--porcelain"]).stdout.is_empty());
    }
}

/// The project's program is whole.
pub(crate) fn assert_runs(project: &Path) {
    let expected: u32 = (0..UNITS).map(|unit| 2 * unit + 1).sum();
    let output = programs::run(&mut Command::new(project.join("program")));
    assert_eq!(output.stdout, format!("{expected}\n").into_bytes());
}

fn git() -> Command {
    let mut command = Command::new("git");
    // The repository may belong to another user than the one who tests.
    command.args(["-c", "safe.directory=*"]);
    command
}

#[test]
fn git_clone_and_c_build_inside_the_mount() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::new(&["--policy", "always", "--size", "8M", "--max-dirty-age", "200ms"]);
    let clone = Checkout::new(mount.path().join("clone"));
    let project = clone.build_project();
    assert_runs(&project);
    clone.commit_project();
    mount.unmount();
    assert_runs(&mount.origin().join("clone/project"));
}
