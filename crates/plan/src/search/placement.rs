//! The layouts that a choice gives the files, within the space that there is.

use rustc_hash::FxHashMap;

use super::choice::Choice;
use crate::judge::Layouts;
use crate::layout::{DEFAULT_STRIPE, Layout, Part, Placer, join_rounds};
use crate::servers::Servers;
use crate::shared::SharedLayouts;

/// A region of a file, as far as its place in the file goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The number of the file in the trace.
    pub(super) file: u32,
    /// Its first byte.
    pub(super) begin: u64,
    /// One past its last byte.
    pub(super) end: u64,
    /// The group whose space it shares.
    pub(super) group: usize,
}

/// Regions in the order in which they get space.
#[derive(Debug)]
pub(super) struct Placement<'a> {
    servers: &'a Servers,
    /// By file, and within a file from its beginning to its end.
    places: Vec<Place>,
    order: Vec<usize>,
    /// The bytes of each group.
    bytes: Vec<u64>,
    fast: Vec<usize>,
}

impl<'a> Placement<'a> {
    /// Of `places` by file, of which those that `order` names first get space first.
    pub(super) fn new(servers: &'a Servers, places: Vec<Place>, order: Vec<usize>) -> Self {
        let groups = places.iter().map(|place| place.group + 1).max().unwrap_or(0);
        let mut bytes = vec![0u64; groups];
        for place in &places {
            let of = &mut bytes[place.group];
            *of = of.saturating_add(place.end - place.begin);
        }
        Self { servers, places, order, bytes, fast: servers.fast().collect() }
    }

    /// The regions in the order in which they get space.
    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }

    /// Bytes of all regions.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes of all regions of a group.
    pub(super) fn bytes_of(&self, group: usize) -> u64 {
        self.bytes[group]
    }

    /// The layouts of a choice; `None` if the files do not fit.
    pub(super) fn realise(&self, choice: &Choice) -> Option<Layouts> {
        let mut placer = Placer::new(self.servers.room());
        let mut left = self.bytes.clone();
        let mut parts: FxHashMap<u32, Vec<Part>> = FxHashMap::default();
        for &index in &self.order {
            let Place { file, begin, end, group } = self.places[index];
            let wishes = [choice.first[index].as_slice(), choice.rest[index].as_slice()];
            let there = if choice.shared {
                let fast = self.fast.iter().copied();
                placer.place_in_share((begin, end), &wishes, fast, (end - begin, left[group]))
            } else {
                placer.place(begin, end, &wishes)
            };
            left[group] = left[group].saturating_sub(end - begin);
            parts.entry(file).or_default().extend(there.ok()?);
        }
        let (mut files, mut shared) = (FxHashMap::default(), SharedLayouts::default());
        for regions in self.places.chunk_by(|one, next| one.file == next.file) {
            let file = regions[0].file;
            let Some(parts) = parts.remove(&file) else { continue };
            files.insert(file, shared.of(join_rounds(parts), self.servers.count()).ok()?);
        }
        let default = Layout::simple(vec![DEFAULT_STRIPE; self.servers.count()]);
        let mut layouts = Layouts { files, default };
        self.join_regions(&mut layouts, placer, &mut shared);
        Some(layouts)
    }

    /// Lets rounds go on over the borders of regions with the same widths, as far as what `placer` has left allows that.
    /// Rounds that begin anew in each region leave more on the first servers than on the last.
    fn join_regions(&self, layouts: &mut Layouts, mut placer: Placer, shared: &mut SharedLayouts) {
        for regions in self.places.chunk_by(|one, next| one.file == next.file) {
            let [.., last] = regions else { continue };
            let Some(layout) = layouts.files.get_mut(&last.file) else { continue };
            let Some(joined) = layout.without_restarts() else { continue };
            let size = last.end;
            if placer.exchange(&layout.bytes(size), &joined.bytes(size)) {
                *layout = shared.share(joined);
            }
        }
    }
}
