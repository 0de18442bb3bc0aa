//! The file that identifies a directory as a cache.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use halocline_os::bounded::SMALL_FILE_BYTES_MAX;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use serde::{Deserialize, Serialize};

use super::lease::LEASE_FILE;

/// Name of the file that identifies a directory as a cache.
pub const CACHE_FILE: &str = "halocline-cache.toml";

/// Version of a new directory's format.
pub(super) const FORMAT: u32 = 1;
/// The same with a ring of changes ahead of a store (2), checksums of cached data (3), and records in a log of our own
/// (4). A program that does not know these would ignore changes in the ring, leave checksums of bytes that it
/// overwrote, or find no records.
pub(super) const FORMAT_NOW: u32 = 4;

/// The contents of [`CACHE_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheIdentity {
    /// Version of the format of the directory.
    pub format: u32,
    /// Distinguishes caches; random.
    pub cache_id: String,
    /// The kind of its record store, if it is not the default. A program that does not know the kind refuses the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_store: Option<String>,
}

/// The identity of a directory, if it is a cache; nothing is created.
pub fn identity_of(dir: &Path) -> Result<Option<CacheIdentity>> {
    match PrivateDir::look(dir) {
        Err(error) if error.errno() == libc::ENOENT => Ok(None),
        dir => identity_in(&dir?),
    }
}

pub(super) fn identity_in(dir: &PrivateDir) -> Result<Option<CacheIdentity>> {
    let Some(bytes) = dir.read(CACHE_FILE, SMALL_FILE_BYTES_MAX)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let damaged = |what: String| Error::Store {
        path: dir.path().to_owned(),
        what,
        remedy: format!(
            "restore {CACHE_FILE} from a copy, or move the directory away and start with an empty \
             cache (dirty data in it is then lost)"
        ),
    };
    let identity: CacheIdentity = toml::from_str(&text)
        .map_err(|error| damaged(format!("{CACHE_FILE} cannot be read: {}", error.message())))?;
    if !(FORMAT..=FORMAT_NOW).contains(&identity.format) {
        return Err(Error::Store {
            path: dir.path().to_owned(),
            what: format!("its format is {}, this program knows {FORMAT_NOW}", identity.format),
            remedy:
                "use the version of halocline that made it, and flush the cache with it before \
                     changing versions"
                    .to_owned(),
        });
    }
    Ok(Some(identity))
}

pub(super) fn make_identity(dir: &PrivateDir) -> Result<CacheIdentity> {
    let random = Path::new("/proc/sys/kernel/random/uuid");
    let cache_id = fs::read_to_string(random).map_err(Error::at(random, "read"))?;
    let cache_id = cache_id.trim().to_owned();
    let identity = CacheIdentity { format: FORMAT, cache_id, record_store: None };
    write_identity(dir, &identity)?;
    Ok(identity)
}

pub(super) fn write_identity(dir: &PrivateDir, identity: &CacheIdentity) -> Result<()> {
    let text = toml::to_string(identity).expect("an identity is two plain fields");
    dir.replace(CACHE_FILE, text.as_bytes())
}

/// The error for a directory `dir` with these names, if it holds a cache or a file tier whose identity file is missing.
pub fn lost_identity(dir: &Path, names: &[OsString]) -> Option<Error> {
    /// Names that nothing else is likely to have.
    const OURS: [&str; 2] = [LEASE_FILE, "tier.json"];
    names.iter().any(|name| OURS.iter().any(|ours| name == ours)).then(|| Error::Store {
        path: dir.to_owned(),
        what: format!("{CACHE_FILE} is missing, and the directory holds a cache or a file tier"),
        remedy: format!(
            "restore it from a copy, or write it anew, in two lines: `format = {FORMAT_NOW}` (of a file tier {FORMAT}), \
             `cache_id = \"ID\"`; the ID of a file tier is `set` in the tier.json of its tiers, and that of a cache with dirty \
             data is told by a mount of its origin with another cache"
        ),
    })
}

/// Name of the file until it is complete.
pub(super) fn fresh_name() -> String {
    format!("{CACHE_FILE}.new")
}
