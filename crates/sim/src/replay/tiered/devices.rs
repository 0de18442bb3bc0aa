//! The servers of a simulated tier: where the bytes of a file lie on them, and when they are there.

use halocline_model::request::{ByteRange, Direction};

use crate::FileLayout;
use crate::replay::inode_of;
use crate::replay::sides::{Sides, striped};
use crate::replay::station::Station;
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
        let (stations, inode) = (&mut self.stations, inode_of(self.seed, file));
        let mut done_ns = now_ns;
        self.layouts[usize::from(on_ssd)].split(range, |server, local| {
            done_ns = done_ns.max(stations[server].serve(now_ns, inode, local, direction));
        });
        done_ns
    }
}
