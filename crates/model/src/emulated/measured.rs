//! When a device of which only the calibrated service times are known would complete a request: one queue, first come,
//! first served; a request that continues the last one has the startup of a stream. A device with several channels
//! seems slower here than it is when several requests wait.

use super::Access;
use crate::profile::DeviceProfile;

/// A device as `calibrate` measured it.
#[derive(Debug)]
pub(super) struct Measured {
    profile: DeviceProfile,
    /// File and one past the last byte served.
    head: Option<(u64, u64)>,
    busy_until_ps: u128,
}

impl Measured {
    pub(super) const fn new(profile: DeviceProfile) -> Self {
        Self { profile, head: None, busy_until_ps: 0 }
    }

    pub(super) fn serve(&mut self, now: u64, access: Access) -> u64 {
        let service = self.profile.of(access.direction);
        let startup = if self.head == Some((access.inode, access.offset)) {
            service.startup_sequential_ps
        } else {
            service.startup_random_ps
        };
        self.head = Some((access.inode, access.offset.saturating_add(access.len)));
        let begin = self.busy_until_ps.max(u128::from(now) * 1000);
        let transfer = u128::from(access.len) * u128::from(service.per_byte_ps);
        self.busy_until_ps = begin + u128::from(startup) + transfer;
        self.busy_until()
    }

    /// Whether a byte was served, its file and the position after it, and until when the device is busy: the last two
    /// numbers are a 128-bit one.
    pub(super) fn state(&self) -> [u64; 5] {
        let (is_known, (inode, end)) = (self.head.is_some(), self.head.unwrap_or_default());
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let low = self.busy_until_ps as u64;
        let high = u64::try_from(self.busy_until_ps >> 64).unwrap_or(u64::MAX);
        [is_known.into(), inode, end, low, high]
    }

    /// In nanoseconds.
    pub(super) fn busy_until(&self) -> u64 {
        u64::try_from(self.busy_until_ps.div_ceil(1000)).unwrap_or(u64::MAX)
    }

    pub(super) fn go_on_from(&mut self, state: &[u64]) -> bool {
        let &[is_known, inode, end, low, high] = state else { return false };
        self.head = (is_known == 1).then_some((inode, end));
        self.busy_until_ps = (u128::from(high) << 64) | u128::from(low);
        true
    }
}
