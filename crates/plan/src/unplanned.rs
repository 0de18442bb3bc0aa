//! Files that get no layout of their own: they lie in the default stripes as far as there is room, and take it first.

use halocline_model::file_layout::stored_bytes;
use std::borrow::Cow;
use std::sync::Arc;

use halocline_trace::Request;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::default_layout::{self, Rest};
use crate::judge::{Judge, Layouts, Note, Step};
use crate::layout::{Layout, Placer};
use crate::servers::Servers;
use crate::shared::SharedLayouts;
use crate::workload::File;

/// Where such files lie, and what they leave.
#[derive(Debug)]
pub struct Unplanned {
    /// The servers with the room that is left.
    pub servers: Servers,
    /// The files that do not lie in the default stripes to their ends, by their number in the trace.
    pub layouts: FxHashMap<u32, Layout>,
}

impl Unplanned {
    /// Places `files`, numbers and lengths in bytes, in stripes of `widths` for each server, and on those with room what
    /// does not fit.
    ///
    /// # Errors
    /// They do not fit.
    pub fn place(servers: &Servers, files: &[(u32, u64)], widths: &[u64]) -> Result<Self, Error> {
        let striping = Layout::simple(widths.to_vec());
        let mut placer = Placer::new(servers.room());
        let mut taken = vec![0_u64; servers.count()];
        for (_, bytes) in files {
            let local = striping.bytes(*bytes).into_iter();
            let local = local.map(stored_bytes);
            taken.iter_mut().zip(local).for_each(|(sum, bytes)| *sum = sum.saturating_add(bytes));
        }
        if taken.iter().zip(placer.room()).all(|(taken, room)| taken <= room) {
            placer.occupy(&taken);
            let servers = servers.with_room(placer.room());
            return Ok(Self { servers, layouts: FxHashMap::default() });
        }
        let (mut layouts, mut shared) = (FxHashMap::default(), SharedLayouts::default());
        for (number, bytes) in files {
            let regions = Arc::from(Vec::new());
            let file = File { number: *number, bytes: *bytes, processes: 1, regions };
            let layout = default_layout::place(servers, &file, widths, Rest::Default, &mut placer)?;
            if layout != striping {
                layouts.insert(*number, shared.share(layout));
            }
        }
        Ok(Self { servers: servers.with_room(placer.room()), layouts })
    }
}

/// A judge of layouts beside which such files lie.
pub(crate) struct Beside<'a> {
    pub(crate) judge: &'a mut dyn Judge,
    pub(crate) layouts: &'a FxHashMap<u32, Layout>,
}

impl Beside<'_> {
    fn with<'a>(&self, layouts: &'a Layouts) -> Cow<'a, Layouts> {
        if self.layouts.is_empty() {
            return Cow::Borrowed(layouts);
        }
        let mut all = layouts.clone();
        all.files.extend(self.layouts.iter().map(|(number, layout)| (*number, layout.clone())));
        Cow::Owned(all)
    }
}

impl Judge for Beside<'_> {
    fn seconds_noting(&mut self, requests: &[Request], layouts: &Layouts, note: Note<'_>) -> f64 {
        let all = self.with(layouts);
        self.judge.seconds_noting(requests, &all, note)
    }

    fn seconds_of_all(&mut self, layouts: &Layouts, note: Note<'_>) -> Option<f64> {
        let all = self.with(layouts);
        self.judge.seconds_of_all(&all, note)
    }

    fn placements(&self, files: usize) -> usize {
        self.judge.placements(files)
    }

    fn place(&mut self, placement: usize) {
        self.judge.place(placement);
    }

    fn advanced(&mut self, step: Step, done: usize, all: usize) {
        self.judge.advanced(step, done, all);
    }
}
