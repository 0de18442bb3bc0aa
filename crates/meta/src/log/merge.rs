//! All records of a log: its snapshot with the changes of its files.

use super::damaged;
use super::files::{log_name, snapshot_name};
use super::log_file::{HEAD, batch_at};
use super::recover::contents;
use super::snapshot::{Bad, Head, Reader};
use super::tail::Sealed;
use crate::batch::Batch;
use crate::records::Visit;
use halocline_os::error::Result;
use halocline_os::private::{PrivateDir, Use};

/// Calls `each` with all records of the snapshot and the files after it, in the order of their keys.
pub(super) fn merge(
    dir: &PrivateDir,
    snapshot: Head,
    files: &[Sealed],
    each: Visit<'_>,
) -> Result<()> {
    let mut changes = Batch::default();
    for file in files {
        read_changes(dir, snapshot.generation, *file, &mut changes)?;
    }
    let changes = changes.by_key();
    let bad = |bad: Bad| bad.told(dir, snapshot.number);
    let file = dir.file(snapshot_name(snapshot.number), Use::Read)?;
    let mut base = Reader::begin(file).map_err(bad)?;
    base.advance().map_err(bad)?;
    for (key, value) in changes {
        while let Some((known, value)) = base.record().filter(|(known, _)| *known < key) {
            each(known, value)?;
            base.advance().map_err(bad)?;
        }
        if base.record().is_some_and(|(known, _)| known == key) {
            base.advance().map_err(bad)?;
        }
        if let Some(value) = value {
            each(key, value)?;
        }
    }
    while let Some((key, value)) = base.record() {
        each(key, value)?;
        base.advance().map_err(bad)?;
    }
    Ok(())
}

/// Adds the changes of a file of the log.
fn read_changes(dir: &PrivateDir, generation: u64, file: Sealed, to: &mut Batch) -> Result<()> {
    let name = log_name(file.number);
    let open = dir.file(&name, Use::Read)?;
    let bytes = contents(&open, file.end as u64);
    let bytes = bytes.map_err(|error| damaged(dir, &format!("{name}: {error}")))?;
    let mut at = HEAD;
    while at < file.end {
        let Some(batch) = batch_at(&bytes, at, generation) else {
            return Err(damaged(dir, &format!("{name} at byte {at}: a batch is not whole")));
        };
        to.append(batch.changes);
        at = batch.end;
    }
    Ok(())
}
