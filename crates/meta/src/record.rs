//! The form of records in the store: keys sorted by file and offset, values of fixed width.
//!
//! All integers are big-endian. The log checksums its batches, and a snapshot its blocks, so a record has only a
//! version; decoding still rejects anything that is impossible.
//!
//! | key | value |
//! | --- | --- |
//! | `x` file:8 start:8 | version:1 flags:1 layout:1 group:2 length:6 epoch:6 dirty since:6 last use:6 |
//! | `f` file:8 | version:1 inode:8 born:8 stamp:1+24 path; `/` behind it: its removal began; `//`: it was removed |
//! | the same on a mount | version:1 (2) inode:8 born:8 stamp:1+24 mount's inode:8 born:8 path |
//! | `c` file:8 start:8 end:8 | version:1 layout:1 group:2 flag order:8 |
//! | `s` name | version:1 and the value of that name |

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;

use super::{CriticalRange, FileId, FileRecord, OriginKey, Removal, Stamp};

/// First byte of an extent's key.
pub(crate) const EXTENT: u8 = b'x';
/// First byte of a file's key.
pub(crate) const FILE: u8 = b'f';
/// First byte of a critical range's key.
pub(crate) const CRITICAL: u8 = b'c';

/// The state of the store itself.
pub(crate) const STATE_KEY: &[u8] = b"s/state";
/// The last completed barrier.
pub(crate) const EPOCH_KEY: &[u8] = b"s/epoch";
/// The next file id.
pub(crate) const NEXT_FILE_KEY: &[u8] = b"s/next-file";

const VERSION: u8 = 1;
const DIRTY: u8 = 1;
const EXTENT_LEN: usize = 29;
const FILE_FIXED_LEN: usize = 42;
/// Version of the record of a file on a mount below the origin's root.
const ON_A_MOUNT: u8 = 2;
/// Additional bytes of such a record.
const MOUNT_LEN: usize = 16;
const CRITICAL_LEN: usize = 12;

/// Limit of a store's counters: incrementing one many times still gives a valid counter.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;
/// Limit of epochs, for which records have 48 bits.
pub(crate) const EPOCH_MAX: u64 = 1 << 47;
/// Longest path in a record.
const PATH_LEN_MAX: usize = 1 << 15;
/// Behind the path of a file whose last name is being removed, and twice if it was. Versions that do not know this take
/// it for the same path.
const REMOVAL: u8 = b'/';

/// Longest extent: the largest length of 48 bits, in whole blocks.
pub(crate) const EXTENT_LEN_MAX: u64 = (1 << 48) - 4096;

/// An extent as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentRecord {
    /// Bytes of the file.
    pub(crate) range: ByteRange,
    /// The object that contains them.
    pub(crate) placement: Placement,
    /// `D_flag`.
    pub(crate) dirty: bool,
    /// If dirty: the epoch in which it became dirty, whose barrier synced its data. If clean: the epoch after whose
    /// barrier it may be evicted; 0 means at once.
    pub(crate) epoch: u64,
    /// When it became dirty, in milliseconds since the epoch; 0 when clean.
    pub(crate) dirty_since_ms: u64,
    /// Last use known when the record was written, in milliseconds since the epoch.
    pub(crate) last_use_ms: u64,
}

/// How the store was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    /// Whether the owner closed it.
    pub(crate) closed: bool,
    /// Whether blocks were left to discard when the owner closed it.
    pub(crate) untrimmed: bool,
    /// Boot id of the machine when the owner opened it.
    pub(crate) boot_id: String,
}

/// Why a record was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Key of the extent of `file` that starts at `start`.
pub(crate) fn extent_key(file: FileId, start: u64) -> [u8; 17] {
    let mut key = [EXTENT; 17];
    key[1..9].copy_from_slice(&file.0.to_be_bytes());
    key[9..].copy_from_slice(&start.to_be_bytes());
    key
}

/// Key of a file.
pub(crate) fn file_key(file: FileId) -> [u8; 9] {
    let mut key = [FILE; 9];
    key[1..].copy_from_slice(&file.0.to_be_bytes());
    key
}

/// Key of a critical range.
pub(crate) fn critical_key(file: FileId, range: ByteRange) -> [u8; 25] {
    let mut key = [CRITICAL; 25];
    key[1..9].copy_from_slice(&file.0.to_be_bytes());
    key[9..17].copy_from_slice(&range.start.to_be_bytes());
    key[17..].copy_from_slice(&range.end.to_be_bytes());
    key
}

/// Value of an extent.
pub(crate) fn encode_extent(record: &ExtentRecord) -> [u8; EXTENT_LEN] {
    let mut value = [0; EXTENT_LEN];
    value[0] = VERSION;
    value[1] = u8::from(record.dirty) * DIRTY;
    value[2..5].copy_from_slice(&encode_placement(record.placement));
    put48(&mut value[5..11], record.range.len());
    put48(&mut value[11..17], record.epoch);
    put48(&mut value[17..23], record.dirty_since_ms);
    put48(&mut value[23..29], record.last_use_ms);
    value
}

/// The extent in a key and its value.
pub(crate) fn decode_extent(key: &[u8], value: &[u8]) -> Result<(FileId, ExtentRecord), Malformed> {
    let key: &[u8; 17] = key.try_into().map_err(|_| Malformed("extent key of a wrong length"))?;
    let value: &[u8; EXTENT_LEN] =
        value.try_into().map_err(|_| Malformed("extent record of a wrong length"))?;
    if value[0] != VERSION || value[1] & !DIRTY != 0 {
        return Err(Malformed("extent record of an unknown version"));
    }
    let (start, len) = (get64(&key[9..]), get48(&value[5..11]));
    let end = start.checked_add(len).ok_or(Malformed("extent past the end of the file range"))?;
    if len == 0 {
        return Err(Malformed("empty extent"));
    }
    if get48(&value[11..17]) > EPOCH_MAX {
        return Err(Malformed("extent of an epoch that no cache reaches"));
    }
    if (value[1] & DIRTY != 0) != (get48(&value[17..23]) != 0) {
        return Err(Malformed("extent dirty without an age or aged without being dirty"));
    }
    let record = ExtentRecord {
        range: ByteRange::new(start, end),
        placement: decode_placement(&value[2..5])?,
        dirty: value[1] & DIRTY != 0,
        epoch: get48(&value[11..17]),
        dirty_since_ms: get48(&value[17..23]),
        last_use_ms: get48(&value[23..29]),
    };
    Ok((FileId(get64(&key[1..9])), record))
}

/// Value of a file.
pub(crate) fn encode_file(record: &FileRecord) -> Vec<u8> {
    let path = record.path.as_os_str().as_bytes();
    let mut value = Vec::with_capacity(FILE_FIXED_LEN + MOUNT_LEN + path.len());
    value.push(if record.mount.is_some() { ON_A_MOUNT } else { VERSION });
    value.extend_from_slice(&record.key.inode.to_be_bytes());
    value.extend_from_slice(&record.key.born_ns.to_be_bytes());
    let (tag, size, mtime_ns, ctime_ns) = match record.stamp {
        Stamp::Writing => (0, 0, 0, 0),
        Stamp::Closed { size, mtime_ns, ctime_ns } => (1, size, mtime_ns, ctime_ns),
        Stamp::Unjudged { until_ns } => (2, 0, 0, until_ns),
    };
    value.push(tag);
    value.extend_from_slice(&size.to_be_bytes());
    value.extend_from_slice(&mtime_ns.to_be_bytes());
    value.extend_from_slice(&ctime_ns.to_be_bytes());
    debug_assert_eq!(value.len(), FILE_FIXED_LEN, "the fixed part has its documented width");
    if let Some(mount) = record.mount {
        value.extend_from_slice(&mount.inode.to_be_bytes());
        value.extend_from_slice(&mount.born_ns.to_be_bytes());
    }
    value.extend_from_slice(path);
    value.extend(std::iter::repeat_n(REMOVAL, removal_len(record.removal)));
    value
}

/// How many bytes of [`REMOVAL`] follow the path.
fn removal_len(removal: Removal) -> usize {
    match removal {
        Removal::None => 0,
        Removal::Begun => 1,
        Removal::Done => 2,
    }
}

/// A path and what follows it.
fn split_removal(path: &[u8]) -> (&[u8], Removal) {
    let all = [Removal::Done, Removal::Begun];
    let found = all.into_iter().find_map(|removal| {
        let path = path.strip_suffix(&[REMOVAL; 2][..removal_len(removal)])?;
        Some((path, removal))
    });
    found.unwrap_or((path, Removal::None))
}

/// The file in a key and its value.
pub(crate) fn decode_file(key: &[u8], value: &[u8]) -> Result<FileRecord, Malformed> {
    let key: &[u8; 9] = key.try_into().map_err(|_| Malformed("file key of a wrong length"))?;
    let short = Malformed("short file record");
    let (fixed, rest) = value.split_at_checked(FILE_FIXED_LEN).ok_or(short)?;
    let (mount, path) = match fixed[0] {
        VERSION => (None, rest),
        ON_A_MOUNT => {
            let (mount, path) = rest.split_at_checked(MOUNT_LEN).ok_or(short)?;
            let (inode, born_ns) = (get64(&mount[..8]), get64(&mount[8..]));
            (Some(OriginKey { inode, born_ns }), path)
        }
        _ => return Err(Malformed("file record of an unknown version")),
    };
    if get64(&key[1..]) > COUNTER_MAX || path.len() > PATH_LEN_MAX {
        return Err(Malformed("file record with a number or a path that no file has"));
    }
    let (path, removal) = split_removal(path);
    let stamp = match fixed[17] {
        0 => Stamp::Writing,
        1 => Stamp::Closed {
            size: get64(&fixed[18..26]),
            mtime_ns: get64(&fixed[26..34]).cast_signed(),
            ctime_ns: get64(&fixed[34..42]).cast_signed(),
        },
        2 => Stamp::Unjudged { until_ns: get64(&fixed[34..42]).cast_signed() },
        _ => return Err(Malformed("file record with an unknown stamp")),
    };
    Ok(FileRecord {
        id: FileId(get64(&key[1..])),
        key: OriginKey { inode: get64(&fixed[1..9]), born_ns: get64(&fixed[9..17]) },
        path: PathBuf::from(OsString::from_vec(path.to_vec())),
        stamp,
        removal,
        mount,
    })
}

/// Value of a critical range; `order` sorts entries by the time their `C_flag` was set.
pub(crate) fn encode_critical(placement: Placement, order: u64) -> [u8; CRITICAL_LEN] {
    let mut value = [VERSION; CRITICAL_LEN];
    value[1..4].copy_from_slice(&encode_placement(placement));
    value[4..].copy_from_slice(&order.to_be_bytes());
    value
}

/// The critical range in a key and its value.
pub(crate) fn decode_critical(key: &[u8], value: &[u8]) -> Result<(CriticalRange, u64), Malformed> {
    let key: &[u8; 25] = key.try_into().map_err(|_| Malformed("critical key of a wrong length"))?;
    let value: &[u8; CRITICAL_LEN] =
        value.try_into().map_err(|_| Malformed("critical record of a wrong length"))?;
    let (start, end) = (get64(&key[9..17]), get64(&key[17..]));
    if value[0] != VERSION || start >= end {
        return Err(Malformed("critical record of an unknown version or without bytes"));
    }
    let order = get64(&value[4..]);
    if order > COUNTER_MAX {
        return Err(Malformed("critical record with an order that no cache reaches"));
    }
    let wanted = CriticalRange {
        file: FileId(get64(&key[1..9])),
        range: ByteRange::new(start, end),
        placement: decode_placement(&value[1..4])?,
    };
    Ok((wanted, order))
}

/// Value of [`STATE_KEY`].
pub(crate) fn encode_state(state: &State) -> Vec<u8> {
    let mut value = vec![VERSION, u8::from(state.closed), u8::from(state.untrimmed)];
    value.extend_from_slice(state.boot_id.as_bytes());
    value
}

/// Decodes the value of [`STATE_KEY`].
pub(crate) fn decode_state(value: &[u8]) -> Result<State, Malformed> {
    let [VERSION, closed @ 0..=1, untrimmed @ 0..=1, boot_id @ ..] = value else {
        return Err(Malformed("state record of an unknown version"));
    };
    let boot_id = str::from_utf8(boot_id).map_err(|_| Malformed("state record without boot id"))?;
    Ok(State { closed: *closed == 1, untrimmed: *untrimmed == 1, boot_id: boot_id.to_owned() })
}

/// Value of a counter.
pub(crate) fn encode_counter(counter: u64) -> [u8; 9] {
    let mut value = [VERSION; 9];
    value[1..].copy_from_slice(&counter.to_be_bytes());
    value
}

/// Decodes a counter of at most `most`.
pub(crate) fn decode_counter_within(value: &[u8], most: u64) -> Result<u64, Malformed> {
    let counter = decode_counter(value)?;
    if counter > most {
        return Err(Malformed("counter that no cache reaches"));
    }
    Ok(counter)
}

/// Decodes a counter.
pub(crate) fn decode_counter(value: &[u8]) -> Result<u64, Malformed> {
    let [VERSION, counter @ ..] = value else {
        return Err(Malformed("counter of an unknown version"));
    };
    Ok(u64::from_be_bytes(counter.try_into().map_err(|_| Malformed("counter of a wrong length"))?))
}

fn encode_placement(placement: Placement) -> [u8; 3] {
    let layout = match placement.layout {
        Layout::OneDh => 0,
        Layout::OneDv => 1,
        Layout::TwoD => 2,
    };
    let [high, low] = placement.group.to_be_bytes();
    [layout, high, low]
}

fn decode_placement(bytes: &[u8]) -> Result<Placement, Malformed> {
    let layout = match bytes[0] {
        0 => Layout::OneDh,
        1 => Layout::OneDv,
        2 => Layout::TwoD,
        _ => return Err(Malformed("unknown layout")),
    };
    Ok(Placement { layout, group: u16::from_be_bytes([bytes[1], bytes[2]]) })
}

fn put48(into: &mut [u8], value: u64) {
    assert!(value < 1 << 48, "a 48-bit field overflows");
    into.copy_from_slice(&value.to_be_bytes()[2..]);
}

fn get48(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn get64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_refused(
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = decode_extent(&key, &value);
            let _ = decode_file(&key, &value);
            let _ = decode_critical(&key, &value);
            let _ = decode_state(&value);
            let _ = decode_counter(&value);
        }

        /// What is accepted leaves room for the next epoch, the next number, and the end.
        #[test]
        fn accepted_records_leave_room_to_count(file: u64, start: u64, mut value: [u8; EXTENT_LEN]) {
            (value[0], value[1], value[2]) = (VERSION, value[1] & DIRTY, value[2] % 3);
            if let Ok((_, record)) = decode_extent(&extent_key(FileId(file), start), &value) {
                prop_assert!(record.range.start < record.range.end);
                prop_assert!(record.epoch + 1 < 1 << 48);
            }
            let mut value = [0; FILE_FIXED_LEN];
            value[0] = VERSION;
            if let Ok(record) = decode_file(&file_key(FileId(file)), &value) {
                prop_assert!(record.id.0 <= COUNTER_MAX);
            }
            let counter = encode_counter(file);
            let known = decode_counter_within(&counter, EPOCH_MAX);
            prop_assert!(known.is_ok_and(|epoch| epoch <= EPOCH_MAX) || file > EPOCH_MAX);
        }
    }

    #[test]
    fn keys_sort_by_file_then_offset() {
        let key = |file, start| extent_key(FileId(file), start);
        assert!(key(1, u64::MAX) < key(2, 0));
        assert!(key(1, 255) < key(1, 256));
    }

    #[test]
    fn records_come_back_as_they_went() {
        let placement = Placement { layout: Layout::TwoD, group: 513 };
        let extent = ExtentRecord {
            range: ByteRange::new(77, 4_000_000_000_077),
            placement,
            dirty: true,
            epoch: 99,
            dirty_since_ms: 1_763_000_000_000,
            last_use_ms: 1_763_000_000_001,
        };
        let key = extent_key(FileId(5), 77);
        assert_eq!(decode_extent(&key, &encode_extent(&extent)), Ok((FileId(5), extent)));

        let file = FileRecord {
            id: FileId(7),
            key: OriginKey { inode: 12, born_ns: 34 },
            path: PathBuf::from("a/b c"),
            stamp: Stamp::Closed { size: 1, mtime_ns: -2, ctime_ns: 3 },
            removal: Removal::None,
            mount: None,
        };
        for removal in [Removal::Begun, Removal::Done, Removal::None] {
            let file = FileRecord { removal, ..file.clone() };
            assert_eq!(decode_file(&file_key(file.id), &encode_file(&file)), Ok(file));
        }
        let mount = Some(OriginKey { inode: 2, born_ns: 56 });
        let file = FileRecord { mount, stamp: Stamp::Unjudged { until_ns: -7 }, ..file };
        assert_eq!(decode_file(&file_key(file.id), &encode_file(&file)), Ok(file.clone()));
        assert!(decode_file(&file_key(file.id), &encode_file(&file)[..50]).is_err());

        let wanted = CriticalRange { file: FileId(9), range: ByteRange::new(1, 2), placement };
        let key = critical_key(wanted.file, wanted.range);
        assert_eq!(decode_critical(&key, &encode_critical(placement, 6)), Ok((wanted, 6)));

        let state = State { closed: true, untrimmed: false, boot_id: "b-1".into() };
        assert_eq!(decode_state(&encode_state(&state)), Ok(state));
        assert_eq!(decode_counter(&encode_counter(u64::MAX)), Ok(u64::MAX));
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        let record = ExtentRecord {
            range: ByteRange::new(0, 1),
            placement: Placement { layout: Layout::OneDh, group: 0 },
            dirty: false,
            epoch: 0,
            dirty_since_ms: 0,
            last_use_ms: 0,
        };
        let (key, good) = (extent_key(FileId(1), 0), encode_extent(&record));
        for (at, with) in [(0, 2), (1, 2), (2, 3), (10, 0)] {
            let mut bad = good;
            bad[at] = with;
            assert!(decode_extent(&key, &bad).is_err(), "byte {at} = {with} was accepted");
        }
        assert!(decode_extent(&key[1..], &good).is_err());
        assert!(decode_extent(&key, &good[1..]).is_err());
        assert!(decode_extent(&extent_key(FileId(1), u64::MAX), &good).is_err());
    }
}
