//! The inode numbers that programs see: a file keeps its first number wherever it goes.
//!
//! A migrated copy keeps the number in an extended attribute, and a link of ours keeps it in its modification time,
//! where it is found without a request to the lower tier. The file system of the SSD assigns the freed number to a new
//! file sooner or later; that file is then shown with another number, made up above 2^54.
//!
//! A user who could write to a file before it came to the tier may have made its attribute say anything. What must
//! hold: it never claims another file's number.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::NUMBER_XATTR;
use super::inode::{Away, Table};
use super::tier_links::{can_keep, number_in};
use super::tiers::Tiers;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{Vnode, xattr};

/// Made-up numbers start here, and at the present time in microseconds.
const MADE_UP: u64 = 1 << 54;

/// The number that a migrated copy keeps.
pub(super) fn kept_number(fd: &impl AsFd) -> Option<u64> {
    number_said(&xattr::get_on(fd, NUMBER_XATTR.as_ref()).ok()?)
}

/// The number in the value of that attribute: as we write it, and no other way. No file has the number 0: some libraries
/// leave such files out of listings.
fn number_said(value: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (number > 0 && number.to_string().as_bytes() == value).then_some(number)
}

/// Makes a file keep a number. Without extended attributes, the number lasts as long as the mount.
pub(super) fn keep_number(fd: &impl AsFd, number: u64) -> Result<()> {
    match xattr::set_on(fd, NUMBER_XATTR.as_ref(), number.to_string().as_bytes(), 0) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => Ok(()),
        other => other,
    }
}

/// Gives out the numbers.
#[derive(Debug)]
pub(super) struct InodeNumbers {
    table: Arc<Table>,
    /// The next number for a file whose own number already belongs to another.
    next: AtomicU64,
}

impl InodeNumbers {
    /// For the files of `table`, of a mount that began `started` after 1970.
    pub(super) fn new(table: Arc<Table>, started: Duration) -> Self {
        let micros = u64::try_from(started.as_micros()).unwrap_or_default();
        Self { table, next: AtomicU64::new(MADE_UP + micros) }
    }

    /// The number of an entry that is the file itself.
    pub(super) fn here(&self, tiers: &Tiers, entry: &Vnode, stat: &Stat) -> u64 {
        if let Some(number) = self.table.number(entry.key()) {
            return number;
        }
        let own = stat.raw.st_ino;
        if !self.table.is_claimed(own) {
            return own;
        }
        let fd = tiers.tree().descriptor(entry).ok();
        let kept = fd.as_ref().and_then(|fd| kept_number(&**fd));
        if let Some(kept) = kept.filter(|kept| self.table.claim_number(entry.key(), *kept)) {
            return kept;
        }
        let number = self.make_up(entry);
        // Links and special files cannot keep it: theirs lasts as long as the mount.
        if let Some(fd) = &fd {
            let keep = || keep_number(&**fd, number);
            let _ = tiers.ssd().steps.step("numbering a file", keep);
        }
        number
    }

    /// A number that no file has.
    fn make_up(&self, entry: &Vnode) -> u64 {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if self.table.claim_number(entry.key(), number) {
                return number;
            }
        }
    }

    /// The number of a file on a lower tier: the one that its link or its copy keeps, or the link's
    /// own for a file that was put there by hand.
    pub(super) fn away(&self, tiers: &Tiers, entry: &Vnode, link: &Stat, away: &Away) -> u64 {
        let key = entry.key();
        if let Some(number) = self.table.number(key) {
            return number;
        }
        if let Some(number) = number_in(link) {
            self.table.set_number(key, number);
            return number;
        }
        let copy = tiers.dirs()[away.tier].look(&away.path).ok();
        let kept = copy.and_then(|copy| kept_number(&copy));
        // If the link can keep our number, it is in the link. Any other number in the attribute is of a file that was
        // put there by hand. Anybody may have written it, and it may be the inode number of anything on the SSD.
        let kept = kept.filter(|kept| !can_keep(*kept));
        let mut found = kept.into_iter().chain([link.raw.st_ino]);
        found
            .find(|number| self.table.claim_number(key, *number))
            .unwrap_or_else(|| self.make_up(entry))
    }
}

/// Numbers that the attributes of files keep: body of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::{Table, number_said};

    /// The value of an attribute that anybody may have written: a file never gets the number of another one.
    pub(crate) fn number(value: &[u8]) {
        let Some(number) = number_said(value) else { return };
        assert!(number > 0);
        assert_eq!(number_said(number.to_string().as_bytes()), Some(number));
        let table = Table::default();
        let (one, other) = ((1, 1), (1, 2));
        assert!(table.claim_number(one, number) && table.is_claimed(number));
        assert_eq!(table.number(one), Some(number));
        assert!(!table.claim_number(other, number), "two files with one number");
    }
}
