//! Is the command an MPI program, and where is the shim that speaks for it?

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shim's file name.
const SHIM: &str = "libhalocline_mpi.so";
/// Programs that start MPI programs.
const LAUNCHERS: [&str; 8] =
    ["mpiexec", "mpirun", "orterun", "prterun", "prun", "srun", "aprun", "jsrun"];
/// What the dynamic section of an MPI program names.
const LIBRARIES: [&[u8]; 3] = [b"libmpi.so", b"libmpich.so", b"libmpi_"];
/// Programs larger than this are not searched.
const PROGRAM_BYTES_MAX: u64 = 256 << 20;

/// Whether `program` starts MPI programs or is one.
pub(crate) fn is_mpi(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let base = name.split(['.', '-']).next().unwrap_or_default();
    LAUNCHERS.contains(&base) || links_mpi(program)
}

fn links_mpi(program: &Path) -> bool {
    let small = fs::metadata(program).is_ok_and(|meta| meta.len() <= PROGRAM_BYTES_MAX);
    let Ok(content) = (if small { fs::read(program) } else { return false }) else { return false };
    content.starts_with(b"\x7fELF")
        && LIBRARIES.iter().any(|name| content.windows(name.len()).any(|part| part == *name))
}

/// The shim: in `$HALOCLINE_LIB_DIR`, beside this program, or where it is installed or built.
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

/// Makes `command` speak to the mount, where it is an MPI program.
pub(crate) fn prepare(command: &mut Command, program: &Path, socket: &Path) {
    if !is_mpi(program) {
        return;
    }
    let Some(shim) = shim() else {
        eprintln!(
            "halocline: {SHIM} is not installed: ranks and hints stay unknown, and the number of \
             processes is measured (put it in $HALOCLINE_LIB_DIR)"
        );
        return;
    };
    command.env("LD_PRELOAD", preload(&shim, std::env::var_os("LD_PRELOAD").as_deref()));
    command.env("HALOCLINE_SOCKET", socket);
}

/// The shim in front of what is preloaded already.
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
            assert!(is_mpi(Path::new(name)), "{name}");
        }
        for name in ["/bin/sh", "mpi", "python3"] {
            assert!(!is_mpi(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn a_program_that_links_mpi_is_known_by_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("app");
        fs::write(&program, b"\x7fELF....libmpich.so.12\0").unwrap();
        assert!(is_mpi(&program));
        fs::write(&program, b"#!/bin/sh\necho libmpi.so\n").unwrap();
        assert!(!is_mpi(&program));
    }

    #[test]
    fn what_was_preloaded_stays() {
        let shim = Path::new("/lib/s.so");
        assert_eq!(preload(shim, None), "/lib/s.so");
        assert_eq!(preload(shim, Some(OsStr::new(""))), "/lib/s.so");
        assert_eq!(preload(shim, Some(OsStr::new("/a.so"))), "/lib/s.so:/a.so");
    }
}
