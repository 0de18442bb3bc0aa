//! `warm`, `demote` and `cluster drain`: files that a person names are moved.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use halocline_api::control::{MoveReport, Progress, ProgressSink, Skipped, is_glob};
use halocline_api::globs::{self, Globs};
use halocline_cluster::names::attributes::Kind;
use halocline_cluster::names::namespace::{Failure, Node};
use halocline_model::namespace::{EntryName, Inode};
use halocline_os::error::{Error, Result};

use crate::base::Base;
use crate::entry_names::os;
use crate::errors::of_names;
use crate::moves::{Moved, Mover};

/// The most files of one command.
const FILES_MAX: usize = 1 << 20;
/// How often a file that is open is tried.
const TRIES: usize = 5;
/// How long it is waited before that.
const PAUSE: Duration = Duration::from_millis(200);

/// A file that a command names.
struct Named {
    path: PathBuf,
    name: EntryName,
    inode: Inode,
    size: u64,
    /// Whether it is where it should go.
    is_there: bool,
}

/// Moves what commands name to one tier: the own SSD, or the shared disk.
pub(crate) struct MoveCommands<'a> {
    pub(crate) base: &'a Base,
    pub(crate) tier: u8,
}

impl MoveCommands<'_> {
    fn mover(&self) -> Mover<'_> {
        let base = self.base;
        let session = base.sessions.own();
        Mover { names: &base.names, places: &base.places, directories: &*base.paths, session }
    }

    /// Moves files, and all files below directories.
    ///
    /// # Errors
    /// If a path leads nowhere. Files that cannot be moved are listed, and hold up nothing else.
    pub(crate) fn execute(
        &self,
        paths: &[PathBuf],
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        self.base.sessions.check()?;
        let clock = &self.base.clock;
        let begun = clock.instant();
        let mut files = Vec::new();
        for path in paths {
            self.named(path, &mut files)?;
        }
        let there = files.iter().filter(|file| file.is_there).count();
        let mut report = MoveReport { already_files: there as u64, ..MoveReport::default() };
        files.retain(|file| !file.is_there);
        let total_bytes = files.iter().map(|file| file.size).sum();
        let mut done_bytes = 0;
        if dry_run {
            report.files = files.len() as u64;
            report.bytes = total_bytes;
            return Ok(report);
        }
        let mut left = VecDeque::from(files);
        let mut busy = VecDeque::new();
        for again in (0..TRIES).rev() {
            while let Some(file) = left.pop_front() {
                let path = file.path.clone();
                let mut tell = |copied: u64| {
                    done_bytes += copied;
                    progress(Progress { done_bytes, total_bytes, path: path.clone() })
                };
                if tell(0).is_break() {
                    report.left_bytes += file.size;
                    report.left_bytes +=
                        left.iter().chain(&busy).map(|file| file.size).sum::<u64>();
                    return Ok(report);
                }
                if let Some(file) = self.one(file, &mut tell, &mut report, again == 0) {
                    busy.push_back(file);
                }
            }
            if busy.is_empty() {
                break;
            }
            // The kernel tells of a close a little later than the program that closes.
            clock.sleep(PAUSE);
            std::mem::swap(&mut left, &mut busy);
        }
        report.seconds = clock.elapsed(begun).as_secs_f64();
        Ok(report)
    }

    /// Moves one. A file that is busy is answered, to be tried again, unless this is the last time.
    fn one(
        &self,
        file: Named,
        tell: &mut dyn FnMut(u64) -> ControlFlow<()>,
        report: &mut MoveReport,
        is_last: bool,
    ) -> Option<Named> {
        let is_over = |session| self.base.sessions.is_over(session);
        let moved = self.mover().move_file(&file.name, file.inode, self.tier, &is_over, tell);
        let reason = match moved {
            Ok(Moved::Done(_)) => {
                (report.files, report.bytes) = (report.files + 1, report.bytes + file.size);
                return None;
            }
            Ok(Moved::Already) => {
                report.already_files += 1;
                return None;
            }
            Ok(Moved::Gone) => return None,
            Ok(Moved::Busy) if !is_last => return Some(file),
            Ok(Moved::Busy) => {
                "a program on some node has it open, or changed it meanwhile; move it \
                 again when it is closed"
                    .to_owned()
            }
            Err(error) => error.to_string(),
        };
        report.left_bytes += file.size;
        report.skipped.push(Skipped { path: file.path, reason });
        None
    }

    /// The files that a path or a glob names.
    fn named(&self, path: &Path, files: &mut Vec<Named>) -> Result<()> {
        let text = path.to_string_lossy();
        match self.base.at(path) {
            Ok((name, node)) => self.below(path, name, &node, files),
            Err(error) if error.errno() == libc::ENOENT && is_glob(&text) => {
                let mut globs = Globs::default();
                globs.add_pin(&text)?;
                let beginning = globs::beginning(&text);
                let mut found = Vec::new();
                match self.base.at(&beginning) {
                    Ok((name, node)) => self.below(&beginning, name, &node, &mut found)?,
                    Err(error) if matches!(error.errno(), libc::ENOENT | libc::ENOTDIR) => {}
                    Err(error) => return Err(error),
                }
                found.retain(|file| globs.pins(&file.path));
                if found.is_empty() {
                    return Err(Error::invalid(
                        format!("no file matches {text:?}"),
                        "* stays within a directory, as in a shell; ** crosses them",
                    ));
                }
                files.append(&mut found);
                Ok(())
            }
            Err(error) => {
                let source = std::io::Error::from_raw_os_error(error.errno());
                Err(Error::at(path, "find the file on the mount")(source))
            }
        }
    }

    fn below(
        &self,
        path: &Path,
        name: Option<EntryName>,
        node: &Node,
        files: &mut Vec<Named>,
    ) -> Result<()> {
        if let Some(name) = name.filter(|_| node.attributes.kind != Kind::Directory) {
            return self.keep(path.to_owned(), name, node, files);
        }
        let mut todo = vec![(path.to_owned(), node.inode)];
        while let Some((path, directory)) = todo.pop() {
            let mut after = 0;
            loop {
                let listed = match self.base.names.list(directory, after, usize::MAX) {
                    // It was removed meanwhile.
                    Err(Failure::Refused(_)) => break,
                    listed => listed.map_err(of_names)?,
                };
                for one in listed.0 {
                    after = one.cursor;
                    let path = path.join(os(&one.name));
                    if one.is_directory {
                        todo.push((path, one.inode));
                        continue;
                    }
                    let name = EntryName { directory, name: one.name };
                    if let Ok(node) = self.base.names.lookup(&name) {
                        self.keep(path, name, &node, files)?;
                    }
                }
                if listed.1 {
                    break;
                }
            }
        }
        Ok(())
    }

    fn keep(
        &self,
        path: PathBuf,
        name: EntryName,
        node: &Node,
        files: &mut Vec<Named>,
    ) -> Result<()> {
        let Some(place) = &node.attributes.location else { return Ok(()) };
        if files.len() >= FILES_MAX {
            return Err(Error::invalid(
                format!("there are more than {FILES_MAX} files"),
                "ask for one directory below at a time",
            ));
        }
        let is_there = self.mover().is_on(place, self.tier);
        let mut size = node.attributes.size;
        if node.attributes.is_written() {
            // The store has the size of before it was opened; that of bytes that are not reached stays.
            let found = self.base.places.stat(place, node.inode.0);
            size = found.map_or(size, |found| found.raw.st_size.unsigned_abs());
        }
        files.push(Named { path, name, inode: node.inode, size, is_there });
        Ok(())
    }
}
