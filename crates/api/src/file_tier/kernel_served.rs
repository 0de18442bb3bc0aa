//! What a file tier knows of kernel passthrough so far: whether the kernel takes files, which it serves by itself, and why
//! others were not handed to it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Weak};

use halocline_os::bounded::PATH_BYTES_MAX;
use halocline_os::kernel_passthrough;
use parking_lot::Mutex;

use crate::control::tier::PassthroughStatus;

/// The most open files that `status` names.
const NAMED_MAX: usize = 100;
const REFUSED_BY_KERNEL: &str = "the kernel takes no files";

/// The open files that the kernel serves; `I` is an inode of the tier.
#[derive(Debug)]
pub struct KernelServed<I> {
    state: Mutex<State<I>>,
}

#[derive(Debug)]
struct State<I> {
    /// Whether the kernel accepts files; unknown before one was offered.
    works: Option<bool>,
    /// Why it does not.
    reason: Option<String>,
    /// Opens that were not handed over, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// Files handed over by the inodes' numbers, including some that have been closed since.
    files: HashMap<u64, Weak<I>>,
}

impl<I> KernelServed<I> {
    /// Nothing is handed over yet, nor ever, if there is a reason why not.
    #[must_use]
    pub fn new(why_none: Option<&str>) -> Self {
        let state = State {
            works: why_none.is_some().then_some(false),
            reason: why_none.map(str::to_owned),
            refused: BTreeMap::new(),
            files: HashMap::new(),
        };
        Self { state: Mutex::new(state) }
    }

    /// Why no file is worth an offer, if none is.
    #[must_use]
    pub fn why_none(&self) -> Option<&'static str> {
        (self.state.lock().works == Some(false)).then_some(REFUSED_BY_KERNEL)
    }

    /// An open was not handed over.
    pub fn refused(&self, why: &'static str) {
        *self.state.lock().refused.entry(why).or_default() += 1;
    }

    /// The kernel answered the offer of a file whose inode has this number; whether it serves the file now.
    pub fn answered(&self, number: u64, inode: &Arc<I>, answer: io::Result<()>) -> bool {
        let mut state = self.state.lock();
        match answer {
            Ok(()) => {
                state.works = Some(true);
                state.files.insert(number, Arc::downgrade(inode));
                true
            }
            Err(error) => {
                if state.works.is_none() {
                    tracing::info!(%error, "no kernel passthrough");
                    state.works = Some(false);
                    state.reason = Some(kernel_passthrough::explain(&error));
                }
                *state.refused.entry(REFUSED_BY_KERNEL).or_default() += 1;
                false
            }
        }
    }

    /// Files that the kernel serves now; `is_served` tells whether it still serves one. The others are forgotten.
    ///
    /// `is_served` is called under the lock that each open needs, so it must wait for nothing: not for a lock, either, that
    /// somebody holds who opens a file.
    pub fn now(&self, is_served: impl Fn(&I) -> bool) -> Vec<Arc<I>> {
        let mut live = Vec::new();
        // An inode is dropped after the lock is released: its drop may need what its owner has locked.
        let mut ended = Vec::new();
        self.state.lock().files.retain(|_, inode| {
            let Some(inode) = inode.upgrade() else { return false };
            let keeps = is_served(&inode);
            if keeps { &mut live } else { &mut ended }.push(inode);
            keeps
        });
        live
    }

    /// For people to read; `is_served` as for [`now`](Self::now), and `path` is that of a file, which may take its time.
    pub fn status(
        &self,
        is_served: impl Fn(&I) -> bool,
        path: impl Fn(&I) -> String,
    ) -> PassthroughStatus {
        let served = self.now(is_served);
        let mut files: Vec<_> =
            served.iter().take(NAMED_MAX).map(|inode| end_of(&path(inode))).collect();
        files.sort();
        let state = self.state.lock();
        let refused = state.refused.iter().map(|(why, count)| ((*why).to_owned(), *count));
        PassthroughStatus {
            works: state.works,
            reason: state.reason.clone(),
            files,
            refused: refused.collect(),
        }
    }
}

/// A path, or the end of one that is longer than system calls accept: otherwise very deep directories would make a
/// status longer than clients read.
fn end_of(path: &str) -> String {
    let from = path.len().saturating_sub(PATH_BYTES_MAX);
    match (from..path.len()).find(|at| path.is_char_boundary(*at)) {
        Some(at) if at > 0 => format!("...{}", &path[at..]),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_length_is_told_in_short() {
        assert_eq!(end_of("a/b"), "a/b");
        assert_eq!(end_of(""), "");
        // Two bytes a letter: whatever the end begins in.
        for letters in [PATH_BYTES_MAX, PATH_BYTES_MAX + 1] {
            let told = end_of(&format!("{}b", "\u{e4}".repeat(letters)));
            assert!(told.starts_with("...\u{e4}") && told.ends_with('b'), "{told}");
            assert!(told.len() <= PATH_BYTES_MAX + 3, "{}", told.len());
        }
    }

    #[test]
    fn a_kernel_that_took_a_file_is_offered_others_after_it_refused_one() {
        let served = KernelServed::new(None);
        let inodes = [Arc::new(1_u64), Arc::new(2)];
        assert_eq!(served.why_none(), None);
        assert!(served.answered(1, &inodes[0], Ok(())));
        assert!(!served.answered(2, &inodes[1], Err(io::ErrorKind::OutOfMemory.into())));
        assert_eq!(served.why_none(), None);
        let status = served.status(|_| true, ToString::to_string);
        assert_eq!(status.files, ["1"]);
        assert_eq!(status.refused, [(REFUSED_BY_KERNEL.to_owned(), 1)]);
        assert_eq!((status.works, status.reason), (Some(true), None));
        assert!(served.now(|_| false).is_empty());
        assert!(served.now(|_| true).is_empty(), "it was forgotten");
    }

    #[test]
    fn a_kernel_that_refused_the_first_file_is_offered_no_other() {
        let served = KernelServed::new(None);
        assert!(!served.answered(1, &Arc::new(()), Err(io::ErrorKind::PermissionDenied.into())));
        assert_eq!(served.why_none(), Some(REFUSED_BY_KERNEL));
        assert!(served.status(|()| true, |()| String::new()).reason.is_some());
    }
}
