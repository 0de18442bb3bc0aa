//! The servers of a simulated tier: where the bytes of a file lie on them, and when they are there.

use halocline_model::request::{ByteRange, Direction};

use crate::FileLayout;
use crate::placement::inode_of;
use crate::replay::sides::{Sides, striped};
use crate::replay::station::{Station, serve_all};
use crate::servers::Server;

/// All servers of a tier.
#[derive(Debug)]
pub(super) struct Devices {
    stations: Vec<Station>,
    /// For the disk and the SSD.
    layouts: [FileLayout; 2],
    seed: u64,
}

impl Devices {
    /// Idle servers. `seed` decides where files lie on disks.
    pub(super) fn new(servers: &[Server], sides: &Sides, seed: u64) -> Self {
        let layout = |side: &[usize]| striped(servers.len(), side);
        Self {
            stations: servers.iter().map(Station::new).collect(),
            layouts: [layout(&sides.slow), layout(&sides.fast)],
            seed,
        }
    }

    /// When reading or writing `range` of a file completes that begins at `now_ns`, on the SSD or the disk.
    pub(super) fn transfer(
        &mut self,
        now_ns: u64,
        file: u32,
        range: ByteRange,
        on_ssd: bool,
        direction: Direction,
    ) -> u64 {
        let laid_out = (&self.layouts[usize::from(on_ssd)], inode_of(self.seed, file));
        serve_all(&mut self.stations, laid_out, now_ns, range, direction)
    }
}
