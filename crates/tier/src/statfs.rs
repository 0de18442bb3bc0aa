//! The totals of a tier for `statfs`: its size, its free space, and how large a file a program can still write.
//!
//! What must hold: a file system that contains several tiers counts once, and the SSD counts up to its limit. A file is
//! on one tier: the sum of all free space may fit on none of them, so what is "available" is the largest file that can
//! be written, wherever it ends up. Clean copies make way for whatever is written: their bytes count as free.

use super::copy_records::CopyRecords;
use super::residents::Residents;
use super::tiers::Tiers;
use halocline_os::error::Result;

/// Bytes of one file system with lower tiers.
#[derive(Debug, Clone, Copy)]
struct Lower {
    total: u64,
    free: u64,
    available: u64,
    /// Whether the SSD's files are on it, too.
    shared: bool,
}

/// The SSD, in bytes.
#[derive(Debug, Clone, Copy)]
struct Ssd {
    total: u64,
    free: u64,
    available: u64,
    limit: u64,
    /// Bytes of the files there.
    used: u64,
}

/// The totals of a tier, in bytes.
#[derive(Debug, PartialEq, Eq)]
struct Sum {
    total: u64,
    free: u64,
    available: u64,
}

/// Adds up. A file system may tell any numbers.
fn sum(ssd: Ssd, lower: &[Lower]) -> Sum {
    let left = ssd.limit.saturating_sub(ssd.used);
    let shared = lower.iter().any(|lower| lower.shared);
    let own = if shared { (0, 0) } else { (ssd.limit.min(ssd.total), left.min(ssd.free)) };
    let total = lower.iter().fold(own.0, |sum, lower| sum.saturating_add(lower.total));
    let free = lower.iter().fold(own.1, |sum, lower| sum.saturating_add(lower.free));
    // A new file grows on the SSD. Once that is full, the file moves down, where all of it must fit; if the SSD is on
    // the same file system, it exists twice while it moves.
    let here = left.min(ssd.available);
    let below = lower.iter().map(|lower| match (lower.available, lower.shared) {
        (available, false) if available >= here => available,
        (available, true) if available / 2 >= here || available <= here => available,
        _ => 0,
    });
    // If it fits nowhere, others move down for it.
    let others = lower.iter().filter(|lower| !lower.shared).map(|lower| lower.available);
    let beside = here.saturating_add(others.fold(0, u64::saturating_add).min(ssd.used));
    let available = below.max().filter(|bytes| *bytes > 0).unwrap_or(beside).min(free);
    Sum { total, free, available }
}

/// What all tiers have together, in blocks of the SSD's file system.
pub(super) fn of_all(
    tiers: &Tiers,
    residents: &Residents,
    records: &CopyRecords,
) -> Result<libc::statvfs64> {
    let mut told = tiers.ssd().totals()?;
    let own = tiers.ssd().device;
    let ssd = Ssd {
        total: told.f_blocks.saturating_mul(told.f_frsize),
        free: told.f_bfree.saturating_mul(told.f_frsize),
        available: told.f_bavail.saturating_mul(told.f_frsize),
        limit: residents.account.limit,
        used: residents.used(),
    };
    let (mut lower, mut counted) = (Vec::new(), Vec::new());
    for tier_dir in &tiers.dirs()[1..] {
        if counted.contains(&tier_dir.device) {
            continue;
        }
        counted.push(tier_dir.device);
        let more = tier_dir.totals()?;
        let of_copies = bytes_of_copies(tiers, records, tier_dir.device);
        lower.push(Lower {
            total: more.f_blocks.saturating_mul(more.f_frsize),
            free: more.f_bfree.saturating_mul(more.f_frsize).saturating_add(of_copies),
            available: more.f_bavail.saturating_mul(more.f_frsize).saturating_add(of_copies),
            shared: tier_dir.device == own,
        });
    }
    let Sum { total, free, available } = sum(ssd, &lower);
    let block = told.f_frsize.max(1);
    told.f_blocks = total / block;
    told.f_bfree = free / block;
    told.f_bavail = available / block;
    Ok(told)
}

/// Bytes that clean copies have on a file system.
pub(super) fn bytes_of_copies(tiers: &Tiers, records: &CopyRecords, device: u64) -> u64 {
    let dirs = tiers.dirs().iter().enumerate().filter(|(_, tier_dir)| tier_dir.device == device);
    dirs.map(|(tier, _)| records.bytes_on(tier)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn lower(total: u64, free: u64, shared: bool) -> Lower {
        Lower { total, free, available: free, shared }
    }

    const fn ssd(total: u64, free: u64, limit: u64, used: u64) -> Ssd {
        Ssd { total, free, available: free, limit, used }
    }

    #[test]
    fn the_ssd_counts_up_to_its_limit() {
        let told = sum(ssd(500, 470, 100, 30), &[lower(1000, 400, false)]);
        assert_eq!(told, Sum { total: 1100, free: 470, available: 400 });
        // Others fill the SSD's file system.
        let told = sum(ssd(500, 20, 100, 30), &[lower(1000, 400, false)]);
        assert_eq!(told, Sum { total: 1100, free: 420, available: 400 });
        // The limit was lowered below what is stored.
        let told = sum(ssd(500, 300, 100, 200), &[lower(1000, 400, false)]);
        assert_eq!(told, Sum { total: 1100, free: 400, available: 400 });
    }

    #[test]
    fn one_file_system_counts_once() {
        let told = sum(ssd(1000, 700, 900, 100), &[lower(1000, 700, true)]);
        assert_eq!(told, Sum { total: 1000, free: 700, available: 700 });
        let two = [lower(1000, 700, true), lower(50, 10, false)];
        assert_eq!(sum(ssd(1000, 700, 900, 100), &two).total, 1050);
        // A file of more than 500 would have to move down, and be there twice for that.
        let told = sum(ssd(1000, 700, 600, 100), &[lower(1000, 700, true)]);
        assert_eq!(told, Sum { total: 1000, free: 700, available: 500 });
        let told = sum(ssd(1000, 700, 300, 100), &[lower(1000, 700, true)]);
        assert_eq!(told, Sum { total: 1000, free: 700, available: 700 });
    }

    /// Regression: a file system that tells such numbers ended the request with a panic.
    #[test]
    fn numbers_that_no_disk_has_are_added_up() {
        let all = sum(ssd(u64::MAX, u64::MAX, u64::MAX, 0), &[lower(u64::MAX, u64::MAX, false); 2]);
        assert_eq!(all, Sum { total: u64::MAX, free: u64::MAX, available: u64::MAX });
        let full = sum(ssd(u64::MAX, u64::MAX, u64::MAX, 9), &[lower(u64::MAX, 0, false); 2]);
        assert_eq!((full.total, full.available), (u64::MAX, u64::MAX - 9));
    }

    #[test]
    fn a_file_that_fits_nowhere_below_pushes_others_out() {
        let told = sum(ssd(100, 40, 100, 60), &[lower(100, 20, false)]);
        assert_eq!(told, Sum { total: 200, free: 60, available: 60 });
        let told = sum(ssd(100, 40, 100, 60), &[lower(100, 0, false)]);
        assert_eq!(told, Sum { total: 200, free: 40, available: 40 });
        let told = sum(ssd(100, 0, 100, 100), &[lower(100, 0, false)]);
        assert_eq!(told, Sum { total: 200, free: 0, available: 0 });
    }
}
