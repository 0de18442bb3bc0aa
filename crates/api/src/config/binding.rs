//! What a cache belongs to: its origin, and the shape in which its objects were written.
//!
//! Extents are found by file number, layout and group. With another origin, or other servers, the same records would
//! refer to other bytes (I1, I2); so a cache that does not match is refused.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use halocline_model::layout::CacheGeometry;
use serde::{Deserialize, Serialize};

use super::Config;
use super::bounds::{SERVERS_MAX, STRIPE_BYTES_MAX};
use halocline_os::birth_time::born_ns;
use halocline_os::counted::counted;
use halocline_os::error::{Error, Result};
use halocline_os::private::{self, PrivateDir};

/// Name of the file in the cache directory.
pub(crate) const BINDING_FILE: &str = "halocline-binding.toml";

/// An origin and a shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The origin's path when the cache was last used.
    pub origin: PathBuf,
    /// Inode number of the origin directory.
    pub origin_inode: u64,
    /// Birth time of the origin directory in nanoseconds since the epoch; 0 if the file system reports none.
    pub origin_born_ns: u64,
    /// Number of cache servers.
    pub cache_servers: u32,
    /// Stripe of the cache in bytes; 0 on one server, where it has no effect.
    pub cache_stripe: u64,
    /// Groups of the 2-D layout; 0 if that layout is not a candidate.
    pub groups: u32,
}

impl Binding {
    /// The binding that a mount of `origin` with `config` needs.
    pub fn of(origin: &Path, config: &Config) -> Result<Self> {
        let found = fs::metadata(origin).map_err(Error::at(origin, "look at the origin"))?;
        let shape = config.cache_shape();
        let geometry = CacheGeometry::new(shape.servers, shape.stripe, config.groups);
        Ok(Self {
            origin: origin.to_owned(),
            origin_inode: found.ino(),
            origin_born_ns: born_ns(&found),
            cache_servers: geometry.servers(),
            cache_stripe: if geometry.servers() == 1 { 0 } else { geometry.stripe() },
            groups: geometry.groups().unwrap_or(0),
        })
    }

    /// What the cache in `dir` is bound to; `None` if it was never used.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(BINDING_FILE);
        let Some(bytes) = private::read(dir, BINDING_FILE)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes);
        let wrong = |what: &str| {
            Error::invalid(
                format!("{}: {what}", path.display()),
                "restore the file, or, if nothing dirty is on the cache, empty its directory",
            )
        };
        let binding: Self =
            toml::from_str(&text).map_err(|error: toml::de::Error| wrong(error.message()))?;
        if !(1..=SERVERS_MAX).contains(&binding.cache_servers) {
            return Err(wrong(&format!("cache_servers is not from 1 to {SERVERS_MAX}")));
        }
        let striped = binding.cache_servers > 1;
        if striped && !(1..=STRIPE_BYTES_MAX).contains(&binding.cache_stripe) {
            return Err(wrong(&format!("cache_stripe is not from 1 to {STRIPE_BYTES_MAX}")));
        }
        if binding.groups > binding.cache_servers {
            return Err(wrong("there are more groups than cache_servers"));
        }
        Ok(Some(binding))
    }

    /// The geometry in which the cache's objects are written.
    pub fn geometry(&self) -> CacheGeometry {
        CacheGeometry::new(self.cache_servers, self.cache_stripe.max(1), self.groups)
    }

    /// Refuses the cache in `dir` if it belongs to something else.
    pub fn check(&self, dir: &Path) -> Result<()> {
        let Some(before) = Self::load(dir)? else { return Ok(()) };
        let shape = |binding: &Self| {
            format!(
                "{}, stripe {}, {}",
                counted(binding.cache_servers, "server"),
                binding.cache_stripe,
                counted(binding.groups, "group")
            )
        };
        if before.geometry() != self.geometry() {
            return Err(Error::invalid(
                format!(
                    "cache {} was written in another shape: {}, and not {}",
                    dir.display(),
                    shape(&before),
                    shape(self)
                ),
                "use the same --emulate, --cache-servers, --cache-stripe and --groups as before; \
                 or unmount it once with these, which flushes it, and empty its directory",
            ));
        }
        let identity = |binding: &Self| (binding.origin_inode, binding.origin_born_ns);
        if identity(&before) != identity(self) {
            return Err(Error::invalid(
                format!(
                    "cache {} belongs to the origin {}, and {} is another directory",
                    dir.display(),
                    before.origin.display(),
                    self.origin.display()
                ),
                "see whether the origin's disk is mounted; or, if nothing dirty is on the cache \
                 (halocline fsck tells), empty its directory",
            ));
        }
        Ok(())
    }

    /// Refuses the directory that is at the origin's path if it is not the origin.
    pub fn check_origin(&self) -> Result<()> {
        let origin = &self.origin;
        let found = fs::metadata(origin).map_err(Error::at(origin, "look at the origin"))?;
        if (found.ino(), born_ns(&found)) == (self.origin_inode, self.origin_born_ns) {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{} is another directory than the origin", origin.display()),
            "see whether the origin's disk is mounted",
        ))
    }

    /// Writes the binding into the cache directory, whose lock the caller holds.
    pub fn record(&self, dir: &Path) -> Result<()> {
        if Self::load(dir)?.as_ref() == Some(self) {
            return Ok(());
        }
        let path = dir.join(BINDING_FILE);
        let failed = |error: toml::ser::Error| {
            Error::invalid(
                format!(
                    "origin {}: {error}, and {} notes it",
                    self.origin.display(),
                    path.display()
                ),
                "use a path that is UTF-8",
            )
        };
        let text = toml::to_string(self).map_err(failed)?;
        PrivateDir::open(dir)?.replace(BINDING_FILE, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_fits_its_origin_and_shape_only() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let path = scratch.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let (origin, other, cache) = (dir("origin"), dir("other"), dir("cache"));
        let plain = Config::default();
        let mut striped = Config::default();
        let emulate = crate::config::OptionSpec::find("emulate").unwrap();
        striped.set(emulate, "8xhdd+4xssd").unwrap();

        let bound = Binding::of(&origin, &plain).unwrap();
        bound.check(&cache).unwrap();
        bound.record(&cache).unwrap();
        bound.check(&cache).unwrap();
        assert_eq!(Binding::load(&cache).unwrap(), Some(bound));
        let shape = Binding::of(&origin, &striped).unwrap().check(&cache).unwrap_err().to_string();
        assert!(shape.contains("another shape") && shape.contains("4 servers"), "{shape}");
        let stray = Binding::of(&other, &plain).unwrap().check(&cache).unwrap_err().to_string();
        assert!(stray.contains("belongs to the origin"), "{stray}");

        let moved = scratch.path().join("moved");
        fs::rename(&origin, &moved).unwrap();
        let moved = Binding::of(&moved, &plain).unwrap();
        moved.check(&cache).unwrap();
        moved.record(&cache).unwrap();
        assert_eq!(Binding::load(&cache).unwrap(), Some(moved));
    }

    #[test]
    fn a_shape_that_no_cache_has_is_refused_with_the_remedy() {
        let scratch = tempfile::tempdir().unwrap();
        let (origin, cache) = (scratch.path().join("origin"), scratch.path().join("cache"));
        fs::create_dir(&origin).unwrap();
        fs::create_dir(&cache).unwrap();
        let mut striped = Config::default();
        striped.set(crate::config::OptionSpec::find("emulate").unwrap(), "8xhdd+4xssd").unwrap();
        Binding::of(&origin, &striped).unwrap().record(&cache).unwrap();
        let sound = fs::read_to_string(cache.join(BINDING_FILE)).unwrap();
        for (key, value) in [
            ("cache_servers", "0"),
            ("cache_servers", "4294967295"),
            ("cache_stripe", "0"),
            ("cache_stripe", "9223372036854775807"),
            ("groups", "5"),
        ] {
            let line = sound.lines().find(|line| line.starts_with(key)).unwrap();
            let broken = sound.replace(line, &format!("{key} = {value}"));
            fs::write(cache.join(BINDING_FILE), broken).unwrap();
            let error = Binding::load(&cache).unwrap_err().to_string();
            assert!(error.contains(BINDING_FILE) && error.contains(key), "{key}: {error}");
        }
    }

    #[test]
    fn the_stripe_of_one_server_has_no_effect() {
        let scratch = tempfile::tempdir().unwrap();
        let small = Config::default();
        let mut large = Config::default();
        large.cache.stripe = 1 << 20;
        let bind = |config| Binding::of(scratch.path(), config).unwrap();
        assert_eq!(bind(&small), bind(&large));
    }
}
