//! Processors for a store, and others for its load: what is measured is then the same from run to run.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Server;
use crate::failure::Failure;

/// The processors that this process may use, in two halves; where they are odd, the store has one more.
#[derive(Debug)]
pub(in super::super) struct ProcessorSplit {
    all: CpuSet,
    store: Vec<usize>,
    load: Vec<usize>,
}

impl ProcessorSplit {
    /// Of the calling thread's processors; `None` where it has only one.
    ///
    /// # Errors
    /// If the system does not tell them.
    pub(in super::super) fn find() -> Result<Option<Self>, Failure> {
        let all = sched_getaffinity(None).map_err(|error| Failure::failed(error.to_string()))?;
        let mut store: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|one| all.is_set(*one)).collect();
        let load = store.split_off(store.len().div_ceil(2));
        Ok((!load.is_empty()).then_some(Self { all, store, load }))
    }

    /// Binds each server that the benchmark started to one processor of the store's, in turn, and the calling thread,
    /// with the threads and processes that it will start, to those of the load. Dropping what is returned frees the
    /// thread.
    ///
    /// # Errors
    /// If the system refuses.
    pub(in super::super) fn bind(&self, server: &Server) -> Result<Bound<'_>, Failure> {
        let refused = |error: rustix::io::Errno| Failure::failed(error.to_string());
        for (process, processor) in server.processes().iter().zip(self.store.iter().cycle()) {
            let pid = Pid::from_raw(i32::try_from(process.id()).unwrap_or(0));
            sched_setaffinity(pid, &set(&[*processor])).map_err(refused)?;
        }
        sched_setaffinity(None, &set(&self.load)).map_err(refused)?;
        Ok(Bound(self))
    }

    /// Numbers of the processors of the store, and of the load.
    pub(in super::super) fn numbers(&self) -> [&[usize]; 2] {
        [&self.store, &self.load]
    }
}

/// The calling thread is bound until this is dropped.
#[derive(Debug)]
pub(in super::super) struct Bound<'a>(&'a ProcessorSplit);

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0.all);
    }
}

fn set(processors: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for processor in processors {
        set.set(*processor);
    }
    set
}
