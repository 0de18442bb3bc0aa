//! A node's cache of a directory of a shared tier, beside the node's own creates, its listings, its leases and changes by
//! another node: what is believed was so at a moment of the call (I15).
//!
//! `explored.rs` beside the source goes through the orders of messages, with each call of the cache as one step. Here the
//! calls themselves run in several threads.

use super::{explore, explored, finds};

macro_rules! stories {
    ($variant:ident) => {
        #[allow(dead_code, reason = "not each canary is told each story")]
        mod $variant {
            use std::sync::Arc;
            use std::time::{Duration, Instant};

            use halocline_model::namespace::{
                Answer, Change, Entry, EntryName, InodeNumber, Name, Opaque, Script, Slot,
            };
            use shuttle::sync::atomic::{AtomicU64, Ordering};
            use shuttle::thread::yield_now;

            use crate::sync::Mutex;

            // What the cache sees of the store.
            mod names {
                #[derive(Debug, Clone, Copy, PartialEq, Eq)]
                pub(super) struct ChangedDirectory {
                    pub(super) before: u64,
                    pub(super) version: u64,
                    pub(super) changed: u64,
                    pub(super) is_leased: bool,
                }

                #[derive(Debug, Clone, Copy, PartialEq, Eq)]
                pub(super) enum LeaseAnswer {
                    Yes,
                    Same,
                    No,
                }
            }

            super::explored!($variant {});
            use self::names::{ChangedDirectory, LeaseAnswer};
            use self::$variant::{CachedName, ChangeCounts, End, Listings, There};

            const DIRECTORY: InodeNumber = InodeNumber(7);
            /// A step of the clock, and how many of them a lease lasts.
            const TICK: Duration = Duration::from_millis(1);
            const LEASE: u64 = 2;

            /// The store: for each version of the directory, the file that each of two names led to.
            #[derive(Debug)]
            struct Store {
                versions: Vec<[Option<u64>; 2]>,
                /// Until when the node has a lease.
                leased: u64,
            }

            impl Store {
                fn version(&self) -> u64 {
                    self.versions.len() as u64
                }
            }

            /// The answer to a listing.
            struct Page {
                version: u64,
                names: [Option<u64>; 2],
                before: ChangeCounts,
            }

            #[derive(Debug)]
            struct Node {
                listings: Listings,
                store: Mutex<Store>,
                began: Instant,
                now: AtomicU64,
            }

            fn name(at: usize) -> Name {
                Name::from(["a", "b"][at])
            }

            fn file(value: u64) -> Entry {
                Entry::Single(InodeNumber(8), Opaque::from(value.to_be_bytes().to_vec()))
            }

            fn spawn(
                node: &Arc<Node>,
                what: impl FnOnce(&Node) + Send + 'static,
            ) -> shuttle::thread::JoinHandle<()> {
                let node = Arc::clone(node);
                shuttle::thread::spawn(move || what(&node))
            }

            fn join(threads: impl IntoIterator<Item = shuttle::thread::JoinHandle<()>>) {
                for thread in threads {
                    thread.join().expect("it ends");
                }
            }

            impl Node {
                fn new() -> Arc<Self> {
                    let store = Store { versions: vec![[None, None]], leased: 0 };
                    Arc::new(Self {
                        listings: Listings::default(),
                        store: Mutex::new(store),
                        began: Instant::now(),
                        now: AtomicU64::new(0),
                    })
                }

                fn at(&self, ticks: u64) -> Instant {
                    self.began + TICK * u32::try_from(ticks).expect("some ticks")
                }

                fn now(&self) -> Instant {
                    self.at(self.now.load(Ordering::SeqCst))
                }

                fn lease(&self, store: &mut Store) {
                    store.leased = self.now.load(Ordering::SeqCst) + LEASE;
                }

                /// The end of a lease that is requested now.
                fn until(&self) -> Instant {
                    self.now() + TICK * u32::try_from(LEASE).expect("some ticks")
                }

                /// Makes a file, or replaces one, as `Driver::send`.
                fn create(&self, at: usize, value: u64) {
                    let script =
                        Script::Alone(vec![Change::Name(name(at), None, Some(file(value)))]);
                    let change = self.listings.begin_change(DIRECTORY, &script);
                    let until = self.until();
                    yield_now();
                    let mut store = self.store.lock();
                    let before = store.version();
                    let mut names = *store.versions.last().expect("a version");
                    names[at] = Some(value);
                    store.versions.push(names);
                    self.lease(&mut store);
                    let version = store.version();
                    drop(store);
                    yield_now();
                    let followed =
                        ChangedDirectory { before, version, changed: version, is_leased: true };
                    let end = End::Made(&script, followed, until);
                    self.listings.end_change(&change, &end, self.now());
                }

                /// Asks for all names; the answer is still to arrive.
                fn ask_for_names(&self) -> Page {
                    let before = self.listings.changes(DIRECTORY);
                    yield_now();
                    let store = self.store.lock();
                    let version = store.version();
                    let names = *store.versions.last().expect("a version");
                    drop(store);
                    yield_now();
                    Page { version, names, before }
                }

                fn take_names(&self, page: &Page) {
                    let names: Vec<_> = (0..2)
                        .filter_map(|at| Some((at as u64 + 1, name(at), file(page.names[at]?))))
                        .collect();
                    let all = (0, &names[..], true);
                    self.listings.add((DIRECTORY, page.version), all, page.before, self.now());
                }

                /// Lists the directory, as `Namespace::list`.
                fn list(&self) {
                    self.take_names(&self.ask_for_names());
                }

                /// Reads a name and asks for a lease, as `Driver::read_often`.
                fn read(&self, at: usize) {
                    self.listings.is_read_often(DIRECTORY, self.now());
                    let (until, before) = (self.until(), self.listings.changes(DIRECTORY));
                    yield_now();
                    let mut store = self.store.lock();
                    let version = store.version();
                    let found = store.versions.last().expect("a version")[at].map(file);
                    self.lease(&mut store);
                    drop(store);
                    yield_now();
                    let (slot, answer) = (Slot::Name(name(at)), Answer::Name(found, 0));
                    self.listings.keep((DIRECTORY, &slot), &answer, Some((version, until)), before);
                }

                /// Asks for a lease of a version; the answer, and until when it lasts, is still to arrive.
                fn ask_for_lease(&self, version: u64) -> (LeaseAnswer, Instant) {
                    let until = self.until();
                    yield_now();
                    let mut store = self.store.lock();
                    let is_current = store.version() == version;
                    if is_current {
                        self.lease(&mut store);
                    }
                    (if is_current { LeaseAnswer::Yes } else { LeaseAnswer::No }, until)
                }

                /// As `Driver::lease`.
                fn lease_of(&self, version: u64) -> LeaseAnswer {
                    let (leased, until) = self.ask_for_lease(version);
                    yield_now();
                    self.listings.lease((DIRECTORY, version), leased, until);
                    leased
                }

                /// Looks a name up, as `Driver::known_still`. What is believed was so at a moment of this call.
                fn look_up(&self, at: usize) {
                    let first = self.store.lock().version();
                    let asked = EntryName { directory: DIRECTORY, name: name(at) };
                    let there = match self.listings.find(&asked, self.now()) {
                        CachedName::Now(there) => Some(there),
                        CachedName::Then(version, there) => {
                            (self.lease_of(version) != LeaseAnswer::No).then_some(there)
                        }
                        CachedName::Nothing => None,
                    };
                    let Some(there) = there else { return };
                    let store = self.store.lock();
                    let since = &store.versions[usize::try_from(first - 1).expect("an index")..];
                    let was = |names: &[Option<u64>; 2]| {
                        there == names[at].map_or(There::Nothing, |value| There::Entry(file(value)))
                    };
                    assert!(since.iter().any(was), "{there:?} is believed, of {since:?}");
                }

                /// Another node makes a file, once the lease is over.
                fn create_elsewhere(&self, at: usize, value: u64) {
                    let mut store = self.store.lock();
                    self.now.fetch_max(store.leased, Ordering::SeqCst);
                    let mut names = *store.versions.last().expect("a version");
                    names[at] = Some(value);
                    store.versions.push(names);
                }
            }

            /// One program creates files, others list the directory and look names up.
            pub(super) fn creates_and_listings() {
                let node = Node::new();
                let creates = spawn(&node, |node| {
                    node.create(0, 1);
                    node.create(0, 2);
                });
                let others = [0, 1].map(|_| {
                    spawn(&node, |node| {
                        node.list();
                        node.look_up(0);
                        node.look_up(0);
                    })
                });
                creates.join().expect("it ends");
                join(others);
            }

            /// A listing and a lease of the version before a create were answered before it was made, and their answers
            /// arrive while it is, or after.
            pub(super) fn answers_that_cross() {
                let node = Node::new();
                node.list();
                let (page, (leased, until)) = (node.ask_for_names(), node.ask_for_lease(1));
                let threads = [
                    spawn(&node, |node| node.create(0, 1)),
                    spawn(&node, move |node| node.take_names(&page)),
                    spawn(&node, move |node| node.listings.lease((DIRECTORY, 1), leased, until)),
                ];
                node.look_up(0);
                join(threads);
                node.look_up(0);
            }

            /// A listing was answered before another node's create, and a lease of the version that this made before a
            /// late answer brings the older one back.
            pub(super) fn an_old_page_and_a_new_lease() {
                let node = Node::new();
                let old = node.ask_for_names();
                node.create_elsewhere(0, 3);
                node.list();
                let (leased, until) = node.ask_for_lease(2);
                let threads = [
                    spawn(&node, move |node| node.take_names(&old)),
                    spawn(&node, move |node| node.listings.lease((DIRECTORY, 2), leased, until)),
                ];
                join(threads);
                node.look_up(0);
            }

            /// Two programs create files while another node does, too, and each looks for all of them.
            pub(super) fn two_nodes() {
                let node = Node::new();
                let elsewhere = spawn(&node, |node| {
                    node.create_elsewhere(1, 3);
                    node.create_elsewhere(1, 4);
                });
                let programs = [0, 1].map(|program| {
                    spawn(&node, move |node| {
                        node.read(1);
                        node.create(0, program);
                        node.look_up(0);
                        node.look_up(1);
                    })
                });
                elsewhere.join().expect("it ends");
                join(programs);
            }

            /// What is created is known without asking, once nothing is in progress any more.
            pub(super) fn is_known_after_creates() {
                let node = Node::new();
                node.read(0);
                let creates = [0, 1].map(|at| spawn(&node, move |node| node.create(at, 9)));
                join(creates);
                for at in 0..2 {
                    let asked = EntryName { directory: DIRECTORY, name: name(at) };
                    let known = node.listings.find(&asked, node.now());
                    assert_eq!(known, CachedName::Now(There::Entry(file(9))));
                }
            }
        }
    };
}

stories!(listings);
stories!(listings_where_a_name_is_trusted_while_it_changes);
stories!(listings_where_a_page_counts_though_a_change_came_between);
stories!(listings_where_a_lease_of_another_version_counts);
stories!(listings_where_a_listing_does_not_get_what_is_created);
stories!(listings_where_a_change_is_followed_from_any_version);

#[test]
fn i15_names_that_are_believed_beside_creates_and_listings_are_those_of_the_store() {
    explore(listings::creates_and_listings);
}

#[test]
fn i15_answers_to_a_listing_a_lease_and_a_create_may_cross() {
    explore(listings::answers_that_cross);
    explore(listings::an_old_page_and_a_new_lease);
}

#[test]
fn i15_names_that_are_believed_beside_another_nodes_changes_are_those_of_the_store() {
    explore(listings::two_nodes);
}

#[test]
fn files_that_are_created_at_once_are_known_afterwards() {
    explore(listings::is_known_after_creates);
}

#[test]
fn broken_listings_are_found() {
    assert!(finds(listings_where_a_listing_does_not_get_what_is_created::creates_and_listings));
    assert!(finds(listings_where_a_name_is_trusted_while_it_changes::creates_and_listings));
    assert!(finds(listings_where_a_name_is_trusted_while_it_changes::two_nodes));
    assert!(finds(listings_where_a_page_counts_though_a_change_came_between::answers_that_cross));
    assert!(finds(listings_where_a_lease_of_another_version_counts::an_old_page_and_a_new_lease));
    assert!(finds(listings_where_a_change_is_followed_from_any_version::two_nodes));
}
