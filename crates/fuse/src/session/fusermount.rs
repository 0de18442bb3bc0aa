//! `fusermount3`, which mounts and unmounts for an ordinary user outside a user namespace.

use std::io;
use std::path::Path;
use std::process::{Command, Output};

use halocline_os::error::{Error, Result};

/// The file-system type that `mount` and `df` show.
pub(super) const SUBTYPE: &str = "halocline";
/// The programs that unmount for an ordinary user, which may not be in that user's path.
const HELPERS: [&str; 4] = ["fusermount3", "fusermount", "/bin/fusermount3", "/bin/fusermount"];

/// What to do if the helper refused with these words.
pub(super) fn remedy(said: &str) -> &'static str {
    if said.contains("user_allow_other") {
        return "add the line user_allow_other to /etc/fuse.conf, or mount without --allow-other";
    }
    "see fusermount3(1), or use a private mount (halocline run)"
}

/// Escapes a name for an option of the helper: options are separated by commas.
pub(super) fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace(',', "\\,")
}

/// Runs the program with which an ordinary user outside a user namespace unmounts `mountpoint`.
///
/// # Errors
/// There is no such program.
pub fn with_helper(mountpoint: &Path, options: &[&str]) -> Result<Output> {
    run_helper(|command| {
        command.args(options).arg("--").arg(mountpoint);
        Ok(())
    })
}

/// Runs the program that mounts and unmounts for an ordinary user, prepared by `prepare`.
pub(super) fn run_helper(prepare: impl Fn(&mut Command) -> io::Result<()>) -> Result<Output> {
    let mut missing = None;
    for helper in HELPERS {
        let mut command = Command::new(helper);
        prepare(&mut command)?;
        match command.output() {
            Ok(output) => return Ok(output),
            Err(error) => missing = missing.or(Some(error)),
        }
    }
    Err(Error::invalid(
        format!("fusermount3 cannot be run: {}", missing.expect("there are names to try")),
        "install fuse3, or unmount as root",
    ))
}
