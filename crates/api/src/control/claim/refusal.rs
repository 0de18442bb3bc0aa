//! Error messages about a directory that another process uses.

use std::path::Path;

use super::DirectoryInUse;
use halocline_os::error::Error;

impl From<DirectoryInUse> for Error {
    fn from(taken: DirectoryInUse) -> Self {
        let DirectoryInUse { wanted, wanted_cache, dir, cache, pid, uid, .. } = taken;
        // What another user reports may contain anything.
        let shown = |path: &Path| path.to_string_lossy().escape_debug().to_string();
        let what = match dir {
            dir if dir.as_os_str().is_empty() => "files of it".to_owned(),
            dir if dir == wanted => "it".to_owned(),
            dir => shown(&dir),
        };
        let with = if cache.as_os_str().is_empty() {
            String::new()
        } else {
            format!(" with the cache {}", shown(&cache))
        };
        if cache.ends_with(crate::control::tier::PRIVATE) {
            return Self::invalid(
                format!(
                    "{} is in use: process {pid} of user {uid} serves {what} as a file tier, which \
                     is mounted once at a time",
                    wanted.display()
                ),
                "end that mount first, or wait until it ends",
            );
        }
        if cache == wanted_cache && !cache.as_os_str().is_empty() {
            return Self::invalid(
                format!(
                    "{} is in use: process {pid} of user {uid} serves {what} with this cache already, \
                     and a cache is mounted at one place",
                    wanted.display()
                ),
                "use that mount, or end it first; `halocline run` with the same --origin and --cache \
                 joins it",
            );
        }
        if cache.as_os_str().is_empty() {
            return Self::invalid(
                format!(
                    "{} is in use: process {pid} of user {uid} runs a command on {what}, such as `halocline apply`",
                    wanted.display()
                ),
                "wait until it ends",
            );
        }
        if wanted_cache.as_os_str().is_empty() {
            // A command that is to have the origin for itself, without any cache.
            return Self::invalid(
                format!(
                    "{} is in use: process {pid} of user {uid} serves or uses {what}{with}",
                    wanted.display()
                ),
                "end that mount or command first, or wait until it ends",
            );
        }
        Self::invalid(
            format!(
                "{} is in use: process {pid} of user {uid} serves {what}{with}, and two caches over \
                 the same files would not see each other's newest bytes",
                wanted.display()
            ),
            "end that mount first, wait until it ends, or use its cache (`halocline run` with the \
             same --origin and --cache joins it); or give both the same --cluster",
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Regression: the refusal of a tier that was mounted twice named two caches, and a `run` that could join.
    #[test]
    fn a_file_tier_in_use_is_not_called_a_cache() {
        let (wanted, dir) = (PathBuf::from("/t/ssd"), PathBuf::from("/t/ssd"));
        let cache = dir.join(crate::control::tier::PRIVATE);
        let wanted_cache = cache.clone();
        let taken =
            DirectoryInUse { wanted, wanted_cache, dir, cache, pid: 7, uid: 8, answers: true };
        let error = Error::from(taken).to_string();
        assert!(error.contains("is in use: process 7 of user 8"), "{error}");
        assert!(error.contains("file tier") && !error.contains("cache"), "{error}");
    }

    /// Regression: the refusal of a cache that was mounted at a second place named two.
    #[test]
    fn one_cache_is_not_called_two() {
        let told = |wanted_cache: &str| {
            let (wanted, dir) = (PathBuf::from("/data"), PathBuf::from("/data"));
            let (wanted_cache, cache) = (wanted_cache.into(), PathBuf::from("/ssd/cache"));
            let taken =
                DirectoryInUse { wanted, wanted_cache, dir, cache, pid: 7, uid: 8, answers: true };
            Error::from(taken).to_string()
        };
        let same = told("/ssd/cache");
        assert!(same.contains("with this cache already") && !same.contains("two caches"), "{same}");
        let other = told("/ssd/other");
        assert!(other.contains("cache /ssd/cache, and two caches"), "{other}");
        // Regression: `apply`, which has no cache, was told of two, and that `run` joins one.
        let without = told("");
        assert!(without.contains("serves or uses it with the cache /ssd/cache; end"), "{without}");
        assert!(!without.contains("two caches") && !without.contains("joins"), "{without}");
        // Regression: a mount beside an `apply` was told to use the cache of that.
        let (wanted, dir) = (PathBuf::from("/data"), PathBuf::from("/data"));
        let (wanted_cache, cache) = ("/ssd/cache".into(), PathBuf::new());
        let taken =
            DirectoryInUse { wanted, wanted_cache, dir, cache, pid: 7, uid: 8, answers: true };
        let beside = Error::from(taken).to_string();
        assert!(beside.ends_with("such as `halocline apply`; wait until it ends"), "{beside}");
        assert!(!beside.contains("cache"), "{beside}");
    }
}
