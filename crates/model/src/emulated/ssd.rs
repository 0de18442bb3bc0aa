//! When a solid-state device would complete a request: startup and transfer on the channel that is free first. Pure
//! arithmetic; the clock is an argument.

use super::{Access, EmulatedSsd, transfer_ns};
use crate::profile::whole;
use crate::request::Direction;

/// A device with the pending work of its channels.
#[derive(Debug)]
pub(super) struct Ssd {
    profile: EmulatedSsd,
    /// When each channel has completed the requests that it accepted.
    busy_until: Vec<u64>,
}

impl Ssd {
    pub(super) fn new(profile: EmulatedSsd) -> Self {
        Self { profile, busy_until: vec![0; profile.channels.max(1) as usize] }
    }

    pub(super) fn serve(&mut self, now: u64, access: Access) -> u64 {
        let (startup_us, mb_per_s) = one_channel(&self.profile, access.direction);
        let service = whole(startup_us * 1e3).saturating_add(transfer_ns(access.len, mb_per_s));
        let free = self.busy_until.iter_mut().min().expect("there is a channel");
        *free = now.max(*free).saturating_add(service);
        *free
    }

    /// Until when each channel is busy.
    pub(super) fn state(&self) -> &[u64] {
        &self.busy_until
    }

    /// In nanoseconds.
    pub(super) fn busy_until(&self) -> u64 {
        self.busy_until.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn go_on_from(&mut self, state: &[u64]) -> bool {
        let fits = state.len() == self.busy_until.len();
        if fits {
            self.busy_until.copy_from_slice(state);
        }
        fits
    }
}

/// Startup in microseconds and bandwidth in MB/s of one request, which has one channel's share.
pub(super) fn one_channel(profile: &EmulatedSsd, direction: Direction) -> (f64, f64) {
    let (startup_us, mb_per_s) = match direction {
        Direction::Read => (profile.read_startup_us, profile.read_mb_per_s),
        Direction::Write => (profile.write_startup_us, profile.write_mb_per_s),
    };
    (startup_us, mb_per_s / f64::from(profile.channels.max(1)))
}
