//! The lease of a node's session: the thread that keeps the session, the one that renews its lease in time, requests, and
//! the end of the mount.

use super::{explore, explored, finds};

macro_rules! stories {
    ($story:ident: $own_session:ident, $upkeep:ident) => {
        #[allow(dead_code, reason = "not each canary is told each story")]
        mod $story {
            use std::sync::Arc;
            use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
            use std::time::Duration;

            use halocline_model::token::{Epoch, Members, Session};

            use self::clock::Clock;
            use self::known_files::KnownFiles;
            use self::registry::Registry;
            use self::store::{Lease, Roll, Store};
            use crate::sync::Mutex;

            /// As `agent::Options`.
            pub(super) struct Options {
                node: String,
                lease: Duration,
                margin: Duration,
                poll: Duration,
                clock: Clock,
            }

            mod clock {
                use std::sync::Arc;
                use std::sync::OnceLock;
                use std::sync::atomic::{AtomicU64, Ordering};
                use std::time::{Duration, Instant};

                use crate::sync::{Condvar, MutexGuard};

                static BEGUN: OnceLock<Instant> = OnceLock::new();

                /// Time that the story tells; whoever waits is woken, or waits for ever.
                #[derive(Debug, Clone, Default)]
                pub(super) struct Clock(Arc<AtomicU64>);

                impl Clock {
                    pub(super) fn now_ms(&self) -> u64 {
                        self.0.load(Ordering::SeqCst)
                    }

                    pub(super) fn pass(&self, ms: u64) {
                        self.0.fetch_add(ms, Ordering::SeqCst);
                    }

                    pub(super) fn boot_instant(&self) -> Instant {
                        let begun = *BEGUN.get_or_init(Instant::now);
                        begun + Duration::from_millis(self.now_ms())
                    }

                    pub(super) fn wait_while<T>(
                        &self,
                        changed: &Condvar,
                        guard: &mut MutexGuard<'_, T>,
                        condition: impl FnMut(&mut T) -> bool,
                        until: Instant,
                    ) -> bool {
                        crate::sync::Clock::Endless.wait_while(changed, guard, condition, until)
                    }
                }
            }
            mod counters {
                use std::sync::atomic::{AtomicU64, Ordering};
                use std::time::Duration;

                #[derive(Debug, Default)]
                pub(super) struct Counters {
                    pub(super) lapses: AtomicU64,
                    pub(super) epochs: AtomicU64,
                }

                impl Counters {
                    pub(super) fn note_left(&self, _: Duration) {}
                }

                pub(super) fn add(counter: &AtomicU64) {
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            }
            mod known_files {
                use std::sync::atomic::{AtomicBool, Ordering};

                use super::Roll;

                /// A token, with something cached under it.
                #[derive(Debug)]
                pub(super) struct KnownFiles {
                    pub(super) holds: AtomicBool,
                }

                impl KnownFiles {
                    pub(super) fn drop_what_is_unsure(&self) -> super::store::Result<()> {
                        // File by file, each of which may wait for requests under way.
                        for _ in 0..2 {
                            shuttle::thread::yield_now();
                        }
                        self.holds.store(false, Ordering::SeqCst);
                        Ok(())
                    }

                    pub(super) fn stop_changes(&self) {}

                    pub(super) fn assert(&self, _: &Roll) -> super::store::Result<bool> {
                        Ok(true)
                    }
                }
            }
            mod registry {
                use halocline_model::token::Session;
                use halocline_os::error::Result;

                pub(super) enum Presence {
                    Here,
                    Unlisted,
                    Elsewhere,
                }

                /// The list of sessions, on an origin that takes so many milliseconds.
                #[derive(Debug)]
                pub(super) struct Registry {
                    pub(super) clock: super::Clock,
                    pub(super) takes_ms: u64,
                }

                impl Registry {
                    pub(super) fn presence_of(&self, _: Session) -> Result<Presence> {
                        shuttle::thread::yield_now();
                        self.clock.pass(self.takes_ms);
                        Ok(Presence::Here)
                    }

                    pub(super) fn sessions(&self) -> Result<Vec<Session>> {
                        Ok(vec![super::OWN])
                    }

                    pub(super) fn name(&self, _: Session) -> String {
                        String::new()
                    }

                    pub(super) fn what_is_elsewhere(&self) -> String {
                        String::new()
                    }
                }
            }
            mod roll {
                use std::sync::Arc;

                use super::clock::Clock;
                use super::store::{Result, Roll, Store};
                use crate::sync::Mutex;

                /// As `LatestRoll`.
                pub(super) struct LatestRoll {
                    store: Arc<dyn Store>,
                    known: Mutex<Arc<Roll>>,
                }

                impl LatestRoll {
                    pub(super) fn new(store: &Arc<dyn Store>, _: &Clock, roll: Roll) -> Self {
                        Self { store: Arc::clone(store), known: Mutex::new(Arc::new(roll)) }
                    }

                    pub(super) fn refresh(&self) -> Result<Arc<Roll>> {
                        let mut known = self.known.lock();
                        *known = Arc::new(self.store.roll()?);
                        Ok(Arc::clone(&known))
                    }

                    pub(super) fn known(&self) -> Arc<Roll> {
                        Arc::clone(&self.known.lock())
                    }
                }
            }
            mod store {
                use std::fmt;

                use halocline_model::token::{Epoch, Members, Session};

                pub(super) enum StoreError {
                    NoAnswer(String),
                    Unusable(String),
                }

                impl fmt::Display for StoreError {
                    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        let (Self::NoAnswer(what) | Self::Unusable(what)) = self;
                        f.write_str(what)
                    }
                }

                pub(super) type Result<T> = std::result::Result<T, StoreError>;

                #[derive(Clone)]
                pub(super) struct Roll {
                    pub(super) epoch: Epoch,
                    pub(super) version: u64,
                    pub(super) members: Members,
                }

                impl Roll {
                    pub(super) fn is_over(&self, _: Session) -> bool {
                        false
                    }
                }

                #[derive(Clone, Copy)]
                pub(super) enum Lease {
                    Stays,
                    Runs(Session, u64),
                    IsOver(Session),
                    Ends(Session),
                }

                pub(super) trait Store: Send + Sync {
                    fn roll(&self) -> Result<Roll>;
                    fn swap_members(
                        &self,
                        from: &Roll,
                        new: &Members,
                        lease: Lease,
                    ) -> Result<bool>;
                    fn renew(&self, session: Session, epoch: Epoch, lease_ms: u64) -> Result<bool>;
                    fn note_changes(&self) -> Result<bool>;
                }
            }

            super::explored!(lease {});
            super::explored!(own_session = $own_session {});
            super::explored!(upkeep = $upkeep {});

            use self::own_session::OwnSession;
            use self::upkeep::Upkeep;

            const OWN: Session = Session(7);
            /// A lease by the store's clock, and by how much it is shorter by the node's, in milliseconds.
            const LEASE_MS: u64 = 10;
            const MARGIN_MS: u64 = 5;

            /// A store with the same clock as the node.
            struct World {
                clock: Clock,
                roll: Mutex<(Roll, u64)>,
            }

            impl World {
                fn is_over(&self) -> bool {
                    self.clock.now_ms() >= self.roll.lock().1
                }
            }

            impl Store for World {
                fn roll(&self) -> store::Result<Roll> {
                    shuttle::thread::yield_now();
                    Ok(self.roll.lock().0.clone())
                }

                fn swap_members(
                    &self,
                    from: &Roll,
                    new: &Members,
                    lease: Lease,
                ) -> store::Result<bool> {
                    shuttle::thread::yield_now();
                    let mut roll = self.roll.lock();
                    if roll.0.version != from.version {
                        return Ok(false);
                    }
                    roll.0 = Roll { version: from.version + 1, members: new.clone(), ..roll.0 };
                    if let Lease::Runs(_, lease_ms) = lease {
                        roll.1 = self.clock.now_ms() + lease_ms;
                    }
                    drop(roll);
                    shuttle::thread::yield_now();
                    Ok(true)
                }

                fn renew(&self, _: Session, epoch: Epoch, lease_ms: u64) -> store::Result<bool> {
                    shuttle::thread::yield_now();
                    let mut roll = self.roll.lock();
                    let now_ms = self.clock.now_ms();
                    let runs = now_ms < roll.1 && roll.0.epoch == epoch;
                    if runs {
                        roll.1 = now_ms + lease_ms;
                    }
                    drop(roll);
                    shuttle::thread::yield_now();
                    Ok(runs)
                }

                /// Something may have changed: the members are looked at.
                fn note_changes(&self) -> store::Result<bool> {
                    shuttle::thread::yield_now();
                    Ok(true)
                }
            }

            struct Node {
                world: Arc<World>,
                files: Arc<KnownFiles>,
                own: Arc<OwnSession>,
                upkeep: Upkeep,
                stop: shuttle::sync::atomic::AtomicBool,
                /// How often a thread was about to wait.
                waiting: AtomicUsize,
            }

            /// A node that has just joined, and holds a token; its origin takes so long.
            fn node(takes_ms: u64) -> Arc<Node> {
                let clock = Clock::default();
                let roll = Roll { epoch: Epoch(1), version: 1, members: Members::default() };
                let world = World { clock: clock.clone(), roll: Mutex::new((roll.clone(), 0)) };
                let world = Arc::new(world);
                let store: Arc<dyn Store> = Arc::clone(&world) as _;
                let files = Arc::new(KnownFiles { holds: AtomicBool::new(true) });
                let options = Options {
                    node: "n1".to_owned(),
                    lease: Duration::from_millis(LEASE_MS),
                    margin: Duration::from_millis(MARGIN_MS),
                    poll: Duration::from_millis(1),
                    clock: clock.clone(),
                };
                let registry = Arc::new(Registry { clock, takes_ms });
                let counters = Arc::default();
                let around = (&store, &registry);
                let own = Arc::new(OwnSession::new(&options, OWN, around, &counters, roll));
                assert!(own.join().is_ok());
                let upkeep = Upkeep::new(&own, &files, &counters);
                let stop = shuttle::sync::atomic::AtomicBool::new(false);
                Arc::new(Node { world, files, own, upkeep, stop, waiting: AtomicUsize::new(0) })
            }

            fn spawn(
                node: &Arc<Node>,
                does: impl FnOnce(&Node) + Send + 'static,
            ) -> shuttle::thread::JoinHandle<()> {
                let node = Arc::clone(node);
                shuttle::thread::spawn(move || does(&node))
            }

            /// Time passes, also more than a lease has; another node then takes the token. The lease is kept and renewed,
            /// and a request begins at any moment.
            pub(super) fn lapse() {
                let node = node(0);
                let taken = Arc::new(AtomicBool::new(false));
                let keeper = spawn(&node, |node| {
                    for _ in 0..2 {
                        let _ = node.upkeep.keep();
                    }
                });
                let renewer = spawn(&node, |node| {
                    for _ in 0..3 {
                        node.upkeep.renew_if_late(Duration::from_millis(LEASE_MS));
                    }
                });
                let time = {
                    let taken = Arc::clone(&taken);
                    spawn(&node, move |node| {
                        for _ in 0..2 {
                            node.world.clock.pass(MARGIN_MS + 1);
                            shuttle::thread::yield_now();
                            if node.world.is_over() {
                                taken.store(true, Ordering::SeqCst);
                            }
                        }
                    })
                };
                let request = {
                    let taken = Arc::clone(&taken);
                    spawn(&node, move |node| {
                        for _ in 0..4 {
                            // In this order: what another one has taken before, is not held when a request begins after.
                            let was_taken = taken.load(Ordering::SeqCst);
                            let begins = node.own.check_lease().is_ok();
                            let holds = node.files.holds.load(Ordering::SeqCst);
                            let is_right = !(was_taken && begins && holds);
                            assert!(is_right, "it is served from what another node has");
                            shuttle::thread::yield_now();
                        }
                    })
                };
                for thread in [keeper, renewer, time, request] {
                    thread.join().expect("it ends");
                }
            }

            /// The lease is over by the node's clock, not by the store's, because the origin took so long: it is regained
            /// while the other thread would renew it.
            pub(super) fn slow_origin() {
                let node = node(MARGIN_MS + 1);
                let keeper = spawn(&node, |node| assert!(node.upkeep.keep().is_ok()));
                let renewer = spawn(&node, |node| {
                    for _ in 0..3 {
                        node.upkeep.renew_if_late(Duration::from_millis(LEASE_MS));
                    }
                });
                for thread in [keeper, renewer] {
                    thread.join().expect("it ends");
                }
            }

            /// The mount ends at once, or when so many threads were about to wait.
            fn unmount_when(waiting: usize) {
                let node = node(0);
                // As `threads::keep_session`.
                let keeper = spawn(&node, |node| {
                    while !node.stop.load(Ordering::SeqCst) {
                        let _ = node.upkeep.keep();
                        node.waiting.fetch_add(1, Ordering::SeqCst);
                        node.own.wait_woken(&node.world.clock, node.world.clock.boot_instant());
                    }
                });
                // As `threads::renew_in_time`.
                let renewer = spawn(&node, |node| {
                    while !node.stop.load(Ordering::SeqCst) {
                        node.upkeep.renew_if_late(Duration::from_millis(LEASE_MS));
                        node.waiting.fetch_add(1, Ordering::SeqCst);
                        let (until, is_over) =
                            (node.world.clock.boot_instant(), || node.stop.load(Ordering::SeqCst));
                        node.own.wait_until(&node.world.clock, until, is_over);
                    }
                });
                // A request that needs the lease wakes one of them.
                let request = spawn(&node, |node| node.own.wake());
                while node.waiting.load(Ordering::SeqCst) < waiting {
                    shuttle::thread::yield_now();
                }
                // As `Agent::stop`.
                node.stop.store(true, Ordering::SeqCst);
                node.own.wake();
                for thread in [keeper, renewer, request] {
                    thread.join().expect("it ends");
                }
            }

            pub(super) fn unmount() {
                for waiting in [0, 2, 3] {
                    unmount_when(waiting);
                }
            }
        }
    };
}

stories!(right: own_session, upkeep);
stories!(a_lease_is_renewed_while_it_is_regained: own_session, upkeep_where_a_lease_is_renewed_while_it_is_regained);
stories!(a_refused_renewal_counts: own_session_where_a_refused_renewal_counts, upkeep);
stories!(one_thread_is_woken: own_session_where_one_thread_is_woken, upkeep);

#[test]
fn i12_a_lease_begins_anew_only_after_all_that_is_unsure_is_dropped() {
    explore(right::lapse);
    explore(right::slow_origin);
}

#[test]
fn the_threads_of_a_session_end_with_the_mount() {
    explore(right::unmount);
}

#[test]
fn broken_leases_are_found() {
    assert!(finds(a_lease_is_renewed_while_it_is_regained::slow_origin));
    assert!(finds(a_refused_renewal_counts::lapse));
    assert!(finds(one_thread_is_woken::unmount));
}
