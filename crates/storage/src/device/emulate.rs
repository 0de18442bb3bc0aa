//! An emulated disk or solid-state device over a real directory.
//!
//! The bytes are real: every operation is first done on the file below. The time is emulated:
//! [`halocline_model::emulated`] computes when the device would have completed the operation, and the caller sleeps
//! until exactly then. All callers of one device share its queue, in order of arrival; with a [`CommonQueue`] also
//! those in other processes.
//!
//! An emulated device is for measurements. Its `sync` costs almost nothing, because the time of the writes has already
//! passed; it does not reach the real device, so that a real disk's speed does not affect the emulation. As always,
//! what was written survives `kill -9`; it survives a power loss only if the file system below has written it back.

mod common_queue;
#[cfg(any(test, fuzzing))]
pub(crate) use common_queue::fuzzing;
mod link;
mod sleep;

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use halocline_model::emulated::{Access, EmulatedDevice, Mechanism};
use halocline_model::request::{ByteRange, Direction};
use parking_lot::Mutex;

pub use common_queue::CommonQueue;
pub use halocline_model::emulated::expected;
pub use link::EmulatedLink;

use super::{Device, ServerFile, Space};
use halocline_os::clock::{Clock, Simulated};
use halocline_vfs::Allocate;

/// A real device with the timing of an emulated one.
#[derive(Debug)]
pub struct EmulatedServer {
    below: Arc<dyn Device>,
    mechanism: Mutex<Mechanism>,
    /// The queue shared with other processes.
    common: Option<CommonQueue>,
    clock: Clock,
}

impl EmulatedServer {
    /// Wraps the real device `below` in the emulation of `device`.
    pub fn new(device: EmulatedDevice, below: Arc<dyn Device>) -> Self {
        let mechanism = Mutex::new(Mechanism::new(device));
        Self { below, mechanism, common: None, clock: Clock::MACHINE }
    }

    /// Shares the device with others that use the same queue. It then uses the machine's clock.
    #[must_use]
    pub fn in_common(self, queue: Option<CommonQueue>) -> Self {
        Self { common: queue, ..self }
    }

    /// Uses the time of `clock`.
    #[must_use]
    pub fn timed_by(self, clock: &Clock) -> Self {
        Self { clock: clock.clone(), ..self }
    }

    /// When a request of the calling thread arrives, in nanoseconds since an arbitrary time.
    fn arrival(&self) -> u64 {
        self.clock.as_simulated().map_or_else(sleep::arrival, Simulated::elapsed_ns)
    }

    /// Waits for as long as the device needs for `access`, from `arrival` on.
    fn pass_time(&self, arrival: u64, access: Access) -> io::Result<()> {
        let done = {
            let mut mechanism = self.mechanism.lock();
            match &self.common {
                Some(queue) => queue.serve(&mut mechanism, arrival, access)?,
                None => mechanism.serve(arrival, access),
            }
        };
        match self.clock.as_simulated() {
            Some(simulated) => simulated.sleep_until_ns(done),
            None => sleep::until(done),
        }
        Ok(())
    }
}

impl Device for EmulatedServer {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let arrival = self.arrival();
        let wanted = bufs.iter().any(|buf| !buf.is_empty());
        let len = self.below.read_at(file, offset, bufs)?;
        if wanted {
            let (inode, direction) = (file.inode(), Direction::Read);
            // A read at the end of the file still takes the time to find out that there is nothing.
            self.pass_time(arrival, Access { inode, offset, len: len as u64, direction })?;
        }
        Ok(len)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let arrival = self.arrival();
        let len = bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        self.below.write_at(file, offset, bufs)?;
        if len > 0 {
            let (inode, direction) = (file.inode(), Direction::Write);
            self.pass_time(arrival, Access { inode, offset, len, direction })?;
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
