//! What a store of names answers: bodies of fuzz targets (`crate::fuzzing`).

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use halocline_model::namespace::{EntryName, Flags, InodeNumber, Intent, ROOT, Script};
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use parking_lot::Mutex;
use redis::Parser;

use super::*;
use crate::names::attributes::{Attributes, Kind};
use crate::names::check::clean;
use crate::names::coding::{
    ATTRIBUTES_BYTES_MAX, decode_attributes, decode_buckets, decode_entry, decode_intent,
    decode_links, encode_attributes, opaque,
};
use crate::names::namespace::{AttributeUpdate, Failure, Namespace, WaitLimit};

/// The most answers of a run: one answer may be far shorter than the work that it causes.
const ANSWERS_MAX: u64 = 4000;

/// A value as stored: it is refused, or encodes to exactly the same bytes again, because values are compared as bytes.
pub fn value(bytes: &[u8]) {
    if let Ok(opaque) = opaque(bytes.to_vec()) {
        assert!(bytes.len() <= ATTRIBUTES_BYTES_MAX);
        if let Ok(attributes) = decode_attributes(&opaque) {
            assert_eq!(encode_attributes(&attributes).as_ref(), Some(&opaque));
        }
    }
    if let Ok(entry) = decode_entry(bytes) {
        assert_eq!(encode_entry(&entry), bytes);
    }
    if let Ok(links) = decode_links(bytes) {
        assert_eq!(encode_links(&links), bytes);
    }
    if let Ok(buckets) = decode_buckets(bytes) {
        assert_eq!(encode_buckets(&buckets), bytes);
    }
    if let Ok(intent) = decode_intent(bytes) {
        assert!(!intent.locked.is_empty());
        assert_eq!(encode_intent(&intent), bytes);
    }
}

/// A server that answers with the next input bytes, as they would arrive over the connection, and then with nothing.
struct Hostile {
    answers: Mutex<(Parser, Cursor<Vec<u8>>)>,
    asked: AtomicU64,
}

impl std::fmt::Debug for Hostile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hostile").finish_non_exhaustive()
    }
}

impl Hostile {
    fn new(bytes: &[u8]) -> Self {
        let answers = Mutex::new((Parser::new(), Cursor::new(bytes.to_vec())));
        Self { answers, asked: AtomicU64::new(0) }
    }

    fn next(&self) -> Result<Elements> {
        let nothing = || NamesError::NoAnswer("nothing more comes".to_owned());
        if self.asked.fetch_add(1, Ordering::Relaxed) >= ANSWERS_MAX {
            return Err(nothing());
        }
        let (parser, bytes) = &mut *self.answers.lock();
        let value = parser.parse_value(bytes).map_err(|_| nothing())?;
        let elements = redis::from_redis_value(value).map_err(|_| unsound("no list"))?;
        current(elements)
    }
}

impl NameStore for Hostile {
    fn run(&self, shard: InodeNumber, script: &Script) -> Result<Answer> {
        self.change(shard, script).map(|(answer, _)| answer)
    }

    fn change(
        &self,
        _: InodeNumber,
        script: &Script,
    ) -> Result<(Answer, Option<ChangedDirectory>)> {
        let (answer, followed) = changed(self.next()?)?;
        if let (Answer::Entries { entries, .. }, Script::List(..)) = (&answer, script) {
            assert!(entries.len() <= PAGE_ENTRIES_MAX);
        }
        Ok((answer, followed))
    }

    fn refresh(&self) -> Result<State> {
        Ok(State::Confirmed)
    }

    fn begin_epoch(&self, _: bool) -> Result<()> {
        Ok(())
    }

    fn reserve(&self, count: u64) -> Result<u64> {
        first_reserved(&self.next()?, count)
    }

    fn shards(&self) -> Result<Vec<InodeNumber>> {
        Ok(vec![ROOT, InodeNumber(2), InodeNumber(3)])
    }

    fn inspect(&self, _: InodeNumber) -> Result<Option<InspectedShard>> {
        inspected(&self.next()?)
    }

    fn remove(&self, _: InodeNumber) -> Result<()> {
        self.next().map(drop)
    }

    fn round_trips(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

/// An operation on names.
type Run<'a> = &'a dyn Fn(&Namespace) -> std::result::Result<(), Failure>;

/// Answers of scripts: every operation on names, and a check, ends whatever the answers are, and none accepts a page
/// that is out of order.
pub fn answers(bytes: &[u8]) {
    let at = |directory: InodeNumber, name: &str| EntryName { directory, name: name.into() };
    let (one, other) = (at(ROOT, "a"), at(InodeNumber(2), "b"));
    let file = Attributes::new(Kind::File, 0o644, 0);
    let list = |names: &Namespace| {
        let mut cursor = 0;
        loop {
            let (entries, is_last) = names.list(ROOT, cursor, PAGE_ENTRIES_MAX)?;
            for entry in &entries {
                assert!(entry.cursor > cursor, "a listing goes on");
                cursor = entry.cursor;
            }
            if is_last {
                return Ok(());
            }
            assert!(!entries.is_empty(), "a listing goes on");
        }
    };
    let runs: [Run<'_>; 12] = [
        &|names| names.lookup(&one).map(drop),
        &|names| names.directory(ROOT).map(drop),
        &|names| names.create(&one, &file).map(drop),
        &|names| names.open_or_create(&one, &file).map(drop),
        &|names| names.make_directory(&one, &file).map(drop),
        &|names| names.link(&one, &other),
        &|names| names.unlink(&one).map(drop),
        &|names| names.remove_directory(&one).map(drop),
        &|names| names.rename(&one, &other, Flags::Replace).map(drop),
        &|names| names.rename(&one, &other, Flags::Exchange).map(drop),
        &|names| names.attributes().set_attributes(&one, &AttributeUpdate::default()).map(drop),
        &list,
    ];
    let haste = WaitLimit { limit: Duration::ZERO, pause: Duration::ZERO, clock: Clock::MACHINE };
    for run in runs {
        let store = Arc::new(Hostile::new(bytes));
        let names = Namespace::open(store, Session(1), haste.clone()).expect("it is confirmed");
        let _ = run(&names);
    }
    let _ = clean(&Hostile::new(bytes));
}

/// Seeds of [`value`] and of [`answers`].
#[cfg(test)]
pub(crate) mod seeds {
    use halocline_model::namespace::{Buckets, Entry, IntentId, Links};

    use super::*;

    fn attributes() -> Opaque {
        let mut all = Attributes::new(Kind::Symlink, 0o4711, 1_700_000_000_123_456_789);
        (all.uid, all.size, all.rdev) = (7, u64::MAX, 259);
        all.target = b"../elsewhere".to_vec();
        all.writer = Some(Session(17));
        all.xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
        all.xattrs.insert(b"user.b".to_vec(), Vec::new());
        encode_attributes(&all).expect("they are short")
    }

    fn directory() -> Opaque {
        encode_attributes(&Attributes::new(Kind::Directory, 0o755, 5)).expect("they are short")
    }

    fn intent() -> Vec<u8> {
        let id = IntentId { session: Session(3), number: 4 };
        encode_intent(&Intent { id, decider: InodeNumber(2), locked: vec![InodeNumber(3), ROOT] })
    }

    pub(crate) fn values() -> Vec<(&'static str, Vec<u8>)> {
        let links = Links { count: 2, attributes: attributes() };
        vec![
            ("attributes", attributes().as_bytes().to_vec()),
            ("directory-attributes", directory().as_bytes().to_vec()),
            ("single", encode_entry(&Entry::Single(InodeNumber(5), attributes()))),
            ("linked", encode_entry(&Entry::Linked(InodeNumber(5), InodeNumber(6)))),
            ("directory", encode_entry(&Entry::Directory(InodeNumber(2)))),
            ("links", encode_links(&links)),
            ("intent", intent()),
            ("buckets", buckets()),
        ]
    }

    fn buckets() -> Vec<u8> {
        let buckets = Buckets::new(&[InodeNumber(2), InodeNumber(3)]);
        encode_buckets(&buckets.expect("they are two"))
    }

    fn list(elements: &[&[u8]]) -> Vec<u8> {
        let mut out = format!("*{}\r\n", elements.len()).into_bytes();
        for element in elements {
            out.extend(format!("${}\r\n", element.len()).as_bytes());
            out.extend(*element);
            out.extend(b"\r\n");
        }
        out
    }

    pub(crate) fn answers() -> Vec<(&'static str, Vec<u8>)> {
        let [single, linked, below] = [
            Entry::Single(InodeNumber(5), attributes()),
            Entry::Linked(InodeNumber(6), InodeNumber(3)),
            Entry::Directory(InodeNumber(2)),
        ]
        .map(|entry| encode_entry(&entry));
        let links = encode_links(&Links { count: 2, attributes: attributes() });
        let (intent, directory) = (intent(), directory());
        let numbers = list(&[b"numbers", b"4096"]);
        let [done, differs] = [list(&[b"done"]), list(&[b"differs"])];
        let found = |entry: &[u8]| list(&[b"name", entry, b"1"]);
        let absent = list(&[b"name", b"", b"1"]);
        let busy = list(&[b"busy", &intent]);
        let page = |is_last: &[u8], first: &[u8], second: &[u8]| {
            list(&[b"entries", is_last, first, b"a", &single, second, b"b", &below])
        };
        let [split, crowded] = [list(&[b"split", &buckets()]), list(&[b"crowded", b"2"])];
        let last = page(b"1", b"5", b"9");
        let dones = [&done[..]; 8].concat();
        let told = |answers: &[&[u8]]| answers.concat();
        vec![
            ("lookup", told(&[&found(&single)])),
            ("lookup-of-several", told(&[&found(&linked), &list(&[b"links", &links])])),
            ("attributes", list(&[b"attributes", directory.as_bytes(), b"17"])),
            ("create", told(&[&numbers, &done])),
            ("create-anew", told(&[&numbers, &differs, &found(&single)])),
            ("link", told(&[&numbers, &found(&single), &absent, &dones])),
            ("unlink", told(&[&found(&linked), &list(&[b"links", &links]), &dones])),
            (
                "rename",
                told(&[
                    &found(&below),
                    &absent,
                    &done,
                    &done,
                    &list(&[b"parent", b"3"]),
                    &list(&[b"parent", b"1"]),
                    &list(&[b"parent", b"1"]),
                    &dones,
                ]),
            ),
            (
                "in-the-way",
                told(&[&busy, &list(&[b"aborted"]), &done, &done, &busy, &list(&[b"committed"])]),
            ),
            ("create-in-a-bucket", told(&[&numbers, &split, &absent, &done, &done])),
            (
                "split",
                told(&[&numbers, &crowded, &page(b"1 7", b"1", b"2"), &dones, &dones, &dones]),
            ),
            ("pages-of-buckets", told(&[&page(b"0", b"1", b"2"), &split, &last, &last])),
            ("pages", told(&[&page(b"0", b"1", b"2"), &page(b"1", b"5", b"9")])),
            (
                "check",
                told(&[
                    &list(&[b"inspected", b"d", b"l", &intent, b"c", &intent]),
                    &list(&[b"gone"]),
                    &list(&[b"full"]),
                    &list(&[b"stale"]),
                ]),
            ),
        ]
    }
}
