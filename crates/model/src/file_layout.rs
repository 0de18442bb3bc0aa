//! Which server holds which byte of a file: striping with a width for each server, which may change at a certain length
//! of the file (parts) and from region to region.
//!
//! On each server the file's bytes are stored without holes and in file order, so a request has one contiguous local
//! range on each server, whatever the layout.

use crate::request::ByteRange;
use crate::striping::{Piece, VariedStriping};

/// What file systems give to files at a time, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Bytes that a file system uses for `bytes` of one file: whole blocks. Plans, replays and `apply` count the part of a file on each
/// server so, or many small files would not fit where a plan put them.
#[must_use]
pub const fn stored_bytes(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(BLOCK_BYTES) {
        Some(stored) => stored,
        None => u64::MAX,
    }
}

/// Stripe widths from a certain position of the file on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// First byte of the file to which it applies.
    pub start: u64,
    /// How bytes from there on are striped, with offsets relative to `start`.
    pub striping: VariedStriping,
}

impl Part {
    /// Whether the bytes of `[from, to)` lie on the same servers by both rules, which begin at or before `from`.
    ///
    /// The servers of a rule's bytes repeat after each round. Two sequences that repeat after p and after q bytes are the
    /// same for ever if they are so for p + q bytes (Fine and Wilf, "Uniqueness theorems for periodic functions", 1965):
    /// no more is compared.
    fn servers_alike(one: &Self, other: &Self, from: u64, to: u64) -> bool {
        let rounds = one.striping.round().saturating_add(other.striping.round());
        let to = to.min(from.saturating_add(rounds));
        let mut at = from;
        while at < to {
            let ((server, room), (its_server, its_room)) = (one.run_at(at), other.run_at(at));
            if server != its_server {
                return false;
            }
            at = at.saturating_add(room.min(its_room));
        }
        true
    }

    /// The server of the byte at `offset` of the file, and how many bytes from there on it has at least.
    fn run_at(&self, offset: u64) -> (usize, u64) {
        let (server, _, room) = self.striping.place(offset - self.start);
        let is_alone = self.striping.widths()[server] == self.striping.round();
        (server, if is_alone { u64::MAX } else { room })
    }
}

/// The layout of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLayout {
    parts: Vec<Part>,
    /// For each part, bytes of the parts before it on each server.
    before: Vec<Vec<u64>>,
}

/// One region of a file: where it begins, and its stripes. `(rounds, widths)` applies for that many rounds, and the
/// last one, with `None`, for the rest: the two-part layout is `[(Some(j), all), (None, disks)]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// First byte of the file.
    pub offset: u64,
    /// Number of rounds, and the stripe width of each server in bytes.
    pub stripes: Vec<(Option<u64>, Vec<u64>)>,
}

impl FileLayout {
    /// One striping for the whole file: `widths[i]` bytes on server i; 0 means that it is not used.
    pub fn uniform(widths: Vec<u64>) -> Result<Self, String> {
        Self::new(&[Region { offset: 0, stripes: vec![(None, widths)] }])
    }

    /// `rounds` rounds of `first`, then `rest`.
    #[cfg(test)]
    pub(crate) fn two_part(first: Vec<u64>, rounds: u64, rest: Vec<u64>) -> Result<Self, String> {
        Self::new(&[Region { offset: 0, stripes: vec![(Some(rounds), first), (None, rest)] }])
    }

    /// A layout by regions. The last stripes of the last region apply to the rest of the file.
    ///
    /// # Errors
    /// No region begins at 0 or they do not ascend; a region does not end with stripes for its rest; widths are all 0,
    /// overflow, or are not one for each server.
    pub fn new(regions: &[Region]) -> Result<Self, String> {
        if regions.first().is_none_or(|region| region.offset != 0) {
            return Err("the first region of a layout begins at offset 0".into());
        }
        if regions.windows(2).any(|pair| pair[0].offset >= pair[1].offset) {
            return Err("regions of a layout begin one after the other".into());
        }
        let mut parts = Vec::new();
        for (index, region) in regions.iter().enumerate() {
            let end = regions.get(index + 1).map_or(u64::MAX, |next| next.offset);
            add_region(region, end, &mut parts)?;
        }
        Self::of_parts(parts)
    }

    fn of_parts(parts: Vec<Part>) -> Result<Self, String> {
        let servers = parts[0].striping.servers();
        if parts.iter().any(|part| part.striping.servers() != servers) {
            return Err("the stripes of a layout have different numbers of servers".into());
        }
        let mut sums = vec![0; servers];
        let mut before = vec![sums.clone()];
        for pair in parts.windows(2) {
            let len = pair[1].start - pair[0].start;
            for (server, sum) in sums.iter_mut().enumerate() {
                *sum += pair[0].striping.local_len(server, len);
            }
            before.push(sums.clone());
        }
        Ok(Self { parts, before })
    }

    /// A layout of parts that begin at these bytes of the file, each with the width of each server in bytes.
    ///
    /// # Errors
    /// As [`FileLayout::new`].
    pub fn from_parts(parts: impl IntoIterator<Item = (u64, Vec<u64>)>) -> Result<Self, String> {
        let region = |(offset, widths)| Region { offset, stripes: vec![(None, widths)] };
        Self::new(&parts.into_iter().map(region).collect::<Vec<_>>())
    }

    /// Number of servers, including unused ones.
    pub fn servers(&self) -> usize {
        self.parts[0].striping.servers()
    }

    /// The parts in their order; the first begins at 0.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether every byte has the same place in both layouts, however long the file is: on one server alone stripes of any
    /// width are the same, and rounds may go on from one part to the next.
    ///
    /// Only the servers are compared: where all bytes before lie on the same servers, so are their local offsets.
    pub fn places_alike(&self, other: &Self) -> bool {
        if self.servers() != other.servers() {
            return false;
        }
        let (mut one, mut another) = (0, 0);
        let mut at = 0;
        loop {
            let (left, right) = (&self.parts[one], &other.parts[another]);
            let ends = (self.end_of(one), other.end_of(another));
            let end = ends.0.min(ends.1);
            if !Part::servers_alike(left, right, at, end) {
                return false;
            }
            if end == u64::MAX {
                return true;
            }
            one += usize::from(ends.0 == end);
            another += usize::from(ends.1 == end);
            at = end;
        }
    }

    /// First byte after a part.
    fn end_of(&self, part: usize) -> u64 {
        self.parts.get(part + 1).map_or(u64::MAX, |next| next.start)
    }

    fn part_of(&self, offset: u64) -> usize {
        match self.parts.len() {
            1 => 0,
            _ => self.parts.partition_point(|part| part.start <= offset) - 1,
        }
    }

    /// Bytes of `[0, x)` on `server`.
    pub fn local_len(&self, server: usize, x: u64) -> u64 {
        let index = self.part_of(x);
        let part = &self.parts[index];
        self.before[index][server] + part.striping.local_len(server, x - part.start)
    }

    /// The one contiguous local range that `range` occupies on `server`; empty when it has none.
    pub fn local_range(&self, server: usize, range: ByteRange) -> ByteRange {
        ByteRange::new(self.local_len(server, range.start), self.local_len(server, range.end))
    }

    /// The piece that begins at file offset `offset` and extends to the end of its stripe, of its part, or to `end`.
    ///
    /// # Panics
    /// If `end` is not past `offset`.
    pub fn piece_at(&self, offset: u64, end: u64) -> Piece {
        let index = self.part_of(offset);
        let part = &self.parts[index];
        let (server, within, room) = part.striping.place(offset - part.start);
        let until = self.parts.get(index + 1).map_or(end, |next| end.min(next.start));
        Piece {
            server: u32::try_from(server).expect("far fewer servers"),
            local_offset: self.before[index][server] + within,
            file_offset: offset,
            len: room.min(until - offset),
        }
    }

    /// The file offset of the byte at `local` of `server`'s local file, and how many bytes from there on are contiguous
    /// in both; `None` for positions that no byte of any file can have.
    pub fn file_offset(&self, server: usize, local: u64) -> Option<(u64, u64)> {
        let index = self.before.partition_point(|before| before[server] <= local) - 1;
        // A part without this server begins at the same local offset as the next one; the last of these applies.
        let part = &self.parts[index];
        let (offset, room) = part.striping.offset_of(server, local - self.before[index][server])?;
        let offset = part.start.checked_add(offset)?;
        let until = self.parts.get(index + 1).map_or(u64::MAX, |next| next.start);
        Some((offset, room.min(until.checked_sub(offset)?)))
    }

    /// Calls `each` for every server that holds bytes of `range`, in ascending order, with the local range.
    pub fn split(&self, range: ByteRange, mut each: impl FnMut(usize, ByteRange)) {
        if range.is_empty() {
            return;
        }
        let index = self.part_of(range.start);
        let part = &self.parts[index];
        let before = &self.before[index];
        if self.parts.get(index + 1).is_none_or(|next| range.end <= next.start) {
            let range = ByteRange::new(range.start - part.start, range.end - part.start);
            return part.striping.split(range, |server, local| {
                each(
                    server,
                    ByteRange::new(before[server] + local.start, before[server] + local.end),
                );
            });
        }
        for (server, before) in before.iter().enumerate() {
            let start = before + part.striping.local_len(server, range.start - part.start);
            let end = self.local_len(server, range.end);
            if start < end {
                each(server, ByteRange::new(start, end));
            }
        }
    }
}

fn add_region(region: &Region, end: u64, parts: &mut Vec<Part>) -> Result<(), String> {
    let mut start = region.offset;
    let last = region.stripes.len().checked_sub(1).ok_or("a region of a layout has no stripes")?;
    for (index, (rounds, widths)) in region.stripes.iter().enumerate() {
        let striping = VariedStriping::new(widths.clone())
            .ok_or("the stripe widths of a layout are all 0, or too large")?;
        let bytes = match (rounds, index == last) {
            (None, true) => u64::MAX,
            (Some(rounds), false) => striping.round().saturating_mul(*rounds),
            (None, false) => return Err("only the last stripes of a region rule its rest".into()),
            (Some(_), true) => return Err("no stripes rule the rest of a region".into()),
        };
        if start < end && bytes > 0 {
            parts.push(Part { start, striping });
        }
        start = start.saturating_add(bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(layout: &FileLayout, offset: u64, len: u64) -> Vec<(usize, u64, u64)> {
        let mut parts = Vec::new();
        layout.split(ByteRange::at(offset, len), |server, local| {
            parts.push((server, local.start, local.len()));
        });
        parts
    }

    #[test]
    fn a_file_goes_on_over_the_rest_when_its_rounds_are_over() {
        let layout = FileLayout::two_part(vec![10, 30], 2, vec![20, 0]).unwrap();
        assert_eq!(parts(&layout, 0, 40), [(0, 0, 10), (1, 0, 30)]);
        assert_eq!(parts(&layout, 80, 100), [(0, 20, 100)]);
        assert_eq!(parts(&layout, 45, 45), [(0, 15, 15), (1, 30, 30)]);
        let all = FileLayout::two_part(vec![10, 30], 0, vec![20, 0]).unwrap();
        assert_eq!(all, FileLayout::uniform(vec![20, 0]).unwrap());
    }

    #[test]
    fn regions_have_stripes_of_their_own() {
        let region = |offset, widths| Region { offset, stripes: vec![(None, widths)] };
        let layout = FileLayout::new(&[region(0, vec![1, 1]), region(5, vec![0, 3])]).unwrap();
        assert_eq!(parts(&layout, 0, 5), [(0, 0, 3), (1, 0, 2)]);
        assert_eq!(parts(&layout, 5, 7), [(1, 2, 7)]);
        assert_eq!(parts(&layout, 4, 2), [(0, 2, 1), (1, 2, 1)]);
    }

    #[test]
    fn layouts_are_alike_whose_bytes_have_the_same_places() {
        let of = |parts: &[(u64, [u64; 2])]| {
            FileLayout::from_parts(parts.iter().map(|(at, widths)| (*at, widths.to_vec()))).unwrap()
        };
        let alike = |one: &[(u64, [u64; 2])], other: &[(u64, [u64; 2])]| {
            of(one).places_alike(&of(other)) && of(other).places_alike(&of(one))
        };
        assert!(alike(&[(0, [512, 0])], &[(0, [65536, 0])]), "on one server");
        assert!(!alike(&[(0, [512, 0])], &[(0, [0, 512])]));
        assert!(!alike(&[(0, [512, 512])], &[(0, [512, 1024])]));
        assert!(alike(&[(0, [4, 0]), (7, [0, 9])], &[(0, [1, 0]), (5, [2, 0]), (7, [0, 3])]));
        assert!(alike(&[(0, [4, 4]), (16, [4, 4])], &[(0, [4, 4])]), "its rounds go on");
        assert!(!alike(&[(0, [4, 4]), (12, [4, 4])], &[(0, [4, 4])]), "they begin again");
        assert!(
            alike(&[(0, [1, 1]), (2, [1, 0])], &[(0, [1, 1]), (3, [1, 0])]),
            "a round goes on in the next"
        );
        assert!(alike(&[(0, [4, 4]), (12, [0, 4]), (16, [4, 4])], &[(0, [4, 4])]), "for a stretch");
        assert!(!alike(&[(0, [1 << 40, 1])], &[(0, [1 << 40, 2])]), "far away");
        assert!(!alike(&[(0, [1, 0])], &[(0, [1 << 62, 1])]), "very far away");
        // No more than its first stripe is used.
        assert!(alike(&[(0, [8, 8]), (6, [0, 1])], &[(0, [1, 0]), (6, [0, 5])]));
        let three = FileLayout::uniform(vec![4, 4, 0]).unwrap();
        assert!(!three.places_alike(&of(&[(0, [4, 4])])));
    }

    #[test]
    fn layouts_that_are_none_are_refused() {
        assert!(FileLayout::uniform(vec![]).is_err());
        assert!(FileLayout::uniform(vec![0, 0]).is_err());
        assert!(FileLayout::uniform(vec![u64::MAX, 2]).is_err());
        assert!(FileLayout::two_part(vec![1, 1], 2, vec![1]).is_err());
        assert!(FileLayout::new(&[]).is_err());
        let region = |offset, rounds| Region { offset, stripes: vec![(rounds, vec![1])] };
        assert!(FileLayout::new(&[region(1, None)]).is_err());
        assert!(FileLayout::new(&[region(0, Some(3))]).is_err());
        assert!(FileLayout::new(&[region(0, None), region(0, None)]).is_err());
    }

    /// Widths of two servers, of which one has bytes.
    fn used_widths() -> impl Strategy<Value = (u64, u64)> {
        proptest::sample::select(vec![
            (0, 1),
            (0, 2),
            (1, 0),
            (2, 0),
            (1, 1),
            (1, 2),
            (2, 1),
            (2, 2),
        ])
    }

    proptest! {
        /// There and back: the server and local offset of each byte lead to that byte.
        #[test]
        fn pieces_lead_back_to_their_bytes(
            widths in proptest::collection::vec(proptest::collection::vec(0u64..9, 4), 3),
            borders in (1u64..40, 1u64..40), start in 0u64..120, len in 1u64..60,
        ) {
            prop_assume!(widths.iter().all(|widths| widths.iter().any(|width| *width > 0)));
            let places = [0, borders.0, borders.0 + borders.1];
            let layout = FileLayout::from_parts(places.into_iter().zip(widths)).unwrap();
            let (mut at, mut next) = (start, [0, 1, 2, 3].map(|server| layout.local_len(server, start)));
            while at < start + len {
                let piece = layout.piece_at(at, start + len);
                let server = usize::try_from(piece.server).unwrap();
                prop_assert!(piece.len > 0);
                prop_assert_eq!(piece.local_offset, next[server]);
                for byte in 0..piece.len {
                    let (offset, room) = layout.file_offset(server, piece.local_offset + byte).unwrap();
                    prop_assert_eq!(offset, at + byte);
                    prop_assert!(room >= piece.len - byte);
                }
                next[server] += piece.len;
                at += piece.len;
            }
            for (server, next) in next.into_iter().enumerate() {
                prop_assert_eq!(next, layout.local_len(server, at));
            }
        }

        /// Layouts are alike if, and only if, each byte has the same place in both.
        #[test]
        fn alike_is_what_has_the_same_places(
            one in proptest::collection::vec(used_widths(), 2), one_border in 1u64..9,
            other in proptest::collection::vec(used_widths(), 2), other_border in 1u64..9,
        ) {
            let of = |widths: &[(u64, u64)], border| {
                let widths = widths.iter().map(|(a, b)| vec![*a, *b]);
                FileLayout::from_parts([0, border].into_iter().zip(widths)).unwrap()
            };
            let (one, other) = (of(&one, one_border), of(&other, other_border));
            // Longer than the borders and two rounds of each.
            let is_same = (0..64).all(|x| (0..2).all(|at| one.local_len(at, x) == other.local_len(at, x)));
            prop_assert_eq!(one.places_alike(&other), is_same);
        }

        /// Byte by byte: no byte is lost, none is twice, and each server's local ranges have no holes.
        #[test]
        fn every_byte_has_one_place(
            widths in proptest::collection::vec(proptest::collection::vec(0u64..9, 3), 3),
            rounds in 0u64..5, border in 1u64..60, cuts in proptest::collection::vec(1u64..20, 1..12),
        ) {
            prop_assume!(widths.iter().all(|widths| widths.iter().any(|width| *width > 0)));
            let first = Region {
                offset: 0,
                stripes: vec![(Some(rounds), widths[0].clone()), (None, widths[1].clone())],
            };
            let second = Region { offset: border, stripes: vec![(None, widths[2].clone())] };
            let layout = FileLayout::new(&[first, second]).unwrap();
            let (mut at, mut next) = (0, [0; 3]);
            for len in cuts {
                let mut sum = 0;
                for (server, start, part) in parts(&layout, at, len) {
                    prop_assert_eq!(start, layout.local_len(server, at));
                    prop_assert_eq!(start, next[server]);
                    next[server] += part;
                    sum += part;
                }
                prop_assert_eq!(sum, len);
                at += len;
            }
        }
    }
}
