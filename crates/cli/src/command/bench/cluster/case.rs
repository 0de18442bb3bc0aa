//! One pattern over one set of mounts: mount, phases, unmount, comparison of the origin.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use halocline_api::config::{Config, VolumeKind};
use halocline_model::request::Direction;
use halocline_os::error::Error;

use super::super::bare_origin::BareOrigin;
use super::super::case::room_for;
use super::super::scratch::{self, Scratch};
use super::super::store_server::Server;
use super::super::worker::{self, Job};
use super::super::worker_processes::{self, Watch};
use super::super::workload::{self, Instance, Shape, Workload};
use super::nodes::{Nodes, State};
use super::record::{Key, Pattern, Phase, Run, Setup, share};
use crate::failure::Failure;

/// The data is written once; a later generation would differ in every byte.
const GENERATION: u64 = 1;

/// One measurement.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) key: Key,
    pub(super) repetition: u32,
    /// Over all ranks.
    pub(super) shape: Shape,
    /// Bytes of all files: a multiple of the request size times the number of processes.
    pub(super) data: u64,
    /// Options of the mounts, for the whole system.
    pub(super) config: &'a Config,
    /// Flips a byte of the origin after unmount.
    pub(super) canary: bool,
}

/// What one rank does.
struct Rank {
    node: u32,
    instance: Instance,
    shape: Shape,
    /// Its number among the processes of the instance.
    number: u32,
}

impl Case<'_> {
    /// Bytes that its ranks transfer.
    pub(super) fn transfers(&self) -> u64 {
        self.data * if self.is_shifted() { 3 } else { 2 }
    }

    /// Its parameters, for people to read.
    pub(super) fn name(&self) -> String {
        let Key { pattern, setup, nodes } = self.key;
        format!("{} {}, {nodes}", pattern.text(), setup.text())
    }

    /// Runs the measurement.
    pub(super) fn run(
        &self,
        scratch: &Scratch,
        store: &Server,
        watch: &mut impl Watch,
    ) -> Result<Run, Failure> {
        let places = scratch.nodes(self.key.nodes, self.key.setup != Setup::Private)?;
        let config = self.mount_config();
        let store = (self.key.setup == Setup::Cluster).then_some(store);
        let nodes = Nodes::start(&places, &config, store)?;
        let phases = self.go_through(&nodes, &places, watch);
        // What will be deleted need not be flushed.
        let reports = nodes.finish(phases.is_ok());
        let (phases, reports) = (phases?, reports?);
        Ok(Run {
            key: self.key,
            repetition: self.repetition,
            phases,
            ssd_bytes_written: reports.iter().map(|report| report.ssd_bytes_written).sum(),
            verified_origin_bytes: self.verify(&places, watch)?,
        })
    }

    /// The whole system's SSDs and the room on them, divided among the nodes.
    fn mount_config(&self) -> Config {
        let Key { setup, nodes, .. } = self.key;
        let mut config = self.config.clone();
        if setup == Setup::Origin {
            "never".clone_into(&mut config.policy);
        }
        if let Some(emulation) = &mut config.emulate {
            emulation.cache.count = (emulation.cache.count / nodes).max(1);
        }
        if setup == Setup::Cluster {
            // As for a mount that takes part in a cluster.
            config.attr_timeout = Duration::ZERO;
        }
        config.size = room_for(self.data / u64::from(nodes));
        config
    }

    fn is_shifted(&self) -> bool {
        let Key { pattern, setup, nodes } = self.key;
        pattern == Pattern::Segmented && setup == Setup::Cluster && nodes > 1
    }

    fn go_through(
        &self,
        nodes: &Nodes,
        places: &scratch::Nodes,
        watch: &mut impl Watch,
    ) -> Result<Vec<Phase>, Failure> {
        let mut write = self.transfer("write", (Direction::Write, 0), (nodes, places), watch)?;
        let begun = Instant::now();
        let flushed = nodes.flush(watch)?;
        let flush = Phase::new("flush", (flushed, 0), begun.elapsed().as_secs_f64());
        write.drained_seconds =
            Some(write.drained_seconds.unwrap_or(write.seconds) + flush.seconds);
        let mut phases = vec![write, flush];
        self.forget_pages(places)?;
        phases.push(self.transfer("read", (Direction::Read, 0), (nodes, places), watch)?);
        if self.is_shifted() {
            self.forget_pages(places)?;
            let shifted = (Direction::Read, 1);
            phases.push(self.transfer("shifted_read", shifted, (nodes, places), watch)?);
        }
        Ok(phases)
    }

    /// Emulated devices take their time in any case; real ones must not be answered from memory.
    fn forget_pages(&self, places: &scratch::Nodes) -> Result<(), Failure> {
        if self.config.emulate.is_none() {
            for paths in &places.mounts {
                scratch::forget_pages(&paths.origin)?;
                scratch::forget_pages(&paths.cache)?;
            }
        }
        Ok(())
    }

    /// Lets all ranks read or write their bytes, each through the mount of its own node or of a node a given number
    /// further on.
    fn transfer(
        &self,
        name: &'static str,
        (direction, shift): (Direction, u32),
        (nodes, places): (&Nodes, &scratch::Nodes),
        watch: &mut impl Watch,
    ) -> Result<Phase, Failure> {
        let before = nodes.state();
        let job = |rank: Rank| {
            let node = (rank.node + shift) % self.key.nodes;
            let dir = &places.mounts[node as usize].mountpoint;
            let (path, generation) = (dir.join(rank.instance.file_name()), GENERATION);
            let Rank { instance, shape, number: rank, .. } = rank;
            Job { path, instance, shape, rank, direction, generation }
        };
        let jobs: Vec<Job> = self.ranks().map(job).collect();
        if direction == Direction::Write {
            let first = jobs.iter().filter(|job| job.rank == 0);
            for Job { path, .. } in first {
                File::create(path).map_err(Error::at(path, "create"))?;
            }
        }
        let done = worker_processes::run(worker::COMMAND, &jobs, watch)?;
        if let Some(wrong) = done.iter().find_map(|done| done.wrong.as_ref()) {
            return Err(wrong.failure("read through the mount"));
        }
        let seconds = |ns: Option<u64>| Duration::from_nanos(ns.unwrap_or(0)).as_secs_f64();
        let (bytes, requests) = (sum(&done, |done| done.bytes), sum(&done, |done| done.requests));
        let io = seconds(done.iter().map(|done| done.io_ns).max());
        let mut phase = Phase::new(name, (bytes, requests), io);
        if direction == Direction::Write {
            let synced = done.iter().map(|done| done.io_ns + done.fsync_ns).max();
            phase.drained_seconds = Some(seconds(synced));
        }
        count(&mut phase, direction, (before, nodes.state()));
        Ok(phase)
    }

    /// What each rank does. Neighbouring ranks are on one node.
    fn ranks(&self) -> impl Iterator<Item = Rank> {
        let Key { pattern, setup, nodes } = self.key;
        let (all, data) = (self.shape, self.data);
        let of_node = all.processes / nodes;
        (0..all.processes).map(move |rank| {
            let node = rank / of_node;
            let whole = Instance { number: 0, bytes: data, random: true, strided: false };
            let (instance, processes, rank) = match (pattern, setup) {
                (Pattern::FilePerProcess, _) => {
                    let bytes = data / u64::from(all.processes);
                    (Instance { number: rank, bytes, ..whole }, 1, 0)
                }
                (Pattern::Segmented, Setup::Private) => {
                    let bytes = data / u64::from(nodes);
                    (Instance { number: node, bytes, ..whole }, of_node, rank % of_node)
                }
                (Pattern::Segmented, _) => (whole, all.processes, rank),
                (Pattern::Strided, _) => {
                    (Instance { random: false, strided: true, ..whole }, all.processes, rank)
                }
            };
            Rank { node, instance, shape: Shape { processes, ..all }, number: rank }
        })
    }

    /// Compares every byte of the origins with what was written.
    fn verify(&self, places: &scratch::Nodes, watch: &mut impl Watch) -> Result<u64, Failure> {
        let mut workloads: BTreeMap<&Path, Workload> = BTreeMap::new();
        for Rank { node, instance, shape, .. } in self.ranks() {
            let origin = places.mounts[node as usize].origin.as_path();
            let of_origin = workloads.entry(origin).or_insert_with(|| {
                let pattern = workload::Pattern::Random;
                Workload { pattern, shape, instances: Vec::new() }
            });
            if of_origin.instances.iter().all(|known| known.number != instance.number) {
                of_origin.instances.push(instance);
            }
        }
        let is_striped = self.config.origin_shape().kind == VolumeKind::Striped;
        let mut verified = 0;
        for (origin, workload) in &workloads {
            let origin = BareOrigin::open(origin, is_striped)?;
            if self.canary {
                origin.flip(workload)?;
            }
            verified += origin.compare(workload, GENERATION, watch)?;
        }
        Ok(verified)
    }
}

fn sum<T>(all: &[T], of: impl Fn(&T) -> u64) -> u64 {
    all.iter().map(of).sum()
}

/// What the engines and agents counted during the phase.
fn count(phase: &mut Phase, direction: Direction, (before, after): (State, State)) {
    let cache_bytes = |state: State| match direction {
        Direction::Read => state.read.cache_bytes,
        Direction::Write => state.write.cache_bytes,
    };
    let (old, new) = (before.counts, after.counts);
    phase.cache_bytes = cache_bytes(after) - cache_bytes(before);
    phase.store_operations = new.round_trips - old.round_trips;
    phase.store_operations_per_request = share(phase.store_operations, phase.requests);
    phase.waits = new.waits - old.waits;
    phase.waited_seconds = Duration::from_micros(new.waited_us - old.waited_us).as_secs_f64();
    phase.handovers = new.handovers - old.handovers;
    phase.contended = new.direct - old.direct;
    phase.peer_bytes = new.peer_bytes - old.peer_bytes;
    phase.hit_bytes = phase.cache_bytes + phase.peer_bytes;
}
