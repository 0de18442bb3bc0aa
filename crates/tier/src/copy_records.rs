//! Which files on the SSD have a clean copy on a lower tier: the records that say so.
//!
//! A copy record is a symbolic link on the SSD, `.halocline/copies/STAMPS -> TIER/PLACE`. Its name says what
//! file and copy looked like when they were equal, and in which era that was known. What must hold:
//! - A record is made once the copy is durable, while nobody can change the file, and is durably
//!   removed before a change of the file's bytes is let through. So after a crash a recorded file has
//!   the bytes of its copy, whichever of its own changes were durable.
//! - A record is believed only while both stamps match what is there, so that changes behind the
//!   mount are seen; a record of another era only after all bytes were compared. An era ends when
//!   the machine goes down while the tiers are mounted.
//! - From before a copy stops being valid until it is durably gone, something names it: the record, or the intent
//!   ([`super::leftover_intents`]) that the record becomes by one rename, which needs no room on a full SSD.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, readlinkat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::leftover_intents::{self, LeftoverIntent, LeftoverIntents};
use super::listed_names;
use super::stamp::Stamp;
use super::steps::Steps;
use halocline_os::boot_id::boot_id;
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;
use halocline_os::rename_new::rename_new;

const NAME: &str = "copies";
/// The link that names the era.
const ERA: &str = "era";
/// The link of a new era before it is renamed to `ERA`.
const NEW_ERA: &str = "era.new";

/// A copy that had the bytes of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CopyRecord {
    /// The file on the SSD.
    pub(super) file: Stamp,
    pub(super) copy: Stamp,
    pub(super) era: u64,
    pub(super) tier: usize,
    /// Relative to the tier's root.
    pub(super) place: PathBuf,
    /// Bytes of the copy's blocks; known only for live ones.
    pub(super) disk_bytes: u64,
    /// The intent that the record became.
    pub(super) retired: Option<LeftoverIntent>,
    /// The intent is durable, and the file may have changed since: the copy has its earlier bytes.
    pub(super) stale: bool,
    /// The intent is durable, but the copy is still clean: it is recorded again once its permissions
    /// are durable ([`super::permissions`]). The number of times that these have changed since.
    pub(super) unrecorded: Option<u32>,
}

impl CopyRecord {
    /// An intent with this name for the copy.
    pub(super) fn as_intent(&self, name: String) -> LeftoverIntent {
        LeftoverIntent { name, tier: self.tier, place: self.place.clone() }
    }

    /// Whether file and copy are equal, as far as we know.
    pub(super) const fn is_live(&self) -> bool {
        self.unrecorded.is_some() || self.retired.is_none()
    }

    /// The name of its link: 190 bytes at most.
    pub(super) fn name(&self) -> String {
        format!("{}-{}-{:x}", self.file, self.copy, self.era)
    }

    /// The record that a link stands for.
    pub(super) fn parse(name: &str, target: &[u8]) -> Option<Self> {
        let mut parts = name.split('-');
        let (file, copy) = (Stamp::parse(parts.next()?)?, Stamp::parse(parts.next()?)?);
        let era = u64::from_str_radix(parts.next()?, 16).ok()?;
        let (tier, place) = leftover_intents::parse(target)?;
        let record = Self {
            file,
            copy,
            era,
            tier,
            place,
            disk_bytes: 0,
            retired: None,
            stale: false,
            unrecorded: None,
        };
        parts.next().is_none().then_some(record)
    }
}

/// What is known of the clean copy of a file on the SSD.
#[derive(Debug, Default)]
pub(super) struct CopyState {
    /// Readable without the lock: whether there is a copy, and whether it is clean.
    has_copy: AtomicBool,
    is_clean: AtomicBool,
    is_unrecorded: AtomicBool,
    /// The file waits to be archived.
    pub(super) waits: AtomicBool,
    record: Mutex<Option<CopyRecord>>,
    /// The last copy that stopped being valid; the background removes it at some time.
    pub(super) ended: Mutex<Option<Box<(LeftoverIntent, Stamp)>>>,
}

impl CopyState {
    /// Whether there is a copy, clean or from before the last change.
    pub(super) fn has_copy(&self) -> bool {
        self.has_copy.load(Ordering::Acquire)
    }

    /// Whether there is a clean one. It is recorded only while nobody else holds the file's
    /// `place`.
    pub(super) fn is_clean(&self) -> bool {
        self.is_clean.load(Ordering::Acquire)
    }

    /// Whether the copy is to be recorded again.
    pub(super) fn is_unrecorded(&self) -> bool {
        self.is_unrecorded.load(Ordering::Acquire)
    }

    /// Calls `act` with the record, under its lock.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Option<CopyRecord>) -> T) -> T {
        let mut record = self.record.lock();
        let done = act(&mut record);
        self.has_copy.store(record.is_some(), Ordering::Release);
        self.is_clean.store(record.as_ref().is_some_and(|record| !record.stale), Ordering::Release);
        self.is_unrecorded.store(
            record.as_ref().is_some_and(|record| record.unrecorded.is_some()),
            Ordering::Release,
        );
        done
    }
}

/// The records of one set.
#[derive(Debug)]
pub(super) struct CopyRecords {
    dir: PrivateDir,
    /// Steps on the SSD.
    steps: Arc<Steps>,
    /// The current era: records of others are doubted.
    era: AtomicU64,
    /// Bytes of the copies on each tier.
    bytes: Vec<AtomicU64>,
}

impl CopyRecords {
    /// Opens the directory of records below `private`, for `tiers` tiers.
    pub(super) fn open(private: &PrivateDir, steps: Arc<Steps>, tiers: usize) -> Result<Self> {
        let bytes = (0..tiers).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { dir: private.sub(NAME)?, steps, era: AtomicU64::new(0), bytes })
    }

    /// Continues the era, or begins `fresh`, which never was one, where the machine went down
    /// during it. The era is durable before a record of it can be believed.
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

    /// The mount ends: the machine may go down without ending the era.
    pub(super) fn end_era(&self) -> Result<()> {
        let era = self.era();
        if era == 0 { Ok(()) } else { self.write_era(era, "") }
    }

    /// The era whose records are not doubted.
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

    /// Records a copy.
    pub(super) fn note(&self, record: &CopyRecord) -> Result<()> {
        let target = leftover_intents::target(record.tier, &record.place);
        let make = || Ok(symlinkat(&target, &self.dir, record.name())?);
        self.steps.step("recording a clean copy", make)?;
        self.count(record);
        Ok(())
    }

    /// Counts the bytes of a record's copy.
    pub(super) fn count(&self, record: &CopyRecord) {
        self.bytes[record.tier].fetch_add(record.disk_bytes, Ordering::AcqRel);
    }

    /// Renames a record because we changed the attributes, and so the stamp, of its file or copy.
    pub(super) fn restamp(&self, from: &CopyRecord, to: &CopyRecord) -> Result<()> {
        let rename = || Ok(renameat(&self.dir, from.name(), &self.dir, to.name())?);
        self.steps.step("stamping a clean copy", rename)
    }

    /// The copy is no longer valid: it is a leftover, named by the intent that the record becomes.
    pub(super) fn retire(
        &self,
        record: &CopyRecord,
        intents: &LeftoverIntents,
        id: String,
    ) -> Result<LeftoverIntent> {
        let rename = || Ok(rename_new(&self.dir, record.name(), intents.dir(), &id)?);
        let retired = match self.steps.step("giving up a clean copy", rename) {
            // Somebody took the record away.
            Err(error) if error.errno() == libc::ENOENT => {
                intents.note(id, record.tier, &record.place)?
            }
            other => other.map(|()| record.as_intent(id))?,
        };
        Ok(retired)
    }

    /// Turns the intent that a record became back into a record.
    pub(super) fn revive(
        &self,
        intent: &LeftoverIntent,
        intents: &LeftoverIntents,
        record: &CopyRecord,
    ) -> Result<()> {
        let from = intents.dir();
        let rename = || Ok(renameat(from, &intent.name, &self.dir, record.name())?);
        self.steps.step("recording a clean copy again", rename)
    }

    /// Removes a record, but not the copy that it names.
    pub(super) fn forget(&self, record: &CopyRecord) -> Result<()> {
        let forget = || Ok(unlinkat(&self.dir, record.name(), AtFlags::empty())?);
        self.steps.step("forgetting a clean copy", forget)
    }

    /// Stops counting the bytes of a record's copy.
    pub(super) fn discount(&self, record: &CopyRecord) {
        self.bytes[record.tier].fetch_sub(record.disk_bytes, Ordering::AcqRel);
    }

    /// Bytes of the copies on a tier.
    pub(super) fn bytes_on(&self, tier: usize) -> u64 {
        self.bytes[tier].load(Ordering::Acquire)
    }

    /// All records.
    pub(super) fn list(&self) -> Result<Vec<CopyRecord>> {
        let mut found = Vec::new();
        for name in self.dir.names()? {
            let Some(name) = name.to_str().filter(|name| *name != ERA) else { continue };
            let Some(target) = listed_names::target_of(&self.dir, name)? else { continue };
            let record = CopyRecord::parse(name, &target);
            found.extend(record.filter(|record| (1..self.bytes.len()).contains(&record.tier)));
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
    fn other_names_are_no_copy_records() {
        for name in ["", "era", "1.2.3.4.5.6", "1.2.3.4.5.6-1.2.3.4.5.6", "x-y-z", "1-2-3"] {
            assert_eq!(CopyRecord::parse(name, b"1/a"), None, "{name}");
        }
        let name = "1.2.3.4.5.6-1.2.3.4.5.6-7";
        assert!(CopyRecord::parse(name, b"1/a").is_some());
        assert_eq!(CopyRecord::parse(name, b"a"), None);
        assert_eq!(CopyRecord::parse(&format!("{name}-8"), b"1/a"), None);
    }

    proptest! {
        /// Also with numbers that are invalid or too large, and with places that lead elsewhere: whatever is parsed as
        /// a record is the same record when it is written again.
        #[test]
        fn hostile_links_are_no_records_or_whole_ones(
            name in "[0-9a-fx+.-]{0,60}|([0-9a-f]{1,17}[.-]){12}[0-9a-f]{1,17}",
            target in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'1'), any::<u8>()], 0..12),
            era in "[0-9 a-fx-]{0,24}",
        ) {
            if let Some(record) = CopyRecord::parse(&name, &target) {
                let again = leftover_intents::target(record.tier, &record.place);
                prop_assert_eq!(CopyRecord::parse(&record.name(), again.as_encoded_bytes()), Some(record));
            }
            let _ = parse_era(&era);
        }

        #[test]
        fn records_come_back_from_their_names(
            one: (u64, u64, (i64, i64), (i64, i64)),
            other: (u64, u64, (i64, i64), (i64, i64)),
            era: u64,
        ) {
            let stamp = |(inode, size, modified, changed)| Stamp { inode, size, modified, changed };
            let record = CopyRecord {
                file: stamp(one),
                copy: stamp(other),
                era,
                tier: 1,
                place: "dir/file".into(),
                disk_bytes: 0,
                retired: None,
                stale: false,
                unrecorded: None,
            };
            prop_assert!(record.name().len() < 255);
            let target = leftover_intents::target(record.tier, &record.place);
            prop_assert_eq!(CopyRecord::parse(&record.name(), target.as_encoded_bytes()), Some(record));
        }
    }
}
