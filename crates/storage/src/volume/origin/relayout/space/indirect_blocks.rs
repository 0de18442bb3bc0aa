//! The blocks with the numbers of a file's blocks, on file systems that have no extents: ext2, ext3, and ext4 that was made so.
//! The first twelve blocks are named by the inode; each further 1,024, of 4 KiB, take one block for their numbers, and these, where they
//! are several, take more. Extents need a block of their own only where a file is in many pieces.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{fstatfs, ioctl_getflags};

/// The kind of ext2, ext3 and ext4, as `statfs` tells it.
const EXT: u64 = 0xef53;
/// The attribute of a directory, or file, whose blocks are in extents.
const EXTENTS: u32 = 0x8_0000;
/// Blocks that the inode names.
const DIRECT: u64 = 12;
/// Bytes of a block's number.
const NUMBER_BYTES: u64 = 4;

/// Blocks of a file system on which files have blocks for the numbers of their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndirectBlocks {
    pub(super) block_bytes: u64,
}

impl IndirectBlocks {
    /// Those of the file system of `dir`; `None` if it has none, or that is not known.
    pub(super) fn of(dir: &Path) -> Option<Self> {
        let dir = File::open(dir).ok()?;
        let system = fstatfs(dir.as_fd()).ok()?;
        if u64::try_from(system.f_type).ok()? != EXT {
            return None;
        }
        let flags = ioctl_getflags(&dir).ok()?;
        let block_bytes = u64::try_from(system.f_bsize).ok()?;
        (flags.bits() & EXTENTS == 0 && block_bytes > NUMBER_BYTES).then_some(Self { block_bytes })
    }

    /// What a file with so many bytes there has of them, in bytes, or a little more.
    pub(super) fn bytes_for(self, bytes: u64) -> u64 {
        let in_block = self.block_bytes / NUMBER_BYTES;
        let mut named = bytes.div_ceil(self.block_bytes).saturating_sub(DIRECT);
        let mut blocks = 0_u64;
        while named > 0 {
            named = named.div_ceil(in_block);
            blocks = blocks.saturating_add(named);
            if named == 1 {
                break;
            }
        }
        blocks.saturating_mul(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_blocks_take_blocks() {
        let blocks = IndirectBlocks { block_bytes: 4096 };
        let of = |data: u64| blocks.bytes_for(data * 4096) / 4096;
        assert_eq!([of(0), of(12), of(13), of(12 + 1024)], [0, 0, 1, 1]);
        // Two with numbers of data, and one with the numbers of these.
        assert_eq!([of(12 + 1025), of(12 + 1024 * 1024)], [3, 1024 + 1]);
        assert!(of(u64::MAX / 4096) < u64::MAX / 4096 / 1000, "a thousandth");
        let small = IndirectBlocks { block_bytes: 1024 };
        assert_eq!(small.bytes_for(100_000), 1024);
    }
}
