//! Predicts the time for a layout with the cost model: that of the busiest device or network path, or that of the process
//! whose requests take longest one after another, whichever is longer.

use rustc_hash::FxHashMap;

use crate::judge::Layouts;
use crate::layout::Layout;
use crate::servers::{Servers, direction, service_ps};
use crate::workload::{Chained, Kind, OTHERS, Weighted, Workload};
use halocline_trace::{Op, Request};

/// The cost of requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cost {
    /// Picoseconds of work for each server: of the way to it, which its connections queue for, too, of the device, and of the
    /// way back. These work at once.
    load_ps: Vec<[f64; 3]>,
    /// Time of each request on idle servers, summed up, in picoseconds.
    latency_ps: f64,
}

impl Cost {
    /// No requests yet, on `servers` servers.
    pub(crate) fn none(servers: usize) -> Self {
        Self { load_ps: vec![[0.0; 3]; servers], latency_ps: 0.0 }
    }

    /// Adds the cost of `requests` under `layout`.
    pub(crate) fn add<'a>(
        &mut self,
        servers: &Servers,
        layout: &Layout,
        requests: impl IntoIterator<Item = &'a Weighted>,
    ) {
        for request in requests {
            let slowest_ps = self.add_one(servers, layout, request, |_| request.sequential);
            self.latency_ps += request.weight * slowest_ps;
        }
    }

    /// Adds the work of a request that continues a stream on the servers for which `is_sequential` says so; answers how long
    /// it takes if all are idle, in picoseconds.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn add_one(
        &mut self,
        servers: &Servers,
        layout: &Layout,
        request: &Weighted,
        is_sequential: impl Fn(usize) -> bool,
    ) -> f64 {
        let mut slowest = 0u64;
        layout.pieces(request.offset, request.offset + request.length, |piece| {
            let server = &servers.all()[piece.server];
            let service = server.profile.of(direction(request.op));
            let device = service_ps(service, is_sequential(piece.server), piece.length);
            let transfer = server.network.transfer_ps(piece.length);
            let connect = server.network.connect_ps;
            let there = connect.saturating_add(transfer);
            slowest = slowest.max(device.saturating_add(there));
            let (inbound, outbound) =
                if request.op == Op::Write { (there, 0) } else { (connect, transfer) };
            let device = device as f64 / f64::from(server.channels.max(1));
            let work = [inbound as f64, device, outbound as f64];
            for (load, work) in self.load_ps[piece.server].iter_mut().zip(work) {
                *load += request.weight * work;
            }
        });
        slowest as f64
    }

    /// Time in seconds, if `processes` processes issue as many requests each, one after another.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn seconds(&self, processes: u64) -> f64 {
        self.busiest_ps().max(self.latency_ps / processes.max(1) as f64) * 1e-12
    }

    fn busiest_ps(&self) -> f64 {
        let loads = self.load_ps.iter().flatten().copied();
        let busiest = loads.fold(0.0, f64::max);
        debug_assert!(busiest.is_finite(), "work has a length");
        busiest
    }
}

/// Seconds for the whole trace. The sample stands for it: the few requests that are kept of a class may all be on one server
/// by chance, where strides and stripes are powers of two.
pub(crate) fn seconds(servers: &Servers, workload: &Workload, layouts: &Layouts) -> f64 {
    let are_mixed = are_mixed(servers, workload, layouts);
    let mut cost = Cost::none(servers.count());
    let mut of_kinds: FxHashMap<(u32, Kind), Mean> = FxHashMap::default();
    let mut of_files: FxHashMap<u32, Mean> = FxHashMap::default();
    let mut of_all = Mean::default();
    let sampled = workload.sample.iter().flatten().zip(workload.sequential.iter().flatten());
    for (&Request { file, op, offset, length, .. }, &sequential) in sampled {
        let weight = workload.scale();
        let request = Weighted { offset, length, op, sequential, weight };
        let is_sequential = |server: usize| sequential && !are_mixed[server];
        let took_ps = cost.add_one(servers, layouts.of(file), &request, is_sequential);
        let own = if layouts.files.contains_key(&file) { file } else { OTHERS };
        of_kinds.entry((own, Kind::of(op, length, sequential))).or_default().add(took_ps);
        of_files.entry(own).or_default().add(took_ps);
        of_all.add(took_ps);
    }
    let mut chains_ps: FxHashMap<u32, f64> = FxHashMap::default();
    for &Chained { file, process, kind, requests } in &workload.chains {
        let own = if layouts.files.contains_key(&file) { file } else { OTHERS };
        let mean = of_kinds.get(&(own, kind)).or_else(|| of_files.get(&own)).unwrap_or(&of_all);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let took_ps = requests as f64 * mean.value();
        *chains_ps.entry(process).or_default() += took_ps;
    }
    let longest_ps = chains_ps.into_values().fold(0.0, f64::max);
    cost.busiest_ps().max(longest_ps) * 1e-12
}

/// Which servers have files on them whose first processes differ: where each process has a file of its own, its requests
/// continue a stream in the file, and are at random for a server with several. Processes that share files, one after the
/// other, are in step.
fn are_mixed(servers: &Servers, workload: &Workload, layouts: &Layouts) -> Vec<bool> {
    let mut first: Vec<Option<u32>> = vec![None; servers.count()];
    let mut are_mixed = vec![false; servers.count()];
    let mut note = |server: usize, process: u32| {
        are_mixed[server] |= first[server].is_some_and(|first| first != process);
        first[server] = Some(process);
    };
    for file in &workload.files {
        let Some(chained) = workload.chains_of(file.number).next() else { continue };
        for (_, part) in layouts.of(file.number).parts_in(0, file.bytes) {
            part.servers().for_each(|server| note(server, chained.process));
        }
    }
    for chained in workload.chains_of(OTHERS) {
        for part in layouts.default.parts() {
            part.servers().for_each(|server| note(server, chained.process));
        }
    }
    are_mixed
}

/// A mean.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    count: f64,
    sum: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
    }

    fn value(self) -> f64 {
        if self.count > 0.0 { self.sum / self.count } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{Judge, Queues};
    use crate::servers::{Network, Server};
    use halocline_model::profile::{DeviceProfile, ServiceProfile};
    /// Servers of one kind whose requests take 1 ms and 1 ns a byte, with such a network.
    fn alike(count: usize, network: Network) -> Servers {
        let service = ServiceProfile {
            startup_sequential_ps: 0,
            startup_random_ps: 1 << 30,
            per_byte_ps: 1000,
        };
        let server = |number: usize| Server {
            name: number.to_string(),
            directory: None,
            capacity: None,
            channels: 1,
            profile: DeviceProfile { read: service, write: service },
            network,
        };
        Servers::new((0..count).map(server).collect()).expect("servers")
    }

    fn at_random(process: u32, file: u32, number: u64) -> Request {
        let (start_ns, offset) = (number, number * 7 % 1024 * 4096);
        let duration_ns = None;
        Request { start_ns, duration_ns, process, file, op: Op::Write, offset, length: 4096 }
    }

    /// Predicted, and replayed in queues.
    fn both(servers: &Servers, requests: &[Request], layout: &Layout) -> (f64, f64) {
        let workload = Workload::of(requests, 1);
        let layouts = Layouts { files: FxHashMap::default(), default: layout.clone() };
        (
            super::seconds(servers, &workload, &layouts),
            Queues::new(servers).seconds(requests, &layouts),
        )
    }

    /// Regression: as many processes were taken to run at once as use one file, so that 16 files of one process each were
    /// predicted to be written one after another; and of more than 256 files only these counted.
    #[test]
    fn processes_with_a_file_each_run_at_once() {
        let servers = alike(4, Network::default());
        let layout = Layout::simple(vec![4096; 4]);
        for files in [16_u32, 300] {
            let requests: Vec<_> = (0..files * 32)
                .map(|number| at_random(number % files, number % files, u64::from(number)))
                .collect();
            let (predicted, replayed) = both(&servers, &requests, &layout);
            assert!((predicted / replayed - 1.0).abs() < 0.1, "{files}: {predicted} {replayed}");
        }
        // One of them has nearly all requests.
        let requests: Vec<_> = (0..1000).map(|n| at_random(u32::from(n % 50 == 0), 0, n)).collect();
        let (predicted, replayed) = both(&servers, &requests, &layout);
        assert!((predicted / replayed - 1.0).abs() < 0.1, "{predicted} {replayed}");
    }

    /// Regression: of 4 KiB requests in order, those that stood for the others were all on one of two servers with 64 KiB each.
    #[test]
    fn a_stream_uses_all_servers() {
        let servers = alike(2, Network::default());
        let requests: Vec<_> = (0..8192_u64)
            .map(|n| Request { offset: n * 4096, ..at_random((n % 16) as u32, 0, n) })
            .collect();
        let (predicted, replayed) = both(&servers, &requests, &Layout::simple(vec![65536; 2]));
        assert!((predicted / replayed - 1.0).abs() < 0.2, "{predicted} {replayed}");
    }

    /// Regression: what continues a stream in its file was one for a disk with the files of several processes, too.
    #[test]
    fn streams_of_several_processes_mix_on_a_server() {
        let service = ServiceProfile {
            startup_sequential_ps: 0,
            startup_random_ps: 8 << 30,
            per_byte_ps: 1000,
        };
        let mut all = alike(4, Network::default()).all().to_vec();
        for server in &mut all {
            server.profile = DeviceProfile { read: service, write: service };
        }
        let servers = Servers::new(all).expect("servers");
        let stream = |process: u32, number: u64| Request {
            offset: number * 4096,
            ..at_random(process, process, number * 4 + u64::from(process))
        };
        let requests: Vec<_> =
            (0..64).flat_map(|number| (0..4).map(move |process| stream(process, number))).collect();
        let (predicted, replayed) = both(&servers, &requests, &Layout::simple(vec![4096; 4]));
        assert!((predicted / replayed - 1.0).abs() < 0.2, "{predicted} {replayed}");
        // Each file on a server of its own is a stream.
        let workload = Workload::of(&requests, 1);
        let own = |file: u32| {
            let mut widths = vec![0; 4];
            widths[file as usize] = 4096;
            (file, Layout::simple(widths))
        };
        let default = Layout::simple(vec![4096; 4]);
        let layouts = Layouts { files: (0..4).map(own).collect(), default };
        let predicted = super::seconds(&servers, &workload, &layouts);
        let replayed = Queues::new(&servers).seconds(&requests, &layouts);
        assert!((predicted / replayed - 1.0).abs() < 0.2, "{predicted} {replayed}");
    }

    /// Regression: a server's connections, which are made one after another, did not count.
    #[test]
    fn connections_queue() {
        let network = Network { connect_ps: 10 << 30, per_byte_ps: 100 };
        let servers = alike(2, network);
        let mut cost = Cost::none(2);
        let write =
            Weighted { offset: 0, length: 8192, op: Op::Write, sequential: false, weight: 16.0 };
        let layout = Layout::simple(vec![4096; 2]);
        cost.add(&servers, &layout, [&write]);
        let (way, device) =
            (f64::from(10_u32 << 28) * 4.0 + 409_600.0, f64::from(1 << 30) + 4_096_000.0);
        assert_eq!(cost.load_ps, [[16.0 * way, 16.0 * device, 0.0]; 2]);
        assert!((cost.seconds(16) - 16.0 * way * 1e-12).abs() < 1e-9);
        // Read bytes leave behind the device, and do not wait for connections.
        let mut cost = Cost::none(2);
        cost.add(&servers, &layout, [&Weighted { op: Op::Read, ..write }]);
        let connect = way - 409_600.0;
        assert_eq!(cost.load_ps, [[16.0 * connect, 16.0 * device, 16.0 * 409_600.0]; 2]);
    }

    #[test]
    fn the_busiest_server_or_the_waiting_processes_by_hand() {
        let service = |startup_random_ps, per_byte_ps| ServiceProfile {
            startup_sequential_ps: 0,
            startup_random_ps,
            per_byte_ps,
        };
        let server = |name: &str, service| Server {
            name: name.into(),
            directory: None,
            capacity: None,
            channels: 1,
            profile: DeviceProfile { read: service, write: service },
            network: Network::default(),
        };
        let all = vec![server("disk", service(1000, 10)), server("ssd", service(100, 1))];
        let servers = Servers::new(all).expect("servers");
        let mut cost = Cost::none(2);
        let request =
            Weighted { offset: 0, length: 300, op: Op::Read, sequential: false, weight: 5.0 };
        cost.add(&servers, &Layout::simple(vec![100, 200]), [&request]);
        assert_eq!(cost.load_ps, [[0.0, 1e4, 0.0], [0.0, 1500.0, 0.0]]);
        assert!((cost.latency_ps - 1e4).abs() < 1e-9);
        assert!((cost.seconds(1) - 1e-8).abs() < 1e-20 && (cost.seconds(4) - 1e-8).abs() < 1e-20);
    }

    /// Regression: the slowest network of all servers was taken for that of each, so that what lies on the servers that are
    /// near was predicted to take several times as long as in the replay.
    #[test]
    fn each_server_has_its_own_network() {
        let service = |startup_random_ps| ServiceProfile {
            startup_sequential_ps: 0,
            startup_random_ps,
            per_byte_ps: 1,
        };
        let server = |name: &str, startup, connect_ps, per_byte_ps| Server {
            name: name.into(),
            directory: None,
            capacity: None,
            channels: 1,
            profile: DeviceProfile { read: service(startup), write: service(startup) },
            network: Network { connect_ps, per_byte_ps },
        };
        let all = vec![server("far", 1000, 500, 80), server("near", 100, 5, 10)];
        let servers = Servers::new(all).expect("servers");
        let request =
            Weighted { offset: 0, length: 100, op: Op::Read, sequential: false, weight: 1.0 };
        let cost = |widths| {
            let mut cost = Cost::none(2);
            cost.add(&servers, &Layout::simple(widths), [&request]);
            (cost.load_ps, cost.latency_ps)
        };
        // A startup, 100 bytes of the device, a connection and 100 bytes of the network.
        let (none, near, far) = ([0.0; 3], [5.0, 200.0, 1000.0], [500.0, 1100.0, 8000.0]);
        assert_eq!(cost(vec![0, 100]), (vec![none, near], 100.0 + 100.0 + 5.0 + 1000.0));
        assert_eq!(cost(vec![100, 0]), (vec![far, none], 1000.0 + 100.0 + 500.0 + 8000.0));
    }
}
