//! What every store promises, whatever it stands on.

use std::time::Duration;

use halocline_cluster::store::{LEASE_MAX, Lease, Store, StoreError, Swap};
use halocline_model::background::Use;
use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Demand, Epoch, Session, Tokens};

use super::world::file;

fn made(version: u64, epoch: Epoch) -> Tokens {
    let mut tokens = Tokens::new(epoch);
    tokens.version = version;
    tokens
}

/// All of it, of a store that nobody else uses. Its clock may stand still.
pub(crate) fn holds(store: &dyn Store) {
    changes_for_another_version_or_epoch_are_refused(store);
    members_and_leases(store);
    messages(store);
    users(store);
    let epochs = store.roll().unwrap().partitions;
    for number in 0..200 {
        let partition = store.partition(file(number));
        assert!(partition < epochs.len());
        assert_eq!(store.read(file(number)).unwrap().epoch, epochs[partition]);
    }
}

fn users(store: &dyn Store) {
    let count = |own| {
        let users = store.users(own).unwrap();
        (users.working, users.serving)
    };
    let told = |session, works, serves| Some((Session(session), Use { works, serves }, 30_000));
    assert_eq!(count(None), (0, 0));
    assert_eq!(count(told(1, true, false)), (1, 0));
    assert_eq!(count(told(u64::MAX, true, true)), (2, 1));
    assert_eq!(count(told(1, true, false)), (2, 1), "once");
    assert_eq!(count(told(1, false, true)), (1, 2));
    assert_eq!(count(told(u64::MAX, false, false)), (0, 1));
    assert_eq!(count(None), (0, 1));
    assert_eq!(count(told(1, false, false)), (0, 0));
}

fn epoch_of(store: &dyn Store, number: u64) -> Epoch {
    store.roll().unwrap().partitions[store.partition(file(number))]
}

/// After `fill`, tokens that get no larger can be changed all the same.
pub(crate) fn tokens_get_smaller_when_it_is_full(store: &dyn Store, fill: impl FnOnce()) {
    let epoch = epoch_of(store, 7);
    let members = store.roll().unwrap().members;
    let range = ByteRange::new(0, u64::MAX);
    let demand =
        Demand { direction: Direction::Read, required: range, desired: range, alone: false };
    let mut held = made(0, epoch);
    held.ask(Session(1), demand, (epoch, &members), 0);
    held.version = 1;
    assert_eq!(store.swap(file(7), 0, &held).unwrap(), Swap::Taken);
    fill();
    let refused = store.swap(file(8), 0, &held).unwrap_err();
    assert!(refused.to_string().contains("maxmemory"), "{refused}");
    held.version = 2;
    for tokens in [held, made(3, epoch)] {
        assert_eq!(store.swap(file(7), tokens.version - 1, &tokens).unwrap(), Swap::Taken);
        assert_eq!(store.read(file(7)).unwrap().tokens, tokens);
    }
}

fn changes_for_another_version_or_epoch_are_refused(store: &dyn Store) {
    let epoch = epoch_of(store, 1);
    assert_eq!(store.read(file(1)).unwrap().tokens, made(0, epoch));
    assert_eq!(store.swap(file(1), 0, &made(7, epoch)).unwrap(), Swap::Taken);
    assert!(matches!(store.swap(file(1), 0, &made(7, epoch)).unwrap(), Swap::Other(_)));
    let Swap::Other(found) = store.swap(file(1), 7, &made(8, Epoch(!epoch.0))).unwrap() else {
        panic!("another epoch");
    };
    assert_eq!((found.tokens.version, found.epoch), (7, epoch));
    assert_eq!(store.files(10).unwrap(), [file(1)]);
    // Full of what it can hold.
    let mut large = made(7, epoch);
    let members = store.roll().unwrap().members;
    let range = ByteRange::new(0, u64::MAX);
    let demand =
        Demand { direction: Direction::Read, required: range, desired: range, alone: false };
    for session in 0..2000 {
        large.ask(Session(session), demand, (epoch, &members), 0);
    }
    assert_eq!(store.swap(file(1), 7, &large).unwrap(), Swap::Taken);
    assert_eq!(store.read(file(1)).unwrap().tokens, large);
    for number in 2..40 {
        let epoch = epoch_of(store, number);
        assert_eq!(store.swap(file(number), 0, &made(1, epoch)).unwrap(), Swap::Taken);
    }
    let all: Vec<_> = (1..40).map(file).collect();
    assert_eq!(store.files(1000).unwrap(), all);
    assert_eq!(store.files(5).unwrap().len(), 5);
}

fn members_and_leases(store: &dyn Store) {
    let (one, other) = (Session(11), Session(12));
    let lease_ms = u64::try_from(LEASE_MAX.as_millis()).unwrap();
    let from = store.roll().unwrap();
    let mut members = from.members.clone();
    members.join(one, from.epoch);
    assert!(store.swap_members(&from, &members, Lease::Runs(one, lease_ms)).unwrap());
    assert!(!store.swap_members(&from, &members, Lease::Stays).unwrap(), "it is not that any more");
    let now = store.roll().unwrap();
    assert_eq!((now.members.clone(), now.epoch), (members.clone(), from.epoch));
    assert!(!now.is_over(one));
    assert!(store.renew(one, now.epoch, lease_ms).unwrap());
    assert!(!store.renew(one, Epoch(!now.epoch.0), lease_ms).unwrap(), "in another epoch");
    assert!(!store.renew(other, now.epoch, lease_ms).unwrap(), "nobody gave it one");
    members.remove(one);
    assert!(!store.swap_members(&now, &members, Lease::IsOver(one)).unwrap(), "it runs");
    let other_epoch = halocline_cluster::store::Roll {
        epoch: Epoch(!now.epoch.0),
        partitions: [].into(),
        ..now.clone()
    };
    assert!(!store.swap_members(&other_epoch, &members, Lease::Ends(one)).unwrap());
    assert!(store.swap_members(&now, &members, Lease::Ends(one)).unwrap());
    assert!(!store.renew(one, now.epoch, lease_ms).unwrap(), "it ended");
}

fn messages(store: &dyn Store) {
    let session = Session(21);
    assert_eq!(store.listen(session, Duration::from_millis(20)), []);
    store.tell(session, file(3));
    store.tell(session, file(3));
    assert_eq!(store.listen(session, Duration::from_secs(5)), [file(3)]);
    assert_eq!(store.listen(session, Duration::from_millis(20)), []);
    let nothing: [Vec<u8>; 0] = [];
    assert_eq!(store.receive(session, Duration::from_millis(20)), nothing);
    store.send(session, b"\x00\xff message");
    store.send(session, b"another");
    store.send(Session(22), b"to somebody else");
    let mut messages = Vec::new();
    while messages.len() < 2 {
        messages.extend(store.receive(session, Duration::from_secs(5)));
    }
    assert_eq!(messages, [&b"\x00\xff message"[..], b"another"]);
    assert_eq!(store.receive(session, Duration::from_millis(20)), nothing);
}

/// A lease is never given for longer than others respect one that the store has forgotten.
pub(crate) fn refuses_long_leases(store: &dyn Store) {
    let epoch = store.roll().unwrap().epoch;
    let lease_ms = u64::try_from(LEASE_MAX.as_millis()).unwrap() + 1;
    let refused = store.renew(Session(1), epoch, lease_ms);
    assert!(matches!(refused, Err(StoreError::Unusable(_))), "{refused:?}");
}

/// After it began anew, no lease of before is taken for over, whether it knows of it or not, until the longest one is.
pub(crate) fn respects_forgotten_leases(store: &dyn Store) {
    let roll = store.roll().unwrap();
    let unheard = Session(31);
    assert!(!roll.is_over(unheard), "{roll:?}");
    assert!(roll.lease_ms(unheard) > 20_000, "{roll:?}");
    let over = Lease::IsOver(unheard);
    assert!(!store.swap_members(&roll, &roll.members.clone(), over).unwrap());
}
