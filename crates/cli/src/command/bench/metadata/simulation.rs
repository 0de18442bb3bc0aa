//! Measured service times of creates carried to thousands of nodes: first the measured points, then what cannot be
//! measured here.
//!
//! Three figures come from this machine: the processor time of a create in the client (without its polling for answers)
//! and in the server, which were measured with each number of clients, and how long a thread takes to wake up, from what
//! else the fewest clients' creates took. How much creates differ is taken from those of the fewest clients, too. With
//! those the simulation of this machine must reproduce all measured points. Nodes that it cannot have differ in this:
//! each has a processor, each master has one, and a network is between them. Their processor times are those with the
//! most clients, when the server is never idle.

use std::fmt::Write as _;

use halocline_sim::store_load::{
    PARTS, Processors, ServiceTimes, Spread, StoreLoad, StoreOutcome, varied_store_load,
};
use serde::Serialize;

use super::super::store_server::ProcessorSplit;
use super::row::Row;
use crate::failure::Failure;

/// How far a simulated point may be from the measured one.
const DEVIATION_MAX: f64 = 0.1;
/// Creates of each simulated client at a point that was measured: few of the measured ones are many times as long as the
/// others, and all kinds must be drawn in their proportion.
const POINT_REQUESTS: u32 = 20_000;
/// Creates of each simulated client, and of all together: many clients come to their pace soon.
const REQUESTS: u32 = 300;
/// See [`REQUESTS`].
const REQUESTS_OF_ALL: u32 = 100_000;
/// Of everything that is random.
const SEED: u64 = 1;
/// Nodes that are simulated; the paper had 512.
const NODES: [u32; 7] = [1, 8, 64, 512, 1000, 4000, 10_000];
/// Creates a second on 512 nodes in the paper, Fig. 10.
const PAPER: (u32, f64) = (512, 509_022.0);

/// What was simulated.
#[derive(Debug, Serialize)]
pub(super) struct Simulation {
    client_us: f64,
    master_us: f64,
    wake_us: f64,
    network_us: f64,
    points: Vec<Point>,
    /// The farthest that a point is from the measured one.
    deviation: f64,
    is_met: bool,
    rows: Vec<SimulatedRow>,
}

/// A point that was measured.
#[derive(Debug, Serialize)]
struct Point {
    clients: u32,
    client_us: f64,
    master_us: f64,
    measured_per_second: f64,
    simulated_per_second: f64,
}

/// One that was not.
#[derive(Debug, Serialize)]
struct SimulatedRow {
    nodes: u32,
    masters: u32,
    directories: &'static str,
    per_second: f64,
    mean_ms: f64,
    busiest_master: f64,
}

/// The processors of this machine as they were measured: one for the server and some for the load, or all for both.
pub(super) fn processors(split: Option<&ProcessorSplit>, cpus: usize) -> Processors {
    let count = |cpus: usize| u32::try_from(cpus).unwrap_or(u32::MAX);
    split.map_or_else(
        || Processors::Shared(count(cpus)),
        |split| Processors::Apart(count(split.numbers()[1].len())),
    )
}

/// Simulates from the rows of creates in own directories, which were measured on `processors`. `network_us` is a round
/// trip's.
///
/// # Errors
/// If they do not say how long a create took whom.
pub(super) fn simulate(
    rows: &[Row],
    processors: Processors,
    network_us: u32,
) -> Result<Simulation, Failure> {
    let creates: Vec<&Row> =
        rows.iter().filter(|row| (row.operation, row.directories) == ("create", "own")).collect();
    let fewest = creates.iter().min_by_key(|row| row.clients);
    let most = creates.iter().max_by_key(|row| row.clients);
    let (Some(fewest), Some(most)) = (fewest, most) else {
        return Err(Failure::failed("nothing was measured to simulate from"));
    };
    // Two threads wake up for each create of a client that is alone; of several, processors may be the limit instead.
    let alone_us = f64::from(fewest.clients) * 1e6 / fewest.per_second;
    let (client_us, master_us) = worked(fewest)?;
    let wake_us = ((alone_us - client_us - master_us) / 2.0).max(0.0);
    let times_of = |row: &Row| {
        let (of_client, of_master) = worked(row)?;
        Ok::<_, Failure>(ServiceTimes {
            client_ns: nanoseconds(of_client),
            master_ns: nanoseconds(of_master),
            wake_ns: nanoseconds(wake_us),
            network_ns: 0,
        })
    };
    let factors = factors(&fewest.took_ns);
    let point = |row: &&Row| {
        let (clients, spread, times) = (row.clients, Spread::OwnParts, times_of(row)?);
        let requests = POINT_REQUESTS;
        let load = StoreLoad { clients, masters: 1, processors, spread, times, requests };
        Ok::<_, Failure>(Point {
            clients,
            client_us: worked(row)?.0,
            master_us: worked(row)?.1,
            measured_per_second: row.per_second,
            simulated_per_second: varied_store_load(load, &factors, SEED).per_second,
        })
    };
    let points: Vec<Point> = creates.iter().map(point).collect::<Result<_, _>>()?;
    let ((client_us, master_us), times) = (worked(most)?, times_of(most)?);
    let away = |point: &Point| (point.simulated_per_second / point.measured_per_second - 1.0).abs();
    let deviation = points.iter().map(away).fold(0.0, f64::max);
    let apart = ServiceTimes { network_ns: u64::from(network_us) * 500, ..times };
    Ok(Simulation {
        client_us,
        master_us,
        wake_us,
        network_us: f64::from(network_us),
        points,
        deviation,
        is_met: deviation <= DEVIATION_MAX,
        rows: NODES.iter().flat_map(|nodes| nodes_rows(*nodes, apart, &factors)).collect(),
    })
}

/// Microseconds of processor time that a create took its client, but for polling, and the server.
fn worked(row: &Row) -> Result<(f64, f64), Failure> {
    let Some(master_us) = row.server_us_per_operation else {
        return Err(Failure::failed(
            "the system does not tell how long the server worked (/proc/PID/schedstat): nothing can be simulated from it",
        ));
    };
    Ok(((row.client_us_per_operation - row.polled_us_per_operation).max(0.0), master_us))
}

/// How many times as long as the mean each create took.
fn factors(took_ns: &[u64]) -> Vec<f64> {
    let mean =
        took_ns.iter().map(|ns| as_number(*ns)).sum::<f64>() / as_number(took_ns.len() as u64);
    if mean > 0.0 { took_ns.iter().map(|ns| as_number(*ns) / mean).collect() } else { vec![1.0] }
}

#[expect(clippy::cast_precision_loss, reason = "times of a benchmark")]
const fn as_number(value: u64) -> f64 {
    value as f64
}

/// What so many nodes do, each in its own directory over more and more masters, and all in one.
fn nodes_rows(nodes: u32, times: ServiceTimes, factors: &[f64]) -> Vec<SimulatedRow> {
    let cases = [
        (Spread::OwnParts, "own", 1),
        (Spread::OwnParts, "own", 8),
        (Spread::OwnParts, "own", PARTS),
        (Spread::OnePart, "one", PARTS),
    ];
    let row = |(spread, directories, masters)| {
        let (clients, processors) = (nodes, Processors::Own);
        let requests = (REQUESTS_OF_ALL / nodes).clamp(10, REQUESTS);
        let load = StoreLoad { clients, masters, processors, spread, times, requests };
        let StoreOutcome { per_second, mean_ns, busiest } = varied_store_load(load, factors, SEED);
        SimulatedRow {
            nodes,
            masters,
            directories,
            per_second,
            mean_ms: mean_ns / 1e6,
            busiest_master: busiest,
        }
    };
    cases.map(row).into()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "short times, above 0")]
fn nanoseconds(us: f64) -> u64 {
    (us.max(0.0) * 1e3).round() as u64
}

/// For people.
pub(super) fn told(simulation: &Simulation) -> String {
    let Simulation { client_us, master_us, wake_us, network_us, .. } = simulation;
    let mut out = format!(
        "SIMULATED from the processor time of a create in client and server, and {wake_us:.1} us until a thread runs:\n"
    );
    for point in &simulation.points {
        let Point { clients, client_us, master_us, measured_per_second, simulated_per_second } =
            point;
        let ratio = simulated_per_second / measured_per_second;
        let _ = writeln!(
            out,
            "{clients:>7} clients on this machine: {measured_per_second:.0} creates a second measured, \
             {simulated_per_second:.0} simulated ({ratio:.2}) from {client_us:.1} us and {master_us:.1} us"
        );
    }
    let met = if simulation.is_met { "met" } else { "missed: what follows is not backed" };
    let _ = writeln!(
        out,
        "the farthest point is {:.0} % away (target {:.0} %: {met})\n\
         nodes with a processor each, masters likewise, {client_us:.1} us and {master_us:.1} us, {network_us:.0} us for a \
         round trip; creates a second:\n\
         {:>7}{:>14}{:>14}{:>14}{:>18}{:>12}",
        simulation.deviation * 100.0,
        DEVIATION_MAX * 100.0,
        "nodes",
        "1 master",
        "8 masters",
        format!("{PARTS} masters"),
        "one directory",
        "the paper",
    );
    for nodes in NODES {
        let _ = write!(out, "{nodes:>7}");
        for (row, width) in
            simulation.rows.iter().filter(|row| row.nodes == nodes).zip([14, 14, 14, 18])
        {
            let _ = write!(out, "{:>width$.0}", row.per_second);
        }
        let paper = if nodes == PAPER.0 { format!("{:.0}", PAPER.1) } else { "-".to_owned() };
        let _ = writeln!(out, "{paper:>12}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const APART: Processors = Processors::Apart(1);

    fn row(clients: u32, per_second: f64, client_us_per_operation: f64) -> Row {
        Row {
            client_us_per_operation,
            server_us_per_operation: Some(35.0),
            ..Row::of_creates(clients, per_second)
        }
    }

    /// A processor for the server, 35 us for a create: 28,571 a second at most; one client also waits for two threads.
    #[test]
    fn points_are_reproduced_and_a_point_that_is_not_is_told() {
        let rows = [row(1, 14_400.0, 30.0), row(4, 27_400.0, 28.0), row(8, 28_100.0, 27.0)];
        let good = simulate(&rows, APART, 50).unwrap();
        assert!(good.is_met && (good.wake_us - 2.22).abs() < 0.1, "{good:?}");
        let told_good = told(&good);
        assert!(told_good.contains("SIMULATED") && told_good.contains("509022"), "{told_good}");
        let of = |nodes, masters, directories| {
            let is_it = |row: &&SimulatedRow| {
                (row.nodes, row.masters, row.directories) == (nodes, masters, directories)
            };
            good.rows.iter().find(is_it).unwrap().per_second
        };
        assert!((of(10_000, 1, "own") * 35e-6 - 1.0).abs() < 0.02, "the master is the limit");
        assert!(of(10_000, PARTS, "own") > 40.0 * of(10_000, 1, "own"));
        assert!((of(10_000, PARTS, "one") * 35e-6 - 1.0).abs() < 0.02, "wherever it lies");
        let bad = simulate(&[row(1, 14_400.0, 30.0), row(8, 40_000.0, 50.0)], APART, 50).unwrap();
        assert!(!bad.is_met && told(&bad).contains("not backed"));
        // A client that polls for its answers works no longer for that.
        let mut polling = rows;
        for row in &mut polling {
            row.client_us_per_operation += 30.0;
            row.polled_us_per_operation = 30.0;
        }
        let polled = simulate(&polling, APART, 50).unwrap();
        assert!(polled.is_met && (polled.wake_us - good.wake_us).abs() < 1e-6, "{polled:?}");
        let mut untold = row(1, 8700.0, 70.0);
        untold.server_us_per_operation = None;
        assert!(simulate(&[untold], APART, 50).is_err());
        assert!(simulate(&[], APART, 50).is_err());
    }
}
