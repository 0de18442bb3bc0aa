//! The mark on an origin for which a cache may hold newer bytes.
//!
//! If a cache's device is not mounted, its directory is missing, and a mount over the bare mount point would create an
//! empty cache and serve the origin's old bytes (I1). So a cache marks its origin before its first dirty byte is
//! acknowledged, and removes the mark when it is left without dirty bytes; while another cache's mark is there, no
//! mount without that cache can begin. Likewise, bcache and LVM refuse a dirty origin without its cache.
//!
//! The mark is an extended attribute of the origin's directory. Without support by the file system or the permissions,
//! there is no such protection.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::OriginKey;
use super::identity::identity_of;
use super::origin_attribute::OriginAttribute;
use halocline_os::birth_time::born_ns;
use halocline_os::clock::{age_ms, coarse_ms};
use halocline_os::error::{Error, Result};

/// The subject of the attribute.
const WHAT: &str = "dirty";
/// A mark is short; a longer value is not a mark.
const MARK_BYTES_MAX: usize = 8192;

/// Pause before a mark is retried that the origin refuses for now.
const TRY_AGAIN_MS: u64 = 1000;

/// The contents of a mark.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MarkContent {
    /// The host on which the cache was last mounted.
    host: String,
    /// Its directory there, as displayable text.
    cache: String,
    /// Identifies that directory: a copy of it has the same id, but other bytes.
    cache_inode: u64,
    cache_born_ns: u64,
    /// Identifies the marked directory: a copy with its attributes has another inode.
    origin_inode: u64,
    origin_born_ns: u64,
}

impl MarkContent {
    fn of(origin: &File, cache: &Path) -> io::Result<Self> {
        let (origin, dir) = (key_of(origin)?, key_of(&File::open(cache)?)?);
        Ok(Self {
            host: host(),
            cache: cache.display().to_string(),
            cache_inode: dir.inode,
            cache_born_ns: dir.born_ns,
            origin_inode: origin.inode,
            origin_born_ns: origin.born_ns,
        })
    }

    /// Parses the value of a mark on the origin with this key. Anyone who may write to the directory may have written
    /// it.
    fn parse(value: &[u8], origin: OriginKey) -> Option<Self> {
        let mark: Self = serde_json::from_slice(value).ok()?;
        let is_plain = !format!("{}{}", mark.host, mark.cache).contains(char::is_control);
        let is_of_it = (mark.origin_inode, mark.origin_born_ns) == (origin.inode, origin.born_ns);
        (is_plain && is_of_it).then_some(mark)
    }

    fn is_by(&self, cache: OriginKey) -> bool {
        (self.cache_inode, self.cache_born_ns) == (cache.inode, cache.born_ns)
    }
}

/// The mark of one cache.
#[derive(Debug, Default)]
pub(super) struct OriginMark {
    /// `None` without an origin, or if it does not support attributes.
    attribute: Option<OriginAttribute>,
    mark: Vec<u8>,
    /// Whether the mark is on the origin as this session writes it.
    is_set: AtomicBool,
    is_left_off: AtomicBool,
    /// When none could be set; for a moment after it, none is tried.
    failed_ms: AtomicU64,
    changing: Mutex<Changing>,
}

#[derive(Debug, Default)]
struct Changing {
    /// Whether a mark by this cache is there, made now or earlier.
    is_there: bool,
    was_told: bool,
}

impl OriginMark {
    /// The mark of the cache with this id in `cache` on `origin`.
    pub(super) fn open(origin: Option<&Path>, cache: &Path, cache_id: &str) -> Self {
        let opened = origin.map(|origin| -> io::Result<_> {
            let dir = File::open(origin)?;
            let (key, mark) = (key_of(&dir)?, MarkContent::of(&dir, cache)?);
            let attribute = OriginAttribute::new(dir, WHAT, cache_id)?;
            let found = attribute.read_own(MARK_BYTES_MAX).unwrap_or_default();
            let found = MarkContent::parse(&found, key).filter(|found| {
                // If this is a copy, the original's mark stays.
                (found.cache_inode, found.cache_born_ns) == (mark.cache_inode, mark.cache_born_ns)
            });
            Ok(Self {
                attribute: Some(attribute),
                mark: serde_json::to_vec(&mark)?,
                is_set: (found.as_ref() == Some(&mark)).into(),
                changing: Mutex::new(Changing { is_there: found.is_some(), was_told: false }),
                ..Self::default()
            })
        });
        opened.transpose().map_or_else(
            |error| {
                tracing::debug!(%error, "the origin takes no mark");
                Self::default()
            },
            Option::unwrap_or_default,
        )
    }

    /// To be called before a dirty byte is acknowledged. Only the first call has a cost.
    pub(super) fn set(&self) {
        if self.is_set.load(Ordering::Acquire) || self.is_left_off.load(Ordering::Acquire) {
            return;
        }
        let Some(attribute) = &self.attribute else { return self.leave_off() };
        if age_ms(coarse_ms(), self.failed_ms.load(Ordering::Acquire)) < TRY_AGAIN_MS {
            return;
        }
        let mut changing = self.changing.lock();
        if self.is_set.load(Ordering::Acquire) {
            return;
        }
        // For users who cannot see root's mark: written first, because the other is synced.
        let advised = attribute.write_for_users(&self.mark);
        let Err(error) = attribute.write(&self.mark) else {
            if let Err(error) = advised {
                tracing::debug!(%error, "the origin takes no mark for other users");
            }
            changing.is_there = true;
            return self.is_set.store(true, Ordering::Release);
        };
        let never = [libc::EOPNOTSUPP, libc::EPERM, libc::EACCES, libc::EROFS];
        if error.raw_os_error().is_some_and(|errno| never.contains(&errno)) {
            tracing::debug!(%error, "the origin takes no mark");
            return self.leave_off();
        }
        self.failed_ms.store(coarse_ms(), Ordering::Release);
        if !std::mem::replace(&mut changing.was_told, true) {
            tracing::warn!(
                %error,
                "the origin cannot be marked just now: without its cache it would be served with old bytes; tried again"
            );
        }
    }

    /// Makes no marks from now on.
    pub(super) fn leave_off(&self) {
        self.is_left_off.store(true, Ordering::Release);
    }

    /// To be called when nothing is dirty any more, and the origin has everything durably.
    pub(super) fn clear(&self) {
        let mut changing = self.changing.lock();
        self.is_set.store(false, Ordering::Release);
        if !std::mem::take(&mut changing.is_there) {
            return;
        }
        if let Some(Err(error)) = self.attribute.as_ref().map(OriginAttribute::clear_everywhere) {
            tracing::warn!(%error, "the origin keeps the mark that a cache has newer bytes");
        }
    }
}

/// Another cache that may hold bytes that the origin does not have.
#[derive(Debug)]
struct Other {
    id: String,
    mark: MarkContent,
    /// The directory that it marked.
    origin: PathBuf,
    attribute: OriginAttribute,
}

/// Refuses an origin if a cache other than the one in `cache` may hold newer bytes of it or of a directory above it.
/// Those whose id `is_coherent` does not count: they give away what they have.
///
/// # Errors
/// [`Error::Invalid`] names that cache; [`Error::Path`] if the origin cannot be examined.
pub fn check(origin: &Path, cache: &Path, is_coherent: impl Fn(&str) -> bool) -> Result<()> {
    let mut others = others(origin, cache)?;
    others.retain(|other| !is_coherent(&other.id));
    let Some(Other { id, mark, origin, .. }) = others.first() else { return Ok(()) };
    let is_here = mark.host == host();
    let on_host = if is_here { String::new() } else { format!(" on {}", mark.host) };
    let is_copy = identity_of(cache)?.is_some_and(|identity| identity.cache_id == *id);
    let what = if is_copy { "of which the one here is a copy" } else { "not the one here" };
    let remedy = if is_here && Path::new(&mark.cache) == cache {
        "mount the device of that cache there first"
    } else {
        "mount with that cache, which flushes its data to the origin"
    };
    Err(Error::invalid(
        format!(
            "the origin {} may be out of date: a cache that was last used in {}{on_host} (id {id}), {what}, was killed or \
             left with dirty data",
            origin.display(),
            mark.cache
        ),
        format!("{remedy}; if it is lost for good, go on without its bytes: --cache-lost"),
    ))
}

/// Accepts the loss of bytes that caches other than the one in `cache` may hold: removes their marks if possible, except
/// those of the caches that are `coherent`. These are listed after the marks: a cache becomes coherent before it marks the
/// origin, so the mark of one that begins meanwhile stays.
pub fn forget_others(
    origin: &Path,
    cache: &Path,
    mut coherent: impl FnMut() -> Result<BTreeSet<String>>,
) {
    let listed = others(origin, cache).and_then(|others| Ok((others, coherent()?)));
    let (mut lost, known) = match listed {
        Ok(listed) => listed,
        Err(error) => return tracing::warn!("marks of other caches stay: {error}"),
    };
    lost.retain(|other| !known.contains(&other.id));
    for Other { id, mark, origin, attribute } in &lost {
        tracing::warn!(
            "going on without the bytes that only the cache {} (id {id}) has",
            mark.cache
        );
        if let Err(error) = attribute.clear_everywhere() {
            tracing::warn!("{}: the mark of that cache stays: {error}", origin.display());
        }
    }
    if lost.is_empty() {
        return;
    }
    // One that was thought lost may have begun since, and what was removed is then the mark that it made now.
    let returned = coherent().unwrap_or_else(|_| lost.iter().map(|lost| lost.id.clone()).collect());
    for Other { id, mark, origin, attribute } in &lost {
        let restored = returned.contains(id).then(|| attribute.write(&serde_json::to_vec(mark)?));
        if let Some(Err(error)) = restored {
            tracing::warn!("{}: the mark of the cache {id} is missing: {error}", origin.display());
        }
    }
}

/// Removes the mark of the cache with this id from the origin: what it had is there, or is given up.
pub fn clear(origin: &Path, cache_id: &str) {
    let cleared = File::open(origin)
        .and_then(|dir| OriginAttribute::new(dir, WHAT, cache_id)?.clear_everywhere());
    if let Err(error) = cleared {
        tracing::warn!("{}: the mark of a cache that is gone stays: {error}", origin.display());
    }
}

/// Other caches with marks on this origin or above it.
fn others(origin: &Path, cache: &Path) -> Result<Vec<Other>> {
    let at = || Error::at(cache, "look at");
    let own = identity_of(cache)?.map(|identity| identity.cache_id);
    let dir = File::open(cache).and_then(|dir| key_of(&dir)).map_err(at())?;
    let real = fs::canonicalize(origin).map_err(Error::at(origin, "look at"))?;
    let is_own = |other: &Other| own.as_ref() == Some(&other.id) && other.mark.is_by(dir);
    let mut others = Vec::new();
    for path in real.ancestors() {
        let opened = match File::open(path) {
            // A user who may not read a directory above must still be able to use those below it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && path != real => {
                continue;
            }
            opened => opened.map_err(Error::at(path, "read the marks of caches on"))?,
        };
        if let Some(own) = own.as_ref().filter(|_| path == real)
            && mark_of(&opened, path, own)?.is_some_and(|mark| is_own(&mark))
        {
            // Other marks cannot have been added while this cache's was there.
            continue;
        }
        others.extend(marks_on(&opened, path)?.into_iter().filter(|other| !is_own(other)));
    }
    Ok(others)
}

/// The marks on a directory that were made for it.
fn marks_on(dir: &File, path: &Path) -> Result<Vec<Other>> {
    let ids = OriginAttribute::caches(dir, WHAT).map_err(|error| match error.raw_os_error() {
        Some(libc::E2BIG) => Error::invalid(
            format!(
                "{}: somebody set more attributes there than can be listed, so nobody can tell whether a cache has newer \
                 bytes",
                path.display()
            ),
            "have them removed; or go on without such bytes: --cache-lost",
        ),
        _ => Error::at(path, "list the marks of caches on")(error),
    })?;
    let marks = ids.iter().map(|id| mark_of(dir, path, id));
    marks.filter_map(Result::transpose).collect()
}

/// The mark of one cache. A mark that cannot be trusted is only reported.
fn mark_of(dir: &File, path: &Path, id: &str) -> Result<Option<Other>> {
    let at = || Error::at(path, "read the marks of caches on");
    let key = key_of(dir).map_err(at())?;
    let dir = dir.try_clone().map_err(at())?;
    let attribute = OriginAttribute::new(dir, WHAT, id).map_err(at())?;
    // A longer one is not ours.
    let own = attribute.read_own(MARK_BYTES_MAX).unwrap_or_default();
    let (of_users, is_believed) = attribute.read_of_users(MARK_BYTES_MAX).unwrap_or_default();
    let by_users = MarkContent::parse(&of_users, key);
    let mark = MarkContent::parse(&own, key).or_else(|| {
        let mark = by_users?;
        if !is_believed {
            tracing::warn!(
                "{}: if a user who may write there is right, the cache {} on {} has newer bytes",
                path.display(),
                mark.cache,
                mark.host
            );
        }
        is_believed.then_some(mark)
    });
    Ok(mark.map(|mark| Other { id: id.to_owned(), mark, origin: path.to_owned(), attribute }))
}

fn key_of(dir: &File) -> io::Result<OriginKey> {
    let found = dir.metadata()?;
    Ok(OriginKey { inode: found.ino(), born_ns: born_ns(&found) })
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
    use tempfile::TempDir;

    use super::*;
    use crate::owner::Owner;

    struct Sides {
        origin: TempDir,
        cache: TempDir,
    }

    impl Sides {
        fn new() -> Self {
            Self { origin: TempDir::new().unwrap(), cache: TempDir::new().unwrap() }
        }

        fn owner(&self, cache: &Path) -> Owner {
            Owner::take_with_witness(cache, Some(self.origin.path())).unwrap().0
        }

        fn check(&self, cache: &Path) -> Result<()> {
            check(self.origin.path(), cache, |_| false)
        }
    }

    /// Regression: a mounted backup removed the original's mark, and was served with old bytes.
    #[test]
    fn a_copy_of_a_cache_is_another_one() {
        let sides = Sides::new();
        let owner = sides.owner(sides.cache.path());
        owner.mark().set();
        let copy = TempDir::new().unwrap();
        let name = crate::identity::CACHE_FILE;
        fs::copy(sides.cache.path().join(name), copy.path().join(name)).unwrap();
        let refused = sides.check(copy.path()).unwrap_err().to_string();
        assert!(refused.contains("of which the one here is a copy"), "{refused}");
        sides.owner(copy.path()).mark().clear();
        sides.check(copy.path()).unwrap_err();
        sides.check(sides.cache.path()).unwrap();
        owner.mark().clear();
        sides.check(copy.path()).unwrap();
    }

    /// Regression: the remedy named a place where the cache had been earlier.
    #[test]
    fn a_mark_says_where_the_cache_is_now() {
        let sides = Sides::new();
        let places = ["old", "new"].map(|name| sides.cache.path().join(name));
        fs::create_dir(&places[0]).unwrap();
        sides.owner(&places[0]).mark().set();
        fs::rename(&places[0], &places[1]).unwrap();
        let owner = sides.owner(&places[1]);
        owner.mark().set();
        let other = TempDir::new().unwrap();
        let refused = sides.check(other.path()).unwrap_err().to_string();
        assert!(refused.contains(places[1].to_str().unwrap()), "{refused}");
        owner.mark().clear();
        sides.check(other.path()).unwrap();
    }

    /// Regression: a full origin accepted no mark, and none was tried when it had room again.
    #[test]
    fn a_mark_that_is_refused_is_tried_again() {
        let sides = Sides::new();
        let mut owner = sides.owner(sides.cache.path());
        let mark = std::mem::replace(&mut owner.mark_mut().mark, vec![b' '; 1 << 20]);
        owner.mark().set();
        owner.mark_mut().mark = mark;
        let other = TempDir::new().unwrap();
        sides.check(other.path()).unwrap();
        owner.mark().set();
        sides.check(other.path()).unwrap();
        // As if the clock had been set back by an hour since: that took an hour.
        owner.mark().failed_ms.store(coarse_ms() + 3_600_000, Ordering::Release);
        owner.mark().set();
        sides.check(other.path()).unwrap_err();
    }

    /// Regression: others' attributes hid the marks, or blocked the origin's own cache with no remedy.
    #[test]
    fn more_attributes_than_can_be_listed_are_told_of() {
        let fast = Path::new("/dev/shm");
        let origin = if fast.is_dir() { TempDir::new_in(fast) } else { TempDir::new() }.unwrap();
        let sides = Sides { origin, cache: TempDir::new().unwrap() };
        let dir = File::open(sides.origin.path()).unwrap();
        let own = sides.owner(sides.cache.path());
        own.mark().set();
        let planted = (0..400).try_for_each(|number| {
            let name = format!("user.halocline.dirty.{number:05}{}", "x".repeat(200));
            fsetxattr(&dir, &*name, b"{}", XattrFlags::empty())
        });
        if planted.is_err() {
            let reason = "no file system in memory with room for many attributes";
            let _told = writeln!(io::stderr(), "SKIP more_attributes_than_can_be_listed: {reason}");
            return;
        }
        sides.check(sides.cache.path()).unwrap();
        let other = TempDir::new().unwrap();
        fs::create_dir(sides.origin.path().join("sub")).unwrap();
        for origin in [sides.origin.path().to_owned(), sides.origin.path().join("sub")] {
            let refused = check(&origin, other.path(), |_| false).unwrap_err().to_string();
            assert!(refused.contains("--cache-lost"), "{refused}");
        }
        forget_others(sides.origin.path(), other.path(), || Ok(BTreeSet::new()));
    }

    /// Regression: nodes were listed before the marks were, so that the mark of one that had begun in between was removed;
    /// after a kill of that node its origin would have been served with old bytes.
    #[test]
    fn i1_the_mark_of_a_node_that_begins_meanwhile_stays() {
        let (sides, here) = (Sides::new(), TempDir::new().unwrap());
        let (lost, new) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let owners = [&sides.cache, &lost, &new].map(|cache| sides.owner(cache.path()));
        let [back, lost, new] = &owners;
        let id = |owner: &Owner| owner.identity().cache_id.clone();
        for owner in [back, lost] {
            owner.mark().set();
        }
        let mut nodes = BTreeSet::new();
        forget_others(sides.origin.path(), here.path(), || {
            let listed = nodes.clone();
            // One that is new, and one that was thought lost, begin while others are listed.
            new.mark().set();
            back.mark().set();
            nodes.extend([back, new].map(id));
            Ok(listed)
        });
        let left = others(sides.origin.path(), here.path()).unwrap();
        let left: BTreeSet<_> = left.into_iter().map(|other| other.id).collect();
        assert_eq!(left, nodes);
        assert!(!left.contains(&id(lost)));
    }

    /// Other users cannot see root's own attribute.
    #[test]
    fn users_see_the_mark_of_root() {
        let sides = Sides::new();
        let owner = sides.owner(sides.cache.path());
        owner.mark().set();
        let name = format!("user.halocline.dirty.{}", owner.identity().cache_id);
        let dir = File::open(sides.origin.path()).unwrap();
        assert!(fgetxattr(&dir, &*name, &mut [0; 4096]).unwrap() > 0);
        owner.mark().clear();
        fgetxattr(&dir, &*name, &mut [0; 4096]).unwrap_err();
    }
}
