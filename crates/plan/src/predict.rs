//! Predicts the time for a layout with the cost model: the work of each server, and how long requests wait for the
//! slowest of their servers.

use crate::layout::Layout;
use crate::servers::{Servers, direction, service_ps};
use crate::workload::Weighted;

/// The cost of requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cost {
    /// Picoseconds of work for each server.
    pub load_ps: Vec<f64>,
    /// Time of each request on idle servers, summed up, in picoseconds.
    pub latency_ps: f64,
}

impl Cost {
    /// No requests yet, on `servers` servers.
    pub(crate) fn none(servers: usize) -> Self {
        Self { load_ps: vec![0.0; servers], latency_ps: 0.0 }
    }

    /// Adds the cost of `requests` under `layout`.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn add<'a>(
        &mut self,
        servers: &Servers,
        layout: &Layout,
        requests: impl IntoIterator<Item = &'a Weighted>,
    ) {
        for request in requests {
            let mut slowest = 0u64;
            layout.pieces(request.offset, request.offset + request.length, |piece| {
                let server = &servers.all()[piece.server];
                let service = server.profile.of(direction(request.op));
                let device = service_ps(service, request.sequential, piece.length);
                let transfer = server.network.transfer_ps(piece.length);
                let there = server.network.connect_ps.saturating_add(transfer);
                slowest = slowest.max(device.saturating_add(there));
                let channels = f64::from(server.channels.max(1));
                let work = (device as f64 / channels).max(transfer as f64);
                self.load_ps[piece.server] += request.weight * work;
            });
            self.latency_ps += request.weight * slowest as f64;
        }
    }

    /// Time in seconds, if `processes` processes issue their requests one after another.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn seconds(&self, processes: u64) -> f64 {
        let busiest = self.load_ps.iter().copied().fold(0.0, f64::max);
        debug_assert!(self.load_ps.iter().all(|load| load.is_finite()), "work has a length");
        busiest.max(self.latency_ps / processes.max(1) as f64) * 1e-12
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::{Network, Server};
    use halocline_model::profile::{DeviceProfile, ServiceProfile};
    use halocline_trace::Op;

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
        assert_eq!((cost.load_ps.as_slice(), cost.latency_ps), ([1e4, 1500.0].as_slice(), 1e4));
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
        assert_eq!(cost(vec![0, 100]), (vec![0.0, 1000.0], 100.0 + 100.0 + 5.0 + 1000.0));
        assert_eq!(cost(vec![100, 0]), (vec![8000.0, 0.0], 1000.0 + 100.0 + 500.0 + 8000.0));
    }
}
