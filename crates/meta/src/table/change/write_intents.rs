//! What is recorded of write intents: an intent as one extent when all of it is clean, or its pieces.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use halocline_model::request::ByteRange;

use crate::FileId;
use crate::batch::Batch;
use crate::files::Mapped;
use crate::table::extent_index::merged;
use crate::table::replace::{Piece, Replace, write_replace};
use crate::write_intent::WriteIntent;

/// The intents with one of the extents in `starts` in which nothing is dirty except what is in `cleaned`.
pub(super) fn all_clean(
    mapped: &Mapped,
    cleaned: impl Fn(u64) -> bool,
    starts: impl Iterator<Item = u64>,
) -> Vec<WriteIntent> {
    let touched = starts.filter_map(|start| mapped.intents.at(start));
    let touched: BTreeMap<u64, WriteIntent> =
        touched.map(|intent| (intent.range.start, intent)).collect();
    let clean = |intent: &WriteIntent| {
        let mut extents = mapped.extents.overlapping(intent.range);
        extents.all(|(start, entry)| !entry.dirty() || cleaned(start))
    };
    touched.into_values().filter(clean).collect()
}

/// The records of extents that are clean by `plan`: those outside intents, and the intents in `all_clean`.
pub(super) fn clean_records(
    file: FileId,
    mapped: &Mapped,
    plan: &[Replace],
    all_clean: &[WriteIntent],
) -> Batch {
    let mut records = Batch::default();
    for replace in plan.iter().filter(|replace| mapped.intents.at(replace.start).is_none()) {
        write_replace(&mut records, file, replace);
    }
    for &intent in all_clean {
        let record = merged(&mapped.extents, intent, 0);
        let piece = Piece { record, generation: 0 };
        let start = intent.range.start;
        write_replace(&mut records, file, &Replace { start, pieces: vec![piece] });
    }
    records
}

/// The pieces of an intent as they are.
pub(super) fn pieces(mapped: &Mapped, intent: WriteIntent) -> Vec<Replace> {
    let pieces = mapped.extents.overlapping(intent.range).map(|(start, entry)| {
        let record = entry.record(ByteRange::new(start, entry.end));
        let piece = Piece { record, generation: entry.generation.load(Relaxed) };
        Replace { start, pieces: vec![piece] }
    });
    pieces.collect()
}
