//! Changes of the origin and the renewal of the lease (I9): while a change is under way the end of this process is noted.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        explored!($variant {
            use std::sync::Arc;

            /// Two threads that make changes, while the renewal forgets and notes.
            pub(super) fn changes() {
                let (under_way, lease): (Arc<ChangesUnderWay>, Arc<Lease>) = Default::default();
                let renewal = {
                    let (under_way, lease) = (Arc::clone(&under_way), Arc::clone(&lease));
                    shuttle::thread::spawn(move || {
                        while under_way.wait(&Clock::Short) {
                            under_way.renew(&lease);
                        }
                    })
                };
                let changing = [1, 2].map(|changes| {
                    let (under_way, lease) = (Arc::clone(&under_way), Arc::clone(&lease));
                    shuttle::thread::spawn(move || {
                        for _ in 0..changes {
                            under_way.begin(&lease);
                            assert!(lease.is_noted(), "a change is under way, and its end is not");
                            shuttle::thread::yield_now();
                            assert!(lease.is_noted(), "a change is under way, and it was forgotten");
                            under_way.end();
                        }
                    })
                });
                for thread in changing {
                    thread.join().expect("it ends");
                }
                under_way.stop();
                renewal.join().expect("it ends");
            }

            /// A change that lasts until the lease was prolonged for it.
            pub(super) fn long_change() {
                let (under_way, lease): (Arc<ChangesUnderWay>, Arc<Lease>) = Default::default();
                let told = Arc::new((Mutex::new(false), Condvar::new()));
                let renewal = {
                    let (under_way, lease) = (Arc::clone(&under_way), Arc::clone(&lease));
                    let told = Arc::clone(&told);
                    shuttle::thread::spawn(move || {
                        while under_way.wait(&Clock::Short) {
                            under_way.renew(&lease);
                            *told.0.lock() = lease.prolonged() > 0;
                            told.1.notify_all();
                        }
                    })
                };
                under_way.begin(&lease);
                let mut prolonged = told.0.lock();
                while !*prolonged {
                    told.1.wait(&mut prolonged);
                }
                drop(prolonged);
                under_way.end();
                under_way.stop();
                renewal.join().expect("it ends");
            }
        });
    };
}

stories!(changes_under_way);
stories!(changes_under_way_where_nobody_is_woken);
stories!(changes_under_way_where_a_change_that_begins_is_not_seen);
stories!(changes_under_way_where_the_note_comes_before_the_count);
stories!(changes_under_way_where_others_rely_on_a_note_too_early);

#[test]
fn i9_a_change_that_begins_while_the_renewal_forgets_is_noted() {
    explore(changes_under_way::changes);
}

#[test]
fn i9_the_lease_is_prolonged_for_a_change_that_goes_on() {
    explore(changes_under_way::long_change);
}

#[test]
fn broken_notes_of_changes_are_found() {
    assert!(finds(changes_under_way_where_nobody_is_woken::long_change));
    assert!(finds(changes_under_way_where_a_change_that_begins_is_not_seen::changes));
    assert!(finds(changes_under_way_where_the_note_comes_before_the_count::changes));
    assert!(finds(changes_under_way_where_others_rely_on_a_note_too_early::changes));
}
