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
        let network = servers.network();
        for request in requests {
            let mut slowest = 0u64;
            layout.pieces(request.offset, request.offset + request.length, |piece| {
                let service = servers.all()[piece.server].profile.of(direction(request.op));
                let device = service_ps(service, request.sequential, piece.length);
                let transfer = network.per_byte_ps.saturating_mul(piece.length);
                slowest = slowest.max(device.saturating_add(transfer));
                let channels = f64::from(servers.all()[piece.server].channels.max(1));
                let work = (device as f64 / channels).max(transfer as f64);
                self.load_ps[piece.server] += request.weight * work;
            });
            self.latency_ps += request.weight * (slowest.saturating_add(network.connect_ps)) as f64;
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
        };
        let all = vec![server("disk", service(1000, 10)), server("ssd", service(100, 1))];
        let servers = Servers::new(all, Network::default()).expect("servers");
        let mut cost = Cost::none(2);
        let request =
            Weighted { offset: 0, length: 300, op: Op::Read, sequential: false, weight: 5.0 };
        cost.add(&servers, &Layout::simple(vec![100, 200]), [&request]);
        assert_eq!((cost.load_ps.as_slice(), cost.latency_ps), ([1e4, 1500.0].as_slice(), 1e4));
        assert!((cost.seconds(1) - 1e-8).abs() < 1e-20 && (cost.seconds(4) - 1e-8).abs() < 1e-20);
    }
}
