//! Background threads of the tiers, which requests wake and an unmount ends.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        explored!($variant {
            use std::sync::Arc;

            use shuttle::sync::atomic::{AtomicUsize, Ordering};

            #[derive(Debug, Default)]
            struct Due {
                reap: bool,
                demote: bool,
            }

            /// Two threads with work of their own, which two requests wait for; then both are ended.
            pub(super) fn two_threads() {
                // Nothing is found by the tick alone: it never comes.
                let wakeups = Arc::new(Wakeups::<Due>::new(&Clock::Endless, Duration::ZERO));
                let wanted: Arc<[AtomicUsize; 2]> = Arc::default();
                let done: Arc<(Mutex<[usize; 2]>, Condvar)> = Arc::default();
                let threads = [0, 1].map(|own| {
                    let (wakeups, wanted) = (Arc::clone(&wakeups), Arc::clone(&wanted));
                    let done = Arc::clone(&done);
                    let is_due = move |due: &mut Due| {
                        std::mem::take(if own == 0 { &mut due.reap } else { &mut due.demote })
                    };
                    shuttle::thread::spawn(move || {
                        while wakeups.wait(is_due) {
                            let now = wanted[own].load(Ordering::SeqCst);
                            done.0.lock()[own] = now;
                            done.1.notify_all();
                        }
                        assert!(wakeups.is_stopping());
                    })
                });
                let requests = [0, 1].map(|own| {
                    let (wakeups, wanted) = (Arc::clone(&wakeups), Arc::clone(&wanted));
                    let done = Arc::clone(&done);
                    shuttle::thread::spawn(move || {
                        for _ in 0..2 {
                            let mine = wanted[own].fetch_add(1, Ordering::SeqCst) + 1;
                            wakeups.wake(|due| match own {
                                0 => due.reap = true,
                                _ => due.demote = true,
                            });
                            let mut done_now = done.0.lock();
                            while done_now[own] < mine {
                                done.1.wait(&mut done_now);
                            }
                        }
                    })
                });
                for request in requests {
                    request.join().expect("it ends");
                }
                wakeups.stop();
                for thread in threads {
                    thread.join().expect("it ends");
                }
            }
        });
    };
}

stories!(wakeups);
stories!(wakeups_where_what_is_due_wakes_nobody);
stories!(wakeups_where_one_of_several_is_woken);
stories!(wakeups_where_the_end_wakes_nobody);

#[test]
fn background_threads_do_what_requests_wake_them_for_and_end() {
    explore(wakeups::two_threads);
}

#[test]
fn broken_wakeups_are_found() {
    assert!(finds(wakeups_where_what_is_due_wakes_nobody::two_threads));
    assert!(finds(wakeups_where_one_of_several_is_woken::two_threads));
    assert!(finds(wakeups_where_the_end_wakes_nobody::two_threads));
}
