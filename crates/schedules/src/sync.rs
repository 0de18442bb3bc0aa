//! The primitives that sources of the product name, as they use them, over those that shuttle explores.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// As `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

/// As `parking_lot::MutexGuard`.
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only while the lock is let go.
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { mutex: self, held: Some(held) }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Ok(held) => held,
        };
        Some(MutexGuard { mutex: self, held: Some(held) })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("held")
    }
}

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("held");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// As `halocline_os::clock::Clock`, without time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// What is waited for comes, or nobody ever goes on.
    Endless,
    /// All times are over when others had a chance to run.
    Short,
}

impl Clock {
    #[expect(clippy::unused_self, reason = "as the clock that it stands for")]
    pub(crate) fn instant(self) -> Instant {
        Instant::now()
    }

    #[expect(clippy::unused_self, reason = "as the clock that it stands for")]
    pub(crate) fn elapsed(self, since: Instant) -> Duration {
        since.elapsed()
    }

    /// Others may run meanwhile.
    #[expect(clippy::unused_self, reason = "as the clock that it stands for")]
    pub(crate) fn sleep(self, _time: Duration) {
        shuttle::thread::yield_now();
    }

    pub(crate) fn wait_while<T>(
        self,
        changed: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        _deadline: Instant,
    ) -> bool {
        while condition(guard) {
            match self {
                Self::Endless => changed.wait(guard),
                Self::Short => {
                    guard.held = None;
                    shuttle::thread::yield_now();
                    let mutex: &Mutex<T> = guard.mutex;
                    guard.held = mutex.lock().held.take();
                    return condition(guard);
                }
            }
        }
        false
    }
}

/// What is logged: evaluated, and told nobody.
macro_rules! told {
    ($($what:tt)*) => {
        drop(format!($($what)*))
    };
}
pub(crate) use told;

/// What a change of the origin tells the lease.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    noted: AtomicBool,
    prolonged: AtomicUsize,
}

impl Lease {
    pub(crate) fn note_exit(&self) {
        self.noted.store(true, Ordering::SeqCst);
    }

    pub(crate) fn forget_exit(&self) {
        self.noted.store(false, Ordering::SeqCst);
    }

    pub(crate) fn prolong(&self) {
        self.prolonged.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the kernel would tell when this process ends.
    pub(crate) fn is_noted(&self) -> bool {
        self.noted.load(Ordering::SeqCst)
    }

    /// How often it was prolonged.
    pub(crate) fn prolonged(&self) -> usize {
        self.prolonged.load(Ordering::SeqCst)
    }
}
