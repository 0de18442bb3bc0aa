//! Striping (docs/ALGORITHMS.md, section 1): which server holds which byte of a file.

use crate::request::ByteRange;

/// Round-robin striping of a file over `servers` servers in units of `stripe` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Striping {
    servers: u32,
    stripe: u64,
}

/// One piece of a request: contiguous both in the file and on one server.
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

/// The shape of a request on the servers of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Servers touched, m.
    pub servers: u32,
    /// Most bytes on one server, `s_m`.
    pub largest: u64,
}

/// Round-robin striping in which each server has its own stripe width; 0 means that it is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariedStriping {
    widths: Vec<u64>,
    offsets: Vec<u64>,
    round: u64,
}

impl VariedStriping {
    /// Striping with these widths in bytes; `None` if all are 0 or their sum overflows.
    pub fn new(widths: Vec<u64>) -> Option<Self> {
        let mut round = 0u64;
        let mut offsets = Vec::with_capacity(widths.len());
        for width in &widths {
            offsets.push(round);
            round = round.checked_add(*width)?;
        }
        (round > 0).then_some(Self { widths, offsets, round })
    }

    /// Number of servers, including unused ones.
    pub fn servers(&self) -> usize {
        self.widths.len()
    }

    /// Bytes of one round: all widths together.
    pub const fn round(&self) -> u64 {
        self.round
    }

    /// Stripe widths of the servers in bytes.
    pub fn widths(&self) -> &[u64] {
        &self.widths
    }

    /// `P_i(x)`: bytes of `[0, x)` on `server`.
    pub fn local_len(&self, server: usize, x: u64) -> u64 {
        let (width, offset) = (self.widths[server], self.offsets[server]);
        x / self.round * width + (x % self.round).saturating_sub(offset).min(width)
    }

    /// [`VariedStriping::local_len`] of each server in turn, with two divisions for all of them.
    pub fn local_lens(&self, x: u64) -> impl Iterator<Item = u64> {
        let (row, within) = (x / self.round, x % self.round);
        let of = move |(width, offset): (&u64, &u64)| {
            row * width + within.saturating_sub(*offset).min(*width)
        };
        self.widths.iter().zip(&self.offsets).map(of)
    }

    /// The one contiguous local range that `range` occupies on `server`; empty if there is none.
    pub fn local_range(&self, server: usize, range: ByteRange) -> ByteRange {
        ByteRange::new(self.local_len(server, range.start), self.local_len(server, range.end))
    }

    /// The server of the byte at `offset`, the byte's offset in that server's local file, and how many bytes from there
    /// on are in the same stripe.
    pub fn place(&self, offset: u64) -> (usize, u64, u64) {
        let (row, within) = (offset / self.round, offset % self.round);
        // Of servers that begin at the same offset, only the last has bytes.
        let server = self.offsets.partition_point(|begin| *begin <= within) - 1;
        let (width, within) = (self.widths[server], within - self.offsets[server]);
        (server, row * width + within, width - within)
    }

    /// The inverse of [`VariedStriping::place`]: the file offset of the byte at `local` of `server`'s local file, and
    /// how many bytes from there on are in the same stripe. `None` if the server has no bytes, or not so many.
    pub(crate) fn offset_of(&self, server: usize, local: u64) -> Option<(u64, u64)> {
        let width = self.widths[server];
        let (row, within) = (local.checked_div(width)?, local % width);
        let offset = row.checked_mul(self.round)?.checked_add(self.offsets[server])?;
        Some((offset.checked_add(within)?, width - within))
    }

    /// Calls `each` for every server on which `range` has bytes, in ascending order, with
    /// [`VariedStriping::local_range`]: the same result with two divisions for all servers together, without examining
    /// the servers outside the range.
    pub fn split(&self, range: ByteRange, mut each: impl FnMut(usize, ByteRange)) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / self.round, range.end / self.round);
        let (begin, end) = (range.start % self.round, range.end % self.round);
        let servers = if first == last {
            let of = |place: u64| self.offsets.partition_point(|offset| *offset < place);
            of(begin + 1) - 1..of(end)
        } else {
            0..self.widths.len()
        };
        for server in servers {
            let (width, offset) = (self.widths[server], self.offsets[server]);
            let start = first * width + begin.saturating_sub(offset).min(width);
            let end = last * width + end.saturating_sub(offset).min(width);
            if start < end {
                each(server, ByteRange::new(start, end));
            }
        }
    }
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
        // A round that does not fit is beyond every byte.
        let round = self.stripe.saturating_mul(self.servers as u64);
        let before = self.stripe.saturating_mul(server as u64);
        let rest = (x % round).saturating_sub(before);
        x / round * self.stripe + if rest < self.stripe { rest } else { self.stripe }
    }

    /// The one contiguous local range that `range` occupies on `server`; empty if there is none.
    pub const fn local_range(self, server: u32, range: ByteRange) -> ByteRange {
        ByteRange::new(self.local_len(server, range.start), self.local_len(server, range.end))
    }

    /// The piece that begins at file offset `offset` and extends to the end of its stripe or to `end`.
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
    /// Table 2, repaired: docs/ALGORITHMS.md, section 1.1).
    pub const fn shape(self, range: ByteRange) -> Shape {
        if range.is_empty() {
            return Shape { servers: 0, largest: 0 };
        }
        let (stripe, servers) = (self.stripe, self.servers as u64);
        let units = (range.end - 1) / stripe - range.start / stripe;
        if units == 0 || servers == 1 {
            return Shape { servers: 1, largest: range.len() };
        }
        let first = stripe - range.start % stripe;
        let last = (range.end - 1) % stripe + 1;
        let rounds = units / servers;
        let largest = match units % servers {
            0 => {
                let with_both_ends = first + last + (rounds - 1) * stripe;
                let whole = rounds * stripe;
                if with_both_ends > whole { with_both_ends } else { whole }
            }
            1 => (if first > last { first } else { last }) + rounds * stripe,
            _ => (rounds + 1) * stripe,
        };
        let touched = if units + 1 < servers { units + 1 } else { servers };
        #[expect(clippy::cast_possible_truncation, reason = "at most `servers`, which is a u32")]
        Shape { servers: touched as u32, largest }
    }

    /// The values as the papers print them: m from `E = floor((f+r)/str)`, `s_m` from Table 2 with it. `s_m` is signed
    /// and may differ from any real part size (mode `paper`).
    pub(crate) const fn shape_as_printed(self, range: ByteRange) -> (u64, i128) {
        if range.is_empty() {
            return (0, 0);
        }
        let (stripe, servers) = (self.stripe, self.servers as u64);
        let units = range.end / stripe - range.start / stripe;
        let touched = if units + 1 < servers { units + 1 } else { servers };
        if units == 0 {
            return (touched, range.len() as i128);
        }
        let first = (stripe - range.start % stripe) as i128;
        let last = (range.end % stripe) as i128;
        let rounds = units.div_ceil(servers) as i128;
        let stripe = stripe as i128;
        let (a, b) = if units.is_multiple_of(servers) {
            (first + last + (rounds - 1) * stripe, rounds * stripe)
        } else if units % servers == 1 {
            (first + (rounds - 1) * stripe, last + (rounds - 1) * stripe)
        } else {
            (rounds * stripe, 0)
        };
        (touched, if a > b { a } else { b })
    }

    /// The pieces of `range` in file order.
    pub fn pieces(self, range: ByteRange) -> impl Iterator<Item = Piece> {
        pieces_by(range, move |at, end| self.piece_at(at, end))
    }
}

/// The pieces of `range` in file order; `piece_at` gets where a piece begins and where the range ends.
pub fn pieces_by(
    range: ByteRange,
    piece_at: impl Fn(u64, u64) -> Piece,
) -> impl Iterator<Item = Piece> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let piece = piece_at(at, range.end);
            at += piece.len;
            piece
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// m and `s_m` by adding up every piece.
    fn counted(striping: Striping, range: ByteRange) -> Shape {
        let mut parts = BTreeMap::<u32, u64>::new();
        for piece in striping.pieces(range) {
            *parts.entry(piece.server).or_default() += piece.len;
        }
        let largest = parts.values().copied().max().unwrap_or(0);
        Shape { servers: u32::try_from(parts.len()).expect("few"), largest }
    }

    #[test]
    fn the_closed_form_equals_counting_everywhere_small() {
        for (servers, stripe) in [(1, 3), (2, 1), (2, 4), (3, 4), (4, 3), (5, 2), (8, 1)] {
            let striping = Striping::new(servers, stripe);
            for start in 0..20 {
                for len in 0..60 {
                    let range = ByteRange::at(start, len);
                    assert_eq!(
                        striping.shape(range),
                        counted(striping, range),
                        "{striping:?} {range:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_printed_formula_counts_a_server_too_many_at_a_stripe_end() {
        let striping = Striping::new(8, 65536);
        let range = ByteRange::at(65536, 2 * 65536);
        assert_eq!(striping.shape(range), Shape { servers: 2, largest: 65536 });
        assert_eq!(striping.shape_as_printed(range), (3, 65536));
        // Table 2 with one server: two stripes and a bit give less than the whole request.
        assert_eq!(Striping::new(1, 10).shape_as_printed(ByteRange::at(5, 20)), (1, 20));
        assert_eq!(Striping::new(1, 10).shape_as_printed(ByteRange::at(0, 10)), (1, 10));
    }

    proptest! {
        #[test]
        fn the_closed_form_equals_counting(
            servers in 1..20u32,
            stripe in 1..5000u64,
            start in 0..1_000_000u64,
            len in 0..200_000u64,
        ) {
            let striping = Striping::new(servers, stripe);
            let range = ByteRange::at(start, len);
            prop_assert_eq!(striping.shape(range), counted(striping, range));
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

        #[test]
        fn varied_stripes_place_every_byte_once(
            widths in prop::collection::vec(0..6u64, 1..6),
            start in 0..40u64,
            len in 0..40u64,
        ) {
            prop_assume!(widths.iter().sum::<u64>() > 0);
            let striping = VariedStriping::new(widths.clone()).expect("a width");
            // Server by byte, counted by walking the rounds.
            let round: Vec<usize> = widths
                .iter()
                .enumerate()
                .flat_map(|(server, &width)| std::iter::repeat_n(server, usize::try_from(width).expect("small")))
                .collect();
            let range = ByteRange::at(start, len);
            for server in 0..widths.len() {
                let on_server = |x: u64| {
                    (0..x).filter(|&at| {
                        round[usize::try_from(at).expect("small") % round.len()] == server
                    })
                    .count() as u64
                };
                prop_assert_eq!(
                    striping.local_range(server, range),
                    ByteRange::new(on_server(range.start), on_server(range.end))
                );
                prop_assert_eq!(striping.local_lens(range.end).nth(server), Some(on_server(range.end)));
            }
        }

        #[test]
        fn equal_widths_are_uniform_striping(
            servers in 1..6u32, stripe in 1..9u64, start in 0..99u64, len in 0..99u64,
        ) {
            let uniform = Striping::new(servers, stripe);
            let varied = VariedStriping::new(vec![stripe; servers as usize]).expect("a width");
            let range = ByteRange::at(start, len);
            for server in 0..servers {
                prop_assert_eq!(
                    uniform.local_range(server, range),
                    varied.local_range(server as usize, range)
                );
            }
        }
    }
}
