//! Moves of a tier's files that are made durable later, and fsyncs of programs, which may not come before them (I4).

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        mod $variant {
            use std::sync::Arc;

            use crate::sync::Mutex;

            // What the notes see of a tier.
            mod halocline_vfs {
                pub(super) mod namespace {
                    #[derive(Debug, Clone, Copy, PartialEq)]
                    pub(crate) struct Vnode(pub(crate) usize);
                }
            }
            mod tiers {
                use super::Mutex;
                use super::halocline_vfs::namespace::Vnode;

                /// Two directories: the last move in each, and the last one that a power loss would leave.
                #[derive(Debug, Default)]
                pub(super) struct Tiers(pub(super) Mutex<[(usize, usize); 2]>);

                impl Tiers {
                    pub(super) fn sync_directory(
                        &self,
                        dir: &Vnode,
                    ) -> halocline_os::error::Result<()> {
                        let begun = self.0.lock()[dir.0].0;
                        shuttle::thread::yield_now();
                        let durable = &mut self.0.lock()[dir.0].1;
                        *durable = begun.max(*durable);
                        Ok(())
                    }
                }
            }

            super::explored!($variant {});
            use self::$variant::PendingSyncs;
            use halocline_vfs::namespace::Vnode;

            const FILE: u64 = 7;

            /// A file that moves three times, while two programs fsync it.
            pub(super) fn moves_and_fsyncs() {
                let shared: Arc<(PendingSyncs, tiers::Tiers, Mutex<(usize, usize)>)> =
                    Arc::default();
                let moving = {
                    let shared = Arc::clone(&shared);
                    shuttle::thread::spawn(move || {
                        let (pending, tiers, last) = &*shared;
                        for (number, dir) in [(1, 0), (2, 0), (3, 1)] {
                            tiers.0.lock()[dir].0 = number;
                            pending.add(FILE, Vnode(dir));
                            *last.lock() = (number, dir);
                        }
                    })
                };
                let programs = [0, 1].map(|_| {
                    let shared = Arc::clone(&shared);
                    shuttle::thread::spawn(move || {
                        let (pending, tiers, last) = &*shared;
                        for _ in 0..2 {
                            let (number, dir) = *last.lock();
                            pending.sync(FILE, tiers).expect("it is memory");
                            // A move behind the one that was seen needs no durable one before it: the file is where it went.
                            let is_last = *last.lock() == (number, dir);
                            let durable = tiers.0.lock()[dir].1;
                            assert!(
                                !is_last || durable >= number,
                                "fsync came before move {number}"
                            );
                        }
                    })
                });
                moving.join().expect("it ends");
                for program in programs {
                    program.join().expect("it ends");
                }
                let (pending, tiers, last) = &*shared;
                pending.sync(FILE, tiers).expect("it is memory");
                let (number, dir) = *last.lock();
                assert_eq!(tiers.0.lock()[dir].1, number, "the last move is durable");
            }
        }
    };
}

stories!(pending_syncs);
stories!(pending_syncs_where_a_move_during_the_sync_counts_as_synced);

#[test]
fn i4_an_fsync_makes_the_last_move_durable_whoever_syncs_meanwhile() {
    explore(pending_syncs::moves_and_fsyncs);
}

#[test]
fn broken_pending_syncs_are_found() {
    assert!(finds(pending_syncs_where_a_move_during_the_sync_counts_as_synced::moves_and_fsyncs));
}
