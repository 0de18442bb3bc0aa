//! The servers of a simulated cache and its origin: where the bytes of a file lie on them, and when they are there.

use halocline_model::layout::{CacheGeometry, Placement};
use halocline_model::request::{ByteRange, Direction};
use halocline_model::sieve::OriginCost;
use halocline_model::streams::Streams;
use halocline_model::striping::Striping;
use rustc_hash::FxHashMap;

use super::extents::Run;
use crate::FileLayout;
use crate::replay::inode_of;
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

    /// When the runs of a region, which begins at `at_ns`, are on the origin: each server writes what a mount's sieve
    /// plans for it, one stretch after another.
    pub(super) fn write_to_origin(&mut self, at_ns: u64, runs: &[Run], cost: &OriginCost) -> u64 {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return at_ns };
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
        let inode = inode_of(self.seed, file);
        let mut done_ns = at_ns;
        for (station, runs) in self.stations.iter_mut().zip(&by_server) {
            let mut ready_ns = at_ns;
            for stretch in cost.plan(runs) {
                if stretch.gaps {
                    ready_ns = station.serve(ready_ns, inode, stretch.range, Direction::Read);
                }
                ready_ns = station.serve(ready_ns, inode, stretch.range, Direction::Write);
            }
            done_ns = done_ns.max(ready_ns);
        }
        done_ns
    }
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
