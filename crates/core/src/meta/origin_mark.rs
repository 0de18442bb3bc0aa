//! What an origin says of caches that may hold newer bytes than it has.
//!
//! A cache's directory is not there while its device is not mounted, and a mount over the bare mount point would make an
//! empty cache and serve the origin's old bytes (I1). So a cache marks its origin before its first dirty byte is
//! acknowledged, and takes the mark away when it is left with nothing dirty; while a mark of another cache is there, no
//! mount without that cache begins. As bcache and LVM refuse a dirty origin without its cache.
//!
//! The mark is an extended attribute of the origin's directory. Where the file system or the permissions have none,
//! there is no such protection.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::OriginKey;
use super::origin_attribute::OriginAttribute;
use super::owner::identity_of;
use crate::born::born_ns;
use crate::error::{Error, Result};

/// What the attribute says of a cache.
const WHAT: &str = "dirty";
/// A mark is short; what is longer is none.
const MARK_BYTES_MAX: usize = 8192;

/// What a mark says.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    /// Where the cache was mounted last.
    host: String,
    /// Its directory there, as far as it can be shown.
    cache: String,
    /// The directory that was marked: one that was copied with its attributes is another.
    origin_inode: u64,
    origin_born_ns: u64,
}

/// The mark of one cache.
#[derive(Debug, Default)]
pub(super) struct OriginMark {
    /// `None` without an origin, or where it has no attributes.
    attribute: Option<OriginAttribute>,
    mark: Vec<u8>,
    is_set: AtomicBool,
    is_left_off: AtomicBool,
    changing: Mutex<()>,
}

impl OriginMark {
    /// The mark that the cache with this id in `cache` makes on `origin`.
    pub(super) fn open(origin: Option<&Path>, cache: &Path, cache_id: &str) -> Self {
        let opened = origin.map(|origin| -> Result<_> {
            let at = || Error::at(origin, "open");
            let dir = File::open(origin).map_err(at())?;
            let key = key_of(&dir).map_err(at())?;
            let said = Said {
                host: host(),
                cache: cache.display().to_string(),
                origin_inode: key.inode,
                origin_born_ns: key.born_ns,
            };
            let mark = serde_json::to_vec(&said).map_err(std::io::Error::from)?;
            let attribute = OriginAttribute::new(dir, WHAT, cache_id).map_err(at())?;
            let is_set = attribute.read(MARK_BYTES_MAX).is_ok_and(|found| !found.is_empty());
            Ok(Self { attribute: Some(attribute), mark, is_set: is_set.into(), ..Self::default() })
        });
        opened.transpose().map_or_else(
            |error| {
                tracing::debug!(%error, "the origin takes no mark");
                Self::default()
            },
            Option::unwrap_or_default,
        )
    }

    /// Before a dirty byte is acknowledged. Costs something the first time only.
    pub(super) fn set(&self) {
        if self.is_set.load(Ordering::Acquire) || self.is_left_off.load(Ordering::Acquire) {
            return;
        }
        let _changing = self.changing.lock();
        if self.is_set.load(Ordering::Acquire) {
            return;
        }
        if let Some(Err(error)) = self.attribute.as_ref().map(|at| at.write(&self.mark)) {
            tracing::debug!(%error, "the origin takes no mark");
        }
        self.is_set.store(true, Ordering::Release);
    }

    /// Makes no mark from here on.
    pub(super) fn leave_off(&self) {
        self.is_left_off.store(true, Ordering::Release);
    }

    /// Nothing is dirty any more, and the origin has it durably.
    pub(super) fn clear(&self) {
        let _changing = self.changing.lock();
        if !self.is_set.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Some(Err(error)) = self.attribute.as_ref().map(OriginAttribute::clear) {
            tracing::warn!(%error, "the origin keeps the mark that a cache has newer bytes");
        }
    }
}

/// Another cache that may hold bytes which the origin does not have.
#[derive(Debug)]
struct Other {
    id: String,
    said: Said,
    /// What it marked.
    origin: PathBuf,
    attribute: OriginAttribute,
}

/// Refuses an origin of which, or of a directory above it, a cache other than the one in `cache` may hold newer bytes.
///
/// # Errors
/// [`Error::Invalid`] names that cache; [`Error::Path`] where the origin cannot be looked at.
pub fn check(origin: &Path, cache: &Path) -> Result<()> {
    let others = others(origin, cache)?;
    let Some(Other { id, said, origin, .. }) = others.first() else { return Ok(()) };
    let is_ours = said.host == host();
    let on_host = if is_ours { String::new() } else { format!(" on {}", said.host) };
    let remedy = if is_ours && Path::new(&said.cache) == cache {
        "mount the device of that cache there first"
    } else {
        "mount with that cache, which brings them home"
    };
    Err(Error::invalid(
        format!(
            "the origin {} may be older than what its cache {}{on_host} has (id {id}), which is another one than in {}: it was \
             not ended in order, or with dirty data",
            origin.display(),
            said.cache,
            cache.display()
        ),
        format!("{remedy}; if it is lost for good, go on without its bytes: --cache-lost"),
    ))
}

/// Goes on without the bytes that caches other than the one in `cache` may hold: their marks are removed, where that is
/// permitted.
///
/// # Errors
/// [`Error::Path`] where the origin cannot be looked at.
pub fn forget_others(origin: &Path, cache: &Path) -> Result<()> {
    for Other { id, said, origin, attribute } in others(origin, cache)? {
        tracing::warn!(
            "going on without the bytes that only the cache {} (id {id}) has",
            said.cache
        );
        if let Err(error) = attribute.clear() {
            tracing::warn!("{}: the mark of that cache stays: {error}", origin.display());
        }
    }
    Ok(())
}

/// Other caches whose marks are on this origin or above it.
fn others(origin: &Path, cache: &Path) -> Result<Vec<Other>> {
    let own = identity_of(cache)?.map(|identity| identity.cache_id);
    let real = fs::canonicalize(origin).map_err(Error::at(origin, "look at"))?;
    let mut others = Vec::new();
    for dir in real.ancestors() {
        let found = marks_on(dir);
        // Who may not read a directory above may not be kept from what is below it.
        let found = if dir == real { found? } else { found.unwrap_or_default() };
        others.extend(found.into_iter().filter(|other| own.as_ref() != Some(&other.id)));
    }
    Ok(others)
}

/// The marks on a directory that are its own.
fn marks_on(path: &Path) -> Result<Vec<Other>> {
    let at = || Error::at(path, "read the marks of caches on");
    let dir = File::open(path).map_err(at())?;
    let key = key_of(&dir).map_err(at())?;
    let mut marks = Vec::new();
    for id in OriginAttribute::caches(&dir, WHAT).map_err(at())? {
        let dir = dir.try_clone().map_err(at())?;
        let attribute = OriginAttribute::new(dir, WHAT, &id).map_err(at())?;
        // One that is longer than any was not made by us.
        let Ok(mark) = attribute.read(MARK_BYTES_MAX) else { continue };
        let said: Option<Said> = serde_json::from_slice(&mark).ok();
        // Whoever may write to the directory may have written it.
        let is_plain =
            |said: &Said| !format!("{}{}", said.host, said.cache).contains(char::is_control);
        let said = said
            .filter(is_plain)
            .filter(|said| (said.origin_inode, said.origin_born_ns) == (key.inode, key.born_ns));
        marks.extend(said.map(|said| Other { id, said, origin: path.to_owned(), attribute }));
    }
    Ok(marks)
}

fn key_of(dir: &File) -> std::io::Result<OriginKey> {
    let found = dir.metadata()?;
    Ok(OriginKey { inode: found.ino(), born_ns: born_ns(&found) })
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
