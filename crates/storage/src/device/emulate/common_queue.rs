//! An emulated device shared by several mounts, each in its own process: the nodes of a cluster have one origin, and so
//! one set of disks.
//!
//! The device's queue is in a file, which each process locks to use it. Its times are of the machine's monotonic clock,
//! which all processes of one machine share until it reboots.
//!
//! Nothing of that keeps a request for ever: a process that is stopped while it has the lock is not waited for long,
//! and a backlog that no device has is not believed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use halocline_model::emulated::{Access, Mechanism};
use halocline_os::boot_id::boot_id;
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_os::private::{PrivateDir, Use};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

/// How long the lock is waited for, which others hold for microseconds.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// How often it is tried at once, and then between pauses.
const TRIES_AT_ONCE: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);

/// What the requests that wait may need together, in nanoseconds.
const BACKLOG_NS_MAX: u64 = 600_000_000_000;

/// The queue of one device.
#[derive(Debug, Clone)]
pub struct CommonQueue(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    file: File,
    boot: String,
    /// The lock was waited for in vain, and not had since.
    is_stuck: AtomicBool,
}

impl CommonQueue {
    /// The queue of the device with this number in `dir`; created if it does not exist.
    ///
    /// # Errors
    /// If it cannot be opened, or does not belong to this user alone.
    pub fn open(dir: &Path, number: usize) -> Result<Self> {
        let name = format!("emulated-device-{number}");
        let file = PrivateDir::look_or_make(dir)?.file(&name, Use::Write)?;
        Ok(Self(Arc::new(Queue { file, boot: boot_id()?, is_stuck: AtomicBool::new(false) })))
    }

    /// When a request is done, after all earlier ones of other processes; only after those of this process where
    /// another one does not let go of the queue. The caller has the mechanism's lock: the file's does not tell threads
    /// apart.
    pub(super) fn serve(
        &self,
        mechanism: &mut Mechanism,
        arrival: u64,
        access: Access,
    ) -> io::Result<u64> {
        let Queue { file, boot, .. } = &*self.0;
        if !self.0.lock()? {
            return Ok(mechanism.serve(arrival, access));
        }
        let mut serve = || {
            let mut bytes = vec![0; boot.len() + 8 * mechanism.state().len()];
            let read = file.read_at(&mut bytes, 0)?;
            // State from before a reboot, or of another device, is not continued.
            if let Some(state) = bytes[..read].strip_prefix(boot.as_bytes()) {
                let (numbers, _) = state.as_chunks();
                let numbers: Vec<u64> = numbers.iter().map(|n| u64::from_le_bytes(*n)).collect();
                let before = mechanism.state();
                mechanism.go_on_from(&numbers);
                if mechanism.busy_until_ns() > arrival.saturating_add(BACKLOG_NS_MAX) {
                    mechanism.go_on_from(&before);
                }
            }
            let done = mechanism.serve(arrival, access);
            let numbers = mechanism.state();
            let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
            bytes = boot.bytes().chain(numbers).collect();
            file.write_all_at(&bytes, 0)?;
            Ok(done)
        };
        let done = serve();
        flock(file, FlockOperation::Unlock)?;
        done
    }
}

impl Queue {
    /// Locks the file; `false` where another process keeps it.
    fn lock(&self) -> io::Result<bool> {
        let limit = if self.is_stuck.load(Ordering::Relaxed) { Duration::ZERO } else { LOCK_LIMIT };
        let clock = Clock::MACHINE;
        let begun = clock.instant();
        let mut tries = 0;
        loop {
            match retry_on_intr(|| flock(&self.file, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => {
                    self.is_stuck.store(false, Ordering::Relaxed);
                    return Ok(true);
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(errno.into()),
            }
            if clock.elapsed(begun) >= limit {
                if !self.is_stuck.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "an emulated device is not shared for now: another process keeps its queue locked"
                    );
                }
                return Ok(false);
            }
            tries += 1;
            if tries < TRIES_AT_ONCE { thread::yield_now() } else { clock.sleep(PAUSE) }
        }
    }
}

/// A queue's file: body of a fuzz target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use halocline_model::emulated::EmulatedDevice;
    use halocline_model::request::Direction;

    use super::{Access, BACKLOG_NS_MAX, CommonQueue, Mechanism};

    /// What damage left there: no request waits longer than a backlog that a device may have, and its own time.
    pub fn common_queue(bytes: &[u8]) {
        let memory = Path::new("/dev/shm");
        let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let scratch = made.expect("a directory");
        for (number, kind) in ["hdd", "ssd"].into_iter().enumerate() {
            let queue = CommonQueue::open(scratch.path(), number).expect("a directory of our own");
            let content = [queue.0.boot.as_bytes(), bytes].concat();
            queue.0.file.write_all_at(&content, 0).expect("it is written");
            let mut mechanism =
                Mechanism::new(EmulatedDevice::builtin(kind).expect("it is built in"));
            for (arrival, offset) in [(5, 0), (5, u64::MAX >> 1), (7, 4096)] {
                let access = Access { inode: 1, offset, len: 4096, direction: Direction::Write };
                let done = queue.serve(&mut mechanism, arrival, access).expect("it is served");
                assert!((arrival..=2 * BACKLOG_NS_MAX).contains(&done), "{kind}: {done}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::emulated::EmulatedDevice;
    use halocline_model::request::Direction;

    use super::*;

    const ACCESS: Access = Access { inode: 1, offset: 0, len: 4096, direction: Direction::Write };

    fn disk() -> Mechanism {
        Mechanism::new(EmulatedDevice::builtin("hdd").unwrap())
    }

    #[test]
    fn two_mounts_wait_for_each_other_at_one_disk() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("devices");
        let queue = |number| CommonQueue::open(&place, number).unwrap();
        let (queues, mut disks) = ([queue(0), queue(0)], [disk(), disk()]);
        let mut alone = disk();
        for step in 0..20_u64 {
            let access = Access { offset: step * 1_000_000, ..ACCESS };
            let turn = usize::try_from(step % 2).unwrap();
            let done = queues[turn].serve(&mut disks[turn], 5, access).unwrap();
            assert_eq!(done, alone.serve(5, access), "{step}");
        }
        let mut other = disk();
        let beside = queue(1).serve(&mut other, 5, ACCESS).unwrap();
        assert_eq!(beside, disk().serve(5, ACCESS), "another disk has nothing to do");
    }

    #[test]
    fn what_an_earlier_start_of_the_machine_left_is_no_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let queue = CommonQueue::open(dir.path(), 0).unwrap();
        let old = "0".repeat(queue.0.boot.len());
        queue.0.file.write_all_at(&[old.as_bytes(), &[0xff; 16]].concat(), 0).unwrap();
        assert_eq!(queue.serve(&mut disk(), 5, ACCESS).unwrap(), disk().serve(5, ACCESS));
    }

    /// All mounts of the device hung until a process that had been stopped at that moment went on.
    #[test]
    fn a_process_that_keeps_the_queue_locked_is_not_waited_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let queue = CommonQueue::open(dir.path(), 0).unwrap();
        let other = CommonQueue::open(dir.path(), 0).unwrap();
        let (mut mechanism, mut alone) = (disk(), disk());
        flock(&other.0.file, FlockOperation::LockExclusive).unwrap();
        for step in 0..100 {
            let access = Access { offset: step * 1_000_000, ..ACCESS };
            let done = queue.serve(&mut mechanism, 5, access).unwrap();
            assert_eq!(done, alone.serve(5, access), "after its own requests");
            assert!(queue.0.is_stuck.load(Ordering::Relaxed), "the next ones do not wait at all");
        }
        flock(&other.0.file, FlockOperation::Unlock).unwrap();
        other.serve(&mut disk(), 5, ACCESS).unwrap();
        queue.serve(&mut mechanism, 5, ACCESS).unwrap();
        assert!(!queue.0.is_stuck.load(Ordering::Relaxed), "it is shared again");
    }

    #[test]
    fn a_backlog_that_no_device_has_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let queue = CommonQueue::open(dir.path(), 0).unwrap();
        let fill = |byte: u8| {
            let state = vec![byte; 8 * disk().state().len()];
            queue.0.file.write_all_at(&[queue.0.boot.as_bytes(), &state].concat(), 0).unwrap();
        };
        for byte in [0x7f, 0xff] {
            fill(byte);
            assert_eq!(queue.serve(&mut disk(), 5, ACCESS).unwrap(), disk().serve(5, ACCESS));
        }
    }
}
