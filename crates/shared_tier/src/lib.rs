//! The file tier that several nodes share: names in a store (I15), whole files on each node's SSD and on a disk that all
//! nodes see.
//!
//! The store (`halocline_cluster::names`) has all names and attributes, with the place of each file's bytes; [`places`]
//! finds and makes what is at such places. Bytes are read and written in place, on whichever node they are: no node caches
//! any, so nodes see each other's writes as the file systems below do. A component per subject, over one [`base`]:
//!
//! - [`engine`]: the front end's calls, passed on; [`tree`]: the names as its tree; [`control`]: the control
//!   interface;
//! - [`lookup`]: what a name, or an inode in use ([`inodes`]), is now; [`stat_conversion`]: attributes as programs
//!   see them; [`directory`]: listings; [`tree_walk`]: all files below a path;
//! - [`files`]: open files, which the store notes; [`name_changes`], [`attribute_changes`]: all other changes, with
//!   the disks following the store ([`disk_names`]); [`acl`]: what new inodes inherit;
//! - [`closes`]: notes closes in the store, several together;
//! - [`passthrough`]: which open files the kernel serves by itself;
//! - [`moves`]: moves whole files between SSDs and the shared disk, for commands ([`move_commands`]) and for the
//!   policy that manages the space on this node's SSD ([`ssd`]);
//! - [`archiver`]: makes clean copies of files on this node's SSD; [`clean_copies`]: they go before their files change;
//! - [`job_places`]: on which nodes the files of a job are; [`file_infos`]: where files are; [`explain`]: why;
//! - [`repair`]: compares the names with the disks, and rebuilds them; [`adopt`]: turns a tier of one node into a
//!   shared one;
//! - `held_steps`: lets a test hold each step, in builds with debug assertions;
//! - [`disk_users`]: who may change the disks: mounts, or one repair;
//! - [`joining`]: begins a node's session, and formats the names of a new tier; [`sessions`]: which nodes live.
//!
//! What must hold:
//! - Nothing is done to a file by its name alone: each change in the store compares the number, and each file on a
//!   disk carries it.
//! - Nobody moves a file while a live session has it open: an open is noted before the file is opened, and a handle
//!   serves nothing after its node's lease has lapsed.
//! - The disks follow the store, and never decide: anything that could not follow is found by its number.

mod acl;
pub mod adopt;
mod archiver;
mod attribute_changes;
mod base;
mod circles;
mod clean_copies;
mod closes;
mod contested_names;
mod control;
mod directory;
mod directory_paths;
mod disk_names;
mod disk_users;
mod engine;
mod entry_names;
mod errors;
mod explain;
mod file_infos;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(debug_assertions)]
mod held_steps;
mod inodes;
mod job_places;
mod joining;
mod late_names;
mod lookup;
mod missed_changes;
mod mount_counts;
mod move_commands;
mod moves;
mod name_changes;
mod narrower_attributes;
mod passthrough;
mod places;
mod recent_lookups;
mod remedies;
mod renames;
pub mod repair;
mod sessions;
mod ssd;
mod stat_conversion;
mod sticky;
mod store_directories;
mod store_memory;
mod told_names;
mod tree;
mod tree_walk;
mod unmounted_disk;
mod waiting_closes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use halocline_api::control::SOCKET_NAME;
use halocline_api::control::tier::PRIVATE;
use halocline_os::error::Result;
use halocline_os::locked_file::LockedFile;
use halocline_os::private::PrivateDir;

pub use directory::Directory;
pub use disk_users::Alone;
pub use entry_names::REGISTRY;
pub use files::Handle;
pub use inodes::Vnode;
pub use joining::{Joining, is_shared, is_shared_disk};
pub use places::peers::check_pattern;
pub use ssd::options::SpaceOptions;
pub use tree::SharedTree;
pub use unmounted_disk::{note_of_new_tier, note_of_peers, refuse_unmounted, replace_lost};

use disk_users::MountLock;
use files::Files;
use missed_changes::TriedNotes;
use mount_counts::Older;
use recent_lookups::RecentLookups;
use ssd::OwnSsd;
use ssd::archive::ArchiveThread;
use ssd::background::Background;

/// A tier that several nodes share, as one node serves it.
#[derive(Debug)]
pub struct SharedTier {
    // Declared first: it ends before what it uses.
    background: Background,
    archive: ArchiveThread,
    recent: Arc<RecentLookups>,
    ssd: Arc<OwnSsd>,
    tree: SharedTree,
    files: Arc<Files>,
    root: PathBuf,
    begun: Instant,
    /// Which disk is an earlier state than that with which the node's last session ended.
    older: Option<Older>,
    // Declared last: they end after all that changes disks.
    /// Keeps repairs off the disks.
    _mounted: MountLock,
    /// Keeps other processes off the SSD.
    _lock: LockedFile,
}

impl SharedTier {
    /// The directory with the two tiers.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn socket(&self) -> PathBuf {
        self.root.join("ssd").join(PRIVATE).join(SOCKET_NAME)
    }

    /// Ends this node's session. Nothing may be open any more.
    ///
    /// # Errors
    /// If the store does not answer: the session then ends with its lease.
    pub fn close(&self) -> Result<()> {
        self.background.stop();
        self.archive.stop();
        self.recent.end();
        closes::note_all(&self.tree.base);
        self.tree.base.late.follow(&self.tree.base.disk());
        TriedNotes::default().follow(self.tree.base.listing(), false);
        self.tree.base.passthrough.end(&*self.files);
        if self.older.is_none() {
            self.count_end();
        }
        self.tree.base.sessions.leave()
    }

    /// A backup of the SSD that was made during the session is an earlier state than this.
    fn count_end(&self) {
        let counted = || {
            let [own, common] = ["ssd", "hdd"].map(|disk| self.root.join(disk).join(PRIVATE));
            let (own, common) = (PrivateDir::look(&own)?, PrivateDir::look(&common)?);
            mount_counts::count(&own, &common, self.tree.base.places.node())
        };
        if let Err(error) = counted() {
            tracing::warn!(%error, "the end of the session is not counted");
        }
    }

    /// What is said if an earlier state of a disk was put back.
    #[must_use]
    pub fn note_of_older_disk(&self) -> Option<String> {
        self.older.map(|older| mount_counts::told_at_mount(older, self.tree.base.places.node()))
    }
}
