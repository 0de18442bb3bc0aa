//! Programs that write to files of a tier, and the thread that archives them: what was written is archived at some time.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        #[allow(dead_code, reason = "not each canary is told each story")]
        mod $variant {
            use std::sync::Arc;
            use std::time::Duration;

            use shuttle::sync::atomic::AtomicBool;

            use self::residents::{Resident, Residents};
            use crate::sync::{Clock, Mutex};

            // What the queue sees of a tier.
            mod copy_records {
                #[derive(Debug, Default)]
                pub(super) struct CopyRecords;

                impl CopyRecords {
                    pub(super) fn bytes_on(&self, _: usize) -> u64 {
                        0
                    }
                }
            }
            mod foundation {
                use super::*;

                #[derive(Debug)]
                pub(super) struct Foundation {
                    pub(super) tiers: Arc<tiers::Tiers>,
                    pub(super) residents: Arc<Residents>,
                    pub(super) copy_records: Arc<copy_records::CopyRecords>,
                    pub(super) options: Arc<options::TierOptions>,
                    pub(super) clock: Clock,
                }
            }
            mod halocline_api {
                pub(super) mod config {
                    #[derive(Debug, Default, PartialEq)]
                    pub(crate) enum Copies {
                        #[default]
                        Archive,
                    }
                }
                pub(super) mod control {
                    pub(crate) mod tier {
                        #[derive(Debug, Default)]
                        pub(crate) struct Moved {
                            pub(crate) files: u64,
                            pub(crate) bytes: u64,
                        }
                    }
                }
            }
            mod inode {
                use super::*;

                #[derive(Debug)]
                pub(super) struct Inode {
                    pub(super) place: Place,
                }

                #[derive(Debug)]
                pub(super) struct Place {
                    pub(super) resident: Option<Arc<Resident>>,
                    pub(super) entry: Key,
                }

                #[derive(Debug)]
                pub(super) struct Key(tiers::Entry);

                impl Place {
                    pub(super) fn read(&self) -> &Self {
                        self
                    }
                }

                impl Key {
                    pub(super) fn key(&self) -> tiers::Entry {
                        self.0
                    }
                }
            }
            mod options {
                use super::*;

                #[derive(Debug, Default)]
                pub(super) struct TierOptions {
                    pub(super) copies: halocline_api::config::Copies,
                    pub(super) archive_after: Duration,
                }
            }
            mod residents {
                use super::*;

                #[derive(Debug, Default)]
                pub(super) struct Resident {
                    pub(super) clean: CopyState,
                }

                #[derive(Debug, Default)]
                pub(super) struct CopyState {
                    pub(super) waits: AtomicBool,
                }

                #[derive(Debug, Default)]
                pub(super) struct Residents(pub(super) Arc<Resident>);

                impl Resident {
                    pub(super) fn bytes(&self) -> u64 {
                        1
                    }
                }

                impl CopyState {
                    pub(super) fn has_copy(&self) -> bool {
                        false
                    }
                }

                impl Residents {
                    pub(super) fn get(&self, _: tiers::Entry) -> Option<Arc<Resident>> {
                        Some(Arc::clone(&self.0))
                    }

                    pub(super) fn all(&self) -> Vec<(tiers::Entry, Arc<Resident>)> {
                        vec![(FILE, Arc::clone(&self.0))]
                    }
                }
            }
            mod tiers {
                pub(super) type Entry = (u64, u64);

                #[derive(Debug, Default)]
                pub(super) struct Tiers;

                impl Tiers {
                    pub(super) fn dirs(&self) -> [(); 2] {
                        [(); 2]
                    }
                }
            }

            super::explored!($variant {});
            use self::$variant::ArchiveQueue;

            const FILE: tiers::Entry = (1, 7);

            /// A file: whether it has a clean copy, which its writers and the archiver change under its lock, and whether it
            /// has a second name, so that it needs none.
            #[derive(Debug)]
            struct File {
                queue: ArchiveQueue,
                resident: Arc<Resident>,
                place: Mutex<(bool, bool)>,
            }

            impl File {
                fn new(is_clean: bool, is_linked: bool) -> Arc<Self> {
                    let residents = Arc::new(Residents::default());
                    let resident = Arc::clone(&residents.0);
                    let base = foundation::Foundation {
                        tiers: Arc::default(),
                        residents,
                        copy_records: Arc::default(),
                        options: Arc::default(),
                        clock: Clock::Endless,
                    };
                    let queue = ArchiveQueue::new(&base);
                    queue.add(FILE, &resident);
                    Arc::new(Self { queue, resident, place: Mutex::new((is_clean, is_linked)) })
                }

                /// As `CleanCopies::will_change`.
                fn write(&self) {
                    let mut place = self.place.lock();
                    place.0 = false;
                    self.queue.add(FILE, &self.resident);
                }

                /// As `NameChanges::gone`, of one of two names.
                fn unlink(&self) {
                    self.place.lock().1 = false;
                    self.queue.add(FILE, &self.resident);
                }

                /// As `Archiver::archive_due`.
                fn archive(&self) {
                    for (entry, resident) in self.queue.due() {
                        ArchiveQueue::begin(&resident);
                        let (is_clean, is_linked) = *self.place.lock();
                        if is_clean || is_linked {
                            self.queue.needless(entry, &resident);
                            continue;
                        }
                        // While it is copied, a program may write.
                        *self.place.lock() = (true, false);
                        shuttle::thread::yield_now();
                        let place = self.place.lock();
                        if place.0 {
                            self.queue.done(entry, &resident);
                        } else {
                            self.queue.put_off(entry, Duration::ZERO);
                        }
                        drop(place);
                    }
                }

                /// What later rounds do: the file has a clean copy then, and waits no more.
                fn settles(&self) {
                    for _ in 0..2 {
                        self.archive();
                    }
                    assert!(self.place.lock().0, "it is never archived");
                    assert_eq!(self.queue.unarchived().files.files, 0, "it waits for ever");
                }
            }

            fn beside_the_archiver(file: &Arc<File>, change: fn(&File)) {
                let archiver = {
                    let file = Arc::clone(file);
                    shuttle::thread::spawn(move || {
                        for _ in 0..2 {
                            file.archive();
                        }
                    })
                };
                let program = {
                    let file = Arc::clone(file);
                    shuttle::thread::spawn(move || {
                        for _ in 0..2 {
                            change(&file);
                        }
                    })
                };
                for thread in [archiver, program] {
                    thread.join().expect("it ends");
                }
                file.settles();
            }

            /// A file that is written while it is examined: it has a clean copy at first, or not.
            pub(super) fn written() {
                for is_clean in [true, false] {
                    beside_the_archiver(&File::new(is_clean, false), File::write);
                }
            }

            /// A file that has a clean copy, whatever said that it has none.
            pub(super) fn left_alone() {
                beside_the_archiver(&File::new(true, false), |_| {});
            }

            /// A file with two names that loses one of them while it is examined.
            pub(super) fn unlinked() {
                beside_the_archiver(&File::new(false, true), File::unlink);
            }
        }
    };
}

stories!(archive_queue);
stories!(archive_queue_where_a_change_during_the_look_is_forgotten);
stories!(archive_queue_where_what_is_needless_is_looked_at_for_ever);

#[test]
fn a_file_that_changes_while_the_archiver_looks_at_it_is_archived() {
    explore(archive_queue::written);
    explore(archive_queue::unlinked);
    explore(archive_queue::left_alone);
}

#[test]
fn broken_archive_queues_are_found() {
    assert!(finds(archive_queue_where_a_change_during_the_look_is_forgotten::written));
    assert!(finds(archive_queue_where_a_change_during_the_look_is_forgotten::unlinked));
    assert!(finds(archive_queue_where_what_is_needless_is_looked_at_for_ever::left_alone));
}
