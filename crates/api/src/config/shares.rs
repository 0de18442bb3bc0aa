//! How the bytes of `--size` are divided between data, records and the file system (I5).

/// A file system needs its own blocks to find the blocks of a sparse file: 1 for about 340 extents on ext4. This
/// fraction of the size (one part in so many) is reserved for them.
const INDEX_SHARE: u64 = 128;

/// Reserved for the cache's directories, its lock and the like: about ten blocks of 4 KiB.
const OWN_FILES: u64 = 64 << 10;

/// This fraction of the size is reserved for records: 50 bytes per extent, and twice that while a snapshot is written
/// beside the log that it replaces, are a fortieth of an extent of 4 KiB.
const RECORDS_SHARE: u64 = 32;
/// An empty store takes some tens of kilobytes.
const RECORDS_MIN: u64 = 512 << 10;
/// The log's files at their largest, 64 MiB, and a snapshot of a million extents, both counted twice.
const RECORDS_MAX: u64 = 256 << 20;

/// Smallest size of a cache in bytes.
pub const SIZE_MIN: u64 = 1 << 20;

/// The shares of a cache's size, in bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// For cached data.
    pub data: u64,
    /// Reserved for records; if they take more, that is taken from the data's share.
    pub records: u64,
}

impl Shares {
    /// The shares of a cache of `size` bytes.
    pub fn of(size: u64) -> Self {
        let records = (size / RECORDS_SHARE).clamp(RECORDS_MIN, RECORDS_MAX);
        Self { data: size.saturating_sub(size / INDEX_SHARE + OWN_FILES + records), records }
    }

    /// The smallest size that leaves `data` bytes for data.
    pub fn size_for(data: u64) -> u64 {
        // The share of data grows with the size, by at most one byte per byte.
        let mut size = data.max(SIZE_MIN);
        while let Some(lack) = data.checked_sub(Self::of(size).data).filter(|&lack| lack > 0) {
            size += lack;
        }
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_the_size() {
        for size in [SIZE_MIN, SIZE_MIN + 1, 20 << 20, 1 << 30, 1 << 40] {
            let Shares { data, records } = Shares::of(size);
            assert!(data > 0 && data + records + size / INDEX_SHARE + OWN_FILES == size, "{size}");
        }
        for data in [1, 4096, 256 << 10, 1 << 20, (1 << 30) + 1, 1 << 40] {
            let size = Shares::size_for(data);
            assert!(Shares::of(size).data >= data, "{data}");
            assert!(size == SIZE_MIN || Shares::of(size - 1).data < data, "{data}");
        }
    }
}
