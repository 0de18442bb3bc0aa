//! Changes behind the mount (I9): found when a file is first used, by size, mtime and ctime.
//!
//! Clean extents of a changed file are dropped. Dirty ones are a conflict: the origin's version
//! stays the file, the cache's bytes are saved beside the cache and reported. Neither is lost.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use crate::engine::parts::{Parts, stamp_of};
use crate::error::{Error, Result};
use crate::extent::file::{CachedFile, WHOLE, tail};
use crate::meta::{Extent, FileId, Stamp};
use crate::namespace::Node;
use crate::private::{PrivateDir, Use};

/// Directory inside the cache where dirty bytes of conflicts are saved.
pub(crate) const CONFLICTS: &str = "conflicts";

/// What is saved of one conflict, beside the sparse file with the bytes themselves.
#[derive(Debug, Serialize, Deserialize)]
struct Conflict {
    path: PathBuf,
    reason: String,
    /// Offset and length of each dirty extent, in bytes.
    extents: Vec<(u64, u64)>,
}

/// Closes what is saved of conflicts to others, as earlier versions did not.
pub(crate) fn close_saved(cache_dir: &Path) {
    let dir = cache_dir.join(CONFLICTS);
    match PrivateDir::open(&dir).and_then(|dir| dir.check_below()) {
        Err(error) if error.errno() == libc::ENOENT => {}
        Err(error) => tracing::warn!("{error}"),
        Ok(()) => {}
    }
}

/// Compares a file that the cache knows with what the origin has now, before anybody reads it.
pub(crate) fn check(
    parts: &Parts,
    file: &CachedFile,
    id: FileId,
    raw: &libc::stat64,
) -> Result<()> {
    // A crash between a truncate and its records leaves extents past the end.
    parts.let_go(id, tail(file.size()))?;
    let Some(record) = parts.store.dmt.file(id) else { return Ok(()) };
    if record.stamp == Stamp::Writing {
        // We were writing ourselves when we were killed: the stat says nothing about others.
        file.stamped_writing.store(true, Ordering::Release);
        file.touch();
        return Ok(());
    }
    if record.stamp == stamp_of(raw) {
        return Ok(());
    }
    let path = parts.namespace.path_of(&file.node.read());
    let dirty = parts.store.dmt.dirty(id, WHOLE, usize::MAX);
    if !dirty.is_empty() {
        save(parts, id, &path, &dirty, "the origin's file was changed behind the mount")?;
    }
    tracing::warn!("{}: changed behind the mount; its cached bytes are dropped", path.display());
    parts.let_go(id, WHOLE)
}

/// The same for a file that stayed known, and whose origin looked like `raw` a moment ago. While we
/// change it ourselves that says nothing of others.
pub(crate) fn check_again(
    parts: &Parts,
    file: &CachedFile,
    node: &Node,
    raw: &libc::stat64,
) -> Result<()> {
    if file.is_ours() || !file.is_changed() && *file.look.lock() == stamp_of(raw) {
        return Ok(());
    }
    // Whoever changes it through us holds some of it.
    let _range = file.range.exclusive(WHOLE);
    let _growth = file.growth.lock();
    let raw = parts.namespace.stat(node)?.raw;
    if file.is_ours() {
        return Ok(());
    }
    let look = stamp_of(&raw);
    #[expect(clippy::cast_sign_loss, reason = "a regular file's size is not negative")]
    file.set_size(raw.st_size as u64);
    if let Some(id) = file.id() {
        if file.stamped_writing.load(Ordering::Acquire) {
            // Its record does not say yet what it looked like when it was read.
            parts.advisory(parts.store.dmt.stamp(id, *file.look.lock()))?;
            file.stamped_writing.store(false, Ordering::Release);
        }
        check(parts, file, id, &raw)?;
        parts.advisory(parts.store.dmt.stamp(id, look))?;
    }
    file.rests(look);
    Ok(())
}

/// Saves the dirty extents of a file whose origin went its own way, durably, and notes it.
pub(crate) fn save(
    parts: &Parts,
    id: FileId,
    path: &Path,
    dirty: &[Extent],
    reason: &str,
) -> Result<()> {
    let dir = parts.around.cache_dir.join(CONFLICTS);
    // As private as the file that they come from may be.
    let private = PrivateDir::make(&dir)?;
    let name = format!("{:016x}-{}", id.0, parts.clock.now_ms());
    let bytes = dir.join(&name);
    let saved = private.file(&name, Use::New)?;
    let mut buf = Vec::new();
    for extent in dirty {
        buf.resize(usize::try_from(extent.range.len()).expect("an extent fits in memory"), 0);
        parts.store.read(id, extent.placement, extent.range.start, &mut buf)?;
        saved.write_all_at(&buf, extent.range.start).map_err(Error::at(&bytes, "write"))?;
    }
    saved.sync_all().map_err(Error::at(&bytes, "sync"))?;
    let conflict = Conflict {
        path: path.to_owned(),
        reason: reason.to_owned(),
        extents: dirty.iter().map(|e| (e.range.start, e.range.len())).collect(),
    };
    let json = serde_json::to_vec_pretty(&conflict).expect("a conflict is plain data");
    private.replace(&format!("{name}.json"), &json)?;
    let dirty_bytes: u64 = dirty.iter().map(|extent| extent.range.len()).sum();
    parts.note(format!(
        "{}: {reason}; {dirty_bytes} bytes that only the cache had are saved in {}",
        path.display(),
        bytes.display()
    ));
    Ok(())
}
