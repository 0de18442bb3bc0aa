//! One server in the simulation: its device, and the network path to it.

use halocline_model::emulated::{Access, Mechanism};
use halocline_model::file_layout::stored_bytes;
use halocline_model::profile::whole;
use halocline_model::request::{ByteRange, Direction};

use super::link::Link;
use super::{ServerOutcome, seconds};
use crate::FileLayout;
use crate::servers::{Network, Server};

/// A server with its pending work. The inbound path (connections, written bytes) and the outbound path (read bytes) are
/// each used by one request at a time, in the order in which they reach it: requests come in as they are issued, and read
/// bytes leave as the device is done with them.
#[derive(Debug)]
pub(super) struct Station {
    device: Mechanism,
    network: Option<Network>,
    inbound: Link,
    outbound: Link,
    capacity: u64,
    held: u64,
    /// The same in whole blocks of each file.
    stored: u64,
    full_at_ns: Option<u64>,
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    busy_ns: u64,
    busy_until_ns: u64,
}

/// What is known of a part of a request when it is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// It completes then.
    Done(u64),
    /// The device has read it then; it is still to pass the way back.
    Leaves(u64),
}

/// When reading or writing `range` of a file that is laid out like that, issued at `now_ns`, completes: when the last of its
/// parts does.
pub(super) fn serve_all(
    stations: &mut [Station],
    (layout, inode): (&FileLayout, u64),
    now_ns: u64,
    range: ByteRange,
    direction: Direction,
) -> u64 {
    let mut done_ns = now_ns;
    layout.split(range, |server, local| {
        done_ns = done_ns.max(stations[server].serve(now_ns, inode, local, direction));
    });
    done_ns
}

impl Station {
    pub(super) fn new(server: &Server) -> Self {
        Self {
            device: server.profile.device(),
            network: (server.network != Network::default()).then_some(server.network),
            inbound: Link::default(),
            outbound: Link::default(),
            capacity: server.capacity,
            held: 0,
            stored: 0,
            full_at_ns: None,
            requests: 0,
            read_bytes: 0,
            written_bytes: 0,
            busy_ns: 0,
            busy_until_ns: 0,
        }
    }

    /// When the part of a request issued at `now_ns` completes, whatever is issued later.
    pub(super) fn serve(
        &mut self,
        now_ns: u64,
        inode: u64,
        local: ByteRange,
        direction: Direction,
    ) -> u64 {
        match self.begin(now_ns, inode, local, direction) {
            Begun::Done(done_ns) => done_ns,
            Begun::Leaves(read_ns) => self.leave(read_ns, local.len()),
        }
    }

    /// Serves the part of a request issued at `now_ns`, up to the way back.
    pub(super) fn begin(
        &mut self,
        now_ns: u64,
        inode: u64,
        local: ByteRange,
        direction: Direction,
    ) -> Begun {
        let len = local.len();
        self.requests += 1;
        match direction {
            Direction::Read => self.read_bytes = self.read_bytes.saturating_add(len),
            Direction::Write => self.written_bytes = self.written_bytes.saturating_add(len),
        }
        let access = Access { inode, offset: local.start, len, direction };
        let Some(network) = self.network else {
            return Begun::Done(self.on_device(now_ns, access));
        };
        let connect_ns = whole(network.connect_us * 1e3);
        let sent_ns = if direction == Direction::Write { network.transfer_ns(len) } else { 0 };
        let came_in_ns = connect_ns.saturating_add(sent_ns);
        let arrived_ns = self.inbound.pass(now_ns, came_in_ns);
        let done_ns = self.on_device(arrived_ns, access);
        if direction == Direction::Read && network.ns_per_byte > 0.0 {
            Begun::Leaves(done_ns)
        } else {
            Begun::Done(done_ns)
        }
    }

    /// When `len` bytes that the device has read at `read_ns` are at the process.
    pub(super) fn leave(&mut self, read_ns: u64, len: u64) -> u64 {
        let transfer_ns = self.network.map_or(0, |network| network.transfer_ns(len));
        self.outbound.pass(read_ns, transfer_ns)
    }

    fn on_device(&mut self, arrival_ns: u64, access: Access) -> u64 {
        let done_ns = self.device.serve(arrival_ns, access);
        // Time that overlaps earlier work was already counted.
        let busy_ns = done_ns.saturating_sub(arrival_ns.max(self.busy_until_ns));
        self.busy_ns = self.busy_ns.saturating_add(busy_ns);
        self.busy_until_ns = self.busy_until_ns.max(done_ns);
        done_ns
    }

    /// Holds `local`, at the end of what it has of a file, from `now_ns` on; times do not decrease.
    pub(super) fn hold(&mut self, local: ByteRange, now_ns: u64) {
        self.held = self.held.saturating_add(local.len());
        let more = stored_bytes(local.end).saturating_sub(stored_bytes(local.start));
        self.stored = self.stored.saturating_add(more);
        if self.stored > self.capacity {
            self.full_at_ns.get_or_insert(now_ns);
        }
    }

    pub(super) fn outcome(self, server: &Server, first_ns: u64) -> ServerOutcome {
        ServerOutcome {
            name: server.name.clone(),
            requests: self.requests,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            busy_seconds: seconds(self.busy_ns),
            held_bytes: self.held,
            full_at_seconds: self.full_at_ns.map(|at| seconds(at - first_ns)),
        }
    }
}
