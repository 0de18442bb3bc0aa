//! An emulated disk or solid-state device over a real directory.
//!
//! The bytes are real: every operation is done on the file below first. What is emulated is the
//! time: [`hdd`] and [`ssd`] compute from a virtual clock when the device would have answered,
//! and the caller sleeps until exactly then. All callers of one device share its queue, in the
//! order in which they arrive.
//!
//! An emulated device is for measuring. Its `sync` costs next to nothing, because the time of the
//! writes was spent already; it does not reach through to the real device, so that a real disk's
//! speed does not show up in the emulation. What was written survives `kill -9` as always; it
//! survives power loss only as far as the file system below wrote it back.

mod hdd;
mod sleep;
mod ssd;

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use halocline_model::profile::{DeviceProfile, ServiceProfile, whole};
use halocline_model::request::{ByteRange, Direction};
use parking_lot::Mutex;

use super::{Allocate, Device, ServerFile, Space};
use crate::config::EmulatedDevice;

/// A request as an emulated device sees it.
#[derive(Debug, Clone, Copy)]
struct Access {
    inode: u64,
    offset: u64,
    len: u64,
    direction: Direction,
}

#[derive(Debug)]
enum Mechanism {
    Hdd(hdd::Hdd),
    Ssd(ssd::Ssd),
}

impl Mechanism {
    /// When a request that arrives at `now` is done; both in nanoseconds of one clock.
    fn serve(&mut self, now: u64, access: Access) -> u64 {
        match self {
            Self::Hdd(hdd) => hdd.serve(now, access),
            Self::Ssd(ssd) => ssd.serve(now, access),
        }
    }
}

/// A real device that answers when an emulated one would.
#[derive(Debug)]
pub struct EmulatedServer {
    below: Arc<dyn Device>,
    mechanism: Mutex<Mechanism>,
}

impl EmulatedServer {
    /// Puts the emulation of `device` around the real device `below`.
    pub fn new(device: EmulatedDevice, below: Arc<dyn Device>) -> Self {
        let mechanism = match device {
            EmulatedDevice::Hdd(profile) => Mechanism::Hdd(hdd::Hdd::new(profile)),
            EmulatedDevice::Ssd(profile) => Mechanism::Ssd(ssd::Ssd::new(profile)),
        };
        Self { below, mechanism: Mutex::new(mechanism) }
    }

    /// Passes the time that the device needs for `access`, beginning at `arrival`.
    fn pass_time(&self, arrival: u64, access: Access) {
        let done = self.mechanism.lock().serve(arrival, access);
        sleep::until(done);
    }
}

impl Device for EmulatedServer {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let arrival = sleep::arrival();
        let wanted = bufs.iter().any(|buf| !buf.is_empty());
        let len = self.below.read_at(file, offset, bufs)?;
        if wanted {
            let (inode, direction) = (file.inode(), Direction::Read);
            // A read at the end of the file still has to go and see that there is nothing.
            self.pass_time(arrival, Access { inode, offset, len: len as u64, direction });
        }
        Ok(len)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let arrival = sleep::arrival();
        let len = bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        self.below.write_at(file, offset, bufs)?;
        if len > 0 {
            let (inode, direction) = (file.inode(), Direction::Write);
            self.pass_time(arrival, Access { inode, offset, len, direction });
        }
        Ok(())
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.below.allocate(file, range, how)
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.below.truncate(file, len)
    }

    fn sync(&self, _file: &ServerFile, _data_only: bool) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

/// The service times that one caller sees on an idle emulated device: what calibration has to
/// find. "Random" means uniformly random within `span` bytes, because a seek costs by distance.
pub fn expected(device: &EmulatedDevice, span: u64) -> DeviceProfile {
    match device {
        EmulatedDevice::Hdd(profile) => {
            let service = ServiceProfile {
                startup_sequential_ps: 0,
                startup_random_ps: whole(hdd::random_startup_ns(profile, span) * 1e3),
                per_byte_ps: per_byte_ps(profile.mb_per_s),
            };
            DeviceProfile { read: service, write: service }
        }
        EmulatedDevice::Ssd(profile) => {
            let service = |direction| {
                let (startup_us, mb_per_s) = ssd::one_channel(profile, direction);
                let startup = whole(startup_us * 1e6);
                ServiceProfile {
                    startup_sequential_ps: startup,
                    startup_random_ps: startup,
                    per_byte_ps: per_byte_ps(mb_per_s),
                }
            };
            DeviceProfile { read: service(Direction::Read), write: service(Direction::Write) }
        }
    }
}

/// 1 MB/s is 10^6 bytes a second, so a byte takes 10^6 picoseconds.
fn per_byte_ps(mb_per_s: f64) -> u64 {
    whole(1e6 / mb_per_s)
}

/// Nanoseconds that `len` bytes take at `mb_per_s`.
fn transfer_ns(len: u64, mb_per_s: f64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "a request is far shorter than 2^52 bytes")]
    whole(len as f64 * 1e3 / mb_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{EmulatedHdd, EmulatedSsd};

    fn access(inode: u64, offset: u64, len: u64) -> Access {
        Access { inode, offset, len, direction: Direction::Write }
    }

    /// 60,000 rpm: half a turn is 0.5 ms; 100 MB/s: 1 MB is 10 ms.
    fn disk() -> EmulatedHdd {
        EmulatedHdd {
            seek_ms_min: 1.0,
            seek_ms_max: 11.0,
            rpm: 60_000.0,
            mb_per_s: 100.0,
            capacity_gb: 1.0,
        }
    }

    #[test]
    fn a_disk_seeks_turns_and_transfers() {
        let mut hdd = hdd::Hdd::new(disk());
        let file = (1..1000).find(|&inode| hdd.position(inode, 0) < 500_000_000).unwrap();
        let access = |offset, len| access(file, offset, len);
        let first = hdd.serve(0, access(0, 1_000_000));
        let next = hdd.serve(first, access(1_000_000, 1_000_000));
        assert_eq!(next - first, 10_000_000, "what continues costs transfer alone");
        // A quarter of the surface on: half of the way from the shortest to the longest seek.
        let far = hdd.serve(next, access(252_000_000, 0));
        assert_eq!(far - next, 6_000_000 + 500_000);
        let again = hdd.serve(far, access(252_000_000, 0));
        assert_eq!(again, far, "the head is there already");
    }

    #[test]
    fn a_disk_has_one_head_and_serves_in_order_of_arrival() {
        let mut hdd = hdd::Hdd::new(disk());
        let first = hdd.serve(0, access(1, 0, 1_000_000));
        let second = hdd.serve(5, access(1, 1_000_000, 1_000_000));
        let third = hdd.serve(9, access(1, 2_000_000, 1_000_000));
        assert_eq!((second - first, third - second), (10_000_000, 10_000_000));
        let idle = hdd.serve(third + 77, access(1, 3_000_000, 1_000_000));
        assert_eq!(idle - third, 10_000_077, "an idle disk starts at the arrival");
    }

    #[test]
    fn files_lie_apart_and_stay_where_they_are() {
        let place = |inode| hdd::Hdd::new(disk()).position(inode, 0);
        assert_eq!(place(17), place(17));
        let mut places: Vec<u64> = (1..100).map(place).collect();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() > 85, "{} places for 99 files", places.len());
        assert!(places.last().unwrap() - places[0] > 900_000_000, "over the whole surface");
    }

    #[test]
    fn channels_work_at_once_and_share_the_bandwidth() {
        let profile = EmulatedSsd {
            read_startup_us: 50.0,
            write_startup_us: 100.0,
            read_mb_per_s: 800.0,
            write_mb_per_s: 400.0,
            channels: 4,
        };
        let mut ssd = ssd::Ssd::new(profile);
        let done: Vec<u64> = (0..5).map(|at| ssd.serve(0, access(at, 0, 1_000_000))).collect();
        // 100 MB/s and 100 us a channel; the fifth waits for the first.
        assert_eq!(done, [10_100_000, 10_100_000, 10_100_000, 10_100_000, 20_200_000]);
        let read = Access { direction: Direction::Read, ..access(9, 0, 1_000_000) };
        assert_eq!(ssd.serve(50_000_000, read), 55_050_000);
    }
}
