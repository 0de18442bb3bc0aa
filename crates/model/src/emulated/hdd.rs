//! When a disk would complete a request: seek by distance, half a turn, transfer; one head, first come, first served.
//! Pure arithmetic; the clock is an argument.

use super::{Access, EmulatedHdd, transfer_ns};
use crate::profile::whole;

/// Files begin at multiples of this.
const PLACE_UNIT: u64 = 1 << 20;

/// A disk with the position of its head.
#[derive(Debug)]
pub(super) struct Hdd {
    profile: EmulatedHdd,
    capacity: u64,
    /// Where the head is: one past the last byte served.
    head: Option<u64>,
    /// When the last accepted request is done.
    busy_until: u64,
}

impl Hdd {
    pub(super) fn new(profile: EmulatedHdd) -> Self {
        let capacity = whole(profile.capacity_gb * 1e9).max(PLACE_UNIT);
        Self { profile, capacity, head: None, busy_until: 0 }
    }

    pub(super) fn serve(&mut self, now: u64, access: Access) -> u64 {
        let position = self.position(access.inode, access.offset);
        let service = self
            .startup_ns(position)
            .saturating_add(transfer_ns(access.len, self.profile.mb_per_s));
        self.head = Some((position + access.len) % self.capacity);
        self.busy_until = now.max(self.busy_until).saturating_add(service);
        self.busy_until
    }

    /// The position of the head, from 1 on, 0 if unknown; and until when the disk is busy.
    pub(super) fn state(&self) -> [u64; 2] {
        [self.head.map_or(0, |head| head + 1), self.busy_until]
    }

    /// In nanoseconds.
    pub(super) const fn busy_until(&self) -> u64 {
        self.busy_until
    }

    pub(super) fn go_on_from(&mut self, state: &[u64]) -> bool {
        let &[head, busy_until] = state else { return false };
        self.head = head.checked_sub(1).map(|head| head % self.capacity);
        self.busy_until = busy_until;
        true
    }

    /// The position of a byte: each file is contiguous, at a place that its inode number determines, the same share of the
    /// surface whatever its capacity. None begins in the last eighth of the surface: a file that went around its end would
    /// have the longest seeks of all within itself.
    pub(super) fn position(&self, inode: u64, offset: u64) -> u64 {
        let places = self.capacity / PLACE_UNIT;
        let begin = share_of(spread(inode), places - places / 8) * PLACE_UNIT;
        (begin + offset % self.capacity) % self.capacity
    }

    /// Seek and rotation before a request at `position`; none if it continues the last one.
    fn startup_ns(&self, position: u64) -> u64 {
        let distance = match self.head {
            Some(head) if head == position => return 0,
            Some(head) => head.abs_diff(position),
            None => self.capacity / 3,
        };
        #[expect(clippy::cast_precision_loss, reason = "a capacity is far below 2^52 bytes")]
        let way = (distance as f64 / self.capacity as f64).sqrt();
        whole(seek_ns(&self.profile, way) + half_turn_ns(&self.profile))
    }
}

/// Mean startup of requests at random within `span` bytes. The mean of `sqrt|x-y|` for x and y
/// uniform in [0, 1] is 8/15.
pub(super) fn random_startup_ns(profile: &EmulatedHdd, span: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a span is far below 2^52 bytes")]
    let part = (span as f64 / (profile.capacity_gb * 1e9)).min(1.0);
    seek_ns(profile, 8.0 / 15.0 * part.sqrt()) + half_turn_ns(profile)
}

/// The seek curve over the square root of the distance, 1 being the whole surface.
fn seek_ns(profile: &EmulatedHdd, way: f64) -> f64 {
    (profile.seek_ms_min + (profile.seek_ms_max - profile.seek_ms_min) * way) * 1e6
}

fn half_turn_ns(profile: &EmulatedHdd) -> f64 {
    60e9 / profile.rpm / 2.0
}

/// `number` over 2^64, times `whole`.
fn share_of(number: u64, whole: u64) -> u64 {
    let share = (u128::from(number) * u128::from(whole)) >> 64;
    u64::try_from(share).expect("less than the whole")
}

/// Spreads neighbouring numbers over all of u64 (the finalizer of `MurmurHash3`).
fn spread(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ (bits >> 33)
}
