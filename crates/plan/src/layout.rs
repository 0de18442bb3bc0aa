//! Layouts of files on servers.
//!
//! A file is divided into parts; in each part its bytes are distributed round-robin over the servers, with a stripe
//! width for each server that may be 0. Rounds begin at the beginning of a part. A file for which the SSDs' space does
//! not suffice has a part over all servers and one over those with free space; a file with regions of several kinds has
//! a part for each.

use std::sync::Arc;

use halocline_model::request::ByteRange;
use halocline_model::striping::VariedStriping;
use serde::{Deserialize, Serialize};

/// The stripe of untuned file systems, in bytes.
pub const DEFAULT_STRIPE: u64 = 64 << 10;

/// The narrowest stripe of a striped volume, in bytes: narrower ones are not planned, because they could not be
/// applied.
pub(crate) const STRIPE_BYTES_MIN: u64 = 512;

/// Widest stripe in bytes, as of a volume: what writes a layout out for others may add to it and round it up.
pub(crate) const WIDTH_BYTES_MAX: u64 = 1 << 40;

/// Limit of the parts of a file's layout: that of a volume.
pub(crate) const PARTS_MAX: usize = 256;

/// A stretch of a file with the same stripes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its first byte.
    pub begin: u64,
    /// The end of its bytes; the last part has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
    /// Stripe width on each server, in bytes; 0 means that it is not used.
    pub widths: Vec<u64>,
}

impl Part {
    /// The servers that have some of it.
    pub fn servers(&self) -> impl Iterator<Item = usize> {
        let used = self.widths.iter().enumerate().filter(|(_, width)| **width > 0);
        used.map(|(server, _)| server)
    }
}

/// A piece of a request on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The server's index.
    pub server: usize,
    /// First byte in the server's local file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Parts of a file, without gaps, the last one without an end. Files with the same layout may share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout(Arc<Computed>);

#[derive(Debug, PartialEq, Eq)]
struct Computed {
    parts: Vec<Part>,
    /// For each part, its striping and the local bytes of all earlier parts.
    stripings: Vec<(VariedStriping, Vec<u64>)>,
}

impl Layout {
    /// A layout of these parts over `servers` servers; the error says what is wrong with them.
    pub fn new(parts: Vec<Part>, servers: usize) -> Result<Self, String> {
        let mut stripings: Vec<(VariedStriping, Vec<u64>)> = Vec::with_capacity(parts.len());
        let mut base = vec![0u64; servers];
        let mut at = 0;
        for (index, part) in parts.iter().enumerate() {
            let last = index + 1 == parts.len();
            if part.widths.len() != servers {
                let found = part.widths.len();
                return Err(format!("part {index} has {found} widths for {servers} servers"));
            }
            if part.begin != at {
                return Err(format!("part {index} begins at {}, not at {at}", part.begin));
            }
            if part.end.is_none() != last || part.end.is_some_and(|end| end <= part.begin) {
                return Err(format!("part {index} does not end where the next can begin"));
            }
            if let Some(width) = part.widths.iter().find(|width| **width > WIDTH_BYTES_MAX) {
                return Err(format!(
                    "part {index} has a stripe of {width} bytes; at most {WIDTH_BYTES_MAX}"
                ));
            }
            let striping = VariedStriping::new(part.widths.clone())
                .ok_or_else(|| format!("part {index} uses no server"))?;
            let before = base.clone();
            at = part.end.unwrap_or(u64::MAX);
            if !last {
                for (bytes, local) in base.iter_mut().zip(striping.local_lens(at - part.begin)) {
                    *bytes = bytes.saturating_add(local);
                }
            }
            stripings.push((striping, before));
        }
        if stripings.is_empty() {
            return Err("no parts".into());
        }
        Ok(Self(Arc::new(Computed { parts, stripings })))
    }

    /// One part with these widths.
    ///
    /// # Panics
    /// If all are 0.
    pub fn simple(widths: Vec<u64>) -> Self {
        let servers = widths.len();
        Self::new(vec![Part { begin: 0, end: None, widths }], servers).expect("a width")
    }

    /// Its parts.
    pub fn parts(&self) -> &[Part] {
        &self.0.parts
    }

    /// The parts that have some of `[offset, end)`, with their indices.
    pub fn parts_in(&self, offset: u64, end: u64) -> impl Iterator<Item = (usize, &Part)> {
        let from = self.parts().partition_point(|part| part.begin <= offset) - 1;
        let parts = self.parts().iter().enumerate().skip(from);
        parts.take_while(move |(_, part)| part.begin < end)
    }

    /// Whether `other` is this layout itself, shared by two files, not only an equal one.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The same with adjacent parts of equal widths as one, whose rounds go on over the border; `None` if there are none.
    /// Each server may then have somewhat more or fewer bytes.
    pub(crate) fn without_restarts(&self) -> Option<Self> {
        if self.parts().windows(2).all(|pair| pair[0].widths != pair[1].widths) {
            return None;
        }
        let mut joined: Vec<Part> = Vec::new();
        for part in self.parts() {
            match joined.last_mut() {
                Some(last) if last.widths == part.widths => last.end = part.end,
                _ => joined.push(part.clone()),
            }
        }
        Self::new(joined, self.parts()[0].widths.len()).ok()
    }

    /// Calls `each` for the contiguous pieces of `[offset, end)`, one per server and part.
    pub fn pieces(&self, offset: u64, end: u64, mut each: impl FnMut(Piece)) {
        debug_assert!(offset <= end, "a range that ends before it begins");
        for (index, part) in self.parts_in(offset, end) {
            let (striping, base) = &self.0.stripings[index];
            let until = end.min(part.end.unwrap_or(u64::MAX)) - part.begin;
            let range = ByteRange::new(offset.max(part.begin) - part.begin, until);
            striping.split(range, |server, local| {
                let offset = base[server].saturating_add(local.start);
                each(Piece { server, offset, length: local.len() });
            });
        }
    }

    /// Bytes on each server when the file is `size` bytes long.
    pub fn bytes(&self, size: u64) -> Vec<u64> {
        let mut bytes = vec![0; self.parts()[0].widths.len()];
        self.pieces(0, size, |piece| bytes[piece.server] += piece.length);
        assert_eq!(bytes.iter().sum::<u64>(), size, "each byte is on one server");
        bytes
    }
}

/// The layout of parts that cover a file, in any order. Adjacent parts whose rounds continue are merged.
///
/// # Panics
/// If there is no part, or they leave gaps.
pub fn assemble(parts: Vec<Part>) -> Layout {
    let joined = join_rounds(parts);
    let servers = joined[0].widths.len();
    Layout::new(joined, servers).expect("parts without gaps")
}

/// Parts that cover a file, in any order, as those of its layout: adjacent ones whose rounds continue are merged.
pub(crate) fn join_rounds(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|part| part.begin);
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if goes_on(last, part.begin, &part.widths) => last.end = part.end,
            _ => joined.push(part),
        }
    }
    joined.last_mut().expect("a part").end = None;
    joined
}

fn goes_on(last: &Part, begin: u64, widths: &[u64]) -> bool {
    let round: u64 = widths.iter().sum();
    last.widths == widths && (begin - last.begin).is_multiple_of(round)
}

/// Places stretches of files one after another in the available space.
#[derive(Debug, Clone)]
pub struct Placer {
    room: Vec<u64>,
}

impl Placer {
    /// With nothing placed yet; `room` bytes are free on each server.
    pub const fn new(room: Vec<u64>) -> Self {
        Self { room }
    }

    /// Free bytes on each server.
    pub fn room(&self) -> &[u64] {
        &self.room
    }

    /// Takes the room of bytes that are there already, as far as there is any.
    pub fn occupy(&mut self, bytes: &[u64]) {
        for (room, taken) in self.room.iter_mut().zip(bytes) {
            *room = room.saturating_sub(*taken);
        }
    }

    /// Takes the room for `after` instead of that for `before`, if there is enough; answers whether there is.
    pub(crate) fn exchange(&mut self, before: &[u64], after: &[u64]) -> bool {
        let rooms = self.room.iter().zip(before).zip(after);
        let left =
            rooms.map(|((room, before), after)| room.saturating_add(*before).checked_sub(*after));
        let Some(left) = left.collect() else { return false };
        self.room = left;
        true
    }

    /// Places `[begin, end)` according to the first of `wishes`, what no longer fits according to the next, and so on,
    /// and finally in default stripes on all servers with free space. Returns the parts, or the number of bytes that
    /// fit nowhere.
    pub fn place(&mut self, begin: u64, end: u64, wishes: &[&[u64]]) -> Result<Vec<Part>, u64> {
        let (mut at, mut parts) = (begin, Vec::new());
        for widths in wishes {
            at = self.fill(at, end, widths, &mut parts);
        }
        for stripe in [DEFAULT_STRIPE, 4096, 1] {
            if at == end {
                break;
            }
            at = self.fill_where_room(at, end, &vec![stripe; self.room.len()], &mut parts);
        }
        if at < end {
            return Err(end - at);
        }
        let follow = |pair: &[Part]| pair[0].end == Some(pair[1].begin);
        debug_assert!(parts.windows(2).all(follow), "parts without gaps");
        debug_assert!(parts.first().is_none_or(|part| part.begin == begin));
        Ok(parts)
    }

    /// Places `[begin, end)` in stripes of `widths`, and goes on without the servers that have no room for another stripe;
    /// what fits into no such stripes, as [`Self::place`] does.
    pub(crate) fn place_where_room(
        &mut self,
        begin: u64,
        end: u64,
        widths: &[u64],
    ) -> Result<Vec<Part>, u64> {
        let mut parts = Vec::new();
        let at = self.fill_where_room(begin, end, widths, &mut parts);
        parts.extend(self.place(at, end, &[])?);
        Ok(parts)
    }

    /// With a share of what is free on the `limited` servers, `bytes` of `all`.
    pub(crate) fn share(&self, limited: impl Iterator<Item = usize>, bytes: u64, all: u64) -> Self {
        let mut room = self.room.clone();
        for server in limited {
            room[server] = share_of(room[server], (bytes, all));
        }
        Self { room }
    }

    /// The same as [`Self::place`] with at most a share of the room on each of the `limited` servers: `share.0` of `share.1` parts.
    pub(crate) fn place_in_share(
        &mut self,
        (begin, end): (u64, u64),
        wishes: &[&[u64]],
        limited: impl Iterator<Item = usize>,
        share: (u64, u64),
    ) -> Result<Vec<Part>, u64> {
        let mut kept = Vec::new();
        for server in limited {
            let some = share_of(self.room[server], share);
            kept.push((server, self.room[server] - some));
            self.room[server] = some;
        }
        let placed = self.place(begin, end, wishes);
        for (server, kept) in kept {
            self.room[server] += kept;
        }
        placed
    }

    /// Fills the servers with room for a stripe, again and again without those that have none left; returns the position
    /// reached.
    fn fill_where_room(
        &mut self,
        begin: u64,
        end: u64,
        widths: &[u64],
        parts: &mut Vec<Part>,
    ) -> u64 {
        let mut at = begin;
        while at < end {
            let there = widths.iter().zip(&self.room);
            let there: Vec<u64> =
                there.map(|(width, room)| if room >= width { *width } else { 0 }).collect();
            let reached = self.fill(at, end, &there, parts);
            if reached == at {
                break;
            }
            at = reached;
        }
        at
    }

    /// Places whole rounds, or all that remains; returns the position reached.
    fn fill(&mut self, begin: u64, end: u64, widths: &[u64], parts: &mut Vec<Part>) -> u64 {
        let Some(striping) = VariedStriping::new(widths.to_vec()) else { return begin };
        if begin >= end {
            return begin;
        }
        let all = end - begin;
        let fits = |bytes: u64| {
            striping.local_lens(bytes).zip(&self.room).all(|(local, room)| local <= *room)
        };
        let length = if fits(all) {
            all
        } else {
            let rounds = widths.iter().zip(&self.room).filter(|(width, _)| **width > 0);
            let rounds = rounds.map(|(width, room)| room / width).min().unwrap_or(0);
            rounds.saturating_mul(widths.iter().sum()).min(all)
        };
        if length == 0 {
            return begin;
        }
        for (room, taken) in self.room.iter_mut().zip(striping.local_lens(length)) {
            assert!(taken <= *room, "only what fits is placed");
            *room -= taken;
        }
        let reached = begin + length;
        match parts.last_mut() {
            Some(last) if goes_on(last, begin, widths) => last.end = Some(reached),
            _ => parts.push(Part { begin, end: Some(reached), widths: widths.to_vec() }),
        }
        reached
    }
}

/// The part of `room` that `bytes` of `all` get.
fn share_of(room: u64, (bytes, all): (u64, u64)) -> u64 {
    let some = u128::from(room) * u128::from(bytes) / u128::from(all.max(1));
    u64::try_from(some).map_or(room, |some| some.min(room))
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;

    #[test]
    fn a_file_in_two_parts_by_hand() {
        // Two disks and an SSD: rounds of 8, 8 and 4 KiB for 40 KiB, then 16 KiB on each disk.
        let parts = vec![
            Part { begin: 0, end: Some(40 * K), widths: vec![8 * K, 8 * K, 4 * K] },
            Part { begin: 40 * K, end: None, widths: vec![16 * K, 16 * K, 0] },
        ];
        let layout = Layout::new(parts, 3).expect("good parts");
        let mut pieces = Vec::new();
        layout.pieces(36 * K, 60 * K, |p| pieces.push((p.server, p.offset / K, p.length / K)));
        assert_eq!(pieces, [(2, 4, 4), (0, 16, 16), (1, 16, 4)]);
        assert_eq!(layout.bytes(60 * K), [32 * K, 20 * K, 8 * K]);
    }

    #[test]
    fn parts_with_equal_widths_become_one() {
        let part = |begin, end, widths: [u64; 2]| Part { begin, end, widths: widths.to_vec() };
        let (a, b) = ([8 * K, 8 * K], [0, 4 * K]);
        let layout = |parts| Layout::new(parts, 2).expect("good parts");
        let restarted = layout(vec![
            part(0, Some(9 * K), a),
            part(9 * K, Some(20 * K), a),
            part(20 * K, Some(21 * K), b),
            part(21 * K, None, b),
        ]);
        let whole = layout(vec![part(0, Some(20 * K), a), part(20 * K, None, b)]);
        assert_eq!(restarted.without_restarts().as_ref(), Some(&whole));
        assert_eq!(
            (restarted.bytes(20 * K), whole.bytes(20 * K)),
            (vec![16 * K, 4 * K], vec![12 * K, 8 * K])
        );
        assert_eq!(whole.without_restarts(), None);
    }

    #[test]
    fn parts_that_are_none_are_refused() {
        let part = |begin, end, widths: &[u64]| Part { begin, end, widths: widths.to_vec() };
        for (parts, what) in [
            (vec![], "no parts"),
            (vec![part(0, None, &[0, 0])], "part 0 uses no server"),
            (vec![part(0, None, &[1])], "part 0 has 1 widths for 2 servers"),
            (vec![part(1, None, &[1, 1])], "part 0 begins at 1, not at 0"),
            (vec![part(0, Some(5), &[1, 1])], "part 0 does not end"),
            (vec![part(0, None, &[1, 1]), part(5, None, &[1, 1])], "part 0 does not end"),
            (vec![part(0, None, &[WIDTH_BYTES_MAX + 1, 2])], "part 0 has a stripe of"),
        ] {
            let error = Layout::new(parts, 2).unwrap_err();
            assert!(error.starts_with(what), "{error}");
        }
    }

    #[test]
    fn what_does_not_fit_goes_to_who_has_room() {
        // 16 KiB of SSD with stripes of 4 KiB: four rounds of 20 KiB.
        let mut placer = Placer::new(vec![100 * K, 100 * K, 16 * K]);
        let (first, rest) = ([8 * K, 8 * K, 4 * K], [16 * K, 16 * K, 0]);
        let layout = assemble(placer.place(0, 200 * K, &[&first, &rest]).expect("room"));
        let ends: Vec<_> = layout.parts().iter().map(|part| part.end).collect();
        assert_eq!(ends, [Some(80 * K), None]);
        // 120 KiB on two disks: four stripes of 16 KiB on the first, three and a half on the other.
        assert_eq!(layout.bytes(200 * K), [96 * K, 88 * K, 16 * K]);
        assert_eq!(placer.room(), [4 * K, 12 * K, 0]);
        // 16 KiB are left, in stripes smaller than the default.
        assert_eq!(placer.clone().place(0, 20 * K, &[&rest]), Err(4 * K));
        assert!(placer.place(0, 16 * K, &[&rest]).is_ok());
    }

    #[test]
    fn a_share_of_the_ssd_is_left_to_others() {
        let mut placer = Placer::new(vec![100 * K, 100 * K, 16 * K]);
        let (first, rest) = ([0, 0, 4 * K], [16 * K, 16 * K, 0]);
        for left in [3, 2] {
            let wishes: [&[u64]; 2] = [&first, &rest];
            let parts = placer.place_in_share((0, 40 * K), &wishes, [2].into_iter(), (1, left));
            let on_ssd = assemble(parts.expect("room")).bytes(40 * K)[2];
            // Of 16 KiB a third, in whole stripes; of the 12 KiB that are left, half.
            assert_eq!(on_ssd, 4 * K);
        }
        assert_eq!(placer.room()[2], 8 * K);
        assert_eq!(
            placer.share([2].into_iter(), 1, 4).room(),
            [placer.room()[0], placer.room()[1], 2 * K]
        );
        assert_eq!(share_of(u64::MAX, (u64::MAX, u64::MAX)), u64::MAX);
    }
}
