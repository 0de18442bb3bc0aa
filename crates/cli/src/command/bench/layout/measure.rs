//! Real I/O on emulated servers: each is a file behind an emulated device and an emulated network.
//!
//! There is no mount and no engine in between: requests are cut into pieces by the same code that the planner and the
//! simulator use, and each piece is written to, or read from, its server's file. Every byte read is compared. A process
//! issues its next request when all pieces of its previous one are done, as in the simulation. At a server, a piece
//! passes the network, the device and, if it is read, the network again. Each of these has its own threads, so that
//! pieces reach the device in the order in which they were issued, to which a disk is sensitive.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use halocline_os::error::Error;
use halocline_plan::layout::{Layout, Piece};
use halocline_sim::servers::{Network, Profile};
use halocline_sim::{Server, ServerSet};
use halocline_storage::device::emulate::{EmulatedLink, EmulatedServer};
use halocline_storage::device::local::LocalDevice;
use halocline_storage::device::{Device, ServerFile};
use halocline_trace::{Op, Request};
use parking_lot::Mutex;

use crate::command::bench::content::Content;
use crate::failure::Failure;

/// The number of bytes after which the contents of a server's file repeat: not a multiple of any stripe, so that
/// misplaced bytes are noticed.
const PERIOD: usize = 999_983;

/// The contents of a server's file. They exist before time is measured, so that making them takes none of it.
struct Pattern(Vec<u8>);

impl Pattern {
    /// For pieces of at most `longest` bytes.
    fn new(server: u64, longest: usize) -> Self {
        let mut bytes = vec![0; PERIOD];
        Content::new(1, server, 0).fill(0, &mut bytes);
        while bytes.len() < PERIOD + longest {
            let more = longest.min(PERIOD);
            bytes.extend_from_within(..more);
        }
        Self(bytes)
    }

    /// The bytes that belong at `offset`.
    fn at(&self, offset: u64, len: usize) -> &[u8] {
        let from = usize::try_from(offset % PERIOD as u64).expect("below the period");
        &self.0[from..from + len]
    }
}

/// A server with its file.
struct Station {
    device: EmulatedServer,
    network: Network,
    file: ServerFile,
    pattern: Pattern,
    workers: u32,
}

/// One piece of a process's request.
struct Task {
    process: usize,
    op: Op,
    piece: Piece,
}

/// A process, and the result of its piece.
type PieceResult = (usize, io::Result<()>);

/// Seconds that `requests` take, from the first issue to the last completion.
pub(super) fn seconds(
    dir: &Path,
    set: &ServerSet,
    layout: &Layout,
    requests: &[Request],
) -> Result<f64, Failure> {
    let end = requests.iter().map(Request::end).max().unwrap_or(0);
    let reads = requests.iter().any(|request| request.op == Op::Read);
    let bytes = layout.bytes(end);
    // A piece is not longer than its request.
    let longest = requests.iter().map(|request| request.length).max().unwrap_or(1);
    let longest = usize::try_from(longest).unwrap_or(usize::MAX);
    let mut stations = Vec::new();
    for (index, server) in set.servers().iter().enumerate() {
        let path = dir.join(format!("server{index}"));
        let fill = if reads { bytes[index] } else { 0 };
        let station = Station::new(dir, &path, server, index as u64, (fill, longest));
        stations.push(station.map_err(Error::at(&path, "make the file of an emulated server"))?);
    }
    let took = replay(&stations, layout, requests).map_err(|error| {
        Failure::failed(format!("a request to an emulated server failed: {error}"))
    });
    for index in 0..stations.len() {
        let path = dir.join(format!("server{index}"));
        std::fs::remove_file(&path).map_err(Error::at(&path, "remove"))?;
    }
    took
}

impl Station {
    fn new(
        dir: &Path,
        path: &Path,
        server: &Server,
        number: u64,
        (ahead, longest): (u64, usize),
    ) -> io::Result<Self> {
        let Profile::Emulated(emulated) = server.profile else {
            return Err(io::Error::other("only emulated devices are measured"));
        };
        let local = LocalDevice::open(dir).map_err(io::Error::other)?;
        let file = File::options().create(true).truncate(true).read(true).write(true).open(path)?;
        let file = ServerFile::new(file)?;
        let pattern = Pattern::new(number, longest);
        let mut at = 0;
        while at < ahead {
            let len = usize::try_from(ahead - at).unwrap_or(PERIOD).min(longest);
            local.write_at(&file, at, &[IoSlice::new(pattern.at(at, len))])?;
            at += len as u64;
        }
        let device = EmulatedServer::new(emulated, Arc::new(local));
        let workers = server.profile.channels();
        Ok(Self { device, network: server.network, file, pattern, workers })
    }

    fn serve(&self, op: Op, piece: Piece, room: &mut Vec<u8>) -> io::Result<()> {
        let len = usize::try_from(piece.length).map_err(io::Error::other)?;
        let expected = self.pattern.at(piece.offset, len);
        if op == Op::Write {
            return self.device.write_at(&self.file, piece.offset, &[IoSlice::new(expected)]);
        }
        room.resize(len, 0);
        let mut into = [IoSliceMut::new(room)];
        let got = self.device.read_at(&self.file, piece.offset, &mut into)?;
        if got != len || room != expected {
            return Err(io::Error::other("a server's file has other bytes than were written"));
        }
        Ok(())
    }
}

fn replay(stations: &[Station], layout: &Layout, requests: &[Request]) -> io::Result<f64> {
    let (done, ended) = channel::<PieceResult>();
    std::thread::scope(|scope| {
        let mut queues = Vec::new();
        for station in stations {
            let (queue, tasks) = channel();
            let (arrived, at_device) = channel();
            let (read, leaving) = channel();
            scope.spawn(move || pass_in(station, &tasks, &arrived));
            let at_device = Arc::new(Mutex::new(at_device));
            for _ in 0..station.workers {
                let (at_device, read, done) = (at_device.clone(), read.clone(), done.clone());
                scope.spawn(move || work(station, &at_device, &read, &done));
            }
            let done = done.clone();
            scope.spawn(move || pass_out(station, &leaving, &done));
            queues.push(queue);
        }
        drop(done);
        // The threads end when the queues are dropped.
        issue(queues, &ended, layout, requests)
    })
}

fn pass_in(station: &Station, tasks: &Receiver<Task>, arrived: &Sender<Task>) {
    let mut link = EmulatedLink::new(station.network.ns_per_byte);
    while let Ok(task) = tasks.recv() {
        let bytes = if task.op == Op::Write { task.piece.length } else { 0 };
        link.pass(station.network.connect_us, bytes);
        if arrived.send(task).is_err() {
            return;
        }
    }
}

fn work(
    station: &Station,
    tasks: &Mutex<Receiver<Task>>,
    read: &Sender<Task>,
    done: &Sender<PieceResult>,
) {
    let mut room = Vec::new();
    loop {
        let Ok(task) = tasks.lock().recv() else { return };
        let ended = station.serve(task.op, task.piece, &mut room);
        let sent = if task.op == Op::Read && ended.is_ok() {
            read.send(task).is_ok()
        } else {
            done.send((task.process, ended)).is_ok()
        };
        if !sent {
            return;
        }
    }
}

fn pass_out(station: &Station, leaving: &Receiver<Task>, done: &Sender<PieceResult>) {
    let mut link = EmulatedLink::new(station.network.ns_per_byte);
    while let Ok(task) = leaving.recv() {
        link.pass(0.0, task.piece.length);
        if done.send((task.process, Ok(()))).is_err() {
            return;
        }
    }
}

/// Issues all requests; returns the seconds until the last one is done.
fn issue(
    queues: Vec<Sender<Task>>,
    ended: &Receiver<PieceResult>,
    layout: &Layout,
    requests: &[Request],
) -> io::Result<f64> {
    let processes = requests.iter().map(|request| request.process as usize + 1).max().unwrap_or(0);
    let mut waiting: Vec<VecDeque<&Request>> = vec![VecDeque::new(); processes];
    for request in requests {
        waiting[request.process as usize].push_back(request);
    }
    let mut open = vec![0usize; processes];
    let next = |process: usize, waiting: &mut [VecDeque<&Request>], open: &mut [usize]| {
        let Some(request) = waiting[process].pop_front() else { return };
        layout.pieces(request.offset, request.end(), |piece| {
            open[process] += 1;
            let task = Task { process, op: request.op, piece };
            // A worker that has ended has reported why, or will.
            let _ = queues[piece.server].send(task);
        });
    };
    let begin = Instant::now();
    for process in 0..processes {
        next(process, &mut waiting, &mut open);
    }
    while open.iter().any(|pieces| *pieces > 0) {
        let (process, result) = ended.recv().map_err(io::Error::other)?;
        result?;
        open[process] -= 1;
        if open[process] == 0 {
            next(process, &mut waiting, &mut open);
        }
    }
    let took = begin.elapsed().as_secs_f64();
    drop(queues);
    Ok(took)
}
