//! Who owns a cache directory (I8), and whether it is a cache directory at all.
//!
//! The owner holds a lock on a file in it for as long as it lives: the kernel drops the lock with
//! its process, so a crashed owner's lock is stale by construction. The process id inside is for
//! the message only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Name of the lock file.
const LOCK: &str = "owner.lock";
/// Name of the file that makes a directory a cache.
const MARK: &str = "halocline-cache.toml";
/// Format of the directory.
const FORMAT: u32 = 1;
/// What a file system may put into its own root.
const FOREIGN_BUT_HARMLESS: &str = "lost+found";

/// What the mark says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    format: u32,
    cache_id: String,
}

/// The ownership of a cache directory; gone when dropped.
#[derive(Debug)]
pub(super) struct Owner {
    _lock: File,
    cache_id: String,
}

impl Owner {
    /// Takes the directory, which is made a cache if it is empty.
    pub(super) fn take(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).map_err(Error::at(dir, "create the cache directory"))?;
        let ours = dir.join(MARK).exists();
        if !ours {
            refuse_foreign(dir)?;
        }
        let lock = lock(dir)?;
        let cache_id = if ours { read_mark(dir)? } else { write_mark(dir)? };
        Ok(Self { _lock: lock, cache_id })
    }

    /// The identity of the cache, made once.
    pub(super) fn cache_id(&self) -> &str {
        &self.cache_id
    }
}

fn refuse_foreign(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::at(dir, "list the cache directory"))? {
        let name = entry.map_err(Error::at(dir, "list the cache directory"))?.file_name();
        let temporary = format!("{MARK}.new");
        if ![LOCK, FOREIGN_BUT_HARMLESS, &temporary].iter().any(|ours| name == *ours) {
            return Err(Error::invalid(
                format!("{} holds {} and is not a cache", dir.display(), name.display()),
                "name an empty directory for the cache, or one that Halocline made",
            ));
        }
    }
    Ok(())
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(Error::at(&path, "open the lock file"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(taken(dir, &mut file)),
        Err(errno) => return Err(Error::at(path, "lock the lock file")(errno.into())),
    }
    note_owner(&mut file).map_err(Error::at(path, "write the lock file"))?;
    Ok(file)
}

fn note_owner(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn taken(dir: &Path, file: &mut File) -> Error {
    let mut owner = String::new();
    // A message only: an owner that has not written its id yet is still an owner.
    let _ = file.read_to_string(&mut owner);
    let owner = match owner.trim() {
        "" => "another process".to_owned(),
        pid => format!("process {pid}"),
    };
    Error::invalid(
        format!("{} is in use by {owner}", dir.display()),
        "unmount that one first, or name another cache directory",
    )
}

fn read_mark(dir: &Path) -> Result<String> {
    let path = dir.join(MARK);
    let text = fs::read_to_string(&path).map_err(Error::at(&path, "read the cache's mark"))?;
    let damaged = |what: String| Error::Store {
        path: dir.to_owned(),
        what,
        remedy: format!(
            "use the version that made it, or move {} away and start with an empty cache: dirty \
             data in it is lost",
            dir.display()
        ),
    };
    let mark: Mark = toml::from_str(&text)
        .map_err(|error| damaged(format!("{MARK} is damaged: {}", error.message())))?;
    if mark.format != FORMAT {
        return Err(damaged(format!(
            "it has format {}, this version knows format {FORMAT}",
            mark.format
        )));
    }
    Ok(mark.cache_id)
}

fn write_mark(dir: &Path) -> Result<String> {
    let cache_id = new_id().map_err(Error::at(dir, "draw an identity for the cache"))?;
    let text = format!(
        "# This directory is a Halocline cache. Do not change anything in it.\n\
         format = {FORMAT}\ncache_id = \"{cache_id}\"\n"
    );
    let (path, temporary) = (dir.join(MARK), dir.join(format!("{MARK}.new")));
    let write = || -> io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(Error::at(path.clone(), "write the cache's mark"))?;
    Ok(cache_id)
}

fn new_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

/// The identity of the running system's boot.
pub(super) fn boot_id() -> String {
    // Without one every unclean end counts as a power loss, which is the safe side.
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i8_a_second_owner_is_refused_by_name_and_a_dead_one_is_not_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let first = Owner::take(dir.path()).unwrap();
        let refused = Owner::take(dir.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        let id = first.cache_id().to_owned();
        drop(first);
        assert_eq!(Owner::take(dir.path()).unwrap().cache_id(), id);
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let refused = Owner::take(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("thesis.tex"), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_format_and_a_damaged_mark_are_named() {
        let dir = tempfile::tempdir().unwrap();
        drop(Owner::take(dir.path()).unwrap());
        for (text, said) in [("format = 2\ncache_id = \"x\"", "format 2"), ("\0", "damaged")] {
            fs::write(dir.path().join(MARK), text).unwrap();
            let refused = Owner::take(dir.path()).unwrap_err();
            assert!(matches!(refused, Error::Store { .. }));
            assert!(refused.to_string().contains(said), "{refused}");
        }
    }
}
