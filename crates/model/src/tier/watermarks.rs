//! How full an SSD may be before files are demoted, and how full it is afterwards.

/// Bytes of files on an SSD.
#[derive(Debug, Clone, Copy)]
pub struct Watermarks {
    limit: u64,
    high: u64,
    low: u64,
}

impl Watermarks {
    /// Two shares of a limit, in percent.
    #[must_use]
    pub fn new(limit: u64, high_percent: f64, low_percent: f64) -> Self {
        Self { limit, high: share(limit, high_percent), low: share(limit, low_percent) }
    }

    /// The most bytes that files may have.
    #[must_use]
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// The number of bytes above which files are demoted.
    #[must_use]
    pub const fn high(self) -> u64 {
        self.high
    }

    /// The number of bytes down to which files are demoted.
    #[must_use]
    pub const fn low(self) -> u64 {
        self.low
    }

    /// Bytes below the limit that must stay free; otherwise files are demoted.
    #[must_use]
    pub fn kept_free(self) -> u64 {
        self.limit - self.high.min(self.limit)
    }

    /// Bytes that are to be demoted.
    #[must_use]
    pub const fn waiting(self, used: u64) -> u64 {
        if used > self.high { used.saturating_sub(self.low) } else { 0 }
    }

    /// Bytes that should be free below the limit if fewer are: down to the low watermark once the high one is passed,
    /// and as much of the SSD's own file system if others fill it. `room` tells how many bytes that has left; `None` if
    /// moving files makes no room there.
    #[must_use]
    pub fn wanted_room(self, used: u64, room: impl FnOnce() -> Option<u64>) -> Option<u64> {
        if used > self.high {
            return Some(self.limit.saturating_sub(self.low));
        }
        let room = room()?;
        if room >= self.kept_free() {
            return None;
        }
        let missing = self.limit.saturating_sub(self.low).saturating_sub(room).min(used);
        (missing > 0).then(|| self.limit.saturating_sub(used) + missing)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_wanted_above_the_high_watermark_and_where_others_fill_the_file_system() {
        let marks = Watermarks::new(1000, 95.0, 90.0);
        assert_eq!((marks.high(), marks.low(), marks.kept_free()), (950, 900, 50));
        assert_eq!(marks.wanted_room(951, || unreachable!()), Some(100));
        assert_eq!(marks.wanted_room(950, || None), None);
        assert_eq!(marks.wanted_room(950, || Some(50)), None);
        assert_eq!(marks.wanted_room(700, || Some(20)), Some(300 + 80));
        assert_eq!(marks.wanted_room(30, || Some(0)), Some(970 + 30), "no more than there is");
        assert_eq!(marks.wanted_room(0, || Some(0)), None);
    }
}
