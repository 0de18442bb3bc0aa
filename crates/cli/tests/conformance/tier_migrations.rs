//! Moves the files of a tier mount up and down at random while something else uses them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use halocline_api::control::{FileInfo, MountedPath, MoveReport, Request};

use crate::kill::Random;
use crate::mount::Mount;

/// A thread that moves files until it is dropped, or the mount is gone.
pub(crate) struct Migrations {
    stop: Arc<AtomicBool>,
    moved: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Migrations {
    /// Starts moving the files of `mount`.
    pub(crate) fn start(mount: &Mount) -> Self {
        let (stop, moved) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count, root) = (stop.clone(), moved.clone(), mount.path());
        let thread = thread::spawn(move || {
            // The mount may be killed under us: then there is nothing to move.
            let _ = move_until(&root, &stopped, &count);
        });
        Self { stop, moved, thread: Some(thread) }
    }

    /// How many files moved so far.
    pub(crate) fn count(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Ends, and tells how many files moved.
    pub(crate) fn stop(mut self) -> u64 {
        self.end();
        self.count()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the migrations");
        }
    }
}

impl Drop for Migrations {
    fn drop(&mut self) {
        self.end();
    }
}

fn move_until(
    root: &Path,
    stop: &AtomicBool,
    moved: &AtomicU64,
) -> Result<(), halocline_os::error::Error> {
    let mut client = MountedPath::find(root)?.connect()?;
    let mut random = Random::new(77);
    while !stop.load(Ordering::Relaxed) {
        let all = Request::Files { path: "".into() };
        let files: Vec<FileInfo> = client.call(&all, |_| {})?;
        for _ in 0..16.min(files.len()) {
            let at = usize::try_from(random.below(files.len() as u64)).expect("an index");
            // All at once, now and then.
            let path = if random.below(32) == 0 { "".into() } else { files[at].path.clone() };
            let request = if random.below(2) == 0 {
                Request::Evict { path, dry_run: false }
            } else {
                Request::Warm { paths: vec![path], dry_run: false }
            };
            // A file may be gone, renamed or in use.
            if let Ok(report) = client.call::<MoveReport>(&request, |_| {}) {
                moved.fetch_add(report.files, Ordering::Relaxed);
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
