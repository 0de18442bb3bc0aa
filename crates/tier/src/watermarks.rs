//! How full the SSD may be before files are demoted, and how full it is afterwards.

use halocline_model::tier::Watermarks as Limits;

use super::options::TierOptions;
use super::residents::Residents;
use super::tiers::Tiers;

/// Bytes of files on the SSD.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watermarks(Limits);

impl Watermarks {
    /// The shares of `limit` that `options` specify.
    pub(super) fn new(limit: u64, options: &TierOptions) -> Self {
        Self(Limits::new(limit, options.high, options.low))
    }

    /// The number of bytes above which files are demoted.
    pub(super) const fn high(self) -> u64 {
        self.0.high()
    }

    /// The number of bytes down to which files are demoted.
    pub(super) const fn low(self) -> u64 {
        self.0.low()
    }

    /// Bytes below the limit that must stay free; otherwise files are demoted.
    pub(super) fn kept_free(self) -> u64 {
        self.0.kept_free()
    }

    /// Whether the SSD is fuller than the high watermark.
    pub(super) fn is_crowded(self, residents: &Residents) -> bool {
        residents.used() > self.high()
    }

    /// Bytes that are to be demoted.
    pub(super) fn waiting(self, residents: &Residents) -> u64 {
        self.0.waiting(residents.used())
    }

    /// Bytes that should be free below the limit if fewer are.
    pub(super) fn wanted_room(self, tiers: &Tiers, residents: &Residents) -> Option<u64> {
        self.0.wanted_room(residents.used(), || {
            // Moving files within one file system makes no room.
            let ssd = tiers.ssd();
            if tiers.dirs()[1..].iter().any(|tier_dir| tier_dir.device == ssd.device) {
                return None;
            }
            ssd.room().ok()
        })
    }
}
