//! Uniform striping (SPEC section 1): which server holds which byte of a file.

use crate::request::ByteRange;

/// Round-robin striping of a file over `servers` servers in units of `stripe` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Striping {
    servers: u32,
    stripe: u64,
}

/// What a request means for the servers of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Servers touched, m.
    pub servers: u32,
    /// Most bytes on one server, s_m.
    pub largest: u64,
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

    /// Servers touched and most bytes on one of them, in closed form (SLA-Cache, equation 5 and
    /// Table 2, repaired as in SPEC section 1).
    pub const fn shape(self, range: ByteRange) -> Shape {
        if range.is_empty() {
            return Shape { servers: 0, largest: 0 };
        }
        let (length, stripe, servers) = (range.len(), self.stripe, self.servers as u64);
        let first_unit = range.start / stripe;
        let units_after = (range.end - 1) / stripe - first_unit;
        if units_after == 0 || servers == 1 {
            return Shape { servers: 1, largest: length };
        }
        let head = stripe - range.start % stripe;
        let tail = (range.end - 1) % stripe + 1;
        let (rounds, over) = (units_after / servers, units_after % servers);
        let largest = match over {
            0 => max(head + tail + (rounds - 1) * stripe, rounds * stripe),
            1 => max(head, tail) + rounds * stripe,
            _ => (rounds + 1) * stripe,
        };
        let touched = if units_after + 1 < servers { units_after + 1 } else { servers };
        #[expect(clippy::cast_possible_truncation, reason = "at most `servers`, which is a u32")]
        Shape { servers: touched as u32, largest }
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

const fn max(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_closed_form_is_what_the_pieces_add_up_to(
            servers in 1u32..9, stripe in 1u64..40, start in 0u64..600, len in 0u64..600,
        ) {
            let striping = Striping::new(servers, stripe);
            let mut bytes = vec![0u64; servers as usize];
            for piece in striping.pieces(ByteRange::at(start, len)) {
                bytes[piece.server as usize] += piece.len;
            }
            let touched = bytes.iter().filter(|bytes| **bytes > 0).count();
            let shape = striping.shape(ByteRange::at(start, len));
            prop_assert_eq!(shape.servers as usize, touched);
            prop_assert_eq!(shape.largest, bytes.iter().copied().max().unwrap_or(0));
        }

        #[test]
        fn a_servers_part_is_one_contiguous_local_range(
            servers in 1u32..9, stripe in 1u64..40, start in 0u64..600, len in 1u64..600,
        ) {
            let striping = Striping::new(servers, stripe);
            let range = ByteRange::at(start, len);
            for server in 0..servers {
                let local = striping.local_range(server, range);
                let mut next = local.start;
                for piece in striping.pieces(range).filter(|piece| piece.server == server) {
                    prop_assert_eq!(piece.local_offset, next);
                    next += piece.len;
                }
                prop_assert_eq!(next, local.end);
            }
        }
    }
}
