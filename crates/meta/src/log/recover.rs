//! Brings a log that a kill or a power loss left into a state in which it can be continued.
//!
//! Batches follow each other from the snapshot's last one on, without a gap, over all files. After a kill only the last
//! batch may be incomplete: it was not acknowledged. Anything else is damage, which is reported and left as it is.
//! After a power loss any page that was not synced may be missing: the log ends at the first incomplete batch, unless a
//! later one says that it was synced, and everything behind it is removed, durably, before a new batch gets its number.
//! The sync point (`sync_point.rs`) also says how far the log was synced: a log that ends before it is damaged, too.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::fsync;

use super::damaged;
use super::files::{FRESH, FRESH_LOG, LOG, SNAPSHOT, log_name, number_in, snapshot_name};
use super::log_file::{FILE_BYTES_MAX, Framed, HEAD, batch_at, batch_behind, is_segment};
use super::snapshot::{Head, Reader};
use super::sync_point::synced;
use super::tail::Sealed;
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};

/// A log that can be continued.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) snapshot: Head,
    pub(super) snapshot_bytes: u64,
    /// The files since the snapshot, each with its open file.
    pub(super) files: Vec<(Sealed, Arc<File>)>,
    /// The number of the last batch.
    pub(super) batch: u64,
    /// The number of the last one before those in the last file.
    pub(super) before: u64,
}

/// Finds the log in `dir`. `torn` says that power was lost since it was last open.
pub(super) fn recover(dir: &PrivateDir, torn: bool) -> Result<Recovered> {
    dir.remove(FRESH)?;
    dir.remove(FRESH_LOG)?;
    let names = dir.names()?;
    let numbers = |prefix: &str| {
        let mut numbers: Vec<_> = names.iter().filter_map(|name| number_in(name, prefix)).collect();
        numbers.sort_unstable();
        numbers
    };
    let snapshots = numbers(SNAPSHOT);
    let Some(&last) = snapshots.last() else {
        return Err(damaged(dir, "its snapshot is missing"));
    };
    let (snapshot, snapshot_bytes) = head_of(dir, last)?;
    // A snapshot under its final name is durable; a kill left the older ones that it replaces.
    for &older in snapshots.iter().filter(|&&number| number < last) {
        dir.remove(snapshot_name(older))?;
    }
    let batch = snapshot.batch;
    let mut found = Recovered { snapshot, snapshot_bytes, files: Vec::new(), batch, before: batch };
    for number in numbers(LOG) {
        if number <= last {
            dir.remove(log_name(number))?;
            continue;
        }
        if number != last + 1 + found.files.len() as u64 {
            let missing = log_name(last + 1 + found.files.len() as u64);
            return Err(damaged(dir, &format!("{missing} is missing")));
        }
        found.take(dir, number, torn)?;
    }
    found.check_end(dir)?;
    // Only now: a damaged log is left as it is.
    let mut is_changed = false;
    for (file, open) in &mut found.files {
        if file.bytes > file.end as u64 {
            let cut = open.set_len(file.end as u64).and_then(|()| open.sync_all());
            cut.map_err(Error::at(dir.path().join(log_name(file.number)), "cut"))?;
            (file.bytes, is_changed) = (file.end as u64, true);
        }
    }
    // An empty file may lie before one that is not empty; at the end it is not needed.
    while let Some((empty, _)) = found.files.pop_if(|(file, _)| file.end == HEAD) {
        dir.remove(log_name(empty.number))?;
        is_changed = true;
    }
    if is_changed {
        fsync(dir.as_fd()).map_err(|errno| Error::at(dir.path(), "sync")(errno.into()))?;
    }
    Ok(found)
}

fn head_of(dir: &PrivateDir, number: u64) -> Result<(Head, u64)> {
    let name = snapshot_name(number);
    let file = dir.file(&name, Use::Read)?;
    let bytes = file.metadata().map_err(Error::at(dir.path().join(&name), "look at"))?.len();
    let reader = Reader::begin(file).map_err(|bad| bad.told(dir, number))?;
    if reader.head.number != number {
        return Err(damaged(dir, &format!("{name} is of another number")));
    }
    Ok((reader.head, bytes))
}

impl Recovered {
    /// A file that is missing at the end, cut or zeroed looks like a power loss: what was synced tells them apart.
    fn check_end(&self, dir: &PrivateDir) -> Result<()> {
        let synced = synced(dir, self.snapshot.generation);
        if self.batch >= synced {
            return Ok(());
        }
        let last = self.files.last().map(|(file, _)| (log_name(file.number), file.end));
        let (name, end) = last.unwrap_or_else(|| {
            let bytes = usize::try_from(self.snapshot_bytes).unwrap_or(usize::MAX);
            (snapshot_name(self.snapshot.number), bytes)
        });
        let what = format!(
            "{name} at byte {end}: the log ends here, with batch {}, and batch {synced} was synced; what was behind it, \
             or a later file, is missing",
            self.batch
        );
        Err(damaged(dir, &what))
    }

    /// Takes the batches of a file.
    fn take(&mut self, dir: &PrivateDir, number: u64, torn: bool) -> Result<()> {
        let name = log_name(number);
        let path = dir.path().join(&name);
        let file = dir.file(&name, Use::Write)?;
        let bytes = contents(&file, u64::MAX).map_err(Error::at(&path, "read"))?;
        let generation = self.snapshot.generation;
        if !is_segment(&bytes, number, generation) {
            return Err(damaged(dir, &format!("{name} at byte 0: its head is not whole")));
        }
        let (before, mut end) = (self.batch, HEAD);
        while let Some(batch) = batch_at(&bytes, end, generation) {
            if batch.number != self.batch + 1 {
                break;
            }
            (self.batch, end) = (batch.number, batch.end);
        }
        let next = self.batch + 1;
        // A power loss takes nothing that was synced.
        let proves = |later: &Framed<'_>| later.number >= next && (!torn || later.durable >= next);
        if let Some(at) = batch_behind(&bytes, end, generation, proves) {
            // Bytes missing at the beginning of a file may continue a loss at the end of the one before.
            let before = self.files.last().filter(|_| end == HEAD);
            let gap = before.map_or((number, end), |(file, _)| (file.number, file.end));
            let what = format!(
                "{} at byte {}: batch {next} is missing or not whole, and a later one is in {name} \
                 at byte {at}",
                log_name(gap.0),
                gap.1
            );
            return Err(damaged(dir, &what));
        }
        // An empty file is not the last one: it is removed, or another follows.
        if end > HEAD {
            self.before = before;
        }
        let sealed = Sealed { number, end, bytes: bytes.len() as u64 };
        self.files.push((sealed, Arc::new(file)));
        Ok(())
    }
}

/// Contents of a file, up to `most` bytes.
pub(super) fn contents(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len().min(most);
    if len > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
