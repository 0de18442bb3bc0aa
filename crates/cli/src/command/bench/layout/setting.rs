//! What layouts are compared on: servers with their network, and the requests of a benchmark.

use halocline_model::emulated::EmulatedDevice;
use halocline_os::counted::counted;
use halocline_sim::servers::{Network, Profile};
use halocline_sim::workload::{Btio, Class, Hpio, Ior, Tile, Variant, Workload};
use halocline_sim::{Server, ServerSet};
use halocline_trace::{Op, Request};

/// Gigabit Ethernet, which the paper's cluster had. The paper does not say how long a request takes to connect.
const NETWORK: Network = Network { connect_us: 100.0, ns_per_byte: 8.0 };
/// Bytes of a disk.
const HDD_BYTES: u64 = 250 << 30;
/// Limit of the requests, which are all kept: 200 MiB.
const REQUESTS_MAX: u64 = 1 << 22;
/// SSDs have room for whole blocks.
const BLOCK: u64 = 4096;

/// The requests of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Benchmark {
    /// One shared file.
    Ior {
        /// Approximate bytes of the file.
        data: u64,
        /// Bytes of a request.
        size: u64,
        /// In random order.
        random: bool,
    },
    /// Regions without spacing.
    Hpio {
        /// Regions of each process.
        count: u64,
        /// Bytes of a region.
        size: u64,
    },
    /// Tiles of 8 elements of 32 KiB along a row.
    Tile {
        /// Rows of a tile.
        rows: u64,
    },
    /// Collective writes, then reads.
    Btio {
        /// Points along one side.
        class: Class,
    },
}

/// Servers and requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setting {
    /// The benchmark that makes the requests.
    pub(super) benchmark: Benchmark,
    /// The number of processes.
    pub(super) processes: u32,
    /// The direction; BTIO has both.
    pub(super) op: Op,
    /// The numbers of disks and of SSDs.
    pub(super) servers: (usize, usize),
    /// Share of the file that all SSDs together can hold.
    pub(super) ssd_share: f64,
}

impl Setting {
    /// All requests, in the order in which the processes would issue them.
    pub(super) fn requests(&self) -> Result<Vec<Request>, String> {
        let (processes, op) = (self.processes, self.op);
        match self.benchmark {
            Benchmark::Ior { data, size, random } => {
                let each = (data / u64::from(processes) / size.max(1)).max(1) * size;
                let ior = Ior::new(processes, each, size, 1)?;
                let ior = ior.directions(op == Op::Write, op == Op::Read)?;
                all(&if random { ior.random(1) } else { ior })
            }
            Benchmark::Hpio { count, size } => all(&Hpio::new(processes, count, size, 0, op)?),
            Benchmark::Tile { rows } => {
                let along = factor(processes);
                let tiles = (along, processes / along);
                all(&Tile::new(tiles, (8, rows), 32 << 10, (0, 0), op)?)
            }
            Benchmark::Btio { class } => all(&Btio::new(class, processes, Variant::Full, true)?),
        }
    }

    /// The servers, disks first, with SSDs that hold their share of what `requests` touch.
    pub(super) fn set(&self, requests: &[Request]) -> Result<ServerSet, String> {
        let (hdds, ssds) = self.servers;
        let bytes = requests.iter().map(Request::end).max().unwrap_or(0);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a file"
        )]
        let each = (bytes as f64 * self.ssd_share / ssds.max(1) as f64) as u64;
        let each = each.next_multiple_of(BLOCK).max(BLOCK);
        let server = |(index, (profile, capacity)): (usize, (&str, u64))| Server {
            name: format!("{profile}{index}"),
            directory: None,
            profile_name: profile.to_owned(),
            profile: Profile::Emulated(EmulatedDevice::builtin(profile).expect("built in")),
            capacity,
            network: NETWORK,
        };
        let disks = std::iter::repeat_n(("hdd", HDD_BYTES), hdds);
        let all = disks.chain(std::iter::repeat_n(("ssd", each), ssds));
        ServerSet::new(all.enumerate().map(server).collect())
    }
}

fn all(workload: &impl Workload) -> Result<Vec<Request>, String> {
    let each = (0..workload.processes()).map(|process| workload.steps(process));
    let count = each.fold(0, u64::saturating_add);
    if count > REQUESTS_MAX {
        let some = counted(count, "request");
        return Err(format!("{some}; at most {REQUESTS_MAX}: choose less data or longer requests"));
    }
    Ok(workload.requests().collect())
}

/// The largest divisor up to the square root: tiles are as square as possible.
fn factor(processes: u32) -> u32 {
    (1..=processes.isqrt()).rev().find(|along| processes.is_multiple_of(*along)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssds_hold_their_share_and_no_request_is_lost() {
        let setting = Setting {
            benchmark: Benchmark::Ior { data: 64 << 20, size: 512 << 10, random: true },
            processes: 16,
            op: Op::Read,
            servers: (4, 4),
            ssd_share: 0.25,
        };
        let requests = setting.requests().expect("requests");
        assert_eq!(requests.len(), 128);
        let set = setting.set(&requests).expect("servers");
        assert_eq!((set.len(), set.servers()[7].capacity), (8, 4 << 20));
        let tile = Setting { benchmark: Benchmark::Tile { rows: 8 }, processes: 200, ..setting };
        assert_eq!(tile.requests().expect("requests").len(), 1600);
        assert_eq!((factor(200), factor(100), factor(7)), (10, 10, 1));
    }

    /// Regression: a terabyte in requests of a byte took all memory.
    #[test]
    fn more_requests_than_fit_into_memory_are_refused() {
        for benchmark in [
            Benchmark::Ior { data: 1 << 40, size: 1, random: false },
            Benchmark::Hpio { count: 1 << 30, size: 1 },
        ] {
            let servers = (1, 1);
            let setting =
                Setting { benchmark, processes: 16, op: Op::Read, servers, ssd_share: 0.25 };
            let why = setting.requests().expect_err("too many");
            assert!(why.ends_with("at most 4194304: choose less data or longer requests"), "{why}");
        }
    }
}
