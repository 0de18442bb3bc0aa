//! Measures a server: startup and transfer time by direction and pattern, through the device
//! trait that the engine uses (D10).
//!
//! One caller on an idle server issues requests of several sizes to a scratch file, sequentially and at random; [`fit`]
//! finds the cost model's parameters from the medians. "Random" means within the scratch file: on a disk the startup
//! grows with its size, so a file as large as the data that will be used gives the best prediction.

mod fit;
mod remote;
mod rotational;
mod scratch;

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;

use halocline_model::profile::DeviceProfile;
use halocline_model::request::Direction;
use serde::Serialize;

use crate::device::Device;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};

pub use remote::is_remote;
pub use rotational::rotational;

use fit::{Pattern, Point};
use scratch::{AlignedBuffer, Scratch};

/// How much to measure.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Size of the scratch file in bytes.
    pub span: u64,
    /// Requests for each direction, pattern and size.
    pub requests: usize,
    /// Request sizes in bytes, multiples of 4096.
    pub sizes: Vec<u64>,
    /// Bypass the page cache (`O_DIRECT`) if the file system can, to measure the device instead of memory. Not needed
    /// on an emulated device, whose time does not depend on it.
    pub direct: bool,
    /// Measure the network path to the server separately, too, because the server is on another machine.
    pub network: bool,
    /// The time that requests take is of this clock.
    pub clock: Clock,
}

impl Default for Effort {
    /// 1 GiB and 4,000 requests: some seconds on flash, about half a minute on a disk.
    fn default() -> Self {
        Self {
            span: 1 << 30,
            requests: 200,
            sizes: [4, 16, 64, 256, 1024].map(|kib| kib << 10).to_vec(),
            direct: true,
            network: false,
            clock: Clock::MACHINE,
        }
    }
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calibration {
    /// The cost model's parameters.
    pub profile: DeviceProfile,
    /// Whether the page cache was bypassed; otherwise reads may have measured memory.
    pub direct: bool,
    /// The network path to the server, if requested; the profile's times include it.
    pub network: Option<NetworkCost>,
    /// Requests that were measured.
    pub requests: usize,
}

/// The cost of the network path to a server on another machine, measured by reads of what that has in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NetworkCost {
    /// Of one request, in picoseconds: e of the cost model, and the time of the server's software.
    pub startup_ps: u64,
    /// Of one byte, in picoseconds: t of the cost model.
    pub per_byte_ps: u64,
}

impl Calibration {
    /// The device alone: the profile without the network path to it.
    pub fn device(&self) -> DeviceProfile {
        let Some(network) = self.network else { return self.profile };
        let mut device = self.profile;
        for service in [&mut device.read, &mut device.write] {
            for startup in [&mut service.startup_sequential_ps, &mut service.startup_random_ps] {
                *startup = startup.saturating_sub(network.startup_ps);
            }
            service.per_byte_ps = service.per_byte_ps.saturating_sub(network.per_byte_ps);
        }
        device
    }
}

/// Called with the number of steps done and the total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Bytes of one write while the scratch file is filled.
const FILL: u64 = 4 << 20;

/// Measures the server in `dir` through `device`. The scratch file has no name while it is in use, so that it
/// disappears with the process in any case.
pub fn calibrate(
    dir: &Path,
    device: &dyn Device,
    effort: &Effort,
    progress: Progress<'_>,
) -> Result<Calibration> {
    check(dir, device, effort)?;
    let scratch = Scratch::create(dir, effort.direct)?;
    let longest = effort.sizes.iter().copied().max().unwrap_or(0).max(FILL);
    let mut run = Run { device, scratch: &scratch, effort, buffer: AlignedBuffer::new(longest) };
    let fill_steps = effort.span.div_ceil(FILL);
    let series = fit::SERIES.into_iter().chain(effort.network.then_some(fit::NETWORK));
    let runs = series.clone().count() * effort.sizes.len();
    let total = fill_steps + (runs * effort.requests) as u64;
    let failed = || Error::at(dir, "measure the server with a scratch file");
    for step in 0..fill_steps {
        let len = FILL.min(effort.span - step * FILL);
        run.request(Direction::Write, step * FILL, len).map_err(failed())?;
        progress(step + 1, total);
    }
    // Data still in the page cache must not be written back during a measurement.
    device.sync(&scratch.file, true).map_err(failed())?;
    let (mut points, mut done) = (Vec::with_capacity(runs), fill_steps);
    for (direction, pattern) in series {
        for &size in &effort.sizes {
            let median_ps = run.series(direction, pattern, size).map_err(failed())?;
            points.push(Point { direction, pattern, size, median_ps });
            done += effort.requests as u64;
            progress(done, total);
        }
    }
    let requests = runs * effort.requests;
    let network = points.split_off(fit::SERIES.len() * effort.sizes.len());
    let network = effort.network.then(|| fit::network(&network));
    let network = network.map(|(startup_ps, per_byte_ps)| NetworkCost { startup_ps, per_byte_ps });
    Ok(Calibration { profile: fit::profile(&points), direct: scratch.direct, network, requests })
}

fn check(dir: &Path, device: &dyn Device, effort: &Effort) -> Result<()> {
    let sizes_fit = |size: &u64| *size > 0 && size.is_multiple_of(4096) && size * 2 <= effort.span;
    if effort.sizes.len() < 2 || !effort.sizes.iter().all(sizes_fit) || effort.requests == 0 {
        return Err(Error::invalid(
            format!("{}: cannot calibrate with sizes {:?}", dir.display(), effort.sizes),
            "give two or more multiples of 4096, none over half of the scratch file",
        ));
    }
    let free = device.space().map_err(Error::at(dir, "ask for free space"))?.available;
    if free / 2 < effort.span {
        let what = format!("{}: {free} bytes are free", dir.display());
        let least = effort.sizes.iter().max().map_or(0, |size| size * 2);
        let is_smaller_enough = effort.span > least && free / 2 >= least;
        let smaller = if is_smaller_enough {
            format!(", or give a smaller scratch file, of at most {} bytes (--span)", free / 2)
        } else {
            String::new()
        };
        let remedy = format!(
            "calibration leaves half of the free space alone: free some, until there are {} bytes{smaller}",
            effort.span * 2
        );
        return Err(Error::invalid(what, remedy));
    }
    Ok(())
}

struct Run<'a> {
    device: &'a dyn Device,
    scratch: &'a Scratch,
    effort: &'a Effort,
    buffer: AlignedBuffer,
}

impl Run<'_> {
    /// The median time in picoseconds of requests of one size.
    fn series(
        &mut self,
        direction: Direction,
        pattern: Pattern,
        size: u64,
    ) -> std::io::Result<f64> {
        let places = self.effort.span / size;
        let mut random = fit::Random::new(size);
        let mut times = Vec::with_capacity(self.effort.requests);
        // One request more than is measured: the first of a sequential series does not continue anything.
        for at in 0..=self.effort.requests as u64 {
            let place = match pattern {
                Pattern::Sequential => at % places,
                Pattern::Random => random.below(places),
                Pattern::Same => 0,
            };
            let start = self.effort.clock.instant();
            self.request(direction, place * size, size)?;
            if at > 0 {
                times.push(self.effort.clock.elapsed(start));
            }
        }
        Ok(fit::median_ps(&mut times))
    }

    fn request(&mut self, direction: Direction, offset: u64, len: u64) -> std::io::Result<()> {
        let bytes = self.buffer.bytes(len);
        match direction {
            Direction::Read => {
                let mut bufs = [IoSliceMut::new(bytes)];
                self.device.read_at(&self.scratch.file, offset, &mut bufs).map(drop)
            }
            Direction::Write => {
                self.device.write_at(&self.scratch.file, offset, &[IoSlice::new(bytes)])
            }
        }
    }
}
