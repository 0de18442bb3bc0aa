//! Begins a node's session on a shared tier.
//!
//! What must hold: names are formatted only where there never were any. The shared disk is marked once its tier has
//! names; if it is marked and the store is empty, the store has lost them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use halocline_api::control::tier::PRIVATE;
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::namespace::{Failure, Namespace, WaitLimit};
use halocline_cluster::names::{NameStore, NamesError, State};
use halocline_cluster::registry::{FileIdentity, Registry};
use halocline_cluster::sessions::{self, Node};
use halocline_cluster::store::Store;
use halocline_model::token::Session;
use halocline_os::boot_id::boot_id;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::locked_file::LockedFile;
use halocline_os::open_files::OpenFiles;
use halocline_os::private::{PrivateDir, Use};
use rustix::fs::{FlockOperation, flock, fsync, stat};
use rustix::io::Errno;

use crate::SharedTier;
use crate::base::{self, Base};
use crate::contested_names::ContestedNames;
use crate::directory_paths::DirectoryPaths;
use crate::disk_users::MountLock;
use crate::entry_names::REGISTRY;
use crate::errors::{of_names, of_store};
use crate::files::Files;
use crate::inodes::Table;
use crate::late_names::LateNames;
use crate::lookup::Lookup;
use crate::mount_counts::{self, Older};
use crate::passthrough::Passthrough;
use crate::places::{Places, Watcher, peers, users_xattrs};
use crate::recent_lookups::RecentLookups;
use crate::remedies::{ADOPT, REPAIR};
use crate::sessions::Sessions;
use crate::ssd::OwnSsd;
use crate::ssd::archive::ArchiveThread;
use crate::ssd::background::Background;
use crate::ssd::options::SpaceOptions;
use crate::stat_conversion::joined;
use crate::store_directories::StoreDirectories;
use crate::tree::SharedTree;
use crate::waiting_closes::WaitingCloses;

/// The file on an SSD with the name of its node.
const NODE: &str = "node";
/// The file on an SSD with the SSD's own id.
const SSD_ID: &str = "id";
/// The file on an SSD that its mount keeps locked.
const LOCK: &str = "in-use";
/// The file on the shared disk that says that names were formatted.
const FORMATTED: &str = "names";
/// Prefix of the file on the shared disk that says which SSD has a node's name.
const NODE_NAME: &str = "node-";
/// The most bytes of any of them.
const BYTES_MAX: u64 = 1024;
/// How often to check whether an earlier session is over, or another node has made the names.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Within what time a node that makes the names of a new tier is done, or dead.
const FORMATTED_WITHIN: Duration = Duration::from_secs(10);

/// What a mount of a shared tier needs.
#[derive(Debug)]
pub struct Joining<'a> {
    /// The directory with this node's SSD, `ssd`, and the shared disk, `hdd`.
    pub root: &'a Path,
    /// This node's name, if one is given; otherwise the name on its SSD, or the host's.
    pub node: Option<&'a str>,
    /// Where other nodes' SSDs are: a path with `{node}` in place of their names.
    pub peers: Option<&'a str>,
    /// Whether the kernel may serve files of the node's SSD by itself.
    pub passthrough: bool,
    /// The store of sessions.
    pub store: Arc<dyn Store>,
    /// The store of names.
    pub names: Arc<dyn NameStore>,
    /// The list of sessions on the shared disk.
    pub registry: Registry,
    /// How the space on the SSD is managed.
    pub space: SpaceOptions,
}

impl Joining<'_> {
    /// Begins the session, and makes the names if the tier is new.
    ///
    /// # Errors
    /// If the store cannot be used or has lost the names, if a directory is another tier's or node's, or in use, or if this
    /// process may have too few files open.
    pub fn open(self) -> Result<SharedTier> {
        // Nothing here keeps files open but for programs: only the limit is raised.
        OpenFiles::of_process()?;
        self.open_by(&Clock::MACHINE)
    }

    /// The same, with `clock` for all times and waits.
    pub(crate) fn open_by(self, clock: &Clock) -> Result<SharedTier> {
        let [ssd, shared] = ["ssd", "hdd"].map(|tier| self.root.join(tier));
        let own = PrivateDir::make(&ssd.join(PRIVATE))?;
        let common = PrivateDir::make(&shared.join(PRIVATE))?;
        let lock = lock(&own)?;
        let node = self.node_name(&own)?;
        // Checked before files refer to that name.
        peers::check_node(&node)?;
        let mounted = MountLock::take(&common, &node, clock)?;
        let id = ssd_id(&own)?;
        let was_claimed = peers::is_claimed((&own, &ssd), &node, &peers::tier_id(&common)?)?;
        self.format_if_new(&common, (&ssd, &shared), clock)?;
        let is_copied = settle(&*self.store, &self.registry, (&ssd, &id), clock)?;
        // Not earlier: a mount that is refused must not take a name from another node.
        check_node_is_ours(&common, &node, (&id, was_claimed))?;
        let older = older_disk((&own, &common), &node, is_copied);
        let agent = Agent::begin(
            Options { clock: clock.clone(), ..Options::new(node.clone(), ssd, id) },
            Arc::clone(&self.store),
            self.registry,
        )?;
        let place = (self.root, node.as_str(), self.peers);
        let opened = open_names(place, held(self.names), agent.session(), clock);
        let (names, table, paths, places) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                agent.leave()?;
                return Err(error);
            }
        };
        let sessions = Sessions::new(agent, self.store, clock.clone());
        let begun = clock.instant();
        let passthrough = Passthrough::new(self.passthrough, places.grants_leases(), clock);
        let base = base::shared(Base {
            names,
            places,
            table,
            paths,
            sessions,
            passthrough,
            closes: WaitingCloses::default(),
            late: LateNames::default(),
            contested: ContestedNames::default(),
            clock: clock.clone(),
        });
        let lookup = Arc::new(Lookup::new(&base));
        let ssd = OwnSsd::new(&base, self.root, self.space).inspect_err(|_| {
            let _ended_later = base.sessions.leave();
        })?;
        let ssd = Arc::new(ssd);
        let files = Arc::new(Files::new(&base, &lookup, &ssd));
        let recent = Arc::new(RecentLookups::new(&base, &lookup, &files));
        let tree = SharedTree::new(base, lookup, &files);
        let background = Background::start(&ssd)?;
        let archive = ArchiveThread::start(&ssd)?;
        let root = self.root.to_owned();
        Ok(SharedTier {
            background,
            archive,
            recent,
            ssd,
            tree,
            files,
            root,
            begun,
            older,
            _mounted: mounted,
            _lock: lock,
        })
    }

    fn node_name(&self, own: &PrivateDir) -> Result<String> {
        if let Some(node) = self.node {
            return Ok(node.to_owned());
        }
        if let Some(found) = own.read(NODE, BYTES_MAX)? {
            let found = String::from_utf8_lossy(&found);
            return Ok(found.lines().next().unwrap_or_default().to_owned());
        }
        Ok(rustix::system::uname().nodename().to_string_lossy().into_owned())
    }

    /// Makes the names of a tier that never had any. Several nodes may mount a new tier at the same moment, and begin epochs
    /// over one another: whoever finds the names half made looks again until they are there.
    fn format_if_new(
        &self,
        common: &PrivateDir,
        (ssd, shared): (&Path, &Path),
        clock: &Clock,
    ) -> Result<()> {
        let is_marked = common.read(FORMATTED, BYTES_MAX)?.is_some();
        let begun = clock.instant();
        let store_failed = |error: NamesError| of_store(&error);
        loop {
            let failure = match self.names.refresh().map_err(store_failed)? {
                State::Empty if is_marked => {
                    return Err(Error::Cluster {
                        what: format!(
                            "{}: this tier had names, and the store has none of them",
                            shared.display()
                        ),
                        remedy: format!(
                            "name its store; if that has lost them, have them built again: {REPAIR}"
                        ),
                    });
                }
                State::Empty => {
                    for (dir, ours) in [(ssd, &[PRIVATE][..]), (shared, &[PRIVATE, REGISTRY])] {
                        check_empty(dir, ours)?;
                    }
                    match Namespace::format(&*self.names, &root(shared, clock.now_ns())?) {
                        Ok(()) | Err(Failure::Refused(Errno::EXIST)) => break,
                        Err(Failure::Store(
                            error @ (NamesError::Stale | NamesError::Forgot(_)),
                        )) => error,
                        Err(failure) => return Err(of_names(failure)),
                    }
                }
                State::Confirmed => break,
                state @ State::Doubtful(_) if !is_marked => state.refusal(),
                state => return Err(of_store(&state.refusal())),
            };
            if clock.elapsed(begun) >= FORMATTED_WITHIN {
                return Err(of_store(&failure));
            }
            clock.sleep(LOOK_AGAIN);
        }
        if is_marked { Ok(()) } else { set_formatted(common) }
    }
}

type Watched = (Arc<dyn NameStore>, Option<Arc<dyn Watcher>>);

/// The store of names, and who is told of steps on the disks; a test may want to hold both.
fn held(names: Arc<dyn NameStore>) -> Watched {
    #[cfg(debug_assertions)]
    if let Some(steps) = crate::held_steps::HeldSteps::wanted() {
        return (steps.store(names), Some(Arc::new(steps)));
    }
    (names, None)
}

type Opened = (Arc<Namespace>, Arc<Table>, Arc<DirectoryPaths>, Places);

/// The names in the store, and the disks of the tier in `root`, for a node that reaches the others' SSDs by `peers`.
fn open_names(
    (root, node, peers): (&Path, &str, Option<&str>),
    (store, watcher): Watched,
    session: Session,
    clock: &Clock,
) -> Result<Opened> {
    let names = Namespace::open(store, session, WaitLimit::default()).map_err(of_names)?;
    let names = Arc::new(names);
    let table = Arc::new(Table::default());
    let directories = StoreDirectories(Arc::clone(&names));
    let paths = Arc::new(DirectoryPaths::new(&table, directories, clock));
    let places = Places::open(root, node, peers, paths.clone(), clock, watcher)?;
    places.drop_temporaries()?;
    Ok((names, table, paths, places))
}

/// Notes on the shared disk that the tier has names in a store. Other nodes may do so at the same moment; what counts is that
/// the file is there.
pub(crate) fn set_formatted(common: &PrivateDir) -> Result<()> {
    let _is_ours = create(common, FORMATTED, b"in the store\n")?;
    Ok(())
}

/// Makes a file that several nodes may make at the same moment; returns whether this one did. Its maker may have died before
/// it had written anything.
fn create(dir: &PrivateDir, name: &str, bytes: &[u8]) -> Result<bool> {
    use std::io::Write;
    let at = |error| Error::at(dir.path().join(name), "write")(error);
    let made = match dir.file(name, Use::New) {
        Ok(mut file) => {
            file.write_all(bytes).and_then(|()| file.sync_all()).map_err(at)?;
            true
        }
        Err(error) if error.errno() == libc::EEXIST => false,
        Err(error) => return Err(error),
    };
    fsync(dir).map_err(|errno| at(errno.into()))?;
    Ok(made)
}

/// Whether a store has the names of the tier below a root.
#[must_use]
pub fn is_shared(root: &Path) -> bool {
    is_shared_disk(&root.join("hdd"))
}

/// Whether a directory is the shared disk of such a tier.
#[must_use]
pub fn is_shared_disk(dir: &Path) -> bool {
    dir.join(PRIVATE).join(FORMATTED).symlink_metadata().is_ok()
}

/// Locks an SSD for this process: any earlier holder has ended.
fn lock(own: &PrivateDir) -> Result<LockedFile> {
    let file = own.file(LOCK, Use::Write)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(LockedFile::new(file)),
        Err(Errno::WOULDBLOCK) => Err(Error::invalid(
            format!("{} is in use by another mount", own.path().display()),
            "unmount that first, or give this node an SSD of its own",
        )),
        Err(errno) => Err(Error::at(own.path().join(LOCK), "lock")(errno.into())),
    }
}

/// The id of an SSD, unique to it.
fn ssd_id(own: &PrivateDir) -> Result<String> {
    use std::hash::{BuildHasher, RandomState};
    if let Some(id) = own.read(SSD_ID, BYTES_MAX)? {
        return Ok(String::from_utf8_lossy(&id).trim_end().to_owned());
    }
    let random = || RandomState::new().hash_one(std::process::id());
    let id = format!("{:016x}{:016x}", random(), random());
    own.replace(SSD_ID, format!("{id}\n").as_bytes())?;
    Ok(id)
}

/// Places of files refer to nodes by name, so no two SSDs may have the same name.
fn check_node_is_ours(
    common: &PrivateDir,
    node: &str,
    (id, was_claimed): (&str, bool),
) -> Result<()> {
    let name = format!("{NODE_NAME}{node}");
    if create(common, &name, id.as_bytes())? {
        return Ok(());
    }
    let found = common.read(&name, BYTES_MAX)?.unwrap_or_default();
    match found.as_slice() {
        found if found == id.as_bytes() => Ok(()),
        // Its maker died before it wrote the id.
        b"" => common.replace(&name, id.as_bytes()),
        _ => Err(Error::invalid(
            format!("another SSD has the name {node} in this tier"),
            if was_claimed {
                // It can get no other name.
                format!(
                    "this one was that of node {node} before: if the other was mounted in its place, unmount that, remove {}, and \
                     mount this one again",
                    common.path().join(&name).display()
                )
            } else {
                format!(
                    "give another --node; if that SSD is gone for good, remove {}",
                    common.path().join(&name).display()
                )
            },
        )),
    }
}

/// Refuses a directory with files: a tier without names has none.
fn check_empty(dir: &Path, ours: &[&str]) -> Result<()> {
    let Some(path) = peers::foreign_name(dir, ours)? else { return Ok(()) };
    let what = format!("{}: it has files, and the store has no names of this tier", path.display());
    let remedy = if peers::is_of_one_node(dir) {
        ADOPT.to_owned()
    } else {
        format!(
            "name the tier's store; for files that were there before, or where the store has lost the names, have them built \
             from the directories: {REPAIR}"
        )
    };
    Err(Error::invalid(what, remedy))
}

/// Attributes of the root: those of the shared disk's directory.
fn root(shared: &Path, now_ns: i64) -> Result<Attributes> {
    let found = stat(shared).map_err(|errno| Error::at(shared, "look at")(errno.into()))?;
    let mut root = Attributes::new(Kind::Directory, found.st_mode & 0o7777, now_ns);
    (root.uid, root.gid) = (found.st_uid, found.st_gid);
    root.mtime_ns = joined(found.st_mtime, i64::try_from(found.st_mtime_nsec).unwrap_or_default());
    let directory = File::open(shared).map_err(Error::at(shared, "look at"))?;
    root.xattrs = users_xattrs::all(&directory, &root)?;
    Ok(root)
}

/// Counts this session, and returns which disk is older than the last one, whose SSD was another directory if this is a copy of it.
/// A disk that refuses to be counted on keeps nobody from his files.
fn older_disk(
    (own, common): (&PrivateDir, &PrivateDir),
    node: &str,
    is_copied: bool,
) -> Option<Older> {
    let counted = || {
        if is_copied {
            mount_counts::count_as_older(own, common, node)?;
        }
        mount_counts::count(own, common, node)
    };
    counted().unwrap_or_else(|error| {
        tracing::warn!(%error, "the session is not counted");
        None
    })
}

/// Ends the sessions that this SSD left behind: their processes have ended, or their leases expire. Returns whether the SSD of one of
/// them was another directory.
fn settle(
    store: &dyn Store,
    registry: &Registry,
    (ssd, id): (&Path, &str),
    clock: &Clock,
) -> Result<bool> {
    let mut is_copied = false;
    let boot = boot_id()?;
    let here = File::open(ssd).and_then(FileIdentity::of).map_err(Error::at(ssd, "look at"))?;
    for node in sessions::nodes(store, registry)? {
        if node.cache_id.as_deref() != Some(id) {
            continue;
        }
        // Devices have other numbers after a restart.
        let is_other = |seen: FileIdentity| {
            let are_known = seen.born_ns != 0 && here.born_ns != 0;
            are_known && (seen.inode, seen.born_ns) != (here.inode, here.born_ns)
        };
        is_copied |= node.cache_seen.is_some_and(is_other);
        // We hold the lock of its process, so that has ended.
        if node.boot_id.as_ref() == Some(&boot) && node.cache_seen == Some(here) {
            sessions::end_own(store, registry, node.session)?;
        } else {
            wait_for_its_end(store, registry, &node, clock)?;
            sessions::end(store, registry, node.session)?;
        }
    }
    Ok(is_copied)
}

fn wait_for_its_end(
    store: &dyn Store,
    registry: &Registry,
    node: &Node,
    clock: &Clock,
) -> Result<()> {
    let mut left_ms = node.lease_ms;
    while left_ms > 0 {
        clock.sleep(LOOK_AGAIN);
        let now = sessions::nodes(store, registry)?;
        let now = now.iter().find(|now| now.session == node.session);
        let now_ms = now.map_or(0, |now| now.lease_ms);
        if now_ms > left_ms {
            return Err(Error::invalid(
                format!("{} has the same SSD, and lives", registry.name(node.session)),
                "one of the two is a copy: give this node an SSD of its own",
            ));
        }
        left_ms = now_ms;
    }
    Ok(())
}
