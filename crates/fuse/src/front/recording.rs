//! Records requests as a trace, in front of the engine, whichever engine it is.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use halocline_trace::Op;
use halocline_trace::record::{FileNumber, Recorder};
use halocline_vfs::{Caller, Engine, Tree};

use super::handles::OpenFile;
use super::inode_table::Inode;

/// Where a mount's requests are recorded, and the prefix of file names.
pub(crate) type Destination = (Arc<Recorder>, PathBuf);

/// Records reads and writes if a trace is wanted.
#[derive(Debug)]
pub(super) struct Recording<E> {
    pub(super) engine: Arc<E>,
    pub(super) destination: Option<Destination>,
}

impl<E: Engine> Recording<E> {
    /// The number in the trace of a file that is being opened. `unseen` says that the kernel will serve it.
    pub(super) fn traced(&self, inode: &Inode<E::Vnode>, unseen: bool) -> Option<FileNumber> {
        let (recorder, mountpoint) = self.destination.as_ref()?;
        if unseen {
            recorder.unseen();
        }
        // If the number is reused for another file, the generation differs.
        recorder.file((inode.number, inode.generation), || {
            let (tree, vnode) = self.engine.below(&inode.vnode);
            mountpoint.join(tree.path_of(&vnode)).as_os_str().as_bytes().to_vec()
        })
    }

    /// Lets the engine serve a request, and records it with its `bytes`.
    pub(super) fn recorded<T>(
        &self,
        (file, op): (&OpenFile<E>, Op),
        (offset, caller): (u64, Caller),
        serve: impl FnOnce() -> T,
        bytes: impl FnOnce(&T) -> u64,
    ) -> T {
        match &self.destination {
            None => serve(),
            Some((recorder, _)) => {
                recorder.request((file.traced, op, offset, caller.pid), serve, bytes)
            }
        }
    }
}
