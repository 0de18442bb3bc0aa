//! Emulated devices: when a disk or a solid-state device would complete a request.
//!
//! Pure arithmetic; the clock is an argument. The emulation in real time (`crates/storage/src/device/emulate.rs`) and
//! the simulator (`halocline-sim`) both ask this one model, so that they cannot disagree about a device.

mod hdd;
mod measured;
mod ssd;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::profile::{DeviceProfile, ServiceProfile, whole};
use crate::request::Direction;

/// A request as an emulated device sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Number of the file on the device, which determines the file's position.
    pub inode: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Read or write.
    pub direction: Direction,
}

/// An emulated device with its pending work.
#[derive(Debug)]
pub struct Mechanism(Kind);

#[derive(Debug)]
enum Kind {
    Hdd(hdd::Hdd),
    Ssd(ssd::Ssd),
    Measured(measured::Measured),
}

impl Mechanism {
    /// An idle device.
    pub fn new(device: EmulatedDevice) -> Self {
        Self(match device {
            EmulatedDevice::Hdd(profile) => Kind::Hdd(hdd::Hdd::new(profile)),
            EmulatedDevice::Ssd(profile) => Kind::Ssd(ssd::Ssd::new(profile)),
        })
    }

    /// An idle device of which only the calibrated service times are known.
    pub fn measured(profile: DeviceProfile) -> Self {
        Self(Kind::Measured(measured::Measured::new(profile)))
    }

    /// When a request that arrives at `now` completes; both in nanoseconds of one clock. Requests must be passed in the
    /// order of their arrival.
    pub fn serve(&mut self, now: u64, access: Access) -> u64 {
        match &mut self.0 {
            Kind::Hdd(hdd) => hdd.serve(now, access),
            Kind::Ssd(ssd) => ssd.serve(now, access),
            Kind::Measured(measured) => measured.serve(now, access),
        }
    }

    /// Until when it has something to do, in nanoseconds of the same clock.
    pub fn busy_until_ns(&self) -> u64 {
        match &self.0 {
            Kind::Hdd(hdd) => hdd.busy_until(),
            Kind::Ssd(ssd) => ssd.busy_until(),
            Kind::Measured(measured) => measured.busy_until(),
        }
    }

    /// What it has to do, as numbers with which another mechanism of the same device can go on.
    pub fn state(&self) -> Vec<u64> {
        match &self.0 {
            Kind::Hdd(hdd) => hdd.state().to_vec(),
            Kind::Ssd(ssd) => ssd.state().to_vec(),
            Kind::Measured(measured) => measured.state().to_vec(),
        }
    }

    /// Continues from the state of another mechanism of the same device. If the state is of another device, returns
    /// `false` and changes nothing.
    pub fn go_on_from(&mut self, state: &[u64]) -> bool {
        match &mut self.0 {
            Kind::Hdd(hdd) => hdd.go_on_from(state),
            Kind::Ssd(ssd) => ssd.go_on_from(state),
            Kind::Measured(measured) => measured.go_on_from(state),
        }
    }
}

/// A disk with one head and a FIFO queue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatedHdd {
    /// Shortest seek in milliseconds.
    pub seek_ms_min: f64,
    /// Seek over the whole surface in milliseconds.
    pub seek_ms_max: f64,
    /// Revolutions a minute: half a turn is the mean rotational delay.
    pub rpm: f64,
    /// Transfer in megabytes (10^6 bytes) a second.
    pub mb_per_s: f64,
    /// Bytes of the surface: the distance of a full seek.
    pub capacity_gb: f64,
}

/// A solid-state device: startup, transfer and parallel channels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatedSsd {
    /// Startup of a read in microseconds.
    pub read_startup_us: f64,
    /// Startup of a write in microseconds.
    pub write_startup_us: f64,
    /// Reading in megabytes (10^6 bytes) a second, all channels together.
    pub read_mb_per_s: f64,
    /// Writing in megabytes (10^6 bytes) a second, all channels together.
    pub write_mb_per_s: f64,
    /// Requests in service at once.
    pub channels: u32,
}

impl Default for EmulatedHdd {
    /// A 7200 rpm SATA disk.
    fn default() -> Self {
        Self {
            seek_ms_min: 0.8,
            seek_ms_max: 16.0,
            rpm: 7200.0,
            mb_per_s: 120.0,
            capacity_gb: 250.0,
        }
    }
}

impl Default for EmulatedSsd {
    /// The papers' PCI Express SSD.
    fn default() -> Self {
        Self {
            read_startup_us: 60.0,
            write_startup_us: 80.0,
            read_mb_per_s: 740.0,
            write_mb_per_s: 700.0,
            channels: 4,
        }
    }
}

/// One emulated device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum EmulatedDevice {
    /// A disk.
    Hdd(EmulatedHdd),
    /// A solid-state device.
    Ssd(EmulatedSsd),
}

impl EmulatedDevice {
    /// How many requests it serves at once.
    #[must_use]
    pub const fn channels(&self) -> u32 {
        match self {
            Self::Ssd(ssd) if ssd.channels > 1 => ssd.channels,
            _ => 1,
        }
    }

    /// The device called `name` in a configuration's profiles, or a built-in one.
    pub fn named(name: &str, profiles: &BTreeMap<String, Self>) -> Option<Self> {
        profiles.get(name).copied().or_else(|| Self::builtin(name))
    }

    /// What is impossible for a device: such a number would become an infinite time, or more channels than fit in
    /// memory.
    pub fn check(&self) -> Result<(), String> {
        let bounds: &[(&str, f64, f64, f64)] = match self {
            Self::Hdd(hdd) => &[
                ("seek_ms_min", hdd.seek_ms_min, 0.0, STARTUP_MS_MAX),
                ("seek_ms_max", hdd.seek_ms_max, hdd.seek_ms_min, STARTUP_MS_MAX),
                ("rpm", hdd.rpm, 1.0, 1e6),
                ("mb_per_s", hdd.mb_per_s, MB_PER_S_MIN, MB_PER_S_MAX),
                ("capacity_gb", hdd.capacity_gb, 0.001, 1e9),
            ],
            Self::Ssd(ssd) => &[
                ("read_startup_us", ssd.read_startup_us, 0.0, STARTUP_MS_MAX * 1e3),
                ("write_startup_us", ssd.write_startup_us, 0.0, STARTUP_MS_MAX * 1e3),
                ("read_mb_per_s", ssd.read_mb_per_s, MB_PER_S_MIN, MB_PER_S_MAX),
                ("write_mb_per_s", ssd.write_mb_per_s, MB_PER_S_MIN, MB_PER_S_MAX),
                ("channels", f64::from(ssd.channels), 0.0, CHANNELS_MAX),
            ],
        };
        // NaN is in no range.
        match bounds.iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            Some((key, value, least, most)) => {
                Err(format!("{key} is {value}, which is not from {least} to {most}"))
            }
            None => Ok(()),
        }
    }

    /// The built-in device called `name`: `hdd` or `ssd`.
    pub fn builtin(name: &str) -> Option<Self> {
        match name {
            "hdd" => Some(Self::Hdd(EmulatedHdd::default())),
            "ssd" => Some(Self::Ssd(EmulatedSsd::default())),
            _ => None,
        }
    }
}

/// Longest startup of an emulated device: a minute.
const STARTUP_MS_MAX: f64 = 60_000.0;
/// Slowest and fastest emulated transfer.
const MB_PER_S_MIN: f64 = 0.001;
const MB_PER_S_MAX: f64 = 1e6;
/// Most channels of an emulated device.
const CHANNELS_MAX: f64 = 4096.0;

/// The service times that one caller sees on an idle emulated device, which calibration should find. "Random" means
/// uniformly random within `span` bytes, because the cost of a seek depends on its distance.
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
        // A quarter of the surface further: half of the difference between the shortest and the longest seek.
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

    /// As two processes do that share a device.
    #[test]
    fn two_mechanisms_take_turns_at_one_device() {
        let ssd = EmulatedDevice::Ssd(EmulatedSsd::default());
        for device in [EmulatedDevice::Hdd(disk()), ssd] {
            let mut alone = Mechanism::new(device);
            let mut pair = [Mechanism::new(device), Mechanism::new(device)];
            let mut state = pair[0].state();
            for step in 0..50_u64 {
                let access = access(step % 3, step * 1000, 500);
                let turn = &mut pair[usize::try_from(step % 2).unwrap()];
                assert!(turn.go_on_from(&state));
                assert_eq!(turn.serve(step * 10, access), alone.serve(step * 10, access), "{step}");
                state = turn.state();
            }
        }
        assert!(!Mechanism::new(ssd).go_on_from(&[0; 9]), "of a device with more channels");
    }

    #[test]
    fn files_lie_apart_and_stay_where_they_are() {
        let place = |inode| hdd::Hdd::new(disk()).position(inode, 0);
        assert_eq!(place(17), place(17));
        let mut places: Vec<u64> = (1..100).map(place).collect();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() > 85, "{} places for 99 files", places.len());
        let span = places.last().unwrap() - places[0];
        assert!(
            (800_000_000..875_000_001).contains(&span),
            "over seven eighths of the surface: {span}"
        );
    }

    /// Regression: a file that began near the end of the surface continued at its beginning, so that requests at random in
    /// it took up to twice as long. Which file that was followed from its inode number: one run in some hundred was slow.
    #[test]
    fn a_file_of_an_eighth_of_the_surface_has_short_seeks_wherever_it_lies() {
        let eighth = 125_000_000;
        let longest = |inode| {
            let hdd = hdd::Hdd::new(disk());
            hdd.position(inode, eighth - 1).abs_diff(hdd.position(inode, 0))
        };
        assert!((0..10_000).all(|inode| longest(inode) == eighth - 1));
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
