//! Open files of the process, shared out among those that keep many.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Cache objects that are open at most, however many files the process may have.
const OBJECTS_MAX: usize = 4096;

/// How many each may keep; what is left is for the files that programs open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenFiles {
    /// Nodes of the tree.
    pub(crate) nodes: usize,
    /// Nodes that could not be found again.
    pub(crate) pinned: usize,
    /// Objects of the cache, on all servers together.
    pub(crate) objects: usize,
    /// Files of the origin with dirty bytes, on all servers together.
    pub(crate) movers: usize,
}

impl OpenFiles {
    /// The shares of this process. Raises its soft limit to the hard one first.
    pub(crate) fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let current = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit.maximum,
            Err(_) => limit.current,
        };
        let limit = current.map_or(1 << 20, |limit| usize::try_from(limit).unwrap_or(1 << 20));
        Self::of(limit)
    }

    fn of(limit: usize) -> Self {
        let tenth = limit / 10;
        Self {
            nodes: 4 * tenth,
            pinned: 2 * tenth,
            objects: (2 * tenth).min(OBJECTS_MAX),
            movers: tenth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_leave_some_for_programs() {
        for limit in [1024, 4096, 20_000, 1 << 20] {
            let OpenFiles { nodes, pinned, objects, movers } = OpenFiles::of(limit);
            assert!(nodes + pinned + objects + movers <= limit / 10 * 9, "{limit}");
        }
    }
}
