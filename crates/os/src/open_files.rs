//! Divides the process's open files among the components that keep many.

use std::{fs, io};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, Result};

/// Limit of open cache objects, however many files the process may have.
pub const OBJECTS_MAX: usize = 4096;

/// Reserved for the front end: two for each of its threads, and some more.
const FRONT_END: usize = 400;
/// With fewer, a mount would fail at its first few files.
const LIMIT_MIN: usize = 512;

/// How many open files each component may keep; the rest is for files that programs open.
#[derive(Debug, Clone, Copy)]
pub struct OpenFiles {
    /// Nodes of the tree.
    pub vnodes: usize,
    /// Nodes that could not be found again if they were closed.
    pub pinned: usize,
    /// Objects of the cache, on all servers together.
    pub objects: usize,
    /// Files of the origin with dirty bytes, on all servers together.
    pub flush_handles: usize,
}

/// How many files this process may have open now.
pub fn limit() -> usize {
    count(getrlimit(Resource::Nofile).current)
}

/// How many files this process has open now.
///
/// The lowest free number would be cheaper to ask for, but one file that was closed leaves a hole far below the others.
///
/// # Errors
/// There is no `/proc`; before Linux 6.2 also if no further file can be opened.
pub fn in_use() -> io::Result<usize> {
    const OWN: &str = "/proc/self/fd";
    match fs::metadata(OWN)?.len() {
        // Linux gives no size before 6.2, and this process has at least one file open.
        0 => Ok(fs::read_dir(OWN)?.count()),
        open => Ok(usize::try_from(open).unwrap_or(usize::MAX)),
    }
}

fn count(limit: Option<u64>) -> usize {
    limit.map_or(1 << 20, |limit| usize::try_from(limit).unwrap_or(1 << 20))
}

/// Raises this process's soft limit to the hard one, where that is possible; returns how many files it may have open then.
pub fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    count(match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    })
}

impl OpenFiles {
    /// The shares of this process. Raises its soft limit to the hard one first.
    ///
    /// # Errors
    /// The limit is too low to mount anything.
    pub fn of_process() -> Result<Self> {
        let limit = raise_limit();
        if limit < LIMIT_MIN {
            return Err(Error::invalid(
                format!("this process may have {limit} files open, and a mount needs {LIMIT_MIN}"),
                "raise the hard limit (ulimit -Hn, or LimitNOFILE= of a systemd unit)",
            ));
        }
        Ok(Self::of(limit))
    }

    fn of(limit: usize) -> Self {
        let tenth = limit.saturating_sub(FRONT_END) / 10;
        let (vnodes, pinned, flush_handles) = (4 * tenth, 2 * tenth, tenth);
        let objects = (2 * tenth).min(OBJECTS_MAX);
        let all = vnodes + pinned + objects + flush_handles;
        assert!(all + FRONT_END <= limit, "the shares are within the limit");
        Self { vnodes, pinned, objects, flush_handles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the lowest free number was taken for the number of files, and opening a file had left a hole.
    #[test]
    fn holes_do_not_hide_open_files() {
        let open = || fs::File::open("/dev/null").expect("open");
        let hole = open();
        let files: Vec<_> = (0..500).map(|_| open()).collect();
        drop(hole);
        let in_use = in_use().expect("/proc");
        assert!((files.len()..files.len() + 100).contains(&in_use), "{in_use}");
    }

    #[test]
    fn the_shares_leave_some_for_programs() {
        for limit in [LIMIT_MIN, 1024, 4096, 20_000, 1 << 20] {
            let OpenFiles { vnodes, pinned, objects, flush_handles } = OpenFiles::of(limit);
            let all = vnodes + pinned + objects + flush_handles;
            assert!(all + FRONT_END + limit / 50 <= limit, "{limit}: {all}");
        }
    }
}
