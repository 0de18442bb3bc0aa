//! Files that a person names to be written: reports, plots, pages.
//!
//! Where anybody may make names, as in `/tmp`, one that somebody else made beforehand is not
//! written through: a link, a file, a FIFO. (Kernels can be told to see to that, and not all are.)

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Anybody may make names, and only their owners may take them away.
const STICKY_FOR_ALL: u32 = 0o1002;

/// Writes `text` to `file`, which is made or emptied before.
pub(crate) fn write(file: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    open(file)?.write_all(text.as_ref())
}

fn open(path: &Path) -> io::Result<File> {
    let dir = match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => fs::metadata("."),
        dir => fs::metadata(dir.unwrap_or(path)),
    }?;
    let shared = dir.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL;
    let own = rustix::process::geteuid().as_raw();
    let strange = |found: &Metadata| shared && ![own, dir.uid()].contains(&found.uid());
    let refused =
        |what: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, what.to_owned()));
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    // One's own link is followed, and what it names may have several names.
    let followed = match fs::symlink_metadata(path) {
        Ok(found) if strange(&found) => return refused("another user made a file of this name"),
        found => found.is_ok_and(|found| found.is_symlink()),
    };
    if !followed {
        // Whatever comes there meanwhile.
        flags |= OFlags::NOFOLLOW;
    }
    let flags = i32::from_ne_bytes(flags.bits().to_ne_bytes());
    // Not emptied yet: it may turn out to be somebody else's.
    let options = OpenOptions::new().write(true).create(true).custom_flags(flags).clone();
    let file = options.open(path)?;
    let found = file.metadata()?;
    if found.is_file() {
        if strange(&found) || shared && !followed && found.nlink() > 1 {
            return refused("another user made a file of this name");
        }
        file.set_len(0)?;
    }
    let waiting = fcntl_getfl(&file)?.difference(OFlags::NONBLOCK);
    fcntl_setfl(&file, waiting)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn names_that_others_made_where_anybody_may_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("victim"), "precious").unwrap();
        fs::create_dir(at("shared")).unwrap();
        fs::set_permissions(at("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
        symlink(at("victim"), at("shared/link")).unwrap();
        fs::write(at("shared/file"), "old and long").unwrap();
        fs::hard_link(at("victim"), at("shared/second")).unwrap();
        write(&at("shared/file"), "new").unwrap();
        assert_eq!(fs::read(at("shared/file")).unwrap(), b"new");
        write(&at("shared/second"), "lost").unwrap_err();
        // One's own link is followed, as by any program.
        write(&at("shared/link"), "through").unwrap();
        assert_eq!(fs::read(at("victim")).unwrap(), b"through");
        write(&at("made"), "once").unwrap();
        write(Path::new("/dev/null"), "gone").unwrap();
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for name in ["shared/link", "shared/file"] {
            std::os::unix::fs::lchown(at(name), Some(12_345), None).unwrap();
            write(&at(name), "lost").unwrap_err();
        }
        assert_eq!(fs::read(at("victim")).unwrap(), b"through");
        // Where the directory is one's own, its files are one's own affair.
        fs::set_permissions(at("shared"), fs::Permissions::from_mode(0o755)).unwrap();
        chown(at("shared/file"), Some(12_345), None).unwrap();
        write(&at("shared/file"), "changed").unwrap();
    }
}
