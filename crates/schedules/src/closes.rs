//! Closes of a shared tier's files, which are noted together some milliseconds later: beside programs that open and close
//! the same files, moves, the end of the mount, and the loss of its lease.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        #[allow(dead_code, reason = "not each canary is told each story")]
        mod $variant {
            use std::sync::Arc;
            use std::time::Instant;

            use halocline_model::namespace::{EntryName, InodeNumber, Name};
            use halocline_model::token::Session;

            use self::base::Base;
            use self::fs::File;
            use self::halocline_cluster::names::attributes::Attributes;
            use self::halocline_cluster::names::namespace::Namespace;
            use self::inodes::{Inode, Vnode};
            use self::sessions::Sessions;
            use crate::sync::{Clock, Mutex};

            // What closes see of a tier.
            mod base {
                #[derive(Debug)]
                pub(super) struct Base {
                    pub(super) names: super::Namespace,
                    pub(super) sessions: super::Sessions,
                    pub(super) closes: super::waiting_closes::WaitingCloses,
                    pub(super) clock: super::Clock,
                }
            }
            mod fs {
                /// A file by its size.
                #[derive(Debug)]
                pub(super) struct File(pub(super) u64);
            }
            mod halocline_cluster {
                pub(super) mod names {
                    pub(crate) mod attributes {
                        use halocline_model::token::Session;

                        #[derive(Debug, Clone, Copy, PartialEq)]
                        pub(crate) struct Open {
                            pub(crate) session: Session,
                            pub(crate) writes: bool,
                        }

                        #[derive(Debug, Clone, Default, PartialEq)]
                        pub(crate) struct Attributes {
                            pub(crate) size: u64,
                            pub(crate) opens: Vec<Open>,
                            pub(crate) many_opens: bool,
                        }

                        impl Attributes {
                            pub(crate) fn note_open(&mut self, session: Session) {
                                self.note_close(session);
                                self.opens.push(Open { session, writes: true });
                            }

                            pub(crate) fn note_close(&mut self, session: Session) {
                                self.opens.retain(|open| open.session != session);
                            }

                            pub(crate) fn may_have_open(&self, session: Session) -> bool {
                                self.many_opens
                                    || self.opens.iter().any(|open| open.session == session)
                            }
                        }
                    }
                    pub(crate) mod namespace {
                        use std::fmt;

                        use halocline_model::namespace::{EntryName, InodeNumber, Name};
                        use rustix::io::Errno;

                        use super::attributes::Attributes;
                        use crate::sync::{Condvar, Mutex};

                        #[derive(Debug)]
                        pub(crate) enum Failure {
                            Refused(Errno),
                            Lost,
                        }

                        impl fmt::Display for Failure {
                            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                                f.write_str("it failed")
                            }
                        }

                        pub(crate) type Result<T> = std::result::Result<T, Failure>;

                        #[derive(Debug)]
                        pub(crate) struct KnownFile {
                            pub(crate) name: Name,
                            pub(crate) inode: InodeNumber,
                            pub(crate) before: Attributes,
                            pub(crate) after: Attributes,
                        }

                        /// The store: two files by their numbers.
                        #[derive(Debug, Default)]
                        pub(crate) struct Namespace {
                            pub(crate) files: Mutex<[Attributes; 2]>,
                            pub(crate) changed: Condvar,
                        }

                        fn at(inode: InodeNumber) -> usize {
                            usize::try_from(inode.0).expect("one of two")
                        }

                        impl Namespace {
                            pub(crate) const fn attributes(&self) -> &Self {
                                self
                            }

                            pub(crate) fn known_file(
                                &self,
                                _: &EntryName,
                            ) -> Option<(InodeNumber, Attributes)> {
                                None
                            }

                            pub(crate) fn update_all_known(
                                &self,
                                _: InodeNumber,
                                known: &[KnownFile],
                            ) -> Result<bool> {
                                shuttle::thread::yield_now();
                                let mut files = self.files.lock();
                                if known.iter().any(|one| files[at(one.inode)] != one.before) {
                                    return Ok(false);
                                }
                                for one in known {
                                    files[at(one.inode)] = one.after.clone();
                                }
                                drop(files);
                                self.changed.notify_all();
                                shuttle::thread::yield_now();
                                Ok(true)
                            }

                            fn swap(
                                &self,
                                (name, inode): (&EntryName, InodeNumber),
                                before: Attributes,
                                change: impl Fn(&mut Attributes) -> Result<()>,
                            ) -> Result<Option<Attributes>> {
                                let mut after = before.clone();
                                change(&mut after)?;
                                let (name, new) = (name.name.clone(), after.clone());
                                let one = KnownFile { name, inode, before, after };
                                let is_done = self.update_all_known(inode, &[one])?;
                                Ok(is_done.then_some(new))
                            }

                            pub(crate) fn update_known(
                                &self,
                                at: (&EntryName, InodeNumber),
                                known: &Attributes,
                                change: impl Fn(&mut Attributes) -> Result<()>,
                            ) -> Result<Attributes> {
                                match self.swap(at, known.clone(), &change)? {
                                    Some(after) => Ok(after),
                                    None => self.update_of(at, change),
                                }
                            }

                            pub(crate) fn update_of(
                                &self,
                                name: (&EntryName, InodeNumber),
                                change: impl Fn(&mut Attributes) -> Result<()>,
                            ) -> Result<Attributes> {
                                loop {
                                    let before = self.files.lock()[at(name.1)].clone();
                                    if let Some(after) = self.swap(name, before, &change)? {
                                        return Ok(after);
                                    }
                                }
                            }
                        }
                    }
                }
            }
            mod halocline_vfs {
                pub(super) mod namespace {
                    pub(crate) fn stat_descriptor(
                        file: &super::super::fs::File,
                    ) -> Result<u64, ()> {
                        Ok(file.0)
                    }
                }
            }
            mod inodes {
                use super::*;

                #[derive(Debug, Clone)]
                pub(crate) struct Vnode(pub(crate) Arc<Inode>);

                #[derive(Debug)]
                pub(crate) struct Inode {
                    pub(crate) number: InodeNumber,
                    pub(crate) noting: Mutex<Noting>,
                    pub(crate) without_name: Mutex<WithoutName>,
                }

                #[derive(Debug, Default)]
                pub(crate) struct Noting {
                    pub(crate) handles: usize,
                    pub(crate) noted: Option<(bool, u64)>,
                    pub(crate) by_kernel: bool,
                    pub(crate) closes_later: bool,
                }

                #[derive(Debug, Default)]
                pub(crate) struct WithoutName {
                    pub(crate) file: Option<Arc<File>>,
                    pub(crate) last: Option<Attributes>,
                }

                impl Inode {
                    pub(crate) fn name(&self) -> Option<EntryName> {
                        let name = Name::from(self.number.0.to_string().as_str());
                        Some(EntryName { directory: InodeNumber(1), name })
                    }

                    pub(crate) fn names(&self) -> Vec<EntryName> {
                        self.name().into_iter().collect()
                    }
                }
            }
            mod lookup {
                pub(super) fn told_names(_: &super::File) -> Vec<super::EntryName> {
                    Vec::new()
                }
            }
            mod sessions {
                use std::sync::atomic::AtomicBool;

                use shuttle::sync::atomic::{AtomicU64, Ordering};

                use super::Session;

                /// The lease as this node knows it.
                #[derive(Debug, Default)]
                pub(super) struct Sessions {
                    lapses: AtomicU64,
                    is_over: AtomicBool,
                }

                impl Sessions {
                    pub(super) fn own(&self) -> Session {
                        Session(7)
                    }

                    pub(super) fn check(&self) -> Result<(), ()> {
                        if self.is_over.load(Ordering::SeqCst) { Err(()) } else { Ok(()) }
                    }

                    pub(super) fn lapses(&self) -> u64 {
                        self.lapses.load(Ordering::SeqCst)
                    }

                    /// The lease ends by this node's clock: earlier than by anybody else's.
                    pub(super) fn end(&self) {
                        self.is_over.store(true, Ordering::SeqCst);
                    }

                    pub(super) fn regain(&self) {
                        self.lapses.fetch_add(1, Ordering::SeqCst);
                        self.is_over.store(false, Ordering::SeqCst);
                    }
                }
            }
            mod stat_conversion {
                pub(super) fn take_over(attributes: &mut super::Attributes, size: &u64) {
                    attributes.size = *size;
                }
            }

            super::explored!(waiting_closes {});
            super::explored!($variant {});

            use self::$variant::{keep, note_all, note_close};

            /// The size of a file when this node has written it, and when another one has.
            const OURS: u64 = 5;
            const THEIRS: u64 = 99;

            /// A tier with two files in one directory, and where closes follow each other.
            #[derive(Debug)]
            struct Tier {
                base: Arc<Base>,
                vnodes: [Vnode; 2],
            }

            impl Tier {
                fn new() -> Arc<Self> {
                    let vnode = |number| {
                        let (noting, without_name) = (Mutex::default(), Mutex::default());
                        Vnode(Arc::new(Inode { number: InodeNumber(number), noting, without_name }))
                    };
                    let base = Base {
                        names: Namespace::default(),
                        sessions: Sessions::default(),
                        closes: waiting_closes::WaitingCloses::default(),
                        clock: Clock::Short,
                    };
                    base.closes.waiting.lock().last = Some(Instant::now());
                    Arc::new(Self { base: Arc::new(base), vnodes: [vnode(0), vnode(1)] })
                }

                /// As `Files::open`, for writing; after how many lapses of the lease.
                fn open(&self, at: usize) -> u64 {
                    let inode = &self.vnodes[at].0;
                    let mut noting = inode.noting.lock();
                    let (own, lapses) = (self.base.sessions.own(), self.base.sessions.lapses());
                    if noting.noted != Some((true, lapses)) {
                        let name = inode.name().expect("it has one");
                        let noted = self.base.names.update_of((&name, inode.number), |file| {
                            file.note_open(own);
                            Ok(())
                        });
                        noting.noted = Some((true, lapses));
                        inode.without_name.lock().last = Some(noted.expect("it answers"));
                    }
                    noting.handles += 1;
                    noting.closes_later = false;
                    inode.without_name.lock().file = Some(Arc::new(File(OURS)));
                    lapses
                }

                /// As `Files::close`.
                fn close(&self, at: usize, lapses: u64) {
                    let vnode = &self.vnodes[at];
                    let mut noting = vnode.0.noting.lock();
                    noting.handles -= 1;
                    if noting.handles > 0 {
                        return;
                    }
                    let is_noted = noting.noted.is_some_and(|(_, at)| at == lapses);
                    if is_noted && keep(&self.base, vnode) {
                        noting.closes_later = true;
                        return;
                    }
                    let file = vnode.0.without_name.lock().file.take();
                    if is_noted {
                        note_close(&self.base, &vnode.0, &mut noting, file.as_deref());
                    } else {
                        noting.noted = None;
                    }
                }

                /// What the store has on a file.
                fn stored(&self, at: usize) -> Attributes {
                    self.base.names.files.lock()[at].clone()
                }

                fn is_open(&self, at: usize) -> bool {
                    self.stored(at).may_have_open(self.base.sessions.own())
                }

                fn use_file(&self, at: usize) {
                    let lapses = self.open(at);
                    assert!(self.is_open(at), "it is open, and may be moved");
                    shuttle::thread::yield_now();
                    assert!(self.is_open(at), "it is open still, and may be moved");
                    self.close(at, lapses);
                }
            }

            fn spawn(
                tier: &Arc<Tier>,
                does: impl FnOnce(&Tier) + Send + 'static,
            ) -> shuttle::thread::JoinHandle<()> {
                let tier = Arc::clone(tier);
                shuttle::thread::spawn(move || does(&tier))
            }

            /// Two programs that use one file, and one that uses another; then the mount ends.
            pub(super) fn programs() {
                let tier = Tier::new();
                let programs = [0, 0, 1].map(|at| {
                    spawn(&tier, move |tier| {
                        for _ in 0..2 {
                            tier.use_file(at);
                        }
                    })
                });
                for program in programs {
                    program.join().expect("it ends");
                }
                // As `SharedTier::close`.
                note_all(&tier.base);
                assert!(!tier.is_open(0) && !tier.is_open(1), "the session has something open");
                assert_eq!([0, 1].map(|at| tier.stored(at).size), [OURS; 2]);
            }

            /// A vnode that moves what its program has closed, beside another program.
            pub(super) fn moves() {
                let tier = Tier::new();
                let other = spawn(&tier, |tier| tier.use_file(1));
                let moving = spawn(&tier, |tier| {
                    for _ in 0..2 {
                        tier.use_file(0);
                        // As `Executor::demote`.
                        note_all(&tier.base);
                        assert!(!tier.is_open(0), "it is closed, and cannot be moved");
                    }
                });
                other.join().and(moving.join()).expect("both end");
            }

            /// Closes that nobody asks for are noted by the thread, which ends where nothing is closed for a while.
            pub(super) fn left_alone() {
                let tier = Tier::new();
                for at in [0, 1, 0] {
                    tier.use_file(at);
                    for _ in 0..3 {
                        shuttle::thread::yield_now();
                    }
                }
                let mut files = tier.base.names.files.lock();
                while files.iter().any(|file| file.may_have_open(tier.base.sessions.own())) {
                    tier.base.names.changed.wait(&mut files);
                }
            }

            /// The lease ends while closes wait, and another vnode takes a file over: moves and writes it.
            pub(super) fn lapse() {
                let tier = Tier::new();
                for at in [0, 1] {
                    let lapses = tier.open(at);
                    tier.close(at, lapses);
                }
                let other = spawn(&tier, |tier| {
                    tier.base.sessions.end();
                    // As `Migrator::move_file`, and an open and a close there.
                    let own = tier.base.sessions.own();
                    let name = tier.vnodes[0].0.name().expect("it has one");
                    let taken = tier.base.names.update_of((&name, InodeNumber(0)), |file| {
                        file.note_close(own);
                        file.size = THEIRS;
                        Ok(())
                    });
                    taken.expect("it answers");
                    tier.base.sessions.regain();
                });
                let unmounts = spawn(&tier, |tier| {
                    note_all(&tier.base);
                });
                other.join().and(unmounts.join()).expect("both end");
                note_all(&tier.base);
                assert_eq!(tier.stored(0).size, THEIRS, "another node has written it since");
            }
        }
    };
}

stories!(closes);
stories!(closes_where_what_was_opened_again_is_noted);
stories!(closes_where_who_wants_them_noted_does_not_wait);
stories!(closes_where_what_is_in_the_way_is_forgotten);
stories!(closes_where_the_thread_ends_with_closes_that_wait);
stories!(closes_where_the_thread_is_thought_to_run);
stories!(closes_where_a_file_of_others_is_taken_over);

#[test]
fn a_file_counts_as_open_while_a_program_has_it_open_and_no_longer() {
    explore(closes::programs);
}

#[test]
fn what_was_closed_here_can_be_moved_at_once() {
    explore(closes::moves);
}

#[test]
fn closes_that_nobody_asks_for_are_noted() {
    explore(closes::left_alone);
}

#[test]
fn i12_a_close_after_the_lease_changes_nothing_of_a_file_that_others_took_over() {
    explore(closes::lapse);
}

#[test]
fn broken_notes_of_closes_are_found() {
    assert!(finds(closes_where_what_was_opened_again_is_noted::programs));
    assert!(finds(closes_where_who_wants_them_noted_does_not_wait::moves));
    assert!(finds(closes_where_what_is_in_the_way_is_forgotten::programs));
    assert!(finds(closes_where_the_thread_ends_with_closes_that_wait::left_alone));
    assert!(finds(closes_where_the_thread_is_thought_to_run::left_alone));
    assert!(finds(closes_where_a_file_of_others_is_taken_over::lapse));
}
