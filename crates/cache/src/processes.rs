//! The process behind a request: the kernel names a thread; the cost model needs the process, and the MPI rank if a
//! hint gave it.

use halocline_os::process_status::ProcessStatus;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

/// Threads remembered at most; then the table starts anew, which costs only one lookup each.
const THREADS_MAX: usize = 65_536;

/// Maps threads to processes, and processes to ranks.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    tables: RwLock<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    process_of: FxHashMap<u32, u32>,
    rank_of: FxHashMap<u32, u32>,
}

/// A process as the cost model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    /// Process id in the mount's pid namespace; 0 for the kernel's own requests.
    pub(crate) pid: u32,
    /// Rank in its communicator, or a number derived from the pid; determines where its data is placed.
    pub(crate) owner: u32,
}

impl Processes {
    /// The process of thread `tid`.
    pub(crate) fn of_thread(&self, tid: u32) -> Process {
        {
            let tables = self.tables.read();
            if let Some(&pid) = tables.process_of.get(&tid) {
                return Process { pid, owner: owner(pid, &tables.rank_of) };
            }
        }
        let pid = thread_group(tid).unwrap_or(tid);
        let mut tables = self.tables.write();
        if tables.process_of.len() >= THREADS_MAX {
            tables.process_of.clear();
        }
        tables.process_of.insert(tid, pid);
        Process { pid, owner: owner(pid, &tables.rank_of) }
    }

    /// Notes the rank of process `pid`.
    pub(crate) fn set_rank(&self, pid: u32, rank: u32) {
        let mut tables = self.tables.write();
        if tables.rank_of.len() >= THREADS_MAX {
            tables.rank_of.clear();
        }
        tables.rank_of.insert(pid, rank);
    }
}

/// Consecutive pids map to consecutive servers, so a group of workers started together is distributed evenly even
/// without ranks.
fn owner(pid: u32, rank_of: &FxHashMap<u32, u32>) -> u32 {
    rank_of.get(&pid).copied().unwrap_or(pid)
}

fn thread_group(tid: u32) -> Option<u32> {
    ProcessStatus::of(tid).ok()?.numbers("Tgid").next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_process_are_one_owner() {
        let processes = Processes::default();
        let me = std::process::id();
        let tid = std::thread::spawn(|| {
            u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap()
        });
        // The thread may be gone when it is looked up: then it counts as its own process.
        let tid = tid.join().unwrap();
        assert_eq!(processes.of_thread(me), Process { pid: me, owner: me });
        assert!([me, tid].contains(&processes.of_thread(tid).pid));
    }

    #[test]
    fn a_rank_places_the_data() {
        let processes = Processes::default();
        let me = std::process::id();
        processes.set_rank(me, 3);
        assert_eq!(processes.of_thread(me).owner, 3);
    }
}
