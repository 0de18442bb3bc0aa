//! Splits a request by where its bytes lie, into as few pieces as possible.

use std::cell::RefCell;

use halocline_model::request::{ByteRange, index};

use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use halocline_meta::{FileId, Segment};

/// Missing parts of a read that are at most this far apart are read from the origin in one request: reading the cached
/// bytes between them, too, costs less than another seek.
const READ_OVER_BYTES: u64 = 256 << 10;

thread_local! {
    /// Segments of the current request: the hot path does not allocate.
    static SEGMENTS: RefCell<Vec<Segment>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` on this thread's segment list.
pub(super) fn with_segments<T>(work: impl FnOnce(&mut Vec<Segment>) -> T) -> T {
    SEGMENTS.with(|segments| match segments.try_borrow_mut() {
        Ok(mut segments) => work(&mut segments),
        // For a write within another one in the same thread (none today).
        Err(_) => work(&mut Vec::new()),
    })
}

/// Where the bytes of `range` lie. Adjacent segments in one object that are both clean or both dirty are returned as
/// one, whose extent stands for all of them: one request for the device.
pub(super) fn segments_of(
    store: &ExtentStore,
    file: &CachedFile,
    range: ByteRange,
    segments: &mut Vec<Segment>,
) {
    look_up(file, range, segments, |id, segments| store.dmt.index().lookup(id, range, segments));
}

/// The same for a read: what is cached counts as just used.
pub(super) fn used_segments_of(
    store: &ExtentStore,
    file: &CachedFile,
    range: ByteRange,
    segments: &mut Vec<Segment>,
) {
    look_up(file, range, segments, |id, segments| {
        store.dmt.index().lookup_used(id, range, segments);
    });
}

fn look_up(
    file: &CachedFile,
    range: ByteRange,
    segments: &mut Vec<Segment>,
    by_table: impl FnOnce(FileId, &mut Vec<Segment>),
) {
    segments.clear();
    match file.id() {
        Some(id) => by_table(id, segments),
        None => segments.push(Segment { range, extent: None }),
    }
    let mut end = range.start;
    for segment in &*segments {
        assert_eq!(segment.range.start, end, "I1: each byte of a request is served by one side");
        end = segment.range.end;
    }
    assert_eq!(end, range.end, "I1: every byte of a request is served");
    segments.dedup_by(|next, kept| {
        let together = match (&kept.extent, &next.extent) {
            (Some(one), Some(other)) => {
                one.placement == other.placement && one.dirty == other.dirty
            }
            _ => false,
        };
        if together {
            kept.range.end = next.range.end;
        }
        together
    });
}

/// How many segments, from the first on, are adjacent in one object; at least one.
pub(super) fn run(segments: &[Segment]) -> usize {
    let place = |segment: &Segment| segment.extent.map(|extent| extent.placement);
    let first = place(&segments[0]);
    let same = segments.iter().take_while(|segment| first.is_some() && place(segment) == first);
    same.count().max(1)
}

/// Missing segments, joined if there is little between them.
pub(super) fn missing_spans(segments: &[Segment]) -> impl Iterator<Item = ByteRange> {
    let mut missing = segments.iter().filter(|s| s.extent.is_none()).map(|s| s.range).peekable();
    std::iter::from_fn(move || {
        let mut span = missing.next()?;
        while let Some(next) = missing.next_if(|next| next.start - span.end <= READ_OVER_BYTES) {
            span.end = next.end;
        }
        Some(span)
    })
}

/// The part of `span` that is not in `served`, as one range from the first such byte to the last, or an empty one.
/// `served` are parts of `span`, in order.
pub(super) fn rest_of(span: ByteRange, served: &[ByteRange]) -> ByteRange {
    let first = served.first().filter(|first| first.start == span.start);
    let start = first.map_or(span.start, |first| first.end);
    let last = served.last().filter(|last| last.end == span.end);
    let end = last.map_or(span.end, |last| last.start);
    ByteRange::new(start, end.max(start))
}

/// How many missing bytes lie in `ranges`.
pub(super) fn missing_in(segments: &[Segment], ranges: &[ByteRange]) -> u64 {
    let missing = segments.iter().filter(|segment| segment.extent.is_none());
    let common = missing.flat_map(|segment| {
        ranges.iter().filter_map(|range| range.intersect(segment.range)).map(ByteRange::len)
    });
    common.sum()
}

/// The bytes of `data`, which begins at file offset `start`, that belong to `part`.
pub(super) fn slice(data: &[u8], start: u64, part: ByteRange) -> &[u8] {
    &data[index(part.start - start)..index(part.end - start)]
}

/// The same, mutable.
pub(super) fn slice_mut(data: &mut [u8], start: u64, part: ByteRange) -> &mut [u8] {
    &mut data[index(part.start - start)..index(part.end - start)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_reaches_from_the_first_byte_that_is_left_to_the_last() {
        let span = ByteRange::new(10, 50);
        let rest = |served: &[(u64, u64)]| {
            let served: Vec<_> =
                served.iter().map(|(start, end)| ByteRange::new(*start, *end)).collect();
            let rest = rest_of(span, &served);
            (rest.start, rest.end)
        };
        assert_eq!(rest(&[]), (10, 50));
        assert_eq!(rest(&[(10, 20)]), (20, 50));
        assert_eq!(rest(&[(20, 30)]), (10, 50));
        assert_eq!(rest(&[(10, 20), (40, 50)]), (20, 40));
        assert_eq!(rest(&[(10, 12), (20, 30), (40, 50)]), (12, 40));
        assert_eq!(rest(&[(40, 50)]), (10, 40));
        assert_eq!(rest(&[(10, 50)]), (50, 50));
    }
}
