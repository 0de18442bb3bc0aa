//! Clean copies give way: how much is read for that, and whose.

use std::os::unix::fs::fchown;
use std::sync::{OnceLock, Weak};

use super::*;
use crate::places::copies::{Copies, LOOKS, give_way_by};
use crate::places::room::{MakesRoom, Need};

/// Makes a clean copy of a file on the SSD of `n1` as its maker leaves it; without a place it is of one that is not found.
fn copied(disks: &Disks, inode: u64, place: Option<&Location>, len: usize) -> File {
    let dir = disks.at("shared/.halocline/copies/n1");
    let mut copy = File::create(dir.join(format!("{inode}.{inode}"))).unwrap();
    copy.write_all(&vec![b'c'; len]).unwrap();
    own_xattrs::set_number(&copy, own_xattrs::INODE, inode).unwrap();
    if let Some(place) = place {
        own_xattrs::set_from(&copy, place).unwrap();
        copy.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    copy
}

fn disks() -> (Disks, Places) {
    let disks = Disks::new();
    let one = disks.node("n1");
    for dir in ["shared/.halocline/copies", "shared/.halocline/copies/n1"] {
        fs::create_dir(disks.at(dir)).unwrap();
        fs::set_permissions(disks.at(dir), fs::Permissions::from_mode(0o700)).unwrap();
    }
    (disks, one)
}

fn looks(act: impl FnOnce() -> bool) -> (bool, usize) {
    LOOKS.set(0);
    (act(), LOOKS.get())
}

/// Regression: each attempt looked at all copies.
#[test]
fn an_attempt_looks_at_no_more_copies_than_it_removes() {
    let (disks, one) = disks();
    for inode in 100..10_100 {
        copied(&disks, inode, None, 0);
    }
    for inode in 20..30 {
        let place = make(&one, &[], &format!("f{inode}"), inode);
        copied(&disks, inode, Some(&place), 1 << 16);
    }
    let give_way =
        |files: u64| looks(|| Copies::give_way(&one, Need { bytes: 0, files }, None).unwrap());
    let (given, first) = give_way(1);
    assert!(given && first > 10_000, "{first}");
    assert_eq!(give_way(1), (true, 1));
    assert_eq!(give_way(4), (true, 4));
    // What is new is looked at, too, once.
    copied(&disks, 50, None, 0);
    assert_eq!(give_way(1), (true, 2));
    assert_eq!(looks(|| Copies::of(&one).bytes().unwrap() > 0), (true, 0));
    // Of those whose files are not found, all are looked at: once.
    let (given, all) = give_way(100);
    assert!(given && all > 10_000);
    let (given, again) = give_way(1);
    assert!(!given && again < 10, "{again}");
}

/// Makes room as a node does, and notes for whom.
#[derive(Debug)]
struct Noting {
    places: OnceLock<Places>,
    users: Mutex<Vec<Option<u32>>>,
}

impl MakesRoom for Noting {
    fn make_room(&self, need: Need, user: Option<u32>) -> bool {
        self.users.lock().push(user);
        Copies::give_way(self.places.get().unwrap(), need, user).unwrap()
    }
}

/// Has a step fail once, as in a quota that is used up.
#[derive(Debug)]
struct UsedUp(&'static str, AtomicBool);

impl Watcher for UsedUp {
    fn before(&self, what: &'static str) -> Result<()> {
        let is_used_up = what == self.0 && self.1.swap(false, Ordering::SeqCst);
        if is_used_up { Err(Errno::DQUOT.into()) } else { Ok(()) }
    }
}

/// Regression: a user whose quota on the shared disk was used up by copies could make nothing there.
#[test]
fn copies_of_a_user_give_way_to_what_the_users_quota_has_no_room_for() {
    const OTHER: u32 = 4711;
    if halocline_os::process_user::own_uid() != 0 {
        return;
    }
    for step in ["numbering a file", "numbering a directory", "setting a file's attributes"] {
        let (disks, one) = disks();
        for (inode, user) in [(20, 0), (21, OTHER), (22, 0)] {
            let place = make(&one, &[], &format!("f{inode}"), inode);
            let copy = copied(&disks, inode, Some(&place), 1 << 16);
            fchown(&copy, Some(user), None).unwrap();
        }
        let who = Owner { mode: 0o644, uid: 0, gid: 0 };
        let (place, _) = one.make_file_on(SHARED, &[], &name("theirs"), 40, who).unwrap();
        let users_of = |uid| Owner { uid, ..who };
        let watched = disks.watched("n1", Some(Arc::new(UsedUp(step, AtomicBool::new(true)))));
        let noting = Arc::new(Noting { places: OnceLock::new(), users: Mutex::default() });
        noting.places.set(watched.unwrap()).unwrap();
        let one = noting.places.get().unwrap();
        give_way_by(one, &(Arc::downgrade(&noting) as Weak<dyn MakesRoom>));
        match step {
            "numbering a file" => {
                one.make_file_on(SHARED, &[], &name("f"), 41, users_of(OTHER)).map(drop)
            }
            "numbering a directory" => one.make_directory(&[], &name("d"), 42, (0o755, OTHER, 0)),
            _ => {
                let change = SetAttr { uid: Some(OTHER), ..SetAttr::default() };
                one.set_attributes(&place, 40, &change).map(drop)
            }
        }
        .unwrap_or_else(|error| panic!("{step}: {error}"));
        assert_eq!(*noting.users.lock(), [Some(OTHER)], "{step}");
        let left = Copies::of(one).all(None).unwrap();
        let mut left: Vec<u64> = left.into_iter().map(|copy| copy.inode).collect();
        left.sort_unstable();
        assert_eq!(left, [20, 22], "{step}: the other users' copies stay");
    }
}
