//! Closes that wait, and are noted together.

use std::ffi::OsStr;

use halocline_api::config::CacheSize;
use halocline_cluster::names::namespace::WaitLimit;
use halocline_cluster::names::namespace::{Namespace, StoredInode as Found};
use halocline_cluster::registry::Registry;
use halocline_cluster::store::memory::MemoryStore;
use halocline_model::namespace::{EntryName, Flags, Name, ROOT};
use halocline_vfs::{Caller, Engine, Maker};

use super::*;
use crate::repair::tests::World;
use crate::{Handle, Joining, REGISTRY, SharedTier, SpaceOptions};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
const BY: Maker = Maker { caller: CALLER, umask: 0 };

/// A node's tier, and its names as another node sees them.
struct Tier {
    tier: SharedTier,
    elsewhere: Namespace,
}

fn at(name: &str) -> EntryName {
    EntryName { directory: ROOT, name: Name::from(name) }
}

impl Tier {
    fn new(world: &World) -> Self {
        let root = world.at("n1");
        let joining = Joining {
            root: &root,
            node: Some("n1"),
            peers: None,
            passthrough: false,
            store: Arc::new(MemoryStore::new(1)),
            names: Arc::new(world.store.for_another_node()),
            registry: Registry::open(&root.join("hdd").join(REGISTRY)).unwrap(),
            space: SpaceOptions {
                limit: CacheSize::Percent(90.0),
                high: 100.0,
                low: 99.0,
                policy: "lru".to_owned(),
                pin: Vec::new(),
                exclude: Vec::new(),
                archive_after: None,
            },
        };
        let tier = joining.open().unwrap();
        let other = Arc::new(world.store.for_another_node());
        let elsewhere = Namespace::open(other, Session(99), WaitLimit::default()).unwrap();
        // No thread: closes wait until they are to be noted.
        tier.tree.base.closes.waiting.lock().has_thread = true;
        Self { tier, elsewhere }
    }

    fn base(&self) -> &Base {
        &self.tier.tree.base
    }

    fn create(&self, name: &str) -> (Vnode, Handle) {
        let root = Engine::root(&self.tier);
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let made = self.tier.create((&root, OsStr::new(name)), 0o644, flags, BY);
        let (vnode, _, handle) = made.unwrap();
        self.tier.write(&handle, 0, name.as_bytes(), CALLER).unwrap();
        (vnode, handle)
    }

    /// Makes a file whose close waits.
    fn closed_later(&self, name: &str) -> Vnode {
        let (vnode, handle) = self.create(name);
        self.close_later(&vnode, handle);
        vnode
    }

    fn close_later(&self, vnode: &Vnode, mut handle: Handle) {
        loop {
            self.base().closes.waiting.lock().last = Some(self.base().clock.instant());
            drop(handle);
            if vnode.0.noting.lock().closes_later {
                return;
            }
            // The machine stood still for a moment: the close was noted at once.
            handle = self.tier.open(vnode, libc::O_WRONLY, CALLER).unwrap();
        }
    }

    fn found(&self, name: &str) -> Found {
        self.elsewhere.lookup(&at(name)).unwrap()
    }

    fn is_open(&self, name: &str) -> bool {
        !self.found(name).attributes.opens.is_empty()
    }
}

#[test]
fn closes_that_wait_are_noted_with_one_request() {
    let world = World::unformatted();
    let tier = Tier::new(&world);
    let names: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    let vnodes: Vec<Vnode> = names.iter().map(|name| tier.closed_later(name)).collect();
    assert!(names.iter().all(|name| tier.is_open(name)));
    // They are shown as they are, and count as open here, too.
    assert!(vnodes.iter().all(|vnode| tier.tier.stat(vnode, None).unwrap().raw.st_size > 1));
    let before = tier.base().names.counts().round_trips;
    assert!(note_all(tier.base()));
    assert_eq!(tier.base().names.counts().round_trips - before, 1);
    for name in &names {
        assert!(!tier.is_open(name), "{name}");
        assert_eq!(tier.found(name).attributes.size, name.len() as u64);
    }
    assert!(vnodes.iter().all(|vnode| !vnode.0.is_open()));
    assert!(!note_all(tier.base()));
}

#[test]
fn a_close_that_waits_is_noted_whatever_became_of_the_file_unless_it_is_open_again() {
    let world = World::unformatted();
    let tier = Tier::new(&world);
    let names = ["reopened", "changed", "renamed", "removed", "plain", "twice"];
    let vnodes: Vec<Vnode> = names.iter().map(|name| tier.closed_later(name)).collect();
    let open = tier.tier.open(&vnodes[0], libc::O_RDONLY, CALLER).unwrap();
    // By another node, so that what this one knows is old.
    let set = |attributes: &mut Attributes| {
        attributes.mode = 0o600;
        Ok(())
    };
    tier.elsewhere.attributes().update(&at("changed"), set).unwrap();
    tier.elsewhere.unlink(&at("removed")).unwrap();
    let root = Engine::root(&tier.tier);
    let (from, to) = (OsStr::new("renamed"), OsStr::new("new"));
    tier.tier.rename((&root, from), (&root, to), 0, CALLER).unwrap();
    let again = tier.tier.open(&vnodes[5], libc::O_WRONLY, CALLER).unwrap();
    tier.tier.write(&again, 0, b"longer than before", CALLER).unwrap();
    tier.close_later(&vnodes[5], again);
    note_all(tier.base());
    assert!(tier.is_open("reopened"));
    for name in ["changed", "new", "plain", "twice"] {
        assert!(!tier.is_open(name), "{name}");
    }
    assert_eq!(tier.found("changed").attributes.mode, 0o600);
    assert_eq!(tier.found("changed").attributes.size, "changed".len() as u64);
    assert_eq!(tier.found("twice").attributes.size, "longer than before".len() as u64);
    drop(open);
    note_all(tier.base());
    assert!(!tier.is_open("reopened"));
    assert_eq!(tier.found("reopened").attributes.size, "reopened".len() as u64);
}

#[test]
fn a_file_that_another_node_renamed_is_closed_under_its_new_name() {
    let world = World::unformatted();
    let tier = Tier::new(&world);
    let vnode = tier.closed_later("old");
    tier.closed_later("other");
    tier.elsewhere.rename(&at("old"), &at("new"), Flags::Replace).unwrap();
    // As that node does it, for a file that is open elsewhere.
    let file = vnode.0.without_name.lock().file.clone().unwrap();
    let name = Name::from("new");
    crate::places::own_xattrs::add_name(&*file, ROOT.0, &name).unwrap();
    note_all(tier.base());
    assert!(!tier.is_open("new") && !tier.is_open("other"));
}

/// Regression: the close of a program that had only read was noted without what had been written: the file had no bytes.
#[test]
fn a_close_that_could_not_be_noted_is_made_up_for_by_the_next_one() {
    let world = World::unformatted();
    let tier = Tier::new(&world);
    tier.closed_later("old");
    // It is not recorded with the file yet.
    tier.elsewhere.rename(&at("old"), &at("new"), Flags::Replace).unwrap();
    note_all(tier.base());
    assert!(tier.is_open("new"));
    let root = Engine::root(&tier.tier);
    let (vnode, _) = tier.tier.lookup(&root, OsStr::new("new")).unwrap();
    drop(tier.tier.open(&vnode, libc::O_RDONLY, CALLER).unwrap());
    note_all(tier.base());
    assert!(!tier.is_open("new"));
    assert_eq!(tier.found("new").attributes.size, "old".len() as u64);
}

#[test]
fn a_session_ends_with_nothing_open() {
    let world = World::unformatted();
    let tier = Tier::new(&world);
    for name in ["a", "b", "c"] {
        tier.closed_later(name);
    }
    tier.tier.close().unwrap();
    assert!(["a", "b", "c"].iter().all(|name| !tier.is_open(name)));
}
