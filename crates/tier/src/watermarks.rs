//! How full the SSD may be before files are demoted, and how full it is afterwards.

use super::options::TierOptions;
use super::residents::Residents;
use super::tiers::Tiers;

/// Bytes of files on the SSD.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watermarks {
    limit: u64,
    high: u64,
    low: u64,
}

impl Watermarks {
    /// The shares of `limit` that `options` specify.
    pub(super) fn new(limit: u64, options: &TierOptions) -> Self {
        Self { limit, high: share(limit, options.high), low: share(limit, options.low) }
    }

    /// The number of bytes above which files are demoted.
    pub(super) const fn high(self) -> u64 {
        self.high
    }

    /// The number of bytes down to which files are demoted.
    pub(super) const fn low(self) -> u64 {
        self.low
    }

    /// Bytes below the limit that must stay free; otherwise files are demoted.
    pub(super) fn kept_free(self) -> u64 {
        self.limit - self.high.min(self.limit)
    }

    /// Whether the SSD is fuller than the high watermark.
    pub(super) fn is_crowded(self, residents: &Residents) -> bool {
        residents.used() > self.high
    }

    /// Bytes that should be free below the limit if fewer are: down to the low watermark once the high one is passed,
    /// and as much of the SSD's own file system if others fill it.
    pub(super) fn wanted_room(self, tiers: &Tiers, residents: &Residents) -> Option<u64> {
        let used = residents.used();
        if used > self.high {
            return Some(self.limit - self.low);
        }
        // Moving files within one file system makes no room.
        let ssd = tiers.ssd();
        if tiers.dirs()[1..].iter().any(|tier_dir| tier_dir.device == ssd.device) {
            return None;
        }
        let room = ssd.room().ok()?;
        if room >= self.limit - self.high {
            return None;
        }
        let missing = (self.limit - self.low).saturating_sub(room).min(used);
        (missing > 0).then(|| residents.free() + missing)
    }
}

/// A share of a limit, in percent.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a limit needs no exact bytes"
)]
fn share(limit: u64, percent: f64) -> u64 {
    (limit as f64 * percent / 100.0) as u64
}
