//! Executes requests by calling the engine, whichever transport they come from.
//!
//! One [`Front`] serves all threads of a mount. It has a component for each kind of request ([`names`], [`attributes`],
//! [`xattrs`], [`directories`], [`files`], [`locking`]); these share what the kernel knows ([`inodes`]) and has open
//! ([`open_files`]). The kernel checks permissions (`default_permissions`); what it leaves to a file system is done here
//! for every engine:
//! - a write removes set-id bits and capabilities, and who changes attributes is compared with the present owner
//!   ([`privileges`]);
//! - pages of a shared mapping are written where they belong, even through an `O_APPEND` handle ([`handles`]);
//! - the kernel is handed files that it can serve by itself ([`open_files`]), and is told to drop pages that direct writes
//!   made stale ([`stale_pages`]);
//! - if other mounts use the origin's files, locks are held on those files ([`locks`]);
//! - reads and writes may be recorded as a trace ([`recording`]);
//! - if other nodes rename files, a rename that one has made between two look-ups of the kernel begins again ([`lost_races`]),
//!   and a rename of a directory that one has moved finds it where it is ([`directory_places`]);
//! - what meets a program's lease of a file below is tried again for a while, without holding up others ([`lease_waits`]);
//! - no user may take the descriptors that others need to open files ([`user_limits`]).

pub(crate) mod attributes;
pub(crate) mod backing;
pub(crate) mod directories;
pub(crate) mod directory_places;
mod dropped_pages;
pub(crate) mod files;
mod handles;
mod inode_table;
pub(crate) mod inodes;
pub(crate) mod kernel_attributes;
pub(crate) mod lease_waits;
pub(crate) mod locking;
pub(crate) mod locks;
mod lost_races;
pub(crate) mod names;
pub(crate) mod open_files;
pub(crate) mod privileges;
mod recording;
mod served_by;
mod set_id_check;
mod share;
pub(crate) mod stale_pages;
mod system_call;
mod timeouts;
mod user_limits;
pub(crate) mod xattrs;

use std::sync::Arc;
use std::time::Duration;

use fuser::Errno;
use halocline_os::catch_panic::Panicked;
use halocline_os::error::Error;
use halocline_vfs::Engine;

use attributes::Attributes;
use backing::Connection;
use directories::Directories;
use directory_places::DirectoryPlaces;
use dropped_pages::DroppedPages;
use files::Files;
use inodes::Inodes;
use lease_waits::LeaseWaits;
use locking::Locking;
use locks::Waiters;
use lost_races::LostRaces;
use names::Names;
use open_files::OpenFiles;
use privileges::Privileges;
use recording::Recording;
use stale_pages::StalePages;
use user_limits::UserLimits;
use xattrs::Xattrs;

/// How a front end serves its engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrontOptions {
    /// How long the kernel may answer from its own copy of attributes and names.
    pub(crate) attr_timeout: Duration,
    /// Whether every file bypasses the kernel's page cache, whatever the engine says.
    pub(crate) direct: bool,
    /// How many threads take requests from `/dev/fuse`.
    pub(crate) device_threads: usize,
}

/// The front end of one mount: the components that answer its requests.
#[derive(Debug)]
pub(crate) struct Front<E: Engine> {
    pub(crate) names: Names<E>,
    pub(crate) attributes: Attributes<E>,
    pub(crate) xattrs: Xattrs<E>,
    pub(crate) directories: Directories<E>,
    pub(crate) locking: Locking<E>,
    pub(crate) files: Files<E>,
    pub(crate) open: Arc<OpenFiles<E>>,
    pub(crate) stale_pages: Arc<StalePages>,
    /// `None` where no other node renames directories.
    pub(crate) directory_places: Option<Arc<DirectoryPlaces>>,
    pub(crate) connection: Arc<Connection>,
}

/// Errors on their way to the kernel.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Errno);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        if is_told(&error) {
            tracing::warn!(%error, "a request failed");
        }
        Self(Errno::from_i32(error.errno()))
    }
}

/// Whether to log the error, because someone should look into it: a device, a limit of the machine, or a defect.
fn is_told(error: &Error) -> bool {
    matches!(error.errno(), libc::EIO | libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE)
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

pub(crate) type Answer<T> = Result<T, Refused>;

/// A defect in one request must neither leave its program waiting forever nor cost the mount a thread.
impl From<Panicked> for Refused {
    fn from(_told: Panicked) -> Self {
        Self(Errno::EIO)
    }
}

impl<E: Engine> Front<E> {
    /// A front end of `engine`. It records reads and writes if there is a `destination`.
    pub(crate) fn new(
        engine: Arc<E>,
        options: FrontOptions,
        destination: Option<recording::Destination>,
    ) -> Self {
        // Built from the bottom up: each component is given what it uses, and knows only components made before it.
        let connection = Arc::new(Connection::default());
        let stale_pages = Arc::new(StalePages::default());
        let limits = Arc::new(UserLimits::new());
        let leases = Arc::new(LeaseWaits::new(options.device_threads));
        let inodes = Arc::new(Inodes::new(&engine, options.attr_timeout, &stale_pages));
        let dropped =
            DroppedPages { inodes: Arc::downgrade(&inodes), stale_pages: Arc::clone(&stale_pages) };
        engine.drops_pages_by(Box::new(dropped));
        let privileges = Arc::new(Privileges { engine: engine.clone() });
        let recording = Arc::new(Recording { engine: engine.clone(), destination });
        let of_engine = (&engine, options.direct);
        let open = Arc::new(OpenFiles::new(of_engine, &connection, &stale_pages, &recording));
        let directory_places = engine.shares_names().then(Arc::default);
        Self {
            names: Names {
                engine: engine.clone(),
                inodes: inodes.clone(),
                races: engine.shares_names().then(LostRaces::new),
                places: directory_places.clone(),
            },
            attributes: Attributes {
                engine: engine.clone(),
                inodes: inodes.clone(),
                open: open.clone(),
                privileges: privileges.clone(),
                leases: leases.clone(),
            },
            xattrs: Xattrs {
                engine: engine.clone(),
                inodes: inodes.clone(),
                privileges: privileges.clone(),
            },
            directories: Directories::new(&engine, (&inodes, directory_places.clone()), &limits),
            locking: Locking {
                engine: engine.clone(),
                inodes: inodes.clone(),
                open: open.clone(),
                limits: limits.clone(),
                leases: leases.clone(),
                connection: connection.clone(),
                waiters: Waiters::default(),
            },
            files: Files {
                engine,
                inodes,
                open: open.clone(),
                limits,
                leases,
                privileges,
                stale_pages: stale_pages.clone(),
                recording,
            },
            open,
            stale_pages,
            directory_places,
            connection,
        }
    }

    /// Whether programs have files or directories open.
    pub(crate) fn is_used(&self) -> bool {
        !self.open.is_empty() || !self.directories.is_empty()
    }
}
