//! The encoding of names, attributes and intents in a store. Whatever is read is checked: anyone who can reach the
//! store can write there.
//!
//! Numbers are little-endian and of fixed length; byte strings have their length before them. Scripts compare values
//! as bytes, so each value has exactly one encoding.

use std::collections::BTreeMap;

use halocline_model::namespace::{Buckets, Entry, InodeNumber, Intent, IntentId, Links, Opaque};
use halocline_model::token::Session;

use super::attributes::{Attributes, CleanCopy, Kind, Location, OPENS_MAX, Open, RelativePath};
use super::{NamesError, Result};

/// The longest encoding of attributes: extended attributes of 64 KiB, the limit of Linux, and the rest.
pub(crate) const ATTRIBUTES_BYTES_MAX: usize = (64 << 10) + (8 << 10);
/// The longest encoding of an entry or of links.
pub(super) const VALUE_BYTES_MAX: usize = ATTRIBUTES_BYTES_MAX + 64;
/// The longest target of a symbolic link.
pub const TARGET_BYTES_MAX: usize = 4095;
/// The longest name of a node.
pub(crate) const NODE_BYTES_MAX: usize = 255;
/// The longest name of an extended attribute, the limit of Linux.
pub(crate) const XATTR_NAME_BYTES_MAX: usize = 255;
/// The longest value of an extended attribute, the limit of Linux.
pub(crate) const XATTR_BYTES_MAX: usize = 64 << 10;
/// The length of one session that has a file open.
const OPEN_BYTES: usize = 9;
/// The most shards that one operation locks: some, and the buckets of a directory that it removes.
const LOCKED_MAX: usize = 8 + Buckets::COUNT;
/// The version of the encoding of attributes. In version 1, the bytes of a file lay in a numbered object; no mount
/// ever wrote it.
const FORM: u8 = 2;

/// Kinds, by the numbers of `d_type`.
const KINDS: [(Kind, u8); 7] = [
    (Kind::Fifo, 1),
    (Kind::CharDevice, 2),
    (Kind::Directory, 4),
    (Kind::BlockDevice, 6),
    (Kind::File, 8),
    (Kind::Symlink, 10),
    (Kind::Socket, 12),
];

fn unsound(what: &str) -> NamesError {
    NamesError::Unsound(what.to_owned())
}

/// Takes values off the front of bytes.
struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    const fn new(rest: &'a [u8], what: &'static str) -> Self {
        Self { rest, what }
    }

    fn fail<T>(&self) -> Result<T> {
        Err(unsound(self.what))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((first, rest)) = self.rest.split_first_chunk() else { return self.fail() };
        self.rest = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn bytes(&mut self, max: usize) -> Result<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > max {
            return self.fail();
        }
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else { return self.fail() };
        self.rest = rest;
        Ok(bytes)
    }

    fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { self.fail() }
    }
}

/// Writes at most `max` bytes. `false` if there are more.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8], max: usize) -> bool {
    let kept = bytes.get(..max).unwrap_or(bytes);
    out.extend(u32::try_from(kept.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(kept);
    bytes.len() <= max
}

/// Attributes as bytes. `None` if a part of them, or all together, exceeds its limit.
#[must_use]
pub fn encode_attributes(attributes: &Attributes) -> Option<Opaque> {
    let Attributes { kind, mode, uid, gid, size, rdev, .. } = attributes;
    let kind = KINDS.iter().find(|(one, _)| one == kind).expect("each has a number").1;
    let mut out = Vec::with_capacity(128);
    out.extend([FORM, kind]);
    for number in [mode, uid, gid] {
        out.extend(number.to_le_bytes());
    }
    for number in [size, rdev] {
        out.extend(number.to_le_bytes());
    }
    let Attributes { atime_ns, mtime_ns, ctime_ns, birth_ns, .. } = attributes;
    for time in [atime_ns, mtime_ns, ctime_ns, birth_ns] {
        out.extend(time.to_le_bytes());
    }
    let mut fits = put_bytes(&mut out, &attributes.target, TARGET_BYTES_MAX);
    match &attributes.location {
        None => out.push(0),
        Some(Location { node, tier, base, path }) => {
            out.push(1 + u8::from(node.is_some()));
            let node = node.as_deref().unwrap_or_default();
            fits &= put_bytes(&mut out, node.as_bytes(), NODE_BYTES_MAX);
            out.push(*tier);
            out.extend(base.to_le_bytes());
            fits &= put_bytes(&mut out, path.as_bytes(), RelativePath::BYTES_MAX);
        }
    }
    out.push(u8::from(attributes.writer.is_some()) | u8::from(attributes.copy.is_some()) << 1);
    out.extend(attributes.writer.map_or(0, |session| session.0).to_le_bytes());
    if let Some(CleanCopy { number, mtime_ns }) = attributes.copy {
        out.extend(number.to_le_bytes());
        out.extend(mtime_ns.to_le_bytes());
    }
    fits &= attributes.opens.len() <= OPENS_MAX;
    let opens = u8::try_from(attributes.opens.len()).unwrap_or(u8::MAX);
    out.extend([u8::from(attributes.many_opens), opens]);
    for open in &attributes.opens {
        out.extend(open.session.0.to_le_bytes());
        out.push(u8::from(open.writes) | u8::from(open.by_kernel) << 1);
    }
    for (name, value) in &attributes.xattrs {
        fits &= put_bytes(&mut out, name, XATTR_NAME_BYTES_MAX);
        fits &= put_bytes(&mut out, value, XATTR_BYTES_MAX);
    }
    (fits && out.len() <= ATTRIBUTES_BYTES_MAX).then(|| Opaque::from(out))
}

/// The length of encoded attributes without the sessions that have the file open; `None` if they cannot be decoded.
pub(super) fn len_without_opens(opaque: &Opaque) -> Option<usize> {
    let opens = decode_attributes(opaque).ok()?.opens.len();
    opaque.as_bytes().len().checked_sub(opens * OPEN_BYTES)
}

/// Decodes attributes.
///
/// # Errors
/// If the bytes are anything else.
pub fn decode_attributes(opaque: &Opaque) -> Result<Attributes> {
    let mut from = Reader::new(opaque.as_bytes(), "attributes");
    let (form, number) = (from.u8()?, from.u8()?);
    let Some((kind, _)) = KINDS.iter().find(|(_, one)| *one == number) else { return from.fail() };
    if form != FORM {
        return Err(unsound("attributes of another version"));
    }
    let mut attributes = Attributes::new(*kind, from.u32()?, 0);
    (attributes.uid, attributes.gid) = (from.u32()?, from.u32()?);
    (attributes.size, attributes.rdev) = (from.u64()?, from.u64()?);
    (attributes.atime_ns, attributes.mtime_ns) = (from.i64()?, from.i64()?);
    (attributes.ctime_ns, attributes.birth_ns) = (from.i64()?, from.i64()?);
    attributes.target = from.bytes(TARGET_BYTES_MAX)?.to_vec();
    attributes.location = location(&mut from)?;
    (attributes.writer, attributes.copy) = writer_and_copy(&mut from)?;
    (attributes.many_opens, attributes.opens) = opens(&mut from)?;
    let mut xattrs = BTreeMap::new();
    while !from.rest.is_empty() {
        let name = from.bytes(XATTR_NAME_BYTES_MAX)?.to_vec();
        let value = from.bytes(XATTR_BYTES_MAX)?.to_vec();
        if xattrs.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return from.fail();
        }
        xattrs.insert(name, value);
    }
    attributes.xattrs = xattrs;
    Ok(attributes)
}

fn flag(from: &mut Reader<'_>) -> Result<bool> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => from.fail(),
    }
}

fn writer_and_copy(from: &mut Reader<'_>) -> Result<(Option<Session>, Option<CleanCopy>)> {
    let (flags, session) = (from.u8()?, from.u64()?);
    let writer = match flags & 1 {
        0 if session == 0 => None,
        1 => Some(Session(session)),
        _ => return from.fail(),
    };
    let copy = match flags >> 1 {
        0 => None,
        1 => Some(CleanCopy { number: from.u64()?, mtime_ns: from.i64()? }),
        _ => return from.fail(),
    };
    Ok((writer, copy))
}

fn opens(from: &mut Reader<'_>) -> Result<(bool, Vec<Open>)> {
    let (many, count) = (flag(from)?, usize::from(from.u8()?));
    if count > OPENS_MAX {
        return from.fail();
    }
    let mut opens: Vec<Open> = Vec::with_capacity(count);
    for _ in 0..count {
        let (session, flags) = (Session(from.u64()?), from.u8()?);
        if flags > 3 {
            return from.fail();
        }
        let open = Open { session, writes: flags & 1 != 0, by_kernel: flags & 2 != 0 };
        if opens.last().is_some_and(|last| last.session >= open.session) {
            return from.fail();
        }
        opens.push(open);
    }
    Ok((many, opens))
}

fn location(from: &mut Reader<'_>) -> Result<Option<Location>> {
    let form = from.u8()?;
    if form == 0 {
        return Ok(None);
    }
    let node = std::str::from_utf8(from.bytes(NODE_BYTES_MAX)?);
    let node = node.map_err(|_| unsound("a node's name"))?.to_owned();
    let node = match form {
        1 if node.is_empty() => None,
        2 => Some(node),
        _ => return from.fail(),
    };
    let (tier, base) = (from.u8()?, from.u64()?);
    let path = RelativePath::stored(from.bytes(RelativePath::BYTES_MAX)?);
    let path = path.ok_or_else(|| unsound("a path that leads elsewhere"))?;
    Ok(Some(Location { node, tier, base, path }))
}

/// An entry as bytes, never empty.
pub(super) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let inode = entry.inode().0.to_le_bytes();
    match entry {
        Entry::Single(_, attributes) => [b"s", &inode[..], attributes.as_bytes()].concat(),
        Entry::Linked(_, shard) => [b"l", &inode[..], &shard.0.to_le_bytes()].concat(),
        Entry::Directory(_) => [b"d", &inode[..]].concat(),
    }
}

/// # Errors
/// If the bytes are not an entry.
pub(super) fn decode_entry(bytes: &[u8]) -> Result<Entry> {
    let mut from = Reader::new(bytes, "an entry of a directory");
    if bytes.len() > VALUE_BYTES_MAX {
        return from.fail();
    }
    let (letter, inode) = (from.u8()?, InodeNumber(from.u64()?));
    match letter {
        b's' => Ok(Entry::Single(inode, Opaque::from(from.rest.to_vec()))),
        b'l' => {
            let entry = Entry::Linked(inode, InodeNumber(from.u64()?));
            from.end().map(|()| entry)
        }
        b'd' => from.end().map(|()| Entry::Directory(inode)),
        _ => from.fail(),
    }
}

pub(super) fn encode_links(links: &Links) -> Vec<u8> {
    [&links.count.to_le_bytes(), links.attributes.as_bytes()].concat()
}

/// # Errors
/// If the bytes are not links.
pub(super) fn decode_links(bytes: &[u8]) -> Result<Links> {
    let mut from = Reader::new(bytes, "a file with several names");
    if bytes.len() > VALUE_BYTES_MAX {
        return from.fail();
    }
    Ok(Links { count: from.u32()?, attributes: Opaque::from(from.rest.to_vec()) })
}

/// Attributes of a directory, still encoded: only their reader decodes them.
///
/// # Errors
/// If they are too long.
pub(super) fn opaque(bytes: Vec<u8>) -> Result<Opaque> {
    if bytes.len() > ATTRIBUTES_BYTES_MAX {
        return Err(unsound("attributes that are too long"));
    }
    Ok(Opaque::from(bytes))
}

pub(super) fn encode_id(id: IntentId) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.session.0.to_le_bytes());
    bytes[8..].copy_from_slice(&id.number.to_le_bytes());
    bytes
}

pub(super) fn encode_intent(intent: &Intent) -> Vec<u8> {
    let mut out = encode_id(intent.id).to_vec();
    out.extend(intent.decider.0.to_le_bytes());
    intent.locked.iter().for_each(|shard| out.extend(shard.0.to_le_bytes()));
    out
}

/// # Errors
/// If the bytes are not an intent.
pub(super) fn decode_intent(bytes: &[u8]) -> Result<Intent> {
    let mut from = Reader::new(bytes, "an intent");
    let id = IntentId { session: Session(from.u64()?), number: from.u64()? };
    let decider = InodeNumber(from.u64()?);
    let mut locked = Vec::new();
    while !from.rest.is_empty() && locked.len() < LOCKED_MAX {
        locked.push(InodeNumber(from.u64()?));
    }
    if locked.is_empty() {
        return from.fail();
    }
    from.end().map(|()| Intent { id, decider, locked })
}

pub(super) fn encode_buckets(buckets: &Buckets) -> Vec<u8> {
    buckets.numbers().iter().flat_map(|bucket| bucket.0.to_le_bytes()).collect()
}

/// # Errors
/// If the bytes are not the buckets of a directory.
pub(super) fn decode_buckets(bytes: &[u8]) -> Result<Buckets> {
    let (numbers, rest) = bytes.as_chunks();
    let numbers: Vec<_> = numbers.iter().map(|it| InodeNumber(u64::from_le_bytes(*it))).collect();
    let buckets = Buckets::new(&numbers).filter(|_| rest.is_empty());
    buckets.ok_or_else(|| unsound("the buckets of a directory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(path: &[u8]) -> Location {
        let path = RelativePath::new(path).unwrap();
        Location { node: Some("n1".to_owned()), tier: 1, base: 99, path }
    }

    fn full() -> Attributes {
        let mut all = Attributes::new(Kind::Symlink, 0o4711, 1_700_000_000_123_456_789);
        (all.uid, all.gid, all.size, all.rdev) = (7, u32::MAX, u64::MAX, 259);
        all.birth_ns = -5;
        all.target = b"../\xff".to_vec();
        all.location = Some(location(b"d/\xff f"));
        all.note_open(Session(9), true);
        all.note_open(Session(3), false);
        all.note_kernel(Session(3));
        all.writer = Some(Session(17));
        all.copy = Some(CleanCopy { number: 5, mtime_ns: -7 });
        all.xattrs.insert(b"user.a".to_vec(), Vec::new());
        all.xattrs.insert(b"user.b".to_vec(), vec![0; 5000]);
        all
    }

    #[test]
    fn what_is_written_is_read_and_every_cut_is_refused_or_another_value() {
        let unmarked = Attributes { copy: None, ..full() };
        let unmoved = Attributes { writer: None, ..full() };
        for attributes in [full(), unmarked, unmoved, Attributes::new(Kind::File, 0o644, 0)] {
            let opaque = encode_attributes(&attributes).unwrap();
            assert_eq!(decode_attributes(&opaque).unwrap(), attributes);
            for end in 0..opaque.as_bytes().len() {
                let cut = Opaque::from(opaque.as_bytes()[..end].to_vec());
                if let Ok(other) = decode_attributes(&cut) {
                    assert_eq!(encode_attributes(&other).unwrap(), cut, "one form for each value");
                }
            }
        }
        for entry in [
            Entry::Single(InodeNumber(5), encode_attributes(&full()).unwrap()),
            Entry::Linked(InodeNumber(5), InodeNumber(6)),
            Entry::Directory(InodeNumber(u64::MAX)),
        ] {
            assert_eq!(decode_entry(&encode_entry(&entry)).unwrap(), entry);
        }
        let id = IntentId { session: Session(3), number: 4 };
        let intent =
            Intent { id, decider: InodeNumber(7), locked: vec![InodeNumber(8), InodeNumber(9)] };
        assert_eq!(decode_intent(&encode_intent(&intent)).unwrap(), intent);
        assert!(decode_intent(&encode_intent(&intent)[..24]).is_err(), "one that locks nothing");
        for wrong in [&b""[..], b"x", b"d1234567", b"d123456789", b"l12345678", b"x12345678"] {
            assert!(decode_entry(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Someone who can write to the store must not be able to lead us out of a tier.
    #[test]
    fn a_place_that_leads_out_of_its_tier_is_refused() {
        let at = |path: &[u8]| {
            let mut attributes = Attributes::new(Kind::File, 0o644, 0);
            attributes.location = Some(location(path));
            encode_attributes(&attributes).unwrap().as_bytes().to_vec()
        };
        let good = at(b"aa/aa/aaaaa");
        let path = good.windows(11).position(|bytes| bytes == b"aa/aa/aaaaa").unwrap();
        for wrong in [
            b"../aa/aaaaa",
            b"/aa/aa/aaaa",
            b"aa/aa/aaaa/",
            b"aa/../aaaaa",
            b"aa/./aaaaaa",
            b"aa//aaaaaaa",
            b"aa/aa/aaa\0a",
        ] {
            let mut bytes = good.clone();
            bytes[path..path + 11].copy_from_slice(wrong);
            assert!(decode_attributes(&Opaque::from(bytes)).is_err(), "{}", wrong.escape_ascii());
        }
        assert!(decode_attributes(&Opaque::from(good)).is_ok());
    }

    #[test]
    fn who_opens_a_file_is_noted_and_stops_its_move() {
        let mut file = Attributes::new(Kind::File, 0o644, 0);
        file.writer = Some(Session(99));
        file.note_open(Session(5), false);
        assert_eq!((file.writer, file.is_written()), (None, false));
        file.note_open(Session(5), true);
        file.note_open(Session(5), false);
        assert!(file.is_written() && file.opens.len() == 1, "what was written is not forgotten");
        file.note_kernel(Session(5));
        file.note_kernel(Session(6));
        file.note_open(Session(5), false);
        assert!(file.is_by_kernel(Session(5)) && !file.is_by_kernel(Session(6)));
        for session in 0..40 {
            file.note_open(Session(session), false);
        }
        assert!(file.many_opens && file.opens.len() == OPENS_MAX);
        assert_eq!(decode_attributes(&encode_attributes(&file).unwrap()).unwrap(), file);
        (0..40).for_each(|session| file.note_close(Session(session)));
        assert!(file.opens.is_empty() && file.many_opens, "somebody may have it open");
        let [four, three] = [4, 3].map(|session| {
            let session = Session(session);
            Open { session, writes: false, by_kernel: false }
        });
        file.opens = vec![four, three];
        assert!(decode_attributes(&encode_attributes(&file).unwrap()).is_err(), "another form");
    }

    #[test]
    fn a_writer_ends_the_clean_copy_of_a_file_and_a_reader_does_not() {
        let mut file = Attributes::new(Kind::File, 0o644, 0);
        file.copy = Some(CleanCopy { number: 5, mtime_ns: 7 });
        file.note_open(Session(5), false);
        assert!(file.copy.is_some());
        file.note_open(Session(5), true);
        assert_eq!(file.copy, None);
    }

    #[test]
    fn what_is_too_long_is_not_written() {
        let mut long = full();
        long.target = vec![b'x'; TARGET_BYTES_MAX + 1];
        assert_eq!(encode_attributes(&long), None);
        let mut long = full();
        long.xattrs.insert(b"user.c".to_vec(), vec![0; XATTR_BYTES_MAX + 1]);
        assert_eq!(encode_attributes(&long), None);
        let mut many = full();
        many.xattrs.insert(b"user.c".to_vec(), vec![0; XATTR_BYTES_MAX]);
        many.xattrs.insert(b"user.d".to_vec(), vec![0; XATTR_BYTES_MAX]);
        assert_eq!(encode_attributes(&many), None);
    }
}
