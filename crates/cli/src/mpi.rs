//! Detects MPI programs, and finds the shim that communicates for them.

use crate::print::tell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_os::bounded;

/// The shim's file name.
const SHIM: &str = "libhalocline_mpi.so";
/// Programs that start MPI programs.
const LAUNCHERS: [&str; 8] =
    ["mpiexec", "mpirun", "orterun", "prterun", "prun", "srun", "aprun", "jsrun"];
/// Libraries in the dynamic section of an MPI program.
const LIBRARIES: [&[u8]; 3] = [b"libmpi.so", b"libmpich.so", b"libmpi_"];
/// Module in a Python script.
const MODULE: &str = "mpi4py";
/// Larger programs and scripts are not searched.
const PROGRAM_BYTES_MAX: u64 = 256 << 20;
const SCRIPT_BYTES_MAX: u64 = 1 << 20;

/// Whether `program` starts MPI programs or is one: judged by its name, by the libraries it links, or by the contents
/// of a script or an argument (`bash job.sh`, `sh -c "mpiexec ..."`).
pub(crate) fn is_mpi<'a>(program: &Path, arguments: impl IntoIterator<Item = &'a OsStr>) -> bool {
    names_mpi(&program.file_name().unwrap_or_default().to_string_lossy())
        || links_mpi(program)
        || script_names_mpi(program)
        || arguments.into_iter().any(|argument| {
            names_mpi(&argument.to_string_lossy()) || script_names_mpi(Path::new(argument))
        })
}

fn links_mpi(program: &Path) -> bool {
    content(program, PROGRAM_BYTES_MAX).is_some_and(|content| {
        content.starts_with(b"\x7fELF")
            && LIBRARIES.iter().any(|name| content.windows(name.len()).any(|part| part == *name))
    })
}

fn script_names_mpi(script: &Path) -> bool {
    let text = content(script, SCRIPT_BYTES_MAX).and_then(|bytes| String::from_utf8(bytes).ok());
    text.is_some_and(|text| names_mpi(&text))
}

/// Whether the name of a launcher, in any form (`mpiexec.hydra`), is a word of `text`.
fn names_mpi(text: &str) -> bool {
    let mut words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.any(|word| LAUNCHERS.contains(&word) || word == MODULE)
}

/// The content of a regular file, unless it is larger than `max` bytes.
fn content(path: &Path, max: u64) -> Option<Vec<u8>> {
    let found = fs::metadata(path).ok()?;
    if !found.is_file() {
        return None;
    }
    bounded::read(path, max).ok()
}

/// The shim: in `$HALOCLINE_LIB_DIR`, beside this program, or where it was installed or built.
pub(crate) fn shim() -> Option<PathBuf> {
    let named = std::env::var_os("HALOCLINE_LIB_DIR").map(PathBuf::from);
    let own = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let near = own
        .iter()
        .flat_map(|dir| [dir.clone(), dir.join("../lib/halocline"), dir.join("../preload")]);
    named
        .into_iter()
        .chain(near)
        .map(|dir| dir.join(SHIM))
        .find_map(|path| fs::canonicalize(path).ok())
}

/// Makes `command`, an MPI program, communicate with the mount.
pub(crate) fn prepare(command: &mut Command, socket: &Path) {
    let Some(shim) = shim() else {
        tell!(
            "halocline: {SHIM} is not installed: ranks and hints stay unknown, and the number of \
             processes is measured (put it in $HALOCLINE_LIB_DIR)"
        );
        return;
    };
    command.env("LD_PRELOAD", preload(&shim, std::env::var_os("LD_PRELOAD").as_deref()));
    command.env("HALOCLINE_SOCKET", socket);
}

/// The shim, before anything that is already preloaded.
fn preload(shim: &Path, before: Option<&OsStr>) -> OsString {
    let mut all = shim.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_name() {
        for name in ["mpiexec", "/usr/bin/mpirun", "mpiexec.hydra", "mpirun.openmpi", "srun"] {
            assert!(is_mpi(Path::new(name), []), "{name}");
        }
        for name in ["/bin/sh", "mpi", "python3", "my_mpirun_log"] {
            assert!(!is_mpi(Path::new(name), []), "{name}");
        }
    }

    /// Regression: ranks and hints of programs started by a job's script were not reported.
    #[test]
    fn scripts_and_command_lines_that_start_mpi_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let shell = Path::new("/bin/sh");
        let job =
            script("job.sh", "#!/bin/sh\nmodule load x; exec /opt/mpi/bin/mpiexec -n 4 ./app\n");
        let other = script("other.sh", "#!/bin/sh\ncp a b\n");
        let python = script("a.py", "from mpi4py import MPI\n");
        assert!(is_mpi(&job, []) && !is_mpi(&other, []));
        assert!(is_mpi(shell, [job.as_os_str()]) && is_mpi(shell, [python.as_os_str()]));
        assert!(!is_mpi(shell, [other.as_os_str(), dir.path().as_os_str(), OsStr::new("-x")]));
        assert!(is_mpi(shell, ["-c", "cd x && mpirun -n 2 ./app"].map(OsStr::new)));
    }

    #[test]
    fn a_program_that_links_mpi_is_known_by_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("app");
        fs::write(&program, b"\x7fELF....libmpich.so.12\0").unwrap();
        assert!(is_mpi(&program, []));
        fs::write(&program, b"#!/bin/sh\necho libmpi.so\n").unwrap();
        assert!(!is_mpi(&program, []));
    }

    #[test]
    fn what_was_preloaded_stays() {
        let shim = Path::new("/lib/s.so");
        assert_eq!(preload(shim, None), "/lib/s.so");
        assert_eq!(preload(shim, Some(OsStr::new(""))), "/lib/s.so");
        assert_eq!(preload(shim, Some(OsStr::new("/a.so"))), "/lib/s.so:/a.so");
    }
}
