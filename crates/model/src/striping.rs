//! Uniform striping (SPEC section 1): which server holds which byte of a file.

use crate::request::ByteRange;

/// Round-robin striping of a file over `servers` servers in units of `stripe` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Striping {
    servers: u32,
    stripe: u64,
}

/// One piece of a request: contiguous in the file and on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index of the server, `0..servers`.
    pub server: u32,
    /// Offset inside the server's local file.
    pub local_offset: u64,
    /// Offset inside the striped file.
    pub file_offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
}

impl Striping {
    /// Striping over `servers` servers with `stripe`-byte units.
    ///
    /// # Panics
    /// If either is 0.
    pub const fn new(servers: u32, stripe: u64) -> Self {
        assert!(servers > 0 && stripe > 0, "striping needs a server and a stripe");
        Self { servers, stripe }
    }

    /// Number of servers.
    pub const fn servers(self) -> u32 {
        self.servers
    }

    /// Stripe size in bytes.
    pub const fn stripe(self) -> u64 {
        self.stripe
    }

    /// Bytes of `[0, x)` that lie on `server`: its local size when the file is `x` bytes long.
    pub const fn local_len(self, server: u32, x: u64) -> u64 {
        if self.servers == 1 {
            return x;
        }
        let round = self.stripe * self.servers as u64;
        let before = self.stripe * server as u64;
        let rest = (x % round).saturating_sub(before);
        x / round * self.stripe + if rest < self.stripe { rest } else { self.stripe }
    }

    /// The one contiguous local range that `range` occupies on `server`; empty when it has none.
    pub const fn local_range(self, server: u32, range: ByteRange) -> ByteRange {
        ByteRange::new(self.local_len(server, range.start), self.local_len(server, range.end))
    }

    /// The piece that begins at file offset `offset` and goes on to its stripe's end or to `end`.
    pub const fn piece_at(self, offset: u64, end: u64) -> Piece {
        let len = end - offset;
        if self.servers == 1 {
            return Piece { server: 0, local_offset: offset, file_offset: offset, len };
        }
        let unit = offset / self.stripe;
        let within = offset % self.stripe;
        let servers = self.servers as u64;
        #[expect(clippy::cast_possible_truncation, reason = "a remainder by a u32 fits a u32")]
        let server = (unit % servers) as u32;
        let room = self.stripe - within;
        Piece {
            server,
            local_offset: unit / servers * self.stripe + within,
            file_offset: offset,
            len: if len < room { len } else { room },
        }
    }

    /// The pieces of `range` in file order.
    pub fn pieces(self, range: ByteRange) -> impl Iterator<Item = Piece> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            (at < range.end).then(|| {
                let piece = self.piece_at(at, range.end);
                at += piece.len;
                piece
            })
        })
    }
}
