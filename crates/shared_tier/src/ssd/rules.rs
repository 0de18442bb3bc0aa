//! Globs of files that stay on SSDs, or off them. They belong to the tier: any node can change them, and all obey
//! them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use halocline_api::control::{RuleChange, Rules as Told};
use halocline_api::globs::Globs;
use halocline_os::error::Result;
use halocline_os::locked_file::LockedFile;
use halocline_os::private::{PrivateDir, Use};
use parking_lot::RwLock;
use rustix::fs::{FlockOperation, flock};

use crate::stat_conversion::joined;

/// The file beside the rules that is locked while they are changed.
const LOCK: &str = "rules.lock";
/// The file with the rules, as [`Globs`] name it.
const RULES: &str = "rules.json";

/// The rules of the tier, and those that this mount was given.
#[derive(Debug)]
pub(crate) struct Rules {
    common: PathBuf,
    pin: Vec<String>,
    exclude: Vec<String>,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    globs: Globs,
    seen: Option<Stamp>,
}

/// A stamp that changes when the file is replaced: inode number, time in nanoseconds, size.
type Stamp = (u64, i64, u64);

impl Rules {
    /// Loads the rules from a private directory of the shared disk.
    pub(crate) fn load(common: &Path, pin: Vec<String>, exclude: Vec<String>) -> Result<Self> {
        let rules = Self { common: common.to_owned(), pin, exclude, state: RwLock::default() };
        *rules.state.write() = rules.read()?;
        Ok(rules)
    }

    fn stamp(&self) -> Option<Stamp> {
        let found = std::fs::symlink_metadata(self.common.join(RULES)).ok()?;
        Some((found.ino(), joined(found.mtime(), found.mtime_nsec()), found.len()))
    }

    fn read(&self) -> Result<State> {
        // Taken before the rules are read, so that a change meanwhile makes us read them again.
        let seen = self.stamp();
        Ok(State { globs: Globs::load(&self.common, &self.pin, &self.exclude)?, seen })
    }

    /// Loads changes by other nodes; returns whether there were any.
    pub(crate) fn refresh(&self) -> Result<bool> {
        let is_changed = self.stamp() != self.state.read().seen;
        if is_changed {
            let state = self.read()?;
            *self.state.write() = state;
        }
        Ok(is_changed)
    }

    /// Changes the rules for all nodes and later mounts.
    pub(crate) fn change(&self, change: &RuleChange) -> Result<Told> {
        let lock = PrivateDir::open(&self.common)?.file(LOCK, Use::Write)?;
        // Waits for another node's change.
        flock(&lock, FlockOperation::LockExclusive)?;
        let _lock = LockedFile::new(lock);
        // Without the globs given to this mount, which are its own.
        let mut globs = Globs::load(&self.common, &[], &[])?;
        match change {
            RuleChange::Pin(glob) => globs.add_pin(glob)?,
            RuleChange::Unpin(glob) => globs.remove_pin(glob)?,
            RuleChange::Exclude(glob) => globs.add_exclude(glob)?,
            RuleChange::Include(glob) => globs.remove_exclude(glob)?,
        }
        globs.save(&self.common)?;
        let state = self.read()?;
        *self.state.write() = state;
        Ok(self.told())
    }

    /// The rules, for people.
    pub(crate) fn told(&self) -> Told {
        let globs = &self.state.read().globs;
        Told { pin: globs.pin_sources().to_vec(), exclude: globs.exclude_sources().to_vec() }
    }

    pub(crate) fn has_pins(&self) -> bool {
        self.state.read().globs.has_pins()
    }

    pub(crate) fn has_excludes(&self) -> bool {
        self.state.read().globs.has_excludes()
    }

    /// Whether a file stays on its SSD.
    pub(crate) fn pins(&self, path: &Path) -> bool {
        self.state.read().globs.pins(path)
    }

    /// Whether a file stays off SSDs.
    pub(crate) fn excludes(&self, path: &Path) -> bool {
        self.state.read().globs.excludes(path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// Regression: whoever may write to the disk ended the mount with a time after 2262.
    #[test]
    fn a_time_far_away_is_a_stamp_like_any_other() {
        let dir = tempfile::tempdir().unwrap();
        let common = PrivateDir::make(&dir.path().join("common")).unwrap().path().to_owned();
        let rules = Rules::load(&common, Vec::new(), Vec::new()).unwrap();
        rules.change(&RuleChange::Pin("a/**".into())).unwrap();
        let file = File::options().write(true).open(common.join(RULES)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(10_000_000_000)).unwrap();
        assert!(rules.refresh().unwrap());
        assert!(rules.pins("a/b".as_ref()));
    }

    #[test]
    fn what_one_node_changes_the_others_heed_and_nothing_of_two_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let common = PrivateDir::make(&dir.path().join("common")).unwrap().path().to_owned();
        let load = |pin: &[&str]| {
            Rules::load(&common, pin.iter().map(|pin| (*pin).into()).collect(), Vec::new()).unwrap()
        };
        let (one, two) = (load(&[]), load(&["own/*"]));
        one.change(&RuleChange::Pin("a/**".into())).unwrap();
        two.change(&RuleChange::Exclude("*.log".into())).unwrap();
        assert!(two.pins("a/b".as_ref()) && two.pins("own/c".as_ref()));
        assert!(!one.excludes("x.log".as_ref()));
        one.refresh().unwrap();
        assert!(one.excludes("x.log".as_ref()) && one.pins("a/b".as_ref()));
        two.change(&RuleChange::Unpin("a/**".into())).unwrap();
        assert!(two.change(&RuleChange::Unpin("a/**".into())).is_err());
        one.refresh().unwrap();
        assert!(!one.pins("a/b".as_ref()) && !one.pins("own/c".as_ref()));
        assert_eq!(load(&[]).told(), one.told());
    }
}
