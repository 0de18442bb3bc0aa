use super::*;

const D: InodeNumber = InodeNumber(7);

fn at(name: &str) -> EntryName {
    EntryName { directory: D, name: Name::from(name) }
}

fn page(names: &[&str]) -> Vec<(u64, Name, Entry)> {
    let entry = |(at, name): (usize, &&str)| {
        (at as u64 + 1, Name::from(*name), Entry::Directory(InodeNumber(at as u64)))
    };
    names.iter().enumerate().map(entry).collect()
}

/// All names of a version.
fn list(listings: &Listings, version: u64, names: &[&str], now: Instant) {
    listings.add((D, version), (0, &page(names), true), listings.changes(D), now);
}

fn leased(listings: &Listings, version: u64, until: Instant, now: Instant) -> bool {
    listings.lease((D, version), LeaseAnswer::Yes, until);
    matches!(listings.find(&at("a"), now), CachedName::Now(_))
}

fn there(at: u64) -> There {
    There::Entry(Entry::Directory(InodeNumber(at)))
}

fn renamed(from: &str, to: &str) -> Script {
    let entry = Some(Entry::Directory(InodeNumber(0)));
    let gone = Change::Name(Name::from(from), entry.clone(), None);
    Script::Alone(vec![gone, Change::Name(Name::from(to), None, entry)])
}

fn followed(before: u64, version: u64, is_leased: bool) -> ChangedDirectory {
    ChangedDirectory { before, version, changed: version, is_leased }
}

#[test]
fn a_name_is_believed_during_a_lease_of_the_version_that_was_listed() {
    let (listings, now) = (Listings::default(), Instant::now());
    let until = now + Duration::from_millis(40);
    assert_eq!(listings.find(&at("a"), now), CachedName::Nothing);
    let before = listings.changes(D);
    listings.add((D, 5), (0, &page(&["a"]), false), before, now);
    assert_eq!(listings.find(&at("a"), now), CachedName::Then(5, there(0)));
    assert!(leased(&listings, 5, until, now));
    assert_eq!(listings.find(&at("a"), now), CachedName::Now(there(0)));
    assert_eq!(listings.find(&at("c"), now), CachedName::Nothing, "it may be on the next page");
    assert_eq!(listings.find(&at("a"), until), CachedName::Then(5, there(0)));
    // Another page of the same version: now all names are known, and which ones are free.
    listings.add(
        (D, 5),
        (1, &[(2, Name::from("b"), Entry::Directory(InodeNumber(0)))], true),
        before,
        now,
    );
    assert!(matches!(listings.find(&at("a"), now), CachedName::Now(_)));
    assert_eq!(listings.find(&at("c"), now), CachedName::Now(There::Nothing));
    assert_eq!(listings.find(&at("c"), until), CachedName::Then(5, There::Nothing));
    // A page of another version, after entries of it that were not listed.
    listings.add((D, 6), (7, &page(&["b"]), true), before, now);
    assert_eq!(listings.find(&at("a"), now), CachedName::Nothing);
    assert_eq!(listings.find(&at("b"), now), CachedName::Then(6, there(0)));
    assert!(!leased(&listings, 5, until, now));
    // Without a lease the listing is kept if it was right, and dropped otherwise; it is also dropped when unused for
    // long.
    listings.lease((D, 6), LeaseAnswer::Same, until);
    assert_eq!(listings.find(&at("b"), now), CachedName::Then(6, there(0)));
    listings.lease((D, 6), LeaseAnswer::No, until);
    assert_eq!(listings.find(&at("b"), now), CachedName::Nothing);
    list(&listings, 6, &["b"], now);
    assert_eq!(listings.find(&at("b"), now + IDLE_MAX * 2), CachedName::Nothing);
    list(&listings, 0, &["b"], now);
    assert_eq!(listings.find(&at("b"), now), CachedName::Nothing, "of no version");
}

#[test]
fn what_a_change_of_this_node_made_is_known_after_it_and_nothing_meanwhile() {
    let (listings, now) = (Listings::default(), Instant::now());
    let until = now + Duration::from_millis(40);
    list(&listings, 5, &["a", "b"], now);
    assert!(leased(&listings, 5, until, now));
    let script = renamed("a", "c");
    let change = listings.begin_change(D, &script);
    for changing in ["a", "c"] {
        assert_eq!(listings.find(&at(changing), now), CachedName::Nothing);
    }
    assert_eq!(listings.find(&at("b"), now), CachedName::Now(there(1)));
    assert_eq!(listings.attributes(D, now), None);
    // The lease was refused to this change; the earlier one is still valid.
    listings.end_change(&change, &End::Made(&script, followed(5, 6, false), until), now);
    assert_eq!(listings.find(&at("a"), now), CachedName::Now(There::Nothing));
    assert_eq!(listings.find(&at("c"), now), CachedName::Now(there(0)));
    // If another version than the cached one was changed, only the change itself is known, given a lease.
    let script = renamed("c", "d");
    let change = listings.begin_change(D, &script);
    listings.end_change(&change, &End::Made(&script, followed(8, 9, true), until), now);
    assert_eq!(listings.find(&at("c"), now), CachedName::Now(There::Nothing));
    assert_eq!(listings.find(&at("d"), now), CachedName::Now(there(0)));
    assert_eq!(listings.find(&at("b"), now), CachedName::Nothing);
    let change = listings.begin_change(D, &script);
    listings.end_change(&change, &End::Made(&script, followed(11, 12, false), until), now);
    assert_eq!(listings.find(&at("d"), now), CachedName::Nothing);
}

#[test]
fn answers_that_come_in_another_order_than_their_changes_were_made_in_wait_for_each_other() {
    let (listings, now) = (Listings::default(), Instant::now());
    let until = now + Duration::from_millis(40);
    list(&listings, 5, &["a", "b"], now);
    assert!(leased(&listings, 5, until, now));
    let scripts = [renamed("a", "c"), renamed("c", "d"), renamed("d", "e")];
    let changes = scripts.each_ref().map(|script| listings.begin_change(D, script));
    let end = |at: usize| {
        let version = at as u64 + 5;
        let end = End::Made(&scripts[at], followed(version, version + 1, true), until);
        listings.end_change(&changes[at], &end, now);
    };
    end(2);
    assert_eq!(listings.find(&at("e"), now), CachedName::Nothing);
    end(1);
    assert_eq!(listings.find(&at("b"), now), CachedName::Now(there(1)));
    assert_eq!(listings.find(&at("d"), now), CachedName::Nothing);
    end(0);
    assert_eq!(listings.find(&at("e"), now), CachedName::Now(there(0)));
    assert_eq!(listings.find(&at("d"), now), CachedName::Now(There::Nothing));
    // A change that follows one that this node never made does not wait for ever.
    let [script, other] = [renamed("e", "f"), renamed("b", "g")];
    let [change, of_other] = [&script, &other].map(|script| listings.begin_change(D, script));
    listings.end_change(&change, &End::Made(&script, followed(10, 11, true), until), now);
    assert_eq!(listings.find(&at("e"), now), CachedName::Nothing);
    listings.end_change(&of_other, &End::Made(&other, followed(8, 9, true), until), now);
    list(&listings, 11, &["f"], now);
    assert_eq!(listings.find(&at("e"), now), CachedName::Then(11, There::Nothing));
}

/// Regression: a late page brought an old version back into the cache, and an even later lease of that version made it
/// trusted: threads of one node read names as they were before the node's own change.
#[test]
fn i15_a_late_page_and_a_late_lease_do_not_bring_back_what_a_change_of_this_node_replaced() {
    let (listings, now) = (Listings::default(), Instant::now());
    let until = now + Duration::from_millis(40);
    list(&listings, 5, &["a", "b"], now);
    let before = listings.changes(D);
    let script = renamed("a", "c");
    let change = listings.begin_change(D, &script);
    let during = listings.changes(D);
    listings.end_change(&change, &End::Made(&script, followed(5, 6, false), until), now);
    for asked in [before, during] {
        listings.add((D, 5), (0, &page(&["a", "b"]), true), asked, now);
        // The store granted it before that change, which did not wait for it.
        assert!(!leased(&listings, 5, until, now));
        assert_ne!(listings.find(&at("a"), now), CachedName::Now(there(0)));
    }
    // Everything of the cached version counts.
    listings.add((D, 6), (0, &page(&["c", "b"]), true), before, now);
    listings.lease((D, 6), LeaseAnswer::Yes, until);
    assert_eq!(listings.find(&at("c"), now), CachedName::Now(there(0)));
}

#[test]
fn a_directory_that_this_node_made_is_known_as_a_whole() {
    let (listings, now) = (Listings::default(), Instant::now());
    let until = now + Duration::from_millis(40);
    let attributes = Opaque::from(vec![1]);
    let script = Script::Make(Body::directory(InodeNumber(1), attributes.clone()));
    let change = listings.begin_change(D, &script);
    listings.end_change(&change, &End::Made(&script, followed(0, 5, true), until), now);
    assert_eq!(listings.find(&at("a"), now), CachedName::Now(There::Nothing));
    assert_eq!(listings.attributes(D, now), Some((attributes, 5)));
    let script = renamed("x", "a");
    let change = listings.begin_change(D, &script);
    listings.end_change(&change, &End::Made(&script, followed(5, 6, true), until), now);
    assert_eq!(listings.find(&at("a"), now), CachedName::Now(there(0)));
    assert_eq!(listings.attributes(D, now).unwrap().1, 6);
}

#[test]
fn nothing_is_believed_after_a_change_of_several_shards_or_one_that_was_lost() {
    let (listings, now) = (Listings::default(), Instant::now());
    let until = now + Duration::from_millis(40);
    let listed = || list(&listings, 5, &["a"], now);
    let script = Script::Finish(
        halocline_model::namespace::IntentId {
            session: halocline_model::token::Session(1),
            number: 1,
        },
        halocline_model::namespace::Outcome::Committed,
    );
    listed();
    assert!(leased(&listings, 5, until, now));
    let change = listings.begin_change(D, &script);
    assert_eq!(listings.find(&at("a"), now), CachedName::Nothing);
    listings.end_change(&change, &End::Unknown, now);
    // Requests sent before the change began, or while it was in progress, and late pages.
    let read = |asked: ChangeCounts| {
        let answer = Answer::Name(Some(Entry::Directory(InodeNumber(0))), 0);
        let lease = Some((5, until));
        listings.is_read_often(D, now);
        listings.keep((D, &Slot::Name(Name::from("a"))), &answer, lease, asked);
        listings.find(&at("a"), now)
    };
    let before = listings.changes(D);
    let change = listings.begin_change(D, &script);
    let during = listings.changes(D);
    listed();
    assert_eq!(listings.find(&at("a"), now), CachedName::Nothing);
    listings.end_change(&change, &End::Unknown, now);
    for asked in [before, during] {
        assert_eq!(read(asked), CachedName::Nothing);
    }
    assert_eq!(read(listings.changes(D)), CachedName::Now(there(0)));
    listed();
    assert!(leased(&listings, 5, until, now));
    // A change whose answer was lost may be made at any time.
    let change = listings.begin_change(D, &renamed("a", "b"));
    listings.end_change(&change, &End::Lost, now);
    listed();
    assert!(!leased(&listings, 5, until, now));
}

#[test]
fn what_is_kept_is_bounded() {
    let (listings, now) = (Listings::default(), Instant::now());
    let names = |from: u64, to: u64| -> Vec<_> {
        let name = |at: u64| Name::from(at.to_string().as_str());
        (from..to).map(|at| (at + 1, name(at), Entry::Directory(InodeNumber(at)))).collect()
    };
    for directory in 0..20 {
        let before = listings.changes(InodeNumber(directory));
        listings.add((InodeNumber(directory), 1), (0, &names(0, 10_000), true), before, now);
    }
    assert_eq!(listings.known.lock().counted().0, NAMES_MAX);
    // Unused directories make room for others.
    let later = now + IDLE_MAX * 2;
    list(&listings, 2, &["a"], later);
    assert_eq!(listings.known.lock().counted().0, 1);
    assert!(matches!(listings.find(&at("a"), later), CachedName::Then(2, _)));
    // In a large directory, a name that is not cached need not be free.
    let missing = |known: &Listings, name: &str| known.find(&at(name), later);
    for page in 0..10 {
        let (from, is_last) = (page * 10_000, page == 9);
        let before = listings.changes(D);
        listings.add((D, 2), (from, &names(from, from + 10_000), is_last), before, later);
        assert!(listings.known.lock().is_bounded());
    }
    assert!(matches!(missing(&listings, "99999"), CachedName::Then(..)));
    assert_eq!(missing(&listings, "0"), CachedName::Nothing);
    assert_eq!(missing(&listings, "x"), CachedName::Nothing);
}
