//! What the Makefiles build and install.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_testkit::skipping::skip;
use tempfile::TempDir;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels up").to_owned()
}

fn make(folder: &str, arguments: &[String], path: Option<&Path>) {
    let mut command = Command::new("make");
    command.arg("--silent").arg("-C").arg(repository().join(folder)).args(arguments);
    // The make that runs the tests has settings of its own.
    command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("TARGET");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("make starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// All commands of this machine but those whose name contains `hidden`.
fn commands_without(hidden: &str, dir: &Path) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for entry in std::env::split_paths(&path).filter_map(|dir| dir.read_dir().ok()).flatten() {
        let entry = entry.expect("an entry");
        if !entry.file_name().to_string_lossy().contains(hidden) {
            // The first of a name wins, as it does for a shell.
            let _ = symlink(entry.path(), dir.join(entry.file_name()));
        }
    }
}

/// `make demo` on a machine with MPICH alone, then `make test`, which installs Open MPI: the shim
/// was not built anew, and programs of Open MPI ran with one that did not know them.
#[test]
fn the_shim_is_built_anew_when_another_mpi_appears() {
    let found = |command: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(command).exists())
    };
    if !found("mpicc.mpich") || !found("mpicc.openmpi") {
        skip("MPICH and Open MPI are not both here");
        return;
    }
    let (scratch, bare) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    commands_without("openmpi", bare.path());
    let arguments = [format!("OUT={}", scratch.path().display())];
    let built = || fs::read(scratch.path().join("libhalocline_mpi.so")).unwrap();
    let knows = |flavour: &str| {
        let symbol = format!("flavour_{flavour}");
        built().windows(symbol.len()).any(|part| part == symbol.as_bytes())
    };
    make("crates/preload", &arguments, Some(bare.path()));
    let alone = built();
    assert!(knows("mpich") && !knows("openmpi"), "built for MPICH alone");
    make("crates/preload", &arguments, None);
    assert!(knows("openmpi") && built() != alone, "built for both");
    make("crates/preload", &arguments, Some(bare.path()));
    assert!(!knows("openmpi"), "Open MPI is gone again");
}

/// The commands that build it stood in the Makefile alone, which installs packages of Debian first.
#[test]
fn the_readme_has_the_commands_that_the_makefile_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (readme, makefile) = (read("README.md"), read("Makefile"));
    let commands: Vec<_> =
        makefile.lines().filter_map(|line| line.strip_prefix("\t$(CARGO) ")).collect();
    assert!(commands.len() > 2, "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "clean") {
        assert!(readme.contains(&format!("cargo {command}")), "{command}");
    }
    for target in ["build", "demo", "test", "preload", "install", "install-files"] {
        assert!(makefile.contains(&format!("\n{target}:")), "{target}");
        assert!(readme.contains(&format!("make {target}")), "{target}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(readme.contains(shell), "completions for {shell}");
    }
}

#[test]
fn an_installation_has_man_pages_and_completions() {
    let scratch = TempDir::new().unwrap();
    let (target, root) = (scratch.path().join("target"), scratch.path().join("root"));
    let arguments = [
        "install-files".to_owned(),
        format!("HALOCLINE={}", env!("CARGO_BIN_EXE_halocline")),
        format!("TARGET={}", target.display()),
        format!("DESTDIR={}", root.display()),
        "PREFIX=/usr".to_owned(),
    ];
    make(".", &arguments, None);
    for file in [
        "bin/halocline",
        "share/man/man1/halocline.1",
        "share/man/man1/halocline-run.1",
        "share/bash-completion/completions/halocline",
        "share/zsh/site-functions/_halocline",
        "share/fish/vendor_completions.d/halocline.fish",
    ] {
        let file = root.join("usr").join(file);
        assert!(file.metadata().is_ok_and(|file| file.len() > 100), "{}", file.display());
    }
    let share = |file: &str| fs::read_to_string(root.join("usr/share").join(file)).unwrap();
    for page in
        ["man/man1/halocline.1", "man/man1/halocline-run.1", "man/man1/halocline-jobs-add.1"]
    {
        let page = share(page);
        assert!(page.contains(".SH \"EXIT STATUS\"") && page.contains(".TP\n126\n"), "{page}");
    }
    let page = share("man/man1/halocline-mount.1");
    assert!(page.contains("ORIGIN MOUNTPOINT \\-\\-cache DIR\n"), "{page}");
    // Completions offered what is for the program itself, and files for an option of few words.
    for file in [
        "bash-completion/completions/halocline",
        "zsh/site-functions/_halocline",
        "fish/vendor_completions.d/halocline.fish",
    ] {
        let script = share(file);
        assert!(!script.contains("background-process") && !script.contains("Look into mounts"));
        assert!(script.contains("write-through"), "{file}");
    }
}
