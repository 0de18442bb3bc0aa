//! What flush, warm and evict report of their way, and the files that they are asked about.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::components::Components;
use super::reach::says_not_there;
use crate::extent::file::CachedFile;
use halocline_api::control::{MoveReport, Progress, ProgressSink, Skipped};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_vfs::DirEntry;
use halocline_vfs::namespace::Node;

/// A move under way: its progress and its report.
pub(super) struct BulkOperation<'a> {
    sink: Mutex<ProgressSink<'a>>,
    done_bytes: Mutex<u64>,
    total_bytes: u64,
    clock: Clock,
    begun: Instant,
    report: MoveReport,
}

/// Progress of one file, for several threads.
pub(super) struct FileProgress<'m, 'a> {
    moving: &'m BulkOperation<'a>,
    path: PathBuf,
}

impl<'a> BulkOperation<'a> {
    pub(super) fn new(clock: &Clock, sink: ProgressSink<'a>, total_bytes: u64) -> Self {
        Self {
            sink: Mutex::new(sink),
            done_bytes: Mutex::new(0),
            total_bytes,
            clock: clock.clone(),
            begun: clock.instant(),
            report: MoveReport::default(),
        }
    }

    /// Counts a file that a dry run would have moved.
    pub(super) fn file(&mut self, path: &Path, bytes: u64) -> ControlFlow<()> {
        let flow = self.shared(path).advance(bytes);
        self.report.files += u64::from(bytes > 0);
        flow
    }

    /// Progress of one file.
    pub(super) fn shared(&self, path: &Path) -> FileProgress<'_, 'a> {
        FileProgress { moving: self, path: path.to_owned() }
    }

    /// A file had nothing to move.
    pub(super) fn already(&mut self) -> ControlFlow<()> {
        self.report.already_files += 1;
        ControlFlow::Continue(())
    }

    /// A file was moved, `left` bytes of it were not, if any because of `why`.
    pub(super) fn end_file(&mut self, path: &Path, left: u64, why: &str) -> ControlFlow<()> {
        self.report.files += 1;
        if left > 0 {
            self.skip(path, why.to_owned(), left);
        }
        ControlFlow::Continue(())
    }

    /// A file was not moved.
    pub(super) fn skip(&mut self, path: &Path, reason: String, left: u64) {
        self.report.left_bytes += left;
        self.report.skipped.push(Skipped { path: path.to_owned(), reason });
    }

    /// What was done, and what beside the files that were moved could not be.
    pub(super) fn report_with(mut self, skipped: &[Skipped]) -> MoveReport {
        self.report.skipped.extend_from_slice(skipped);
        self.report(0)
    }

    /// What was done; `left` bytes more were not.
    pub(super) fn report(mut self, left: u64) -> MoveReport {
        self.report.bytes = *self.done_bytes.lock();
        self.report.seconds = self.clock.elapsed(self.begun).as_secs_f64();
        self.report.left_bytes += left;
        self.report
    }
}

impl FileProgress<'_, '_> {
    /// `bytes` more were moved; `Break` asks for a stop.
    pub(super) fn advance(&self, bytes: u64) -> ControlFlow<()> {
        let mut done = self.moving.done_bytes.lock();
        *done += bytes;
        let progress = Progress {
            done_bytes: *done,
            total_bytes: self.moving.total_bytes.max(*done),
            path: self.path.clone(),
        };
        (self.moving.sink.lock())(progress)
    }
}

/// Regular files below given paths. Those that nobody uses are forgotten again when it is dropped.
pub(super) struct Walk<'a> {
    components: &'a Components,
    pub(super) found: Vec<(PathBuf, Arc<CachedFile>)>,
    /// What could not be looked at.
    pub(super) skipped: Vec<Skipped>,
}

impl<'a> Walk<'a> {
    /// Every regular file that is one of `paths` or below one.
    pub(super) fn below(components: &'a Components, paths: &[PathBuf]) -> Result<Self> {
        let mut walk = Self { components, found: Vec::new(), skipped: Vec::new() };
        for path in paths {
            let node = components.origin.node_at(path)?.ok_or_else(|| {
                Error::invalid(
                    format!("{} is not on this mount", path.display()),
                    "name files or directories below the mount point",
                )
            })?;
            walk.visit(&node, path.clone());
        }
        Ok(walk)
    }

    /// Trees may be of any depth: nothing recurs. What goes away meanwhile was never there.
    fn visit(&mut self, node: &Node, path: PathBuf) {
        let mut left = vec![(node.clone(), path)];
        while let Some((node, path)) = left.pop() {
            match self.step(&node, &path, &mut left) {
                Err(error) if !says_not_there(&error) => {
                    self.skipped.push(Skipped { path, reason: error.to_string() });
                }
                _ => {}
            }
        }
    }

    fn step(&mut self, node: &Node, path: &Path, left: &mut Vec<(Node, PathBuf)>) -> Result<()> {
        let components = self.components;
        match components.namespace.stat(node)?.kind() {
            libc::S_IFREG => self.found.push((path.to_owned(), components.known.file_of(node)?)),
            libc::S_IFDIR => {
                for DirEntry { name, .. } in components.namespace.entries(node)?.into_iter().rev() {
                    match components.namespace.lookup(node, &name) {
                        Ok((child, _)) => left.push((child, path.join(&name))),
                        Err(error) if says_not_there(&error) => {}
                        Err(error) => {
                            let (path, reason) = (path.join(&name), error.to_string());
                            self.skipped.push(Skipped { path, reason });
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        for (_, file) in &self.found {
            self.components.known.forget_idle(file);
        }
    }
}
