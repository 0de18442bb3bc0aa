//! What nodes that write one file ask the store of tokens, by the real rules of tokens
//! ([`halocline_model::token`]): one node after the other makes its next request, and who is in the way gives up at once.
//!
//! Left out is what only happens at once: two nodes that compute a change from the same value, of which one begins anew,
//! and waiting. So these are the fewest requests that can be. What a node gives up is what its agent would: all behind
//! or before what it used, up to the roundest number between; in a contended region all of the region.

use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{
    Answer, Demand, Epoch, Held, Members, Mode, REGION, Session, Tokens, border,
};

/// Which bytes of the file a node writes, one rank on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Each node has a file of its own.
    FilePerProcess,
    /// Each node has a part of one file, in ascending order.
    Segmented,
    /// Each node has every n-th request of one file, n being the number of nodes.
    Strided,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writes {
    /// By whom.
    pub pattern: Pattern,
    /// Nodes.
    pub nodes: u32,
    /// Requests of each.
    pub requests: u32,
    /// Bytes of one.
    pub request_bytes: u64,
    /// Time between two requests of one node, in milliseconds.
    pub pause_ms: u64,
}

/// What it takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// Requests of the nodes in all.
    pub requests: u64,
    /// Requests to the store in all, without those of leases.
    pub store_requests: u64,
    /// Those of the node that asked most.
    pub most_of_a_node: u64,
    /// Requests to the store until each node had its first token.
    pub opening: u64,
    /// Ranges that were given up for others.
    pub handovers: u64,
    /// The share of requests under a token that lets the node cache.
    pub cached: f64,
    /// Tokens of the file at the end; of a file for each process, one.
    pub tokens: u64,
}

/// Attempts of one request; more are a fault of the rules here.
const ATTEMPTS: u32 = 10_000;
/// All of a file.
const ALL: ByteRange = ByteRange::new(0, u64::MAX);

#[derive(Default)]
struct Node {
    /// What it holds by what it knows, which is what the store knows.
    held: Vec<Held>,
    /// The bytes that it used of what it may cache.
    used: Option<ByteRange>,
    /// The version of the file's value that it knows.
    version: u64,
    asked: u64,
}

struct World {
    tokens: Tokens,
    members: Members,
    epoch: Epoch,
    now_ms: u64,
    nodes: Vec<Node>,
    handovers: u64,
}

/// Simulates it. The same writes give the same traffic.
///
/// # Panics
/// If there are no nodes or requests, or if the rules of tokens let nobody go on.
#[must_use]
pub fn token_traffic(writes: Writes) -> Traffic {
    assert!(writes.nodes > 0 && writes.requests > 0 && writes.request_bytes > 0);
    let all = u64::from(writes.nodes);
    if writes.pattern == Pattern::FilePerProcess {
        let one = run(Writes { pattern: Pattern::Segmented, nodes: 1, ..writes });
        return Traffic {
            requests: one.requests * all,
            store_requests: one.store_requests * all,
            opening: one.opening * all,
            ..one
        };
    }
    run(writes)
}

fn run(writes: Writes) -> Traffic {
    let epoch = Epoch(1);
    let mut members = Members::default();
    let sessions: Vec<Session> = (1..=u64::from(writes.nodes)).map(Session).collect();
    for session in &sessions {
        members.join(*session, epoch);
    }
    members.confirm(epoch, &sessions).expect("all have said what they hold");
    let nodes = sessions.iter().map(|_| Node::default()).collect();
    let (tokens, now_ms, handovers) = (Tokens::new(epoch), 0, 0);
    let mut world = World { tokens, members, epoch, now_ms, nodes, handovers };
    let (mut cached, mut opening) = (0_u64, 0);
    for request in 0..writes.requests {
        for node in 0..writes.nodes {
            cached += u64::from(world.write(node as usize, range(writes, node, request)));
        }
        world.now_ms += writes.pause_ms;
        if request == 0 {
            opening = world.nodes.iter().map(|node| node.asked).sum();
        }
    }
    let requests = u64::from(writes.nodes) * u64::from(writes.requests);
    Traffic {
        requests,
        store_requests: world.nodes.iter().map(|node| node.asked).sum(),
        most_of_a_node: world.nodes.iter().map(|node| node.asked).max().unwrap_or(0),
        opening,
        handovers: world.handovers,
        cached: share(cached, requests),
        tokens: world.tokens.all().len() as u64,
    }
}

/// Which bytes a request is about.
fn range(writes: Writes, node: u32, request: u32) -> ByteRange {
    let (node, request) = (u64::from(node), u64::from(request));
    let number = match writes.pattern {
        Pattern::Strided => request * u64::from(writes.nodes) + node,
        _ => node * u64::from(writes.requests) + request,
    };
    ByteRange::at(number * writes.request_bytes, writes.request_bytes)
}

impl World {
    /// One write; whether it may be cached.
    fn write(&mut self, at: usize, required: ByteRange) -> bool {
        for _ in 0..ATTEMPTS {
            if let Some(mode) = self.mode(at, required) {
                let node = &mut self.nodes[at];
                if mode.caches() {
                    node.used = Some(node.used.map_or(required, |used| span(used, required)));
                }
                return mode.caches();
            }
            self.ask(at, required);
        }
        unreachable!("who is in the way gives up at once");
    }

    /// Under which token a node may write all of a range.
    fn mode(&self, at: usize, range: ByteRange) -> Option<Mode> {
        let may = |held: &&Held| held.mode.allows(Direction::Write) && held.range.contains(range);
        self.nodes[at].held.iter().find(may).map(|held| held.mode)
    }

    fn ask(&mut self, at: usize, required: ByteRange) {
        let session = Session(at as u64 + 1);
        let demand = Demand { direction: Direction::Write, required, desired: ALL, alone: false };
        self.swap(at);
        let epoch = (self.epoch, &self.members);
        match self.tokens.ask(session, demand, epoch, self.now_ms) {
            Answer::Granted(held) => {
                let node = &mut self.nodes[at];
                let is_kept = |used: &ByteRange| {
                    held.iter().any(|held| held.mode.caches() && held.range.overlaps(*used))
                };
                node.used = node.used.filter(is_kept);
                node.held = held;
            }
            Answer::Waits(_) => {
                let in_the_way = self.tokens.in_the_way_of(session);
                // One message to each.
                self.nodes[at].asked += in_the_way.len() as u64;
                for holder in in_the_way {
                    self.give(usize::try_from(holder.0 - 1).unwrap_or(usize::MAX));
                }
                // It looks when it is told.
                self.nodes[at].asked += 1;
                self.nodes[at].version = self.tokens.version;
            }
            Answer::Lost(held) | Answer::Unreadable(held) => {
                unreachable!("nobody dies: {held:?}")
            }
        }
        self.nodes[at].version = self.tokens.version;
    }

    /// A change of the value: one request if the node knows it, otherwise another one that says what it is.
    fn swap(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.asked += 1 + u64::from(node.version != self.tokens.version);
    }

    /// A node gives up what others wait for.
    fn give(&mut self, at: usize) {
        let session = Session(at as u64 + 1);
        // It reads what is wanted of it, and once more that nothing is.
        self.nodes[at].asked += 1;
        self.nodes[at].version = self.tokens.version;
        while let Some((wanted, keep)) = self.tokens.wanted_from(session) {
            let contended = self.tokens.is_contended(wanted, self.now_ms);
            let range = self.to_give(at, wanted, contended);
            self.swap(at);
            self.tokens.give_up(session, range, keep, self.epoch);
            self.handovers += 1;
            let node = &mut self.nodes[at];
            node.held = self.tokens.of(session);
            node.version = self.tokens.version;
            // It tells those who wait, and looks again.
            node.asked += 2;
        }
    }

    fn to_give(&self, at: usize, wanted: ByteRange, contended: bool) -> ByteRange {
        let node = &self.nodes[at];
        let piece = node.held.iter().find(|held| held.range.contains(wanted));
        let Some(piece) = piece else { return wanted };
        let within = |range: ByteRange| range.intersect(piece.range).unwrap_or(wanted);
        match node.used.and_then(|used| used.intersect(piece.range)) {
            _ if contended => within(wanted.widen_to(REGION)),
            None => piece.range,
            Some(used) if wanted.start >= used.end => {
                within(ByteRange::new(border(used.end, wanted.start), u64::MAX))
            }
            Some(used) if wanted.end <= used.start => {
                within(ByteRange::new(0, border(wanted.end, used.start)))
            }
            Some(_) => wanted,
        }
    }
}

fn span(one: ByteRange, other: ByteRange) -> ByteRange {
    ByteRange::new(one.start.min(other.start), one.end.max(other.end))
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
const fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(pattern: Pattern, nodes: u32) -> Traffic {
        let (requests, request_bytes, pause_ms) = (256, 8 << 10, 1);
        token_traffic(Writes { pattern, nodes, requests, request_bytes, pause_ms })
    }

    #[test]
    fn a_file_that_nobody_else_uses_takes_one_request() {
        for nodes in [1, 4, 10_000] {
            let found = traffic(Pattern::FilePerProcess, nodes);
            assert_eq!(found.store_requests, u64::from(nodes));
            assert_eq!((found.opening, found.handovers), (u64::from(nodes), 0));
            assert!((found.cached - 1.0).abs() < 1e-9);
        }
        assert_eq!(traffic(Pattern::Segmented, 1).store_requests, 1);
    }

    #[test]
    fn segments_are_found_out_and_then_kept() {
        for nodes in [2, 4, 16, 64] {
            let found = traffic(Pattern::Segmented, nodes);
            assert_eq!(found.tokens, u64::from(nodes), "{found:?}");
            assert!(found.cached > 0.99, "{found:?}");
            assert!(found.store_requests < 30 * u64::from(nodes), "{found:?}");
        }
    }

    /// Beyond 1024 tokens a file counts as contended.
    #[test]
    fn a_file_with_too_many_holders_is_not_cached() {
        let (requests, request_bytes, pause_ms) = (2, 64 << 20, 1);
        let of = |nodes| {
            let pattern = Pattern::Segmented;
            token_traffic(Writes { pattern, nodes, requests, request_bytes, pause_ms }).cached
        };
        assert!(of(400) > 0.99, "{}", of(400));
        assert!(of(1200) < 0.95, "{}", of(1200));
    }

    #[test]
    fn what_is_finely_interleaved_ends_on_the_origin_itself() {
        let found = traffic(Pattern::Strided, 4);
        assert!(found.cached < 0.5 && found.handovers >= 24, "{found:?}");
        let per_request = share(found.store_requests, found.requests);
        assert!(per_request < 1.0, "{found:?}");
        assert_eq!(found, traffic(Pattern::Strided, 4));
    }
}
