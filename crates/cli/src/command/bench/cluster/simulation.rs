//! Token traffic carried to thousands of nodes: the rules of tokens say how often nodes ask, the server's processor time
//! for a request is measured here.

use std::fmt::Write as _;
use std::time::Duration;

use halocline_cache::coherence::SharedFile;
use halocline_cluster::store::redis::RedisStore;
use halocline_cluster::store::{Store, StoreError, Swap};
use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Demand, Epoch, Session, Tokens};
use halocline_sim::store_load::PARTS;
use halocline_sim::token_traffic::{self, Traffic, Writes, token_traffic};
use serde::Serialize;

use super::super::store_server::Server;
use super::super::workload::Shape;
use super::record::{Pattern, Run, Setup};
use crate::failure::Failure;
use crate::text;

/// What the benchmark's tokens are called in the store.
const ORIGIN: &str = "bench-simulation";
/// Requests by which the server's time for a request is measured, and those with a large value.
const REQUESTS: u32 = 2000;
/// See [`REQUESTS`].
const LARGE_REQUESTS: u32 = 200;
/// Tokens of a large value.
const TOKENS: u32 = 1000;
/// Nodes that are simulated, and those of a small run.
const NODES: [u32; 6] = [64, 512, 1000, 2000, 4000, 10_000];
/// See [`NODES`].
const QUICK_NODES: [u32; 2] = [16, 64];
/// The most that are simulated where all share a file: from 1024 tokens on nobody caches it any more, and each request
/// looks at all tokens, so that more take minutes.
const SHARING_MAX: u32 = 2000;
/// Requests of each simulated node: enough for it to find out where its part is.
const NODE_REQUESTS: u32 = 4;
/// Bytes of one where each node has a part of the file.
const PART_REQUEST_BYTES: u64 = 8 << 20;
/// Between two requests of a node, in milliseconds.
const PAUSE_MS: u64 = 1;
/// A node renews its lease this often.
const RENEWAL: Duration = Duration::from_secs(10);

/// What was simulated.
#[derive(Debug, Serialize)]
pub(super) struct Simulation {
    /// The server's time for a change of a value with one token, and for each token more.
    request_us: f64,
    token_us: f64,
    renewal_us: f64,
    points: Vec<Point>,
    rows: Vec<Row>,
}

/// A case that was measured.
#[derive(Debug, Serialize)]
struct Point {
    pattern: Pattern,
    nodes: u32,
    /// With those of leases.
    measured_per_request: f64,
    simulated_per_request: f64,
}

/// One that was not.
#[derive(Debug, Serialize)]
struct Row {
    pattern: Pattern,
    nodes: u32,
    store_requests_per_node: f64,
    handovers: u64,
    cached: f64,
    tokens: u64,
    /// How long the busiest master works until each node has its first token.
    opening_seconds: f64,
    /// The share of one master's time that all leases take.
    lease_share: f64,
}

/// Simulates what `runs` measured, and what they could not. The server is the benchmark's own.
///
/// # Errors
/// If the store does not answer, or the system does not say how long it worked.
pub(super) fn simulate(
    server: &Server,
    (runs, shape, data): (&[Run], &Shape, u64),
    is_quick: bool,
) -> Result<Simulation, Failure> {
    let (request_us, token_us, renewal_us) = service_times(server)?;
    let requests = data / shape.request_size;
    let point = |run: &Run| {
        let (pattern, nodes) = (run.key.pattern, run.key.nodes);
        let of_node = u32::try_from(requests / u64::from(nodes)).unwrap_or(u32::MAX).max(1);
        let traffic = traffic(pattern, (nodes, of_node), shape.request_size);
        let measured = run.phase("write")?.store_operations_per_request;
        let simulated_per_request = ratio(traffic.store_requests, traffic.requests);
        Some(Point { pattern, nodes, measured_per_request: measured, simulated_per_request })
    };
    let clusters = runs.iter().filter(|run| run.key.setup == Setup::Cluster);
    let points = clusters.filter_map(point).collect();
    let nodes = if is_quick { &QUICK_NODES[..] } else { &NODES };
    let patterns = [Pattern::FilePerProcess, Pattern::Segmented, Pattern::Strided];
    let row = |pattern, nodes| {
        let request_bytes = match pattern {
            Pattern::Strided => shape.request_size,
            Pattern::Segmented | Pattern::FilePerProcess => PART_REQUEST_BYTES,
        };
        let traffic = traffic(pattern, (nodes, NODE_REQUESTS), request_bytes);
        // Files are spread over all masters; one file is on one, and its value grows with each token.
        let (masters, grown) = match pattern {
            Pattern::FilePerProcess => (f64::from(PARTS.min(nodes)), 0.0),
            Pattern::Segmented | Pattern::Strided => (1.0, as_number(traffic.tokens) / 2.0),
        };
        let each = (request_us + token_us * grown) / 1e6;
        Row {
            pattern,
            nodes,
            store_requests_per_node: ratio(traffic.store_requests, u64::from(nodes)),
            handovers: traffic.handovers,
            cached: traffic.cached,
            tokens: traffic.tokens,
            opening_seconds: as_number(traffic.opening) * each / masters,
            lease_share: f64::from(nodes) * renewal_us / 1e6 / RENEWAL.as_secs_f64(),
        }
    };
    let cases = patterns.iter().flat_map(|pattern| nodes.iter().map(|nodes| (*pattern, *nodes)));
    let is_simulated =
        |case: &(Pattern, u32)| case.0 == Pattern::FilePerProcess || case.1 <= SHARING_MAX;
    let rows = cases.filter(is_simulated).map(|(pattern, nodes)| row(pattern, nodes)).collect();
    Ok(Simulation { request_us, token_us, renewal_us, points, rows })
}

fn traffic(pattern: Pattern, (nodes, requests): (u32, u32), request_bytes: u64) -> Traffic {
    let pattern = match pattern {
        Pattern::FilePerProcess => token_traffic::Pattern::FilePerProcess,
        Pattern::Segmented => token_traffic::Pattern::Segmented,
        Pattern::Strided => token_traffic::Pattern::Strided,
    };
    token_traffic(Writes { pattern, nodes, requests, request_bytes, pause_ms: PAUSE_MS })
}

/// Microseconds of the server's thread: for a change of a value with one token, for each token more, and for a renewal.
fn service_times(server: &Server) -> Result<(f64, f64, f64), Failure> {
    let (url, password) = server.address();
    let store = RedisStore::connect(url, password, ORIGIN).map_err(failed)?;
    let file = SharedFile { inode: 1, born_ns: 0 };
    let epoch = store.roll().map_err(failed)?.partitions[store.partition(file)];
    let members = store.roll().map_err(failed)?.members;
    let worked = || {
        server.worked().ok_or_else(|| {
            Failure::failed(
                "the system does not tell how long the server worked (/proc/PID/schedstat): nothing can be simulated \
                 from it",
            )
        })
    };
    let timed = |count: u32, request: &mut dyn FnMut() -> Result<(), StoreError>| {
        let before = worked()?;
        for _ in 0..count {
            request().map_err(failed)?;
        }
        let us = worked()?.saturating_sub(before).as_secs_f64() * 1e6;
        Ok::<f64, Failure>(us / f64::from(count))
    };
    let mut version = 0;
    let mut tokens = Tokens::new(epoch);
    let mut swap = |tokens: &mut Tokens| {
        tokens.version = version + 1;
        match store.swap(file, version, tokens)? {
            Swap::Taken => version += 1,
            Swap::Other(_) => {
                return Err(StoreError::Unsound("somebody else uses the store".to_owned()));
            }
        }
        Ok(())
    };
    // Connects, and sends the script.
    swap(&mut tokens).map_err(failed)?;
    let ask = |tokens: &mut Tokens, session: u32| {
        let range = ByteRange::at(u64::from(session) << 20, 1 << 20);
        let demand =
            Demand { direction: Direction::Write, required: range, desired: range, alone: false };
        let _ = tokens.ask(Session(u64::from(session)), demand, (epoch, &members), 0);
    };
    ask(&mut tokens, 1);
    let request_us = timed(REQUESTS, &mut || swap(&mut tokens))?;
    (2..=TOKENS).for_each(|session| ask(&mut tokens, session));
    let large_us = timed(LARGE_REQUESTS, &mut || swap(&mut tokens))?;
    let token_us = ((large_us - request_us) / f64::from(TOKENS)).max(0.0);
    let whole = store.roll().map_err(failed)?.epoch;
    let renewal_us = timed(REQUESTS, &mut || renew(&store, whole))?;
    Ok((request_us, token_us, renewal_us))
}

fn renew(store: &RedisStore, epoch: Epoch) -> Result<(), StoreError> {
    // Of a session that has none: the script looks for it all the same.
    store.renew(Session(1), epoch, 30_000).map(drop)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(error.to_string())
}

#[expect(clippy::cast_precision_loss, reason = "counts for people")]
const fn as_number(count: u64) -> f64 {
    count as f64
}

fn ratio(part: u64, whole: u64) -> f64 {
    as_number(part) / as_number(whole.max(1))
}

/// For people.
pub(super) fn told(simulation: &Simulation) -> String {
    let Simulation { request_us, token_us, renewal_us, points, rows } = simulation;
    let mut out = format!(
        "SIMULATED, one node after the other, so the fewest requests that can be; {request_us:.1} us of the server for a \
         request and {token_us:.3} us for each token of the file, {renewal_us:.1} us to renew a lease\n"
    );
    for point in points {
        let Point { pattern, nodes, measured_per_request, simulated_per_request } = point;
        let _ = writeln!(
            out,
            "{:<17}{nodes:>7}: {measured_per_request:.5} store requests for a write measured, with leases; \
             {simulated_per_request:.5} simulated",
            pattern.text()
        );
    }
    let _ = writeln!(
        out,
        "{:<17}{:>7}{:>15}{:>11}{:>9}{:>9}{:>17}{:>9}",
        "pattern", "nodes", "store requests", "handovers", "cached", "tokens", "opening", "leases",
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<17}{:>7}{:>15}{:>11}{:>9}{:>9}{:>17}{:>9}",
            row.pattern.text(),
            row.nodes,
            format!("{:.1} a node", row.store_requests_per_node),
            row.handovers,
            format!("{:.0} %", 100.0 * row.cached),
            row.tokens,
            format!("{:.3} s", row.opening_seconds),
            text::percent(row.lease_share),
        );
    }
    out
}
