//! Developers' work inside a mount: git clone, a parallel C build, git's own check.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::mount::{self, Mount};
use crate::programs;

const UNITS: u32 = 60;

/// A C program of many small files whose output depends on each of them.
pub(crate) fn write_c_project(folder: &Path) {
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

#[test]
fn git_clone_and_c_build_inside_the_mount() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::new(&["--policy", "always", "--size", "8M", "--max-dirty-age", "200ms"]);
    let clone = mount.path().join("clone");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        // The repository may belong to another user than the one who tests.
        command.args(["-c", "safe.directory=*", "-C"]).arg(&clone).args(arguments);
        programs::run(&mut command)
    };
    programs::run(
        Command::new("git")
            .args(["-c", "safe.directory=*", "clone", "--quiet", "--no-local"])
            .arg(programs::repository())
            .arg(&clone),
    );
    git(&["fsck", "--full"]);

    let project = clone.join("project");
    write_c_project(&project);
    programs::run(Command::new("make").args(["--silent", "-j4", "-C"]).arg(&project));
    let expected: u32 = (0..UNITS).map(|unit| 2 * unit + 1).sum();
    let run = |project: &Path| programs::run(&mut Command::new(project.join("program"))).stdout;
    assert_eq!(run(&project), format!("{expected}\n").into_bytes());

    let name = ["-c", "user.name=Test", "-c", "user.email=test@example.org"];
    git(&["add", "project"]);
    git(&[&name[..], &["commit", "--quiet", "-m", "Add a project"]].concat());
    git(&["gc", "--quiet"]);
    git(&["fsck", "--full"]);
    assert!(git(&["status", "--porcelain"]).stdout.is_empty());

    mount.unmount();
    assert_eq!(run(&mount.origin().join("clone/project")), format!("{expected}\n").into_bytes());
}
