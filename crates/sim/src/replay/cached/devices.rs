//! The servers of a simulated cache and its origin: where the bytes of a file lie on them, and when they are there.

use std::collections::VecDeque;

use halocline_model::layout::{CacheGeometry, Placement};
use halocline_model::request::{ByteRange, Direction};
use halocline_model::sieve::OriginCost;
use halocline_model::streams::Streams;
use halocline_model::striping::Striping;
use rustc_hash::FxHashMap;

use super::extents::Run;
use crate::FileLayout;
use crate::placement::inode_of;
use crate::replay::sides::striped;
use crate::replay::station::{Station, serve_all};
use crate::servers::Server;

/// All servers, and the streams that tell which requests the origin has served.
#[derive(Debug)]
pub(super) struct Devices {
    stations: Vec<Station>,
    /// Indices of the cache's servers in the set.
    fast: Vec<usize>,
    origin: FileLayout,
    /// The origin as seen by policies.
    pub(super) striping: Striping,
    layouts: FxHashMap<Placement, FileLayout>,
    pub(super) geometry: CacheGeometry,
    /// By the number of the file.
    pub(super) streams: FxHashMap<u32, Streams>,
    seed: u64,
}

impl Devices {
    /// Idle servers, those with the indices `fast` for a cache of this geometry, and those with the indices `slow` for an
    /// origin that policies see striped like that. `seed` decides where files lie on disks.
    pub(super) fn new(
        servers: &[Server],
        (geometry, fast): (CacheGeometry, Vec<usize>),
        (striping, slow): (Striping, &[usize]),
        seed: u64,
    ) -> Self {
        Self {
            stations: servers.iter().map(Station::new).collect(),
            fast,
            origin: striped(servers.len(), slow),
            striping,
            layouts: FxHashMap::default(),
            geometry,
            streams: FxHashMap::default(),
            seed,
        }
    }

    /// When reading or writing `range` completes, on the cache or, without a placement, on the origin.
    pub(super) fn transfer(
        &mut self,
        now_ns: u64,
        file: u32,
        range: ByteRange,
        place: Option<Placement>,
        direction: Direction,
    ) -> u64 {
        let layout = match place {
            None => {
                let streams = self.streams.entry(file).or_default();
                streams.goes_to_origin(self.striping, range, direction);
                &self.origin
            }
            Some(place) => {
                let (geometry, fast, all) = (self.geometry, &self.fast, self.stations.len());
                self.layouts
                    .entry(place)
                    .or_insert_with(|| cache_layout(geometry, place, fast, all))
            }
        };
        let inode = inode_of(self.seed, file);
        serve_all(&mut self.stations, (layout, inode), now_ns, range, direction)
    }

    /// The requests by which the runs of a region go to the origin from `at_ns` on: each server writes what a mount's
    /// sieve plans for it, one stretch after another.
    pub(super) fn begin_writes(
        &mut self,
        at_ns: u64,
        runs: &[Run],
        cost: &OriginCost,
    ) -> OriginWrites {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return OriginWrites::default();
        };
        let file = first.file;
        let span = ByteRange::new(first.range.start, last.range.end);
        self.streams.entry(file).or_default().flushed(self.striping, span);
        let mut by_server: Vec<Vec<ByteRange>> = vec![Vec::new(); self.stations.len()];
        for run in runs {
            self.origin.split(run.range, |server, local| match by_server[server].last_mut() {
                Some(last) if last.end == local.start => last.end = local.end,
                _ => by_server[server].push(local),
            });
        }
        let mut lanes = Vec::new();
        for (server, runs) in by_server.iter().enumerate().filter(|(_, runs)| !runs.is_empty()) {
            let mut rest = VecDeque::new();
            for stretch in cost.plan(runs) {
                if stretch.gaps {
                    rest.push_back((stretch.range, Direction::Read));
                }
                rest.push_back((stretch.range, Direction::Write));
            }
            lanes.push(Lane { server, ready_ns: at_ns, rest });
        }
        OriginWrites { inode: inode_of(self.seed, file), lanes }
    }

    /// Issues the request of the server that is done first with its last one; returns when to call this again. `None`
    /// where there was none left.
    pub(super) fn write_next(&mut self, writes: &mut OriginWrites) -> Option<u64> {
        let pending = writes.lanes.iter_mut().filter(|lane| !lane.rest.is_empty());
        let lane = pending.min_by_key(|lane| lane.ready_ns)?;
        let (range, direction) = lane.rest.pop_front()?;
        let station = &mut self.stations[lane.server];
        lane.ready_ns = station.serve(lane.ready_ns, writes.inode, range, direction);
        let pending = writes.lanes.iter().filter(|lane| !lane.rest.is_empty());
        let next = pending.map(|lane| lane.ready_ns).min();
        next.or_else(|| writes.lanes.iter().map(|lane| lane.ready_ns).max())
    }
}

/// The requests of a flush that are still to be issued, by server of the origin.
#[derive(Debug, Default)]
pub(super) struct OriginWrites {
    inode: u64,
    lanes: Vec<Lane>,
}

#[derive(Debug)]
struct Lane {
    server: usize,
    ready_ns: u64,
    rest: VecDeque<(ByteRange, Direction)>,
}

fn cache_layout(
    geometry: CacheGeometry,
    place: Placement,
    fast: &[usize],
    all: usize,
) -> FileLayout {
    let (first, striping) = geometry.resolve(place);
    let (first, count) = (first as usize, striping.servers() as usize);
    striped(all, &fast[first..first + count])
}
