//! Writes that wait for room: whoever waits is woken by the room that is made.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        explored!($variant {
            use std::sync::Arc;

            /// Two writes that found the cache full, and a flush that makes room for both, one after the other.
            pub(super) fn room_is_made() {
                let backpressure = Arc::new(Backpressure::new(Clock::Endless));
                let free = Arc::new(AtomicU32::new(0));
                let writes = [0, 1].map(|_| {
                    let (backpressure, free) = (Arc::clone(&backpressure), Arc::clone(&free));
                    shuttle::thread::spawn(move || {
                        let take = || {
                            let less = |free: u32| free.checked_sub(1);
                            let taken = free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
                            Ok::<_, ()>(taken.ok())
                        };
                        if take() == Ok(None) {
                            let taken = backpressure.wait(WAIT_MAX, take);
                            assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
                        }
                    })
                });
                for _ in 0..2 {
                    free.fetch_add(1, Ordering::SeqCst);
                    backpressure.room_was_made();
                }
                for write in writes {
                    write.join().expect("it ends");
                }
                assert!(!backpressure.has_waiters());
            }
        });
    };
}

stories!(backpressure);
stories!(backpressure_where_nobody_is_told);
stories!(backpressure_where_what_was_made_before_is_not_tried);

#[test]
fn a_write_that_waits_for_room_is_woken_by_the_room_that_is_made() {
    explore(backpressure::room_is_made);
}

#[test]
fn broken_waits_for_room_are_found() {
    assert!(finds(backpressure_where_nobody_is_told::room_is_made));
    assert!(finds(backpressure_where_what_was_made_before_is_not_tried::room_is_made));
}
