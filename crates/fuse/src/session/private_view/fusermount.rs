//! Lets `fusermount3` make a mount and hand over its device (libfuse's protocol: the descriptor comes through the
//! socket whose number is in the environment).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use halocline_api::control::descriptors;
use halocline_os::error::{Error, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::session::fusermount::{SUBTYPE, escaped, remedy, run_helper};

/// The variable in which the helper finds the socket's number.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts on `dir`, which belongs to this user.
pub(super) fn mount(dir: &Path, fsname: &str) -> Result<OwnedFd> {
    let options = format!("default_permissions,subtype={SUBTYPE},fsname={}", escaped(fsname));
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Its standard input is a descriptor that is not closed when it starts.
    let output = run_helper(|command| {
        command.args(["-o", &options, "--"]).arg(dir).env(SOCKET_VARIABLE, "0");
        command.stdin(Stdio::from(theirs.try_clone()?));
        Ok(())
    })?;
    drop(theirs);
    let refused = || {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("fusermount3: ");
        Error::invalid(format!("fusermount3 could not mount: {said}"), remedy(said))
    };
    if !output.status.success() {
        return Err(refused());
    }
    descriptors::receive(&ours)?.ok_or_else(refused)
}
