//! The programs that the tests run: where they are, how they are built, what to do without them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use halocline_testkit::program;
use rustix::process::Signal;

pub(crate) use halocline_os::bound_process::bind;
pub(crate) use halocline_testkit::skipping::skip;

/// The command under test.
pub(crate) fn halocline() -> Command {
    Command::new(program!())
}

/// A conformance suite that `make test` installs; `None` where it did not run.
pub(crate) fn suite(name: &str) -> Option<PathBuf> {
    let installed = target().join("tools/bin").join(name);
    if installed.exists() { Some(installed) } else { is_installed(name).then(|| name.into()) }
}

/// The repository's root.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels up").to_owned()
}

/// Cargo's target directory, which holds what the Makefile builds.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_halocline")).ancestors().nth(2).expect("in target").to_owned()
}

/// Whether a command is on the search path.
pub(crate) fn is_installed(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(command).is_file())
}

/// Runs a command to its end; panics with its output when it fails. Tests that are killed leave
/// nothing behind.
pub(crate) fn run(command: &mut Command) -> Output {
    let output =
        bind(command, Signal::KILL).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs a shell script in `dir`, in a mount namespace of its own: what it mounts goes with it.
pub(crate) fn in_own_namespace(dir: &Path, script: &str) -> Output {
    Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", script])
        .current_dir(dir)
        .output()
        .expect("unshare starts")
}

/// Runs the Makefile in `folder` once; it builds into `target/NAME`.
fn make(folder: &str, name: &str) -> PathBuf {
    let out = target().join(name);
    run(Command::new("make")
        .args(["--silent", "-C"])
        .arg(repository().join(folder))
        .arg(format!("OUT={}", out.display())));
    out
}

/// The MPI shim; `None` where there is no MPI compiler.
pub(crate) fn shim() -> Option<PathBuf> {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    let out = SHIM.get_or_init(|| make("crates/preload", "preload"));
    Some(out.join("libhalocline_mpi.so")).filter(|library| library.exists())
}

/// One of the programs of `examples/mpi`; `None` where its compiler is missing.
pub(crate) fn example(name: &str) -> Option<PathBuf> {
    static EXAMPLES: OnceLock<PathBuf> = OnceLock::new();
    let out = EXAMPLES.get_or_init(|| make("examples/mpi", "examples"));
    Some(out.join(name)).filter(|program| program.exists())
}

/// An MPI implementation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mpi {
    Mpich,
    OpenMpi,
}

impl Mpi {
    /// A command that starts `processes` of `program`, an example; `None` where it is missing.
    pub(crate) fn start(self, processes: u32, program: &str) -> Option<Command> {
        let (launcher, suffix, flags): (_, _, &[&str]) = match self {
            Self::Mpich => ("mpiexec.hydra", "", &[]),
            Self::OpenMpi => {
                ("mpiexec.openmpi", ".openmpi", &["--allow-run-as-root", "--oversubscribe"])
            }
        };
        let program = example(&format!("{program}{suffix}"))?;
        let mut command = Command::new(launcher);
        command.args(flags).args(["-n", &processes.to_string()]).arg(program);
        is_installed(launcher).then_some(command)
    }
}
