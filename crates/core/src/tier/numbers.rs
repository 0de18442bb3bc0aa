//! The inode numbers that programs see: a file keeps its first one wherever it goes.
//!
//! A migrated copy keeps the number in an extended attribute, and a link of ours in its
//! modification time, where it is found without asking the lower tier. The file system of the SSD
//! gives the freed number to a new file sooner or later; that one is then shown by another number,
//! made up above 2^54.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Timespec, Timestamps, utimensat};

use super::inode::Away;
use super::{Core, NUMBER_XATTR};
use crate::engine::Stat;
use crate::error::Result;
use crate::namespace::{Node, xattr};

/// Times of links before this second stand for numbers; no file is as old as 1970.
const NUMBERS_BEFORE: i64 = 365 * 24 * 3600;
const NANOS: u64 = 1_000_000_000;
/// Made-up numbers start here, and at the present time in microseconds.
pub(super) const MADE_UP: u64 = 1 << 54;

/// The number that a migrated copy keeps.
pub(super) fn kept_number(fd: &impl AsFd) -> Option<u64> {
    let value = xattr::get_on(fd, NUMBER_XATTR.as_ref()).ok()?;
    std::str::from_utf8(&value).ok()?.parse().ok()
}

/// Makes a file keep a number. Where there are no extended attributes the number lasts as long as
/// the mount.
pub(super) fn keep_number(fd: &impl AsFd, number: u64) -> Result<()> {
    match xattr::set_on(fd, NUMBER_XATTR.as_ref(), number.to_string().as_bytes(), 0) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => Ok(()),
        other => other,
    }
}

/// The number that a link of ours keeps.
pub(super) fn number_in(link: &Stat) -> Option<u64> {
    let (seconds, nanos) = (link.raw.st_mtime, link.raw.st_mtime_nsec);
    if !(0..NUMBERS_BEFORE).contains(&seconds) {
        return None;
    }
    let number = seconds.unsigned_abs() * NANOS + nanos.unsigned_abs();
    (number > 0).then_some(number)
}

impl Core {
    /// The number of an entry that is the file itself.
    pub(super) fn number_here(&self, entry: &Node, stat: &Stat) -> u64 {
        if let Some(number) = self.table.number(entry.key()) {
            return number;
        }
        let own = stat.raw.st_ino;
        if !self.table.is_claimed(own) {
            return own;
        }
        let fd = self.namespace.descriptor(entry).ok();
        let number = fd.as_ref().and_then(|fd| kept_number(&**fd)).unwrap_or_else(|| {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            // Links and special files cannot keep it: theirs lasts as long as the mount.
            if let Some(fd) = &fd {
                let keep = || keep_number(&**fd, number);
                let _ = self.sides[0].steps.step("numbering a file", keep);
            }
            number
        });
        self.table.set_number(entry.key(), number);
        number
    }

    /// The number of a file on a lower tier: the one that its link or its copy keeps, or the link's
    /// own for a file that was put there by hand.
    pub(super) fn number_away(&self, entry: &Node, link: &Stat, away: &Away) -> u64 {
        if let Some(number) = self.table.number(entry.key()) {
            return number;
        }
        let number = number_in(link).unwrap_or_else(|| {
            let copy = self.sides[away.tier].look(&away.path).ok();
            copy.and_then(|copy| kept_number(&copy)).unwrap_or(link.raw.st_ino)
        });
        self.table.set_number(entry.key(), number);
        number
    }

    /// Makes a new link, in the directory of temporary names, keep its file's number.
    pub(super) fn number_link(&self, name: &str, number: u64) {
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let seconds = i64::try_from(number / NANOS).unwrap_or(i64::MAX);
        if seconds >= NUMBERS_BEFORE {
            return;
        }
        let nanos = i64::try_from(number % NANOS).expect("below 10^9");
        let kept = Timespec { tv_sec: seconds, tv_nsec: nanos };
        let times = Timestamps { last_access: now, last_modification: kept };
        let tmp = self.sides[0].tmp();
        let keep = || Ok(utimensat(tmp, name, &times, AtFlags::SYMLINK_NOFOLLOW)?);
        if let Err(error) = self.sides[0].steps.step("numbering a link", keep) {
            tracing::debug!(%error, "a link does not keep its file's number");
        }
    }
}
