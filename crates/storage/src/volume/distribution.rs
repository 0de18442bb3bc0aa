//! How a striped file is distributed over its servers: in equal stripes, as a volume's files are, or in the layout that
//! it was given (docs/ALGORITHMS.md, section 1).
//!
//! Either way the part of a request on one server is one contiguous local range.

use std::sync::Arc;

use halocline_model::file_layout::FileLayout;
use halocline_model::request::ByteRange;
use halocline_model::striping::{Piece, Striping, pieces_by};

/// Which server holds which byte of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Distribution {
    /// Equal stripes.
    Even(Striping),
    /// A width for each server, by parts of the file.
    Varied(Arc<FileLayout>),
}

impl From<Striping> for Distribution {
    fn from(striping: Striping) -> Self {
        Self::Even(striping)
    }
}

impl From<FileLayout> for Distribution {
    fn from(layout: FileLayout) -> Self {
        Self::Varied(Arc::new(layout))
    }
}

impl Distribution {
    /// Number of servers, including those without bytes.
    pub fn servers(&self) -> u32 {
        match self {
            Self::Even(striping) => striping.servers(),
            Self::Varied(layout) => u32::try_from(layout.servers()).expect("far fewer servers"),
        }
    }

    /// Bytes of `[0, x)` on `server`.
    pub fn local_len(&self, server: u32, x: u64) -> u64 {
        match self {
            Self::Even(striping) => striping.local_len(server, x),
            Self::Varied(layout) => layout.local_len(server as usize, x),
        }
    }

    /// The one contiguous local range that `range` occupies on `server`; empty if there is none.
    pub fn local_range(&self, server: u32, range: ByteRange) -> ByteRange {
        match self {
            Self::Even(striping) => striping.local_range(server, range),
            Self::Varied(layout) => layout.local_range(server as usize, range),
        }
    }

    /// The piece that begins at file offset `offset` and extends to the end of its stripe or to `end`, which must not
    /// be before `offset`.
    pub fn piece_at(&self, offset: u64, end: u64) -> Piece {
        match self {
            Self::Even(striping) => striping.piece_at(offset, end),
            Self::Varied(layout) => layout.piece_at(offset, end),
        }
    }

    /// The pieces of `range` in file order.
    pub fn pieces(&self, range: ByteRange) -> impl Iterator<Item = Piece> {
        pieces_by(range, |at, end| self.piece_at(at, end))
    }

    /// The file offset of the byte at `local` of a server's local file, and how many bytes from there on are contiguous
    /// in both; `None` if no byte of the file is stored there.
    pub fn file_offset(&self, server: u32, local: u64) -> Option<(u64, u64)> {
        match self {
            Self::Even(striping) if striping.servers() == 1 => Some((local, u64::MAX - local)),
            Self::Even(striping) => {
                let (row, within) = (local / striping.stripe(), local % striping.stripe());
                let unit = row.checked_mul(u64::from(striping.servers()))?;
                let start = unit.checked_add(u64::from(server))?.checked_mul(striping.stripe())?;
                Some((start.checked_add(within)?, striping.stripe() - within))
            }
            Self::Varied(layout) => layout.file_offset(server as usize, local),
        }
    }

    /// Whether every byte of a file has the same place in both.
    pub(super) fn places_alike(&self, other: &Self) -> bool {
        let varied = |of: &Self| match of {
            Self::Varied(layout) => Some(Arc::clone(layout)),
            Self::Even(striping) => {
                let widths = vec![striping.stripe(); striping.servers() as usize];
                FileLayout::uniform(widths).ok().map(Arc::new)
            }
        };
        let both = || Some(varied(self)?.places_alike(&*varied(other)?));
        self == other || both().unwrap_or(false)
    }

    /// Whether, for any range, each server has its first piece before any server has its second.
    pub(super) const fn is_even(&self) -> bool {
        matches!(self, Self::Even(_))
    }
}
