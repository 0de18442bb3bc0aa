//! Readers, writers and watchers of ranges: no two meet who must not, and nobody waits for ever.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        explored!($variant {
            use shuttle::sync::atomic::{AtomicUsize, Ordering};

            /// Who is in each of some bytes: readers count 1, writers 100.
            type Inside = [AtomicUsize; 4];

            fn within(inside: &Inside, range: ByteRange, weight: usize) {
                let cells = || (range.start..range.end).map(|at| &inside[at as usize]);
                for cell in cells() {
                    let before = cell.fetch_add(weight, Ordering::SeqCst);
                    assert!(before == 0 || before + weight < 100, "two in one byte");
                }
                for cell in cells() {
                    cell.fetch_sub(weight, Ordering::SeqCst);
                }
            }

            /// Two writers that overlap, a reader over both, and a reader beside the first.
            pub(super) fn readers_and_writers() {
                let lock = Arc::new(RangeLock::default());
                let inside: Arc<Inside> = Arc::default();
                let threads = [(0, 2, true), (1, 3, true), (0, 3, false), (2, 4, false)];
                let threads = threads.map(|(start, end, exclusive)| {
                    let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
                    shuttle::thread::spawn(move || {
                        let range = ByteRange::new(start, end);
                        for _ in 0..2 {
                            let guard =
                                if exclusive { lock.exclusive(range) } else { lock.shared(range) };
                            within(&inside, range, if exclusive { 100 } else { 1 });
                            drop(guard);
                        }
                        if let Some(_guard) = lock.try_exclusive(range) {
                            within(&inside, range, 100);
                        }
                    })
                });
                for thread in threads {
                    thread.join().expect("it ends");
                }
                let state = lock.state.lock();
                assert!(state.held.is_empty() && state.waiting.is_empty());
            }

            /// A watcher that becomes the writer or gives way, a writer, and a reader who waits behind both.
            pub(super) fn watchers() {
                let lock = Arc::new(RangeLock::default());
                let inside: Arc<Inside> = Arc::default();
                let range = ByteRange::new(0, 3);
                let reader = lock.shared(range);
                let watch = lock.watch(range);
                let spawn = |work: fn(&Arc<RangeLock>, &Inside)| {
                    let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
                    shuttle::thread::spawn(move || work(&lock, &inside))
                };
                let writer = spawn(|lock, inside| {
                    let range = ByteRange::new(0, 1);
                    let guard = lock.exclusive(range);
                    within(inside, range, 100);
                    drop(guard);
                });
                let behind = spawn(|lock, inside| {
                    let range = ByteRange::new(2, 4);
                    let guard = lock.shared(range);
                    within(inside, range, 1);
                    drop(guard);
                });
                let watcher = {
                    let inside = Arc::clone(&inside);
                    shuttle::thread::spawn(move || {
                        let mine = watch.exclusive();
                        if mine.is_some() {
                            within(&inside, ByteRange::new(0, 3), 100);
                        }
                    })
                };
                drop(reader);
                for thread in [writer, behind, watcher] {
                    thread.join().expect("it ends");
                }
                let state = lock.state.lock();
                assert!(state.held.is_empty() && state.waiting.is_empty());
                assert!(state.watched.ends.is_empty() && state.watched.longest == 0);
            }
        });
    };
}

stories!(range_lock);
stories!(range_lock_where_who_leaves_tells_nobody);
stories!(range_lock_where_who_gives_way_tells_nobody);
stories!(range_lock_where_who_waits_does_not_look_again);

#[test]
fn i2_readers_and_writers_of_ranges_do_not_meet_and_all_get_there() {
    explore(range_lock::readers_and_writers);
}

#[test]
fn a_watcher_of_a_range_holds_it_or_gives_way_and_holds_up_nobody() {
    explore(range_lock::watchers);
}

#[test]
fn broken_range_locks_are_found() {
    assert!(finds(range_lock_where_who_leaves_tells_nobody::readers_and_writers));
    assert!(finds(range_lock_where_who_gives_way_tells_nobody::watchers));
    assert!(finds(range_lock_where_who_waits_does_not_look_again::readers_and_writers));
}
