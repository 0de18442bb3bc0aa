//! Parses the server's answers. Anyone who can reach the server may have written anything there.

use std::time::Duration;

use halocline_model::namespace::{Answer, InodeNumber, Intent, Name, Outcome};

use super::super::attributes::RelativePath;
use super::super::coding::{decode_buckets, decode_entry, decode_intent, decode_links, opaque};
use super::super::{
    ChangedDirectory, InspectedShard, LEASE_MS_MAX, LeaseAnswer, NamesError, PAGE_ENTRIES_MAX,
    Result,
};
use super::{LEASE_MARGIN_MS, PAGE_BYTES_MAX};

/// The longest time that a change waits for a lease.
const LEASE_MAX: Duration = Duration::from_millis(300);
/// The most elements of an answer: three for each entry of a page; also limits what a check asks for.
const ELEMENTS_MAX: usize = 1 << 18;

/// The elements of a script's answer.
pub(super) type Elements = Vec<Vec<u8>>;

pub(super) fn unsound(what: &str) -> NamesError {
    NamesError::Unsound(what.to_owned())
}

pub(super) fn number(bytes: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| unsound("something that should be a number"))
}

/// How long a change must wait for a lease, if it must.
pub(super) fn leased(answer: &[Vec<u8>]) -> Result<Option<Duration>> {
    match answer {
        [word, left] if word == b"leased" => {
            Ok(Some(Duration::from_micros(number(left)?).min(LEASE_MAX)))
        }
        _ => Ok(None),
    }
}

/// Whether another node splits the directory just now.
pub(super) fn is_splitting(answer: &[Vec<u8>]) -> bool {
    matches!(answer, [word] if word == b"splitting")
}

/// For how long a node trusts what it has listed, of a lease of so many microseconds.
fn trusted(lease: &[u8]) -> Result<Duration> {
    let time = Duration::from_micros(number(lease)?);
    let time = time.saturating_sub(Duration::from_millis(LEASE_MARGIN_MS));
    Ok(time.min(Duration::from_millis(LEASE_MS_MAX)))
}

/// The version and the time of a lease that was granted with a read, if one was.
pub(super) fn granted(lease: &[u8]) -> Result<Option<(u64, Duration)>> {
    match lease.split(|byte| *byte == b' ').collect::<Vec<_>>()[..] {
        [b"0"] => Ok(None),
        [version, time] => Ok(Some((number(version)?, trusted(time)?))),
        _ => Err(unsound("something that should be a lease")),
    }
}

/// What a script that asks for a lease answered.
pub(super) fn leased_now(answer: &[Vec<u8>]) -> Result<(LeaseAnswer, Duration)> {
    match answer {
        [word, time] if word == b"done" => Ok((LeaseAnswer::Yes, trusted(time)?)),
        [word] if word == b"same" => Ok((LeaseAnswer::Same, Duration::ZERO)),
        _ => Ok((LeaseAnswer::No, Duration::ZERO)),
    }
}

/// The answer of a script, unless it ran in another epoch than the one for which it was sent.
pub(super) fn current(answer: Elements) -> Result<Elements> {
    if answer.len() > ELEMENTS_MAX {
        return Err(unsound("an answer with too many elements"));
    }
    if answer.first().is_some_and(|first| first == b"stale") {
        return Err(NamesError::Stale);
    }
    Ok(answer)
}

/// The first of `count` numbers that were reserved.
pub(super) fn first_reserved(elements: &[Vec<u8>], count: u64) -> Result<u64> {
    let [_, last] = elements else { return Err(unsound("no number")) };
    // 1 is the root.
    let first = number(last)?.checked_add(2);
    let first = first.filter(|first| first.checked_add(count).is_some());
    first.ok_or_else(|| unsound("no number is left"))
}

/// Parses the answer of a script of a shard, and what a change says about its directory.
pub(super) fn changed(elements: Elements) -> Result<(Answer, Option<ChangedDirectory>)> {
    match elements.as_slice() {
        [word, before, version, changed, is_leased] if word == b"done" => {
            let [before, version, changed] = [number(before)?, number(version)?, number(changed)?];
            let followed =
                ChangedDirectory { before, version, changed, is_leased: is_leased == b"1" };
            Ok((Answer::Done, Some(followed)))
        }
        _ => Ok((answer(elements)?, None)),
    }
}

/// Reads the answer of a script of a shard.
pub(super) fn answer(elements: Elements) -> Result<Answer> {
    let mut elements = elements.into_iter();
    let word = elements.next().unwrap_or_default();
    let rest: Vec<Vec<u8>> = elements.collect();
    Ok(match (word.as_slice(), rest.as_slice()) {
        (b"done", []) => Answer::Done,
        (b"differs", []) => Answer::Differs,
        (b"gone", []) => Answer::Gone,
        (b"full", []) => Answer::NotEmpty,
        (b"crowded", [entries]) => Answer::Full(number(entries)?),
        (b"split", [buckets]) => Answer::Split(decode_buckets(buckets)?),
        (b"committed", []) => Answer::Settled(Outcome::Committed),
        (b"aborted", []) => Answer::Settled(Outcome::Aborted),
        (b"busy", [intent]) => Answer::Busy(decode_intent(intent)?),
        (b"name", [entry, settlements]) if entry.is_empty() => {
            Answer::Name(None, number(settlements)?)
        }
        (b"name", [entry, settlements]) => {
            Answer::Name(Some(decode_entry(entry)?), number(settlements)?)
        }
        (b"parent", [parent]) => Answer::Parent(InodeNumber(number(parent)?)),
        (b"attributes", [value, changed]) => {
            Answer::Attributes(opaque(value.clone())?, number(changed)?)
        }
        (b"links", [links]) => Answer::Links(decode_links(links)?),
        (b"entries", [is_last, entries @ ..]) => page(is_last, entries)?,
        _ => return Err(unsound("an answer of no script of ours")),
    })
}

/// Whether it is one step of a path: names are used on the disks, where others may have put links.
fn is_name(name: &[u8]) -> bool {
    RelativePath::new(name).is_some_and(|path| path.last() == name)
}

fn page(head: &[u8], elements: &[Vec<u8>]) -> Result<Answer> {
    let (triples, rest) = elements.as_chunks::<3>();
    let (is_last, version) = match head {
        [b'1', version @ ..] => (true, version),
        [b'0', version @ ..] => (false, version),
        _ => return Err(unsound("a page of entries")),
    };
    let version = match version {
        [] => 0,
        [b' ', version @ ..] => number(version)?,
        _ => return Err(unsound("a page of entries")),
    };
    // An entry that is too long for a page is alone on it.
    let bytes: usize = triples.iter().map(|[_, name, entry]| name.len() + entry.len()).sum();
    let is_long = triples.len() > PAGE_ENTRIES_MAX || triples.len() > 1 && bytes > PAGE_BYTES_MAX;
    if !rest.is_empty() || is_long {
        return Err(unsound("a page of entries"));
    }
    let mut entries: Vec<(u64, Name, _)> = Vec::with_capacity(triples.len());
    for [place, name, entry] in triples {
        let place = number(place)?;
        if entries.last().is_some_and(|(last, ..)| *last >= place) {
            return Err(unsound("a page of entries that is not in order"));
        }
        if !is_name(name) {
            return Err(unsound("a name that no file can have"));
        }
        entries.push((place, Name::from(name.as_slice()), decode_entry(entry)?));
    }
    Ok(Answer::Entries { entries, is_last, version })
}

pub(super) fn inspected(elements: &[Vec<u8>]) -> Result<Option<InspectedShard>> {
    let [word, rest @ ..] = elements else { return Err(unsound("an empty answer")) };
    if word == b"gone" {
        return Ok(None);
    }
    let [kind, rest @ ..] = rest else { return Err(unsound("a shard of no kind")) };
    let is_directory = matches!(kind.as_slice(), b"d" | b"D");
    let is_bucket = kind == b"b";
    let mut found = InspectedShard { is_directory, is_bucket, ..InspectedShard::default() };
    let (pairs, _) = rest.as_chunks::<2>();
    for [what, intent] in pairs {
        let intent: Intent = decode_intent(intent)?;
        if what == b"l" { &mut found.locks } else { &mut found.committed }.push(intent);
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use halocline_model::namespace::{Entry, Opaque};

    use super::*;
    use crate::names::coding::ATTRIBUTES_BYTES_MAX;
    use crate::names::coding::encode_entry;

    /// Regression: a check made a link at such a name, through a link that a user had made.
    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        let entry = encode_entry(&Entry::Directory(InodeNumber(5)));
        let page_of = |name: &[u8]| page(b"1", &[b"1".to_vec(), name.to_vec(), entry.clone()]);
        for name in [&b"a"[..], b"...", b"a\nb", b"\xff", &[b'a'; 255]] {
            assert!(page_of(name).is_ok(), "{}", name.escape_ascii());
        }
        for name in [&b""[..], b".", b"..", b"/", b"a/b", b"/a", b"a/", b"a\0b", &[b'a'; 256]] {
            assert!(page_of(name).is_err(), "{}", name.escape_ascii());
        }
    }

    /// Regression: a repair added up, and panicked, where a store said that nearly all numbers were used.
    #[test]
    fn numbers_of_which_not_all_are_left_are_refused() {
        let last = |left: u64| [b"done".to_vec(), (u64::MAX - left).to_string().into()];
        assert_eq!(first_reserved(&last(4098), 4096).unwrap(), u64::MAX - 4096);
        assert!(first_reserved(&last(4097), 4096).is_err());
        assert!(first_reserved(&last(0), 0).is_err());
    }

    #[test]
    fn a_page_of_more_bytes_than_were_asked_for_is_refused() {
        let entry = Entry::Single(InodeNumber(5), Opaque::from(vec![0; ATTRIBUTES_BYTES_MAX]));
        let entry = encode_entry(&entry);
        let page_of = |count: u64| {
            let triple = |place: u64| [place.to_string().into(), b"a".to_vec(), entry.clone()];
            let elements: Vec<Vec<u8>> = (1..=count).flat_map(triple).collect();
            page(b"1", &elements)
        };
        assert!(page_of(PAGE_BYTES_MAX as u64 / entry.len() as u64).is_ok());
        assert!(page_of(PAGE_BYTES_MAX as u64 / entry.len() as u64 + 1).is_err());
    }
}
