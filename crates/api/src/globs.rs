//! Pin and exclude globs over paths below the origin.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};

use halocline_os::bounded::{self, TEXT_BYTES_MAX};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// The two sets of globs, with their sources for `status`.
#[derive(Debug, Default)]
pub struct Globs {
    pin: Set,
    exclude: Set,
}

/// Whether a path given by a person is a glob.
pub fn is_glob(path: &str) -> bool {
    path.contains(['*', '?', '[', '{'])
}

/// The directory, or the file, at or below which all matches of a glob are.
pub fn beginning(glob: &str) -> PathBuf {
    // An escaped character does not stand for itself.
    let is_plain = |part: &&str| !is_glob(part) && !part.is_empty() && !part.contains('\\');
    glob.split('/').take_while(is_plain).collect()
}

/// Refuses a glob that can match no path below a mount: no one would notice that it has no effect. (Such globs saved by
/// an earlier version are kept.)
fn check_can_match(glob: &str) -> Result<()> {
    let remedy = match glob.split('/').find(|part| ["", ".", ".."].contains(part)) {
        None => return Ok(()),
        Some(_) if glob.is_empty() => "write ** for everything",
        Some(_) if glob.starts_with('/') => "write it as a path below the mount point",
        Some(_) if glob.ends_with('/') => "write DIR/** for all that is below a directory",
        Some(_) => "write it without empty parts, . and ..",
    };
    Err(Error::invalid(format!("glob {glob:?}: no path below the mount matches it"), remedy))
}

/// File in the cache directory that keeps the globs set by commands.
const RULES: &str = "rules.json";

/// Limit of that file in bytes.
const RULES_BYTES_MAX: u64 = 16 << 20;
/// Limit of the globs of one kind, and of their total bytes: each is compiled into every matcher.
const GLOBS_MAX: usize = 4096;
const GLOB_BYTES_MAX: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GlobsFile {
    #[serde(deserialize_with = "bounded::list::<_, _, GLOBS_MAX>")]
    pin: Vec<String>,
    #[serde(deserialize_with = "bounded::list::<_, _, GLOBS_MAX>")]
    exclude: Vec<String>,
}

#[derive(Debug, Default)]
struct Set {
    sources: Vec<String>,
    matcher: GlobSet,
}

impl Globs {
    /// Compiles both lists.
    pub(crate) fn new(pin: &[String], exclude: &[String]) -> Result<Self> {
        Ok(Self { pin: Set::new(pin.to_vec())?, exclude: Set::new(exclude.to_vec())? })
    }

    /// Whether no glob is set.
    pub fn is_empty(&self) -> bool {
        self.pin.sources.is_empty() && self.exclude.sources.is_empty()
    }

    /// Whether anything is pinned.
    pub fn has_pins(&self) -> bool {
        !self.pin.sources.is_empty()
    }

    /// Whether anything is excluded.
    pub fn has_excludes(&self) -> bool {
        !self.exclude.sources.is_empty()
    }

    /// Whether `path` is pinned, so that its cached bytes stay.
    pub fn pins(&self, path: &Path) -> bool {
        self.pin.matcher.is_match(path)
    }

    /// Whether `path` is never cached.
    pub fn excludes(&self, path: &Path) -> bool {
        self.exclude.matcher.is_match(path)
    }

    /// Adds a pin; a glob that already exists is not added again.
    pub fn add_pin(&mut self, glob: &str) -> Result<()> {
        check_can_match(glob)?;
        self.pin.add(glob)
    }

    /// Removes a pin; an error if it was never set.
    pub fn remove_pin(&mut self, glob: &str) -> Result<()> {
        self.pin.remove(glob, "pinned")
    }

    /// Adds an exclusion.
    pub fn add_exclude(&mut self, glob: &str) -> Result<()> {
        check_can_match(glob)?;
        self.exclude.add(glob)
    }

    /// Removes an exclusion; an error if it was never set.
    pub fn remove_exclude(&mut self, glob: &str) -> Result<()> {
        self.exclude.remove(glob, "excluded")
    }

    /// The globs that commands set in earlier sessions of this cache, together with the `configured` ones.
    pub fn load(cache_dir: &Path, pin: &[String], exclude: &[String]) -> Result<Self> {
        let path = cache_dir.join(RULES);
        pin.iter().chain(exclude).try_for_each(|glob| check_can_match(glob))?;
        let mut globs = Self::new(pin, exclude)?;
        let dir = match PrivateDir::look(cache_dir) {
            Err(error) if error.errno() == libc::ENOENT => return Ok(globs),
            dir => dir?,
        };
        let Some(json) = dir.read(RULES, RULES_BYTES_MAX)? else { return Ok(globs) };
        let saved: GlobsFile = serde_json::from_slice(&json).map_err(|error| {
            Error::invalid(
                format!("{}: {error}", path.display()),
                "delete the file and set the pins and excludes again",
            )
        })?;
        globs.pin.add_all(saved.pin)?;
        globs.exclude.add_all(saved.exclude)?;
        Ok(globs)
    }

    /// Saves the globs for the next mount of this cache.
    pub fn save(&self, cache_dir: &Path) -> Result<()> {
        let saved =
            GlobsFile { pin: self.pin.sources.clone(), exclude: self.exclude.sources.clone() };
        let json = serde_json::to_vec_pretty(&saved).expect("globs are plain data");
        PrivateDir::open(cache_dir)?.replace(RULES, &json)
    }

    /// Adds all globs of another list that are missing in this one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if these are too many then.
    pub fn add_all_of(&mut self, other: &Self) -> Result<()> {
        self.pin.add_all(other.pin.sources.clone())?;
        self.exclude.add_all(other.exclude.sources.clone())
    }

    /// Removes what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// If the directory does not take the change.
    pub fn forget(cache_dir: &Path) -> Result<()> {
        PrivateDir::open(cache_dir)?.remove(RULES)
    }

    /// The pins as given.
    pub fn pin_sources(&self) -> &[String] {
        &self.pin.sources
    }

    /// The exclusions as given.
    pub fn exclude_sources(&self) -> &[String] {
        &self.exclude.sources
    }
}

impl Set {
    fn new(sources: Vec<String>) -> Result<Self> {
        let bytes = sources.iter().map(String::len).sum::<usize>();
        let longest = sources.iter().map(String::len).max().unwrap_or(0);
        if sources.len() > GLOBS_MAX || bytes > GLOB_BYTES_MAX || longest > TEXT_BYTES_MAX {
            return Err(Error::invalid(
                format!(
                    "more than {GLOBS_MAX} globs, {GLOB_BYTES_MAX} bytes of globs, or \
                     {TEXT_BYTES_MAX} bytes of one"
                ),
                "use fewer or shorter globs",
            ));
        }
        let mut builder = GlobSetBuilder::new();
        for source in &sources {
            // `*` matches within a directory, as in a shell; `**` matches across directories.
            let glob =
                GlobBuilder::new(source).literal_separator(true).build().map_err(|error| {
                    Error::invalid(
                        format!("glob {source:?}: {}", error.kind()),
                        "write it as in a shell; ** matches across directories",
                    )
                })?;
            builder.add(glob);
        }
        let matcher = builder.build().map_err(|error| {
            Error::invalid(format!("globs: {error}"), "use fewer or simpler globs")
        })?;
        Ok(Self { sources, matcher })
    }

    fn add(&mut self, glob: &str) -> Result<()> {
        self.add_all(vec![glob.to_owned()])
    }

    fn add_all(&mut self, globs: Vec<String>) -> Result<()> {
        let mut sources = self.sources.clone();
        let mut known: HashSet<String> = sources.iter().cloned().collect();
        sources.extend(globs.into_iter().filter(|glob| known.insert(glob.clone())));
        if sources.len() > self.sources.len() {
            *self = Self::new(sources)?;
        }
        Ok(())
    }

    fn remove(&mut self, glob: &str, what: &str) -> Result<()> {
        let mut sources = self.sources.clone();
        sources.retain(|source| source != glob);
        if sources.len() == self.sources.len() {
            return Err(Error::invalid(
                format!("{glob:?} is not {what}"),
                format!("`status` lists what is {what}"),
            ));
        }
        *self = Self::new(sources)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_a_shell() {
        let globs = Globs::new(&["a/*.h5".into(), "keep/**".into()], &["**/*.log".into()]).unwrap();
        assert!(globs.pins(Path::new("a/x.h5")));
        assert!(!globs.pins(Path::new("a/b/x.h5")));
        assert!(globs.pins(Path::new("keep/deep/down")));
        assert!(globs.excludes(Path::new("x.log")));
        assert!(globs.excludes(Path::new("d/e/x.log")));
    }

    #[test]
    fn matches_are_below_the_beginning() {
        for (glob, beginning) in [
            ("a/b/*.h5", "a/b"),
            ("a/b.h5", "a/b.h5"),
            ("**/x", ""),
            ("a/{b/c,d}/e", "a"),
            ("a/\\*/b", "a"),
            ("/a", ""),
        ] {
            assert_eq!(super::beginning(glob), Path::new(beginning), "{glob}");
        }
    }

    #[test]
    fn saved_rules_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let load = |text: &str| {
            std::fs::write(dir.path().join(RULES), text).unwrap();
            Globs::load(dir.path(), &[], &[]).map_err(|error| error.to_string())
        };
        assert!(load(r#"{"pin": ["a"], "exclude": ["b/**"]}"#).unwrap().pins(Path::new("a")));
        let many = format!(r#"{{"pin": [], "exclude": [{}"x"]}}"#, "\"x\",".repeat(GLOBS_MAX));
        assert!(load(&many).unwrap_err().contains("more than"));
        let long = format!(r#"{{"pin": ["{}"], "exclude": []}}"#, "x".repeat(TEXT_BYTES_MAX + 1));
        assert!(load(&long).unwrap_err().contains("shorter"));
        let huge = " ".repeat(usize::try_from(RULES_BYTES_MAX).unwrap() + 1);
        assert!(load(&huge).unwrap_err().contains("more than"));
        assert!(load(r#"{"pin": [], "exclude": [], "other": 1}"#).unwrap_err().contains("other"));
    }

    #[test]
    fn globs_that_can_never_match_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for glob in ["", "/", "/etc/*", "../x", "a/../b", "./a", "a//b", "d/", "{a,b}/./c", ".."] {
            let mut globs = Globs::default();
            let error = globs.add_pin(glob).unwrap_err().to_string();
            assert!(error.contains("no path below the mount"), "{glob:?}: {error}");
            globs.add_exclude(glob).unwrap_err();
            Globs::load(dir.path(), &[glob.into()], &[]).unwrap_err();
            Globs::load(dir.path(), &[], &[glob.into()]).unwrap_err();
        }
        for glob in [".hidden", "..a/*", "a/.b", "{a/b,c}", "[.]x"] {
            Globs::default().add_pin(glob).unwrap();
        }
        // Saved by an earlier version: the mount works, and the pin can be removed.
        std::fs::write(dir.path().join(RULES), r#"{"pin": ["/etc/*"], "exclude": []}"#).unwrap();
        let mut globs = Globs::load(dir.path(), &[], &[]).unwrap();
        globs.remove_pin("/etc/*").unwrap();
    }

    proptest::proptest! {
        #[test]
        fn any_glob_is_compiled_or_refused(glob: String, path: String) {
            let mut globs = Globs::default();
            if globs.add_pin(&glob).is_ok() {
                let _ = globs.pins(Path::new(&path));
            }
            let _ = super::beginning(&glob);
        }
    }

    #[test]
    fn globs_come_and_go_and_bad_ones_are_refused() {
        let mut globs = Globs::default();
        globs.add_pin("x").unwrap();
        globs.add_pin("x").unwrap();
        assert_eq!(globs.pin_sources(), ["x"]);
        globs.remove_pin("x").unwrap();
        assert!(globs.is_empty());
        assert!(globs.remove_pin("x").unwrap_err().to_string().contains("not pinned"));
        assert!(globs.add_exclude("a[").unwrap_err().to_string().contains("a["));
        assert!(globs.is_empty(), "a refused glob changes nothing");
    }
}
