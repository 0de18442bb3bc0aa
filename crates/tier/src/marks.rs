//! Which files on the SSD have a clean copy on a lower tier: the marks that say so.
//!
//! A mark is a symbolic link on the SSD, `.halocline/copies/STAMPS -> TIER/PLACE`. Its name says what
//! file and copy looked like when they were equal, and in which era that was known. What must hold:
//! - A mark is made after the copy is durable, while nobody can change the file, and is gone durably
//!   before a change of the file's bytes is let through. So after a crash a marked file has the bytes
//!   of its copy, whichever of its own changes were durable.
//! - A mark is believed only while both stamps are what is there, so that changes behind the mount
//!   are seen; one of another era only after all bytes were compared. An era ends where the machine
//!   went down while the tiers were mounted.
//! - From before a copy is none until it is gone durably something names it: the mark, or the intent
//!   ([`super::intents`]) that the mark becomes by one rename, which needs no room on a full SSD.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, RenameFlags, readlinkat, renameat, renameat_with, symlinkat, unlinkat};
use rustix::io::Errno;

use super::intents::{self, Intent, Intents};
use super::stamp::Stamp;
use super::steps::Steps;
use halocline_os::boot_id::boot_id;
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;

const NAME: &str = "copies";
/// The link that names the era.
const ERA: &str = "era";
/// The same before it has its name.
const NEW_ERA: &str = "era.new";

/// A copy that had the bytes of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// The file on the SSD.
    pub(super) file: Stamp,
    pub(super) copy: Stamp,
    pub(super) era: u64,
    pub(super) tier: usize,
    /// Relative to the tier's root.
    pub(super) place: PathBuf,
    /// Bytes of the copy's blocks; only known of live ones.
    pub(super) disk_bytes: u64,
    /// It became this intent.
    pub(super) retired: Option<Intent>,
    /// That is durable, and the file may have other bytes by now: the copy is what it was before.
    pub(super) stale: bool,
    /// That is durable, and the copy is clean all the same: it is marked anew once its permissions
    /// are durable ([`super::permissions`]), which have changed so often since.
    pub(super) unmarked: Option<u32>,
}

impl Mark {
    /// The copy as an intent of this name names it.
    pub(super) fn as_intent(&self, name: String) -> Intent {
        Intent { name, tier: self.tier, place: self.place.clone() }
    }

    /// Whether file and copy are equal, as far as we know.
    pub(super) const fn is_live(&self) -> bool {
        self.unmarked.is_some() || self.retired.is_none()
    }

    /// The name of its link: 190 bytes at most.
    pub(super) fn name(&self) -> String {
        format!("{}-{}-{:x}", self.file, self.copy, self.era)
    }

    /// The one that a link is.
    pub(super) fn parse(name: &str, target: &[u8]) -> Option<Self> {
        let mut parts = name.split('-');
        let (file, copy) = (Stamp::parse(parts.next()?)?, Stamp::parse(parts.next()?)?);
        let era = u64::from_str_radix(parts.next()?, 16).ok()?;
        let (tier, place) = intents::parse(target)?;
        let mark = Self {
            file,
            copy,
            era,
            tier,
            place,
            disk_bytes: 0,
            retired: None,
            stale: false,
            unmarked: None,
        };
        parts.next().is_none().then_some(mark)
    }
}

/// What a file on the SSD knows of its clean copy.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Told without the lock: there is a copy, and it is clean.
    has_copy: AtomicBool,
    is_clean: AtomicBool,
    is_unmarked: AtomicBool,
    /// The file waits to be archived.
    pub(super) waits: AtomicBool,
    mark: Mutex<Option<Mark>>,
    /// The last copy that ended: by when it is removed is left to the background.
    pub(super) ended: Mutex<Option<Box<(Intent, Stamp)>>>,
}

impl Slot {
    /// Whether there is a copy, clean or from before the last change.
    pub(super) fn has_copy(&self) -> bool {
        self.has_copy.load(Ordering::Acquire)
    }

    /// Whether there is a clean one. One is marked only while nobody else has the file's `place`.
    pub(super) fn is_clean(&self) -> bool {
        self.is_clean.load(Ordering::Acquire)
    }

    /// Whether the copy is to be marked anew.
    pub(super) fn is_unmarked(&self) -> bool {
        self.is_unmarked.load(Ordering::Acquire)
    }

    /// The mark, while nobody else looks at it or changes it.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Option<Mark>) -> T) -> T {
        let mut mark = self.mark.lock();
        let done = act(&mut mark);
        self.has_copy.store(mark.is_some(), Ordering::Release);
        self.is_clean.store(mark.as_ref().is_some_and(|mark| !mark.stale), Ordering::Release);
        self.is_unmarked
            .store(mark.as_ref().is_some_and(|mark| mark.unmarked.is_some()), Ordering::Release);
        done
    }
}

/// The marks of one set.
#[derive(Debug)]
pub(super) struct Marks {
    dir: PrivateDir,
    /// Changes of the SSD.
    steps: Arc<Steps>,
    /// Marks of other eras are doubted.
    era: AtomicU64,
    /// Bytes that copies have on each tier.
    bytes: Vec<AtomicU64>,
}

impl Marks {
    /// Opens the directory of marks below `private`, for so many tiers.
    pub(super) fn open(private: &PrivateDir, steps: Arc<Steps>, tiers: usize) -> Result<Self> {
        let bytes = (0..tiers).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { dir: private.sub(NAME)?, steps, era: AtomicU64::new(0), bytes })
    }

    /// Goes on with the era, or begins another where the machine went down during it; `fresh` is no
    /// era that was. Durable before a mark of it can be believed.
    pub(super) fn begin_era(&self, fresh: u64) -> Result<()> {
        let boot = boot_id()?;
        let known = readlinkat(&self.dir, ERA, Vec::new()).ok();
        let known = known.as_ref().and_then(|target| target.to_str().ok()).and_then(parse_era);
        let era = match known {
            Some((era, during)) if during == boot || during.is_empty() => era,
            _ => fresh,
        };
        self.era.store(era, Ordering::Release);
        if known != Some((era, &boot)) {
            self.write_era(era, &boot)?;
            self.sync()?;
        }
        Ok(())
    }

    /// The mount ends: the machine may go down.
    pub(super) fn end_era(&self) -> Result<()> {
        let era = self.era();
        if era == 0 { Ok(()) } else { self.write_era(era, "") }
    }

    /// The era that is not doubted.
    pub(super) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    fn write_era(&self, era: u64, boot: &str) -> Result<()> {
        match unlinkat(&self.dir, NEW_ERA, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let target = format!("{era:x} {boot}");
        self.steps.step("noting the era", || Ok(symlinkat(target, &self.dir, NEW_ERA)?))?;
        let rename = || Ok(renameat(&self.dir, NEW_ERA, &self.dir, ERA)?);
        self.steps.step("beginning the era", rename)
    }

    /// Marks a copy.
    pub(super) fn note(&self, mark: &Mark) -> Result<()> {
        let target = intents::target(mark.tier, &mark.place);
        let make = || Ok(symlinkat(&target, &self.dir, mark.name())?);
        self.steps.step("marking a clean copy", make)?;
        self.count(mark);
        Ok(())
    }

    /// A mark that was found counts from now on.
    pub(super) fn count(&self, mark: &Mark) {
        self.bytes[mark.tier].fetch_add(mark.disk_bytes, Ordering::AcqRel);
    }

    /// File or copy look otherwise since a change of attributes that we made.
    pub(super) fn restamp(&self, from: &Mark, to: &Mark) -> Result<()> {
        let rename = || Ok(renameat(&self.dir, from.name(), &self.dir, to.name())?);
        self.steps.step("stamping a clean copy", rename)
    }

    /// The copy is none any more: it is a leftover, as the intent that the mark becomes says.
    pub(super) fn retire(&self, mark: &Mark, intents: &Intents, id: String) -> Result<Intent> {
        let flags = RenameFlags::NOREPLACE;
        let rename = || Ok(renameat_with(&self.dir, mark.name(), intents.dir(), &id, flags)?);
        let retired = match self.steps.step("giving up a clean copy", rename) {
            // Somebody took the mark away.
            Err(error) if error.errno() == libc::ENOENT => {
                intents.note(id, mark.tier, &mark.place)?
            }
            other => other.map(|()| mark.as_intent(id))?,
        };
        Ok(retired)
    }

    /// The intent that a mark became is a mark again.
    pub(super) fn revive(&self, intent: &Intent, intents: &Intents, mark: &Mark) -> Result<()> {
        let from = intents.dir();
        let rename = || Ok(renameat(from, &intent.name, &self.dir, mark.name())?);
        self.steps.step("marking a clean copy anew", rename)
    }

    /// Takes a mark away and leaves what it names alone.
    pub(super) fn forget(&self, mark: &Mark) -> Result<()> {
        let forget = || Ok(unlinkat(&self.dir, mark.name(), AtFlags::empty())?);
        self.steps.step("forgetting a clean copy", forget)
    }

    /// A copy is none any more.
    pub(super) fn discount(&self, mark: &Mark) {
        self.bytes[mark.tier].fetch_sub(mark.disk_bytes, Ordering::AcqRel);
    }

    /// Bytes that copies have on a tier.
    pub(super) fn bytes_on(&self, tier: usize) -> u64 {
        self.bytes[tier].load(Ordering::Acquire)
    }

    /// All marks.
    pub(super) fn list(&self) -> Result<Vec<Mark>> {
        let mut found = Vec::new();
        for name in self.dir.names()? {
            let Some(name) = name.to_str().filter(|name| *name != ERA) else { continue };
            let Ok(target) = readlinkat(&self.dir, name, Vec::new()) else { continue };
            let mark = Mark::parse(name, target.as_bytes());
            found.extend(mark.filter(|mark| (1..self.bytes.len()).contains(&mark.tier)));
        }
        Ok(found)
    }

    fn sync(&self) -> Result<()> {
        self.steps.sync("syncing the era", &self.dir)
    }
}

fn parse_era(target: &str) -> Option<(u64, &str)> {
    let (era, boot) = target.split_once(' ')?;
    Some((u64::from_str_radix(era, 16).ok()?, boot))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_are_no_marks_are_none() {
        for name in ["", "era", "1.2.3.4.5.6", "1.2.3.4.5.6-1.2.3.4.5.6", "x-y-z", "1-2-3"] {
            assert_eq!(Mark::parse(name, b"1/a"), None, "{name}");
        }
        let name = "1.2.3.4.5.6-1.2.3.4.5.6-7";
        assert!(Mark::parse(name, b"1/a").is_some());
        assert_eq!(Mark::parse(name, b"a"), None);
        assert_eq!(Mark::parse(&format!("{name}-8"), b"1/a"), None);
    }

    proptest! {
        /// Also numbers that are none, or larger than any, and places that lead elsewhere: whatever is taken
        /// for a mark is one and the same mark when it is written again.
        #[test]
        fn hostile_links_are_no_marks_or_whole_ones(
            name in "[0-9a-fx+.-]{0,60}|([0-9a-f]{1,17}[.-]){12}[0-9a-f]{1,17}",
            target in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'1'), any::<u8>()], 0..12),
            era in "[0-9 a-fx-]{0,24}",
        ) {
            if let Some(mark) = Mark::parse(&name, &target) {
                let again = intents::target(mark.tier, &mark.place);
                prop_assert_eq!(Mark::parse(&mark.name(), again.as_encoded_bytes()), Some(mark));
            }
            let _ = parse_era(&era);
        }

        #[test]
        fn marks_come_back_from_their_names(
            one: (u64, u64, (i64, i64), (i64, i64)),
            other: (u64, u64, (i64, i64), (i64, i64)),
            era: u64,
        ) {
            let stamp = |(inode, size, modified, changed)| Stamp { inode, size, modified, changed };
            let mark = Mark {
                file: stamp(one),
                copy: stamp(other),
                era,
                tier: 1,
                place: "dir/file".into(),
                disk_bytes: 0,
                retired: None,
                stale: false,
                unmarked: None,
            };
            prop_assert!(mark.name().len() < 255);
            let target = intents::target(mark.tier, &mark.place);
            prop_assert_eq!(Mark::parse(&mark.name(), target.as_encoded_bytes()), Some(mark));
        }
    }
}
