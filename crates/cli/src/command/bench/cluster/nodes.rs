//! The nodes of a run: mounts in this process, each with a cache of its own.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use halocline_api::config::Config;
use halocline_api::control::{Controlled, Report, RequestTotals};
use halocline_cache::ExtentEngine;
use halocline_cache::coherence::Coherence;
use halocline_cluster::agent::Agent;
use halocline_cluster::counters::Counts;
use halocline_os::error::{Error, Result};

use super::super::case::in_background;
use super::super::scratch;
use super::super::store_server::Server;
use super::super::worker_processes::Watch;
use crate::cluster::{self, Who};
use crate::failure::Failure;
use crate::host::Host;
use crate::mount_paths::MountPaths;
use crate::open_engine;
use crate::text;

/// Mounts that are being served.
pub(super) struct Nodes(Vec<Node>);

struct Node {
    engine: Arc<ExtentEngine>,
    agent: Option<Arc<Agent>>,
    host: Host<ExtentEngine>,
}

impl Nodes {
    /// Mounts at all places, as nodes of one cluster if there is a store. They share one emulated origin.
    pub(super) fn start(
        places: &scratch::Nodes,
        config: &Config,
        store: Option<&Server>,
    ) -> Result<Self, Failure> {
        let mut nodes = Self(Vec::new());
        for paths in &places.mounts {
            let name = format!("node-{}", nodes.0.len() + 1);
            match Node::start((paths, places), config, store.map(|store| (store, name))) {
                Ok(node) => nodes.0.push(node),
                Err(failure) => {
                    // What is reported is why not all could be mounted.
                    let _ = nodes.finish(false);
                    return Err(failure);
                }
            }
        }
        Ok(nodes)
    }

    /// What has been done so far.
    pub(super) fn state(&self) -> State {
        self.0.iter().fold(State::default(), State::plus)
    }

    /// Brings everything to the origin, on all nodes at once; returns how much.
    pub(super) fn flush(&self, watch: &mut impl Watch) -> Result<u64, Failure> {
        let engines: Vec<_> = self.0.iter().map(|node| Arc::clone(&node.engine)).collect();
        let (bytes, left) = in_background(watch, move |stop| flush_all(&engines, stop))?;
        if left > 0 {
            return Err(Failure::failed(format!("{} could not be flushed", text::bytes(left))));
        }
        Ok(bytes)
    }

    /// Unmounts all; dirty data is flushed first if that still matters.
    pub(super) fn finish(self, go_on: bool) -> Result<Vec<Report>, Failure> {
        let flow = move || if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let ended: Vec<_> =
            self.0.into_iter().map(|node| node.host.finish_with_report(|_| flow())).collect();
        let reports: Result<Vec<_>> = ended.into_iter().collect();
        Ok(reports?.into_iter().map(|(report, _)| report).collect())
    }
}

fn flush_all(engines: &[Arc<ExtentEngine>], stop: &AtomicBool) -> Result<(u64, u64)> {
    let go_on = |_| {
        let stopped = stop.load(Ordering::Relaxed);
        if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let flush = |engine: &ExtentEngine| Controlled::flush(engine, None, false, &mut { go_on });
    thread::scope(|scope| {
        let threads: Vec<_> =
            engines.iter().map(|engine| scope.spawn(move || flush(engine))).collect();
        let mut sum = (0, 0);
        for thread in threads {
            let report = thread.join().map_err(|_| died())??;
            sum = (sum.0 + report.bytes, sum.1 + report.left_bytes);
        }
        Ok(sum)
    })
}

fn died() -> Error {
    Error::invalid("a thread of the benchmark died", "report what it printed")
}

impl Node {
    fn start(
        (paths, places): (&MountPaths, &scratch::Nodes),
        config: &Config,
        cluster: Option<(&Server, String)>,
    ) -> Result<Self, Failure> {
        let claim = open_engine::claim(paths, config, cluster.is_none())
            .map_err(|taken| Failure::refused(Error::from(taken)))?;
        let dirs = (paths.origin.as_path(), paths.cache.as_path());
        let begin = |(store, node): (&Server, String)| {
            // The caches are in places that all nodes reach.
            let who = Who { node, peers: Some("{cache}".to_owned()) };
            cluster::begin(store.address(), who, dirs, config)
        };
        let agent = cluster.map(begin);
        let agent = agent.transpose().map_err(Failure::refused)?.map(Arc::new);
        let coherence = agent.clone().map(|agent| agent as Arc<dyn Coherence>);
        let devices = Some(places.devices.as_path());
        let engine = open_engine::open_beside(paths, config, coherence.as_ref(), devices);
        let engine = Arc::new(engine.map_err(Failure::refused)?);
        let host = Host::start((Arc::clone(&engine), claim), config, (paths, None), false)?;
        Ok(Self { engine, agent, host })
    }
}

/// What all nodes together have done so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    pub(super) read: RequestTotals,
    pub(super) write: RequestTotals,
    pub(super) ssd_bytes_written: u64,
    /// Empty without a cluster.
    pub(super) counts: Counts,
}

impl State {
    fn plus(self, node: &Node) -> Self {
        let report = node.engine.report();
        let counts = node.agent.as_ref().map(|agent| agent.counts()).unwrap_or_default();
        let peers = report.cluster.unwrap_or_default();
        let sum = |one: RequestTotals, other: RequestTotals| RequestTotals {
            requests: one.requests + other.requests,
            bytes: one.bytes + other.bytes,
            cache_requests: one.cache_requests + other.cache_requests,
            cache_bytes: one.cache_bytes + other.cache_bytes,
        };
        let so_far = self.counts;
        Self {
            read: sum(self.read, report.read),
            write: sum(self.write, report.write),
            ssd_bytes_written: self.ssd_bytes_written + report.ssd_bytes_written,
            counts: Counts {
                waits: so_far.waits + counts.waits,
                waited_us: so_far.waited_us + counts.waited_us,
                asked: so_far.asked + counts.asked,
                handovers: so_far.handovers + counts.handovers,
                direct: so_far.direct + counts.direct,
                round_trips: so_far.round_trips + counts.round_trips,
                peer_bytes: so_far.peer_bytes + peers.peer_bytes,
                peer_failures: so_far.peer_failures + peers.peer_failures,
                ..Counts::default()
            },
        }
    }
}
