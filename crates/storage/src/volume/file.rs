//! A striped file: one request becomes one vectored call for each server it touches.

use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use halocline_model::request::ByteRange;
use halocline_model::striping::Striping;

use super::Volume;
use super::distribution::Distribution;
use super::lazy_file::LazyFile;
use super::queue::scatter;
use super::run_writes::{LocalRun, Plan, Runs, write_runs};
use super::server::Server;
use crate::device::ServerFile;
use halocline_os::client_pages;
use halocline_vfs::Allocate;

/// A file over several servers. Its length is determined by its last byte on any of them; a caller that keeps the
/// length elsewhere reads with [`read_filled`](Self::read_filled).
#[derive(Debug)]
pub struct VolumeFile {
    distribution: Distribution,
    files: Vec<LazyFile>,
    /// Changes made so far, counted after each has reached the operating system.
    changes: AtomicU64,
    /// Number of changes that a completed sync covers.
    synced: AtomicU64,
    /// Whether a sync failed: the system may have dropped what it could not write, and would report the next sync as a
    /// success.
    unsyncable: AtomicBool,
}

/// The part of a request on one server.
struct Part<'a, B> {
    lazy_file: &'a LazyFile,
    /// Index of the server in the striping.
    server: u32,
    local: ByteRange,
    /// The pieces of the caller's buffer, in order.
    bufs: Vec<B>,
}

impl VolumeFile {
    /// The file at `path` on each of the `distribution.servers()` servers from `first` on. The local
    /// files are opened when they are first read and created when they are first written.
    ///
    /// # Panics
    /// If the volume does not have these servers.
    pub fn lazy(
        volume: &Volume,
        first: u32,
        distribution: impl Into<Distribution>,
        path: &Path,
    ) -> Self {
        let distribution = distribution.into();
        let row = first as usize..(first + distribution.servers()) as usize;
        let servers = volume.servers()[row].iter();
        let files = servers.map(|server| LazyFile::lazy(Arc::clone(server), path.to_owned()));
        Self::over(distribution, files.collect())
    }

    /// A file that is stored whole on one server and is already open there.
    pub fn single(server: Arc<Server>, file: ServerFile) -> Self {
        Self::over(Striping::new(1, 1).into(), vec![LazyFile::open(server, file)])
    }

    fn over(distribution: Distribution, files: Vec<LazyFile>) -> Self {
        Self {
            distribution,
            files,
            changes: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            unsyncable: AtomicBool::new(false),
        }
    }

    /// How the file is distributed over its servers.
    pub const fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Reads at `offset`; holes and missing local files read as zeros. The result is short only at the file's end,
    /// which is the last byte on any of the servers touched.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let range = ByteRange::at(offset, buf.len() as u64);
        if let Some((lazy_file, local)) = self.whole_on_one(range) {
            let Some(file) = lazy_file.existing()? else { return Ok(0) };
            let mut bufs = [IoSliceMut::new(buf)];
            return lazy_file.server.device().read_at(file, local, &mut bufs);
        }
        let pieces = SplitMut(&mut *buf);
        let parts = self.parts(range, pieces);
        let locals: Vec<_> = parts.iter().map(|part| (part.server, part.local)).collect();
        let counts = scatter(queued(parts), |mut part: Part<'_, IoSliceMut<'_>>| {
            let Some(file) = part.lazy_file.existing()? else { return Ok(0) };
            part.lazy_file.server.device().read_at(file, part.local.start, &mut part.bufs)
        });
        let mut end = offset;
        for ((server, local), count) in locals.into_iter().zip(first_error(counts)?) {
            let stop = local.start + count as u64;
            if count > 0 {
                end = end.max(self.file_offset(server, stop - 1) + 1);
            }
            self.zero(server, ByteRange::new(stop, local.end), offset, buf);
        }
        Ok(usize::try_from(end - offset).expect("no more than the buffer's length"))
    }

    /// Reads at `offset`, and fills with zeros what is beyond the local files' ends.
    pub fn read_filled(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let count = self.read_at(offset, buf)?;
        buf[count..].fill(0);
        Ok(())
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_on_servers(offset, data).map_err(|(_, error)| error)
    }

    /// The same; an error comes with the server that refused.
    pub(super) fn write_on_servers(
        &self,
        offset: u64,
        data: &[u8],
    ) -> Result<(), (&Server, io::Error)> {
        let range = ByteRange::at(offset, data.len() as u64);
        if range.is_empty() {
            return Ok(());
        }
        let outcome = if let Some((lazy_file, local)) = self.whole_on_one(range) {
            let device = lazy_file.server.device();
            let file = lazy_file.created();
            let written = file.and_then(|file| device.write_at(file, local, &[IoSlice::new(data)]));
            written.map_err(|error| (&*lazy_file.server, error))
        } else {
            let parts = self.parts(range, Split(data));
            let servers: Vec<&Server> = parts.iter().map(|part| &*part.lazy_file.server).collect();
            let outcomes = scatter(queued(parts), |part| {
                let device = part.lazy_file.server.device();
                device.write_at(part.lazy_file.created()?, part.local.start, &part.bufs)
            });
            first_refusal(servers, outcomes)
        };
        self.changed();
        outcome
    }

    /// Writes `runs` with as few and as ordered calls on each server as `plan` finds. The caller guarantees that no one
    /// else writes between the first run's start and the last one's end.
    pub fn rewrite(&self, runs: Runs<'_>, plan: Plan<'_>) -> io::Result<()> {
        let parts = self.files.iter().zip(runs.by_server(&self.distribution));
        let parts = parts.filter(|(_, runs)| !runs.is_empty());
        let parts =
            parts.map(|(lazy_file, runs)| (lazy_file.server.queue(), (lazy_file, runs))).collect();
        let outcomes = scatter(parts, |(lazy_file, runs): (&LazyFile, Vec<LocalRun<'_>>)| {
            write_runs(lazy_file.server.device().as_ref(), lazy_file.created()?, &runs, plan)
        });
        self.changed();
        first_error(outcomes).map(drop)
    }

    /// Frees the blocks of `range`, which then reads as zeros; the length stays.
    pub fn punch(&self, range: ByteRange) -> io::Result<()> {
        self.allocate(range, Allocate::PunchHole)
    }

    /// Punches, reserves or zeroes `range` on every server it touches.
    pub fn allocate(&self, range: ByteRange, how: Allocate) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let outcome = self.on_each(|lazy_file, server| {
            let local = self.distribution.local_range(server, range);
            let file = match how {
                _ if local.is_empty() => None,
                Allocate::PunchHole => lazy_file.existing_to_write()?,
                _ => Some(lazy_file.created()?),
            };
            file.map_or(Ok(()), |file| lazy_file.server.device().allocate(file, local, how))
        });
        self.changed();
        outcome
    }

    /// Sets the length: truncates every local file or extends it with a hole.
    pub fn truncate(&self, len: u64) -> io::Result<()> {
        let outcome = self.on_each(|lazy_file, server| {
            let local = self.distribution.local_len(server, len);
            let file = match local {
                0 => lazy_file.existing_to_write()?,
                _ => Some(lazy_file.created()?),
            };
            file.map_or(Ok(()), |file| lazy_file.server.device().truncate(file, local))
        });
        self.changed();
        outcome
    }

    /// Truncates every local file that extends beyond the length `len`; extends none.
    pub fn cut(&self, len: u64) -> io::Result<()> {
        let outcome = self.on_each(|lazy_file, server| {
            let local = self.distribution.local_len(server, len);
            if lazy_file.existing()?.map_or(Ok(0), ServerFile::size)? <= local {
                return Ok(());
            }
            let file = lazy_file.existing_to_write()?;
            file.map_or(Ok(()), |file| lazy_file.server.device().truncate(file, local))
        });
        self.changed();
        outcome
    }

    /// The same, durably, also what was cut before.
    pub(super) fn cut_durably(&self, len: u64) -> io::Result<()> {
        self.cut(len)?;
        if self.is_unsyncable() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let synced = self.on_each(|lazy_file, _| lazy_file.sync_contents());
        synced.inspect_err(|_| self.unsyncable.store(true, Ordering::Release))
    }

    /// Bytes, holes included, by which the local files extend beyond the length `len`.
    pub(super) fn bytes_beyond(&self, len: u64) -> io::Result<u64> {
        let beyond = AtomicU64::new(0);
        self.on_each(|lazy_file, server| {
            let local = self.distribution.local_len(server, len);
            let size = lazy_file.existing()?.map_or(Ok(0), ServerFile::size)?;
            beyond.fetch_add(size.saturating_sub(local), Ordering::Relaxed);
            Ok(())
        })?;
        Ok(beyond.into_inner())
    }

    /// Makes everything written so far durable: data, new names, and metadata unless `data_only`.
    pub fn sync(&self, data_only: bool) -> io::Result<()> {
        if self.is_unsyncable() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.sync_servers(data_only).map_err(|(_, error)| error)
    }

    /// The same, once; an error comes with the server that refused.
    pub(super) fn sync_servers(&self, data_only: bool) -> Result<(), (&Server, io::Error)> {
        let changes = self.changes.load(Ordering::Acquire);
        self.on_servers(|lazy_file, _| lazy_file.sync(data_only))
            .inspect_err(|_| self.unsyncable.store(true, Ordering::Release))?;
        self.synced.fetch_max(changes, Ordering::AcqRel);
        Ok(())
    }

    /// Makes the kernel drop its pages of the file on all servers; whether none is left, as far as it can say.
    pub(super) fn forget_pages(&self) -> io::Result<bool> {
        let mut are_gone = true;
        for lazy_file in &self.files {
            // What the kernel does not know it keeps no pages of.
            let descriptor = lazy_file.existing()?.and_then(ServerFile::descriptor);
            let Some(file) = descriptor else { continue };
            client_pages::drop_all(file)?;
            are_gone &= client_pages::are_gone(file, 0, 0)?.unwrap_or(true);
        }
        Ok(are_gone)
    }

    /// Whether a sync ever failed. Every later one fails too, because its success would mean nothing.
    pub fn is_unsyncable(&self) -> bool {
        self.unsyncable.load(Ordering::Acquire)
    }

    /// Whether something was written that no completed sync covers.
    pub fn is_dirty(&self) -> bool {
        self.changes.load(Ordering::Acquire) > self.synced.load(Ordering::Acquire)
    }

    /// Counts a change. Called after the bytes arrived, so that a concurrent sync does not claim them, and also after a
    /// failure, because a part may have arrived.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether there is a local file on any server, including one that cannot be opened.
    pub(crate) fn is_anywhere(&self) -> bool {
        self.files.iter().any(|lazy_file| !matches!(lazy_file.existing(), Ok(None)))
    }

    /// Bytes of blocks in use on all servers.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        self.files.iter().map(LazyFile::allocated).sum()
    }

    /// The next data (`true`) or hole (`false`) at or after `offset` on any server, as a file offset; `None` if there
    /// is none. A local file's end counts as a hole.
    pub fn seek(&self, offset: u64, data: bool) -> io::Result<Option<u64>> {
        let mut nearest: Option<u64> = None;
        for (server, lazy_file) in (0..).zip(&self.files) {
            let from = self.distribution.local_len(server, offset);
            let found = match lazy_file.existing()? {
                Some(file) => seek_local(file, from, data)?,
                None => (!data).then_some(from),
            };
            let found = found.map(|local| self.file_offset(server, local).max(offset));
            nearest = [nearest, found].into_iter().flatten().min();
        }
        Ok(nearest)
    }

    /// Where `range` starts on the only server that holds all of it, if there is one.
    fn whole_on_one(&self, range: ByteRange) -> Option<(&LazyFile, u64)> {
        let piece = self.distribution.piece_at(range.start, range.end);
        (piece.len == range.len()).then(|| (&self.files[piece.server as usize], piece.local_offset))
    }

    /// The parts of `range` in file order, each with its pieces of the caller's buffer.
    fn parts<S: Splitter>(&self, range: ByteRange, mut buf: S) -> Vec<Part<'_, S::Piece>> {
        let mut parts: Vec<Part<'_, S::Piece>> = Vec::new();
        for (at, piece) in self.distribution.pieces(range).enumerate() {
            let bytes = buf.take(usize::try_from(piece.len).expect("part of a buffer"));
            let known = if self.distribution.is_even() {
                (at >= self.files.len()).then(|| at % self.files.len())
            } else {
                parts.iter().position(|part| part.server == piece.server)
            };
            if let Some(known) = known {
                parts[known].bufs.push(bytes);
            } else {
                let lazy_file = &self.files[piece.server as usize];
                let local = self.distribution.local_range(piece.server, range);
                assert_eq!(local.start, piece.local_offset, "one contiguous local range");
                parts.push(Part { lazy_file, server: piece.server, local, bufs: vec![bytes] });
            }
        }
        parts
    }

    /// Runs `work` on every server's local file concurrently.
    fn on_each<F>(&self, work: F) -> io::Result<()>
    where
        F: Fn(&LazyFile, u32) -> io::Result<()> + Sync,
    {
        self.on_servers(work).map_err(|(_, error)| error)
    }

    /// The same; an error comes with the server that refused.
    fn on_servers<F>(&self, work: F) -> Result<(), (&Server, io::Error)>
    where
        F: Fn(&LazyFile, u32) -> io::Result<()> + Sync,
    {
        if let [lazy_file] = self.files.as_slice() {
            return work(lazy_file, 0).map_err(|error| (&*lazy_file.server, error));
        }
        let parts = (0..)
            .zip(&self.files)
            .map(|(server, lazy_file)| (lazy_file.server.queue(), (lazy_file, server)));
        let outcomes = scatter(parts.collect(), |(lazy_file, server)| work(lazy_file, server));
        first_refusal(self.files.iter().map(|lazy_file| &*lazy_file.server), outcomes)
    }

    /// The file offset of a byte of a server's local file; beyond every byte if it has none.
    fn file_offset(&self, server: u32, local: u64) -> u64 {
        self.distribution.file_offset(server, local).map_or(u64::MAX, |(offset, _)| offset)
    }

    /// Zeroes the bytes of a server's local range in a buffer that starts at file offset `offset`.
    fn zero(&self, server: u32, local: ByteRange, offset: u64, buf: &mut [u8]) {
        let mut at = local.start;
        while at < local.end {
            let (found, room) =
                self.distribution.file_offset(server, at).expect("a byte of the file");
            let (start, len) = (found - offset, room.min(local.end - at));
            let range = ByteRange::at(start, len);
            buf[to_index(range.start)..to_index(range.end)].fill(0);
            at += len;
        }
    }
}

fn to_index(position: u64) -> usize {
    usize::try_from(position).expect("a position inside a buffer")
}

fn queued<B>(parts: Vec<Part<'_, B>>) -> Vec<(&super::queue::Queue, Part<'_, B>)> {
    parts.into_iter().map(|part| (part.lazy_file.server.queue(), part)).collect()
}

/// The outcomes, or the first error in file order.
fn first_error<T>(outcomes: Vec<io::Result<T>>) -> io::Result<Vec<T>> {
    outcomes.into_iter().collect()
}

/// The first error in file order, with its server.
fn first_refusal<'s>(
    servers: impl IntoIterator<Item = &'s Server>,
    outcomes: Vec<io::Result<()>>,
) -> Result<(), (&'s Server, io::Error)> {
    let mut refusals = servers.into_iter().zip(outcomes);
    let first = refusals.find_map(|(server, outcome)| Some((server, outcome.err()?)));
    first.map_or(Ok(()), Err)
}

fn seek_local(file: &ServerFile, from: u64, data: bool) -> io::Result<Option<u64>> {
    use rustix::fs::SeekFrom;
    let whence = if data { SeekFrom::Data(from) } else { SeekFrom::Hole(from) };
    match file.seek(whence) {
        Ok(found) => Ok(Some(found)),
        // Beyond the local file's end there is no data, only a hole.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok((!data).then_some(from)),
        Err(error) => Err(error),
    }
}

/// Splits a caller's buffer into the pieces of a request.
trait Splitter {
    type Piece;
    fn take(&mut self, len: usize) -> Self::Piece;
}

struct Split<'a>(&'a [u8]);

impl<'a> Splitter for Split<'a> {
    type Piece = IoSlice<'a>;
    fn take(&mut self, len: usize) -> IoSlice<'a> {
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        IoSlice::new(head)
    }
}

struct SplitMut<'a>(&'a mut [u8]);

impl<'a> Splitter for SplitMut<'a> {
    type Piece = IoSliceMut<'a>;
    fn take(&mut self, len: usize) -> IoSliceMut<'a> {
        let (head, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        IoSliceMut::new(head)
    }
}
