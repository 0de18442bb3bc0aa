//! Keys and values of the metadata store.
//!
//! Keys are fixed-width and big-endian, so that the store's order is (kind, file, offset). Every
//! value starts with a format version and ends with a checksum over key and value: what a broken
//! disk, a bug or another program left there is recognised, never believed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;

use super::{FileId, FileRecord, OriginKey, Stamp, Wanted};

/// Format version of all values.
const VERSION: u8 = 1;

/// Kind of a key, its first byte.
pub(super) mod kind {
    /// One mapped extent.
    pub(in super::super) const EXTENT: u8 = b'E';
    /// One file.
    pub(in super::super) const FILE: u8 = b'F';
    /// One wanted range of the critical data table.
    pub(in super::super) const WANTED: u8 = b'W';
    /// The one record of the session.
    pub(in super::super) const SESSION: u8 = b'S';
    /// The last completed barrier.
    pub(in super::super) const BARRIER: u8 = b'B';
    /// The next file identity.
    pub(in super::super) const NEXT_FILE: u8 = b'N';
}

/// A stored value that cannot be what we wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record is damaged: {0}")]
pub(super) struct Damaged(pub(super) &'static str);

/// A mapped extent as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExtentRecord {
    /// Bytes of the file.
    pub(super) range: ByteRange,
    /// Where they lie.
    pub(super) placement: Placement,
    /// D_flag.
    pub(super) dirty: bool,
    /// The epoch in which the mapping was made or became dirty.
    pub(super) epoch: u64,
    /// When it became dirty, or when it was last used if it is clean; milliseconds since 1970.
    pub(super) time_ms: u64,
}

/// How the last session left the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    /// Whether it was closed.
    pub(super) clean: bool,
    /// Whether it left blocks to discard.
    pub(super) stray_blocks: bool,
    /// The boot in which it ran.
    pub(super) boot: String,
}

/// A checksum of key and value: 64-bit multiply-and-fold over eight bytes at a time.
fn checksum(key: &[u8], body: &[u8]) -> u32 {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = SEED ^ (key.len() as u64) << 32 ^ body.len() as u64;
    for part in [key, body] {
        for chunk in part.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let wide = u128::from(sum ^ u64::from_le_bytes(word)) * u128::from(SEED);
            #[expect(clippy::cast_possible_truncation, reason = "both halves are folded in")]
            let folded = (wide >> 64) as u64 ^ wide as u64;
            sum = folded.rotate_left(23).wrapping_add(SEED);
        }
    }
    (sum ^ sum >> 32) as u32
}

fn seal(key: &[u8], mut body: Vec<u8>) -> Vec<u8> {
    let sum = checksum(key, &body);
    body.extend_from_slice(&sum.to_be_bytes());
    body
}

/// Reads fixed-width fields from the front of a checked value.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Checks version and checksum of a value.
    fn open(key: &[u8], value: &'a [u8]) -> Result<Self, Damaged> {
        let (body, sum) = value.split_last_chunk::<4>().ok_or(Damaged("too short"))?;
        if checksum(key, body) != u32::from_be_bytes(*sum) {
            return Err(Damaged("its checksum does not match"));
        }
        let (&version, rest) = body.split_first().ok_or(Damaged("too short"))?;
        if version != VERSION {
            return Err(Damaged("its format version is unknown"));
        }
        Ok(Self(rest))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Damaged("too short"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Damaged> {
        self.take().map(u16::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Damaged> {
        self.take().map(u64::from_be_bytes)
    }

    fn end(self) -> Result<(), Damaged> {
        if self.0.is_empty() { Ok(()) } else { Err(Damaged("too long")) }
    }

    fn placement(&mut self) -> Result<Placement, Damaged> {
        let layout = layout_of(self.byte()?)?;
        Ok(Placement { layout, group: self.u16()? })
    }
}

const fn layout_code(layout: Layout) -> u8 {
    match layout {
        Layout::OneDh => 0,
        Layout::OneDv => 1,
        Layout::TwoD => 2,
    }
}

fn layout_of(code: u8) -> Result<Layout, Damaged> {
    Layout::ALL
        .into_iter()
        .find(|&layout| layout_code(layout) == code)
        .ok_or(Damaged("its layout is unknown"))
}

fn put_placement(body: &mut Vec<u8>, placement: Placement) {
    body.push(layout_code(placement.layout));
    body.extend_from_slice(&placement.group.to_be_bytes());
}

/// Key of an extent: kind, file, first byte.
pub(super) fn extent_key(file: FileId, start: u64) -> [u8; 17] {
    let mut key = [kind::EXTENT; 17];
    key[1..9].copy_from_slice(&file.0.to_be_bytes());
    key[9..].copy_from_slice(&start.to_be_bytes());
    key
}

/// Value of an extent.
pub(super) fn extent_value(key: &[u8], extent: &ExtentRecord) -> Vec<u8> {
    let mut body = Vec::with_capacity(33);
    body.extend_from_slice(&[VERSION, u8::from(extent.dirty)]);
    put_placement(&mut body, extent.placement);
    for number in [extent.range.end, extent.epoch, extent.time_ms] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    seal(key, body)
}

/// The extent of a key and a value.
pub(super) fn extent(key: &[u8], value: &[u8]) -> Result<(FileId, ExtentRecord), Damaged> {
    let mut names = Fields(key.get(1..).ok_or(Damaged("its key is too short"))?);
    let (file, start) = (FileId(names.u64()?), names.u64()?);
    names.end()?;
    let mut fields = Fields::open(key, value)?;
    let dirty = match fields.byte()? {
        0 => false,
        1 => true,
        _ => return Err(Damaged("its flags are unknown")),
    };
    let placement = fields.placement()?;
    let (end, epoch, time_ms) = (fields.u64()?, fields.u64()?, fields.u64()?);
    fields.end()?;
    if end <= start {
        return Err(Damaged("it ends before it starts"));
    }
    let range = ByteRange::new(start, end);
    Ok((file, ExtentRecord { range, placement, dirty, epoch, time_ms }))
}

/// Key of a file.
pub(super) fn file_key(file: FileId) -> [u8; 9] {
    let mut key = [kind::FILE; 9];
    key[1..].copy_from_slice(&file.0.to_be_bytes());
    key
}

/// Value of a file.
pub(super) fn file_value(key: &[u8], file: &FileRecord) -> Vec<u8> {
    let path = file.path.as_os_str().as_bytes();
    let mut body = Vec::with_capacity(48 + path.len());
    body.push(VERSION);
    body.extend_from_slice(&file.key.inode.to_be_bytes());
    body.extend_from_slice(&file.key.born_ns.to_be_bytes());
    match file.stamp {
        Stamp::Writing => body.push(0),
        Stamp::Closed { size, mtime_ns, ctime_ns } => {
            body.push(1);
            body.extend_from_slice(&size.to_be_bytes());
            body.extend_from_slice(&mtime_ns.to_be_bytes());
            body.extend_from_slice(&ctime_ns.to_be_bytes());
        }
    }
    body.extend_from_slice(path);
    seal(key, body)
}

/// The file of a key and a value.
pub(super) fn file(key: &[u8], value: &[u8]) -> Result<FileRecord, Damaged> {
    let mut names = Fields(key.get(1..).ok_or(Damaged("its key is too short"))?);
    let id = FileId(names.u64()?);
    names.end()?;
    let mut fields = Fields::open(key, value)?;
    let origin = OriginKey { inode: fields.u64()?, born_ns: fields.u64()? };
    let stamp = match fields.byte()? {
        0 => Stamp::Writing,
        1 => Stamp::Closed {
            size: fields.u64()?,
            mtime_ns: i64::from_be_bytes(fields.take()?),
            ctime_ns: i64::from_be_bytes(fields.take()?),
        },
        _ => return Err(Damaged("its stamp is unknown")),
    };
    Ok(FileRecord { id, key: origin, path: PathBuf::from(OsStr::from_bytes(fields.0)), stamp })
}

/// Key of a wanted range: kind, file, start, end.
pub(super) fn wanted_key(file: FileId, range: ByteRange) -> [u8; 25] {
    let mut key = [kind::WANTED; 25];
    key[1..9].copy_from_slice(&file.0.to_be_bytes());
    key[9..17].copy_from_slice(&range.start.to_be_bytes());
    key[17..].copy_from_slice(&range.end.to_be_bytes());
    key
}

/// Value of a wanted range: where its bytes shall go and its turn.
pub(super) fn wanted_value(key: &[u8], placement: Placement, turn: u64) -> Vec<u8> {
    let mut body = vec![VERSION];
    put_placement(&mut body, placement);
    body.extend_from_slice(&turn.to_be_bytes());
    seal(key, body)
}

/// The wanted range of a key and a value, and its turn.
pub(super) fn wanted(key: &[u8], value: &[u8]) -> Result<(Wanted, u64), Damaged> {
    let mut names = Fields(key.get(1..).ok_or(Damaged("its key is too short"))?);
    let (file, start, end) = (FileId(names.u64()?), names.u64()?, names.u64()?);
    names.end()?;
    let mut fields = Fields::open(key, value)?;
    let (placement, turn) = (fields.placement()?, fields.u64()?);
    fields.end()?;
    if end <= start {
        return Err(Damaged("it ends before it starts"));
    }
    Ok((Wanted { file, range: ByteRange::new(start, end), placement }, turn))
}

/// Value of a record that holds one number.
pub(super) fn number_value(key: &[u8], number: u64) -> Vec<u8> {
    let mut body = vec![VERSION];
    body.extend_from_slice(&number.to_be_bytes());
    seal(key, body)
}

/// The number of a record that holds one.
pub(super) fn number(key: &[u8], value: &[u8]) -> Result<u64, Damaged> {
    let mut fields = Fields::open(key, value)?;
    let number = fields.u64()?;
    fields.end().map(|()| number)
}

/// Value of the session's record.
pub(super) fn session_value(key: &[u8], session: &Session) -> Vec<u8> {
    let mut body = vec![VERSION, u8::from(session.clean), u8::from(session.stray_blocks)];
    body.extend_from_slice(session.boot.as_bytes());
    seal(key, body)
}

/// The session of a record.
pub(super) fn session(key: &[u8], value: &[u8]) -> Result<Session, Damaged> {
    let mut fields = Fields::open(key, value)?;
    let (clean, stray_blocks) = (fields.byte()? == 1, fields.byte()? == 1);
    let boot = std::str::from_utf8(fields.0).map_err(|_| Damaged("its boot is not text"))?;
    Ok(Session { clean, stray_blocks, boot: boot.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACEMENT: Placement = Placement { layout: Layout::TwoD, group: 513 };

    fn sample() -> (Vec<u8>, Vec<u8>, ExtentRecord) {
        let range = ByteRange::new(7, 1 << 40);
        let record =
            ExtentRecord { range, placement: PLACEMENT, dirty: true, epoch: 9, time_ms: 77 };
        let key = extent_key(FileId(3), 7);
        (key.to_vec(), extent_value(&key, &record), record)
    }

    #[test]
    fn every_record_reads_back() {
        let (key, value, record) = sample();
        assert_eq!(extent(&key, &value), Ok((FileId(3), record)));
        let closed = Stamp::Closed { size: 1, mtime_ns: -2, ctime_ns: 3 };
        for stamp in [Stamp::Writing, closed] {
            let path = PathBuf::from(OsStr::from_bytes(b"dir/\xff\xfe name"));
            let origin = OriginKey { inode: 5, born_ns: 6 };
            let record = FileRecord { id: FileId(4), key: origin, path, stamp };
            let key = file_key(record.id);
            assert_eq!(file(&key, &file_value(&key, &record)), Ok(record));
        }
        let range = ByteRange::new(1, 2);
        let key = wanted_key(FileId(8), range);
        let want = Wanted { file: FileId(8), range, placement: PLACEMENT };
        assert_eq!(wanted(&key, &wanted_value(&key, PLACEMENT, 11)), Ok((want, 11)));
        assert_eq!(number(b"N", &number_value(b"N", u64::MAX)), Ok(u64::MAX));
        let last = Session { clean: true, stray_blocks: false, boot: "b-1".to_owned() };
        assert_eq!(session(b"S", &session_value(b"S", &last)), Ok(last));
    }

    #[test]
    fn keys_sort_by_file_and_offset() {
        assert!(extent_key(FileId(1), u64::MAX) < extent_key(FileId(2), 0));
        assert!(extent_key(FileId(1), 255) < extent_key(FileId(1), 256));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (key, value, _) = sample();
        for bit in 0..value.len() * 8 {
            let mut broken = value.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(extent(&key, &broken).is_err(), "bit {bit} of the value");
        }
        for bit in 8..key.len() * 8 {
            let mut broken = key.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(extent(&broken, &value).is_err(), "bit {bit} of the key");
        }
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(key in any::<Vec<u8>>(), value in any::<Vec<u8>>()) {
            prop_assert!(extent(&key, &value).is_err());
            prop_assert!(file(&key, &value).is_err());
            prop_assert!(wanted(&key, &value).is_err());
            prop_assert!(number(&key, &value).is_err());
            prop_assert!(session(&key, &value).is_err());
        }
    }
}
