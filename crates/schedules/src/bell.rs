//! The thread beside a log: what is rung for is done, and who waits for it goes on.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        mod $variant {
            use std::sync::Arc;

            use shuttle::sync::atomic::{AtomicUsize, Ordering};

            use crate::sync::{Condvar, Mutex};

            super::explored!($variant {});
            use self::$variant::{Background, Bell};

            /// What the thread sees of a log.
            #[derive(Debug, Default)]
            struct Shared {
                bell: Bell,
                wanted: AtomicUsize,
                done: Mutex<usize>,
                changed: Condvar,
            }

            impl Shared {
                fn fail(&self, what: &impl std::fmt::Debug) {
                    panic!("{what:?}");
                }

                fn wake_waiters(&self) {
                    self.changed.notify_all();
                }

                fn background_ended(&self) {
                    self.changed.notify_all();
                }
            }

            /// Two commits that each want something of the thread and wait for it; then the log is closed.
            pub(super) fn commits() {
                let shared: Arc<Shared> = Arc::default();
                let background = Background::start(&shared, |shared| {
                    let wanted = shared.wanted.load(Ordering::SeqCst);
                    *shared.done.lock() = wanted;
                });
                let commits = [0, 1].map(|_| {
                    let shared = Arc::clone(&shared);
                    shuttle::thread::spawn(move || {
                        for _ in 0..2 {
                            let mine = shared.wanted.fetch_add(1, Ordering::SeqCst) + 1;
                            shared.bell.ring();
                            let mut done = shared.done.lock();
                            while *done < mine {
                                shared.changed.wait(&mut done);
                            }
                        }
                    })
                });
                for commit in commits {
                    commit.join().expect("it ends");
                }
                drop(background);
                assert_eq!(*shared.done.lock(), 4);
            }
        }
    };
}

stories!(background);
stories!(background_where_the_bell_is_not_heard);
stories!(background_where_a_ring_is_forgotten);

#[test]
fn i4_what_a_commit_rings_for_is_done_and_it_goes_on() {
    explore(background::commits);
}

#[test]
fn broken_bells_are_found() {
    assert!(finds(background_where_the_bell_is_not_heard::commits));
    assert!(finds(background_where_a_ring_is_forgotten::commits));
}
