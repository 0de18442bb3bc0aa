//! The tier of one node (decision 0001) becomes a shared one, without a byte being copied: its names, which are on the
//! SSD, are made on the shared disk, and then a rebuild takes all of it into the store.
//!
//! What must hold: a killed run can be completed by running it again; at each step each file keeps its bytes and at
//! least one name; and nothing that we do not understand is changed.

mod files_below;
mod label;
mod links;
mod refusals;
mod settings;
mod shared_names;
mod unchangeable;
mod users_links;

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use halocline_cluster::names::attributes::{Attributes, Kind, RelativePath};
use halocline_os::error::{Error, Result};
use halocline_os::locked_file::LockedFile;
use halocline_os::private::PrivateDir;
use halocline_os::process_user::own_uid;
use halocline_vfs::namespace::statx::system_time;
use halocline_vfs::{SetAttr, SetTime};
use rustix::fs::{FlockOperation, Mode, flock, mkdirat};
use rustix::io::Errno;

use crate::disk_users::Alone;
use crate::places::adoption_mark::{self, ADOPTING};
use crate::places::own_xattrs;
use crate::places::own_xattrs::owner_permissions::{OnlyLooking, set_attr};
use crate::places::steps::{Steps, Watcher};
use crate::places::tree::Tree;
use crate::places::users_xattrs;
use crate::places::{peers, refused_changes};
use crate::remedies::{FINISH_ADOPTION, REPAIR};
use crate::repair::scan::{Item, Scanned, scan};
use crate::stat_conversion::split;
use files_below::{FilesBelow, clear_own_xattrs};
use links::{Link, Links};
use settings::Settings;
use shared_names::SharedNames;

/// What was or would be adopted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Directories.
    pub directories: u64,
    /// Files on the SSD.
    pub ssd_files: u64,
    /// Files on the disk below.
    pub disk_files: u64,
    /// Directories that keep their owner out, and whose content is not counted: only a repair opens them.
    pub unopened: u64,
    /// Pins and excludes that commands had set.
    pub globs: u64,
    /// Announced jobs.
    pub jobs: u64,
    /// Whether it was adopted before, and only the names in the store may be missing.
    pub is_done: bool,
}

/// Turns the tier of one node below `root` into the tier of node `node` in a shared tier. Without `repair` nothing is
/// changed. Afterwards the names are to be built in the store.
///
/// # Errors
/// If it is mounted, is a shared tier already, or was not unmounted in order.
pub fn run(root: &Path, node: &str, repair: Option<&Alone>) -> Result<Adopted> {
    run_watched(root, node, repair.is_some(), None)
}

pub(crate) fn run_watched(
    root: &Path,
    node: &str,
    repair: bool,
    watcher: Option<std::sync::Arc<dyn Watcher>>,
) -> Result<Adopted> {
    peers::check_node(node)?;
    let _looking = (!repair).then(OnlyLooking::begin);
    let steps = Steps::new(watcher);
    let [ssd, shared] =
        [root.join("ssd"), root.join("hdd")].map(|path| Tree::open(&path, steps.clone()));
    let (ssd, shared) = (ssd?, shared?);
    // Of the SSD of a node, `Alone` has the lock.
    let is_locked = repair && peers::of_ssd(&ssd.path).is_some();
    let _lock = (!is_locked).then(|| lock(&ssd.private)).transpose()?;
    if is_done((&ssd, &shared), node)? {
        let mut adopted = Adopted { is_done: true, ..Adopted::default() };
        // Earlier versions left them on the SSD.
        let settings = Settings::read(&ssd, &shared)?;
        settings.count(&mut adopted);
        if repair {
            settings.carry_over(&ssd, &shared)?;
            adoption_mark::clear([&ssd, &shared])?;
        }
        return Ok(adopted);
    }
    check(&ssd, root)?;
    let settings = Settings::read(&ssd, &shared)?;
    shared.check_attributes()?;
    ssd.check_attributes()?;
    let links = links(&ssd, &shared, root)?;
    let is_closing = ssd.private.read(ADOPTING, 0)?.is_some();
    let scanned = read(&ssd, !repair)?;
    let mut adopted = Adopted { unopened: scanned.unlisted.len() as u64, ..Adopted::default() };
    settings.count(&mut adopted);
    if !is_closing {
        let below = read(&shared, !repair)?;
        adopted.unopened += below.unlisted.len() as u64;
        refusals::check((&ssd, &shared), &links, (&scanned, &below))?;
        unchangeable::check((&ssd, &shared), &links, (&scanned, &below))?;
    }
    let adoption = Adoption { ssd, shared, links };
    OnSsd::all(&scanned).for_each(|item| adoption.count(&item, &mut adopted));
    if !repair {
        return Ok(adopted);
    }
    adoption_mark::set([&adoption.ssd, &adoption.shared], node)?;
    if !is_closing {
        adoption.names(&scanned)?;
        adoption.directory_attributes(&scanned)?;
        adoption.ssd.step("beginning to close directories", || {
            adoption.ssd.private.replace(ADOPTING, b"")
        })?;
    }
    adoption.close(&scanned)?;
    settings.carry_over(&adoption.ssd, &adoption.shared)?;
    let tier = peers::tier_id(&adoption.shared.private)?;
    peers::note(&adoption.shared.private, node)?;
    adoption
        .ssd
        .step("making the SSD that of a node", || peers::claim(&adoption.ssd, node, &tier))?;
    adoption_mark::clear([&adoption.ssd, &adoption.shared])?;
    Ok(adopted)
}

/// Refuses to use the tier below a root as that of one node if its adoption has begun.
///
/// # Errors
/// [`Error::Invalid`] with the way to finish the adoption.
pub fn refuse_if_begun(root: &Path) -> Result<()> {
    let [ssd, shared] = ["ssd", "hdd"].map(|disk| root.join(disk));
    if peers::is_of_a_node(&ssd) {
        return Err(Error::invalid(
            format!("{}: the SSD is that of a node, and nodes share this tier", root.display()),
            format!(
                "mount it with --cluster and the store's URL; if that has no names yet: {REPAIR}"
            ),
        ));
    }
    if adoption_mark::is_on(&ssd) || adoption_mark::is_on(&shared) {
        return Err(Error::invalid(
            format!("{}: this tier is being made one that nodes share", root.display()),
            FINISH_ADOPTION,
        ));
    }
    Ok(())
}

/// Whether the SSD is that of the node already, of the tier with this shared disk.
fn is_done((ssd, shared): (&Tree, &Tree), node: &str) -> Result<bool> {
    // A shared disk without an id would get one.
    if !peers::is_of_a_node(&ssd.path) || !peers::has_tier_id(&shared.path) {
        return Ok(false);
    }
    if let Some(whose) = peers::of_ssd(&ssd.path).filter(|whose| whose.node != node) {
        return Err(Error::invalid(
            format!(
                "--adopt {node}: {} is the SSD of node {} already",
                ssd.path.display(),
                whose.node
            ),
            format!("leave --adopt out, or give --adopt {}", whose.node),
        ));
    }
    peers::is_claimed((&ssd.private, &ssd.path), node, &peers::tier_id(&shared.private)?)
}

/// Reads all of a disk; if this run only looks, except for directories that a repair would open.
fn read(tree: &Tree, only_looks: bool) -> Result<Scanned> {
    let scanned = scan(tree)?;
    if only_looks && scanned.is_open_to_repair() {
        return Ok(scanned);
    }
    let first = scanned.unread().next();
    match first {
        None => Ok(scanned),
        Some(first) => Err(Error::invalid(
            format!("{}/{first}", tree.path.display()),
            "make it readable for this user, and begin again",
        )),
    }
}

/// Keeps anybody else from mounting it meanwhile, as a tier of one node or as a shared one.
fn lock(own: &PrivateDir) -> Result<[LockedFile; 2]> {
    let lock = |name: &str| {
        let file = own.file(name, halocline_os::private::Use::Write)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(LockedFile::new(file)),
            Err(_) => Err(Error::invalid(
                format!("{} is in use", own.path().display()),
                "unmount the tier first",
            )),
        }
    };
    Ok([lock("halocline.lock")?, lock("in-use")?])
}

/// Checks that it is a tier of one node that was unmounted in order.
fn check(ssd: &Tree, root: &Path) -> Result<()> {
    let names = ssd.private.names()?;
    let has = |name: &str| names.iter().any(|one| one == name);
    if has("node") {
        return Err(Error::invalid(
            format!("{}: nodes share this tier already", root.display()),
            "leave --adopt out",
        ));
    }
    for (dir, what) in
        [("intents", "a change that was not completed"), ("copies", "clean copies below")]
    {
        if !has(dir) {
            continue;
        }
        let left = ssd.private.sub(dir)?.names()?;
        if left.iter().any(|name| name != "era") {
            return Err(Error::invalid(
                format!("{}/{dir}: the tier has {what}", ssd.private.path().display()),
                "mount it once without --cluster, with clean copies off, wait until it is idle, and unmount it",
            ));
        }
    }
    Ok(())
}

/// Knows the links that stand for files on the disk below.
fn links(ssd: &Tree, shared: &Tree, root: &Path) -> Result<Links> {
    let former = label::roots(ssd, shared, root)?;
    let hdd = root.join("hdd");
    let present = hdd.canonicalize().map_err(Error::at(&hdd, "find"))?;
    Ok(Links::new(former.into_iter().chain([present])))
}

/// Something on the SSD.
#[derive(Clone, Copy)]
struct OnSsd<'a> {
    scanned: &'a Scanned,
    at: usize,
}

impl Deref for OnSsd<'_> {
    type Target = Item;

    fn deref(&self) -> &Item {
        &self.scanned.items[self.at]
    }
}

impl<'a> OnSsd<'a> {
    fn all(scanned: &'a Scanned) -> impl DoubleEndedIterator<Item = Self> {
        (0..scanned.items.len()).map(move |at| Self { scanned, at })
    }

    fn directories(scanned: &'a Scanned) -> impl DoubleEndedIterator<Item = Self> {
        Self::all(scanned).filter(|item| item.attributes.kind == Kind::Directory)
    }

    fn path(self) -> RelativePath {
        self.scanned.path(self.at)
    }
}

struct Adoption {
    ssd: Tree,
    shared: Tree,
    links: Links,
}

impl Adoption {
    fn count(&self, item: &Item, adopted: &mut Adopted) {
        match item.attributes.kind {
            Kind::Directory => adopted.directories += 1,
            Kind::File => adopted.ssd_files += 1,
            Kind::Symlink => {
                adopted.disk_files +=
                    u64::from(matches!(self.links.read(&item.attributes), Link::Below(_)));
            }
            _ => {}
        }
    }

    /// Gives all names their place on the shared disk.
    fn names(&self, scanned: &Scanned) -> Result<()> {
        let (mut below, mut others) = (Vec::new(), Vec::new());
        for item in OnSsd::all(scanned) {
            match (item.attributes.kind, self.links.read(&item.attributes)) {
                (Kind::Directory | Kind::File, _) => {}
                (Kind::Symlink, Link::Below(place)) => below.push((item, place)),
                (_, link) => {
                    let mut of = item.attributes.clone();
                    if let Link::Users(target) = link {
                        of.target = target;
                    }
                    others.push((item, of));
                }
            }
        }
        let files = FilesBelow::new(&self.ssd, &self.shared)?;
        files.take_out(&below)?;
        let left = read(&self.shared, false)?;
        SharedNames::new(scanned, &left, |_| false).remove_empty(&self.shared)?;
        for item in OnSsd::all(scanned) {
            let named = match item.attributes.kind {
                Kind::Directory => self.directory(item),
                Kind::File => clear_own_xattrs(&self.ssd, &self.ssd.look(Some(&item.path()))?),
                _ => Ok(()),
            };
            named.map_err(|error| self.at(item, error))?;
        }
        for name in &below {
            files.name(name).map_err(|error| self.at(name.0, error))?;
        }
        users_links::make((&self.ssd, &self.shared), others)?;
        files.end()
    }

    /// Says at which name an adoption stopped.
    fn at(&self, item: OnSsd<'_>, error: Error) -> Error {
        stopped_at(&self.ssd, &item.scanned.shown(item.at), error)
    }

    fn directory(&self, item: OnSsd<'_>) -> Result<()> {
        self.shared.step("making a directory", || {
            match mkdirat(self.shared.parent_of(&item.path())?, last(&item), Mode::RWXU) {
                // If it is no directory, making something in it fails.
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(Error::from(errno)),
            }
        })
    }

    /// Copies the attributes of directories on the SSD to the shared disk; the lowest first, because of the times.
    fn directory_attributes(&self, scanned: &Scanned) -> Result<()> {
        for item in OnSsd::directories(scanned).rev() {
            let there = self.shared.look(Some(&item.path())).map_err(Error::from);
            let likened = there.and_then(|there| self.liken(&there, &item.attributes));
            let path = item.scanned.shown(item.at);
            likened.map_err(|error| stopped_at(&self.shared, &path, error))?;
        }
        let Some(root) = &scanned.root else { return Ok(()) };
        let likened = self.shared.look(None).map_err(Error::from);
        let likened = likened.and_then(|there| self.liken(&there, root));
        likened.map_err(|error| stopped_at(&self.shared, "", error))
    }

    /// Gives a directory exactly these attributes: one that was made for files may be that of another directory, which had
    /// the name before.
    fn liken(&self, fd: &OwnedFd, to: &Attributes) -> Result<()> {
        let change =
            SetAttr { mode: Some(to.mode), uid: Some(to.uid), gid: Some(to.gid), ..times(to) };
        self.shared.step("setting a directory's attributes", || {
            users_xattrs::replace(fd, &to.xattrs)?;
            // Last: an ACL changes the mode.
            set_attr(fd, &change).map(drop)
        })
    }

    /// Makes the directories on the SSD ours alone, with the times from before their links were removed.
    fn close(&self, scanned: &Scanned) -> Result<()> {
        let (uid, gid) = (own_uid(), rustix::process::getegid().as_raw());
        for item in OnSsd::directories(scanned) {
            let at = |error: Error| self.at(item, error);
            let fd = self.ssd.look(Some(&item.path())).map_err(|errno| at(errno.into()))?;
            let closed = SetAttr {
                mode: Some(0o700),
                uid: Some(uid),
                gid: Some(gid),
                ..times(&item.attributes)
            };
            let closed = self.ssd.step("closing a directory", || {
                own_xattrs::clear(&fd, own_xattrs::DIRECTORY)?;
                set_attr(&fd, &closed)
            });
            closed.map_err(at)?;
        }
        Ok(())
    }
}

/// Says at which path an adoption stopped.
fn stopped_at(tree: &Tree, path: &str, error: Error) -> Error {
    let Error::Io(source) = error else { return error };
    let remedy = match source.raw_os_error().unwrap_or(libc::EIO) {
        libc::EEXIST | libc::ENOENT | libc::ENOTDIR => "see what has this name on the disk below",
        errno => refused_changes::remedy(errno),
    };
    Error::invalid(
        format!("{}/{path}: {source}", tree.path.display()),
        format!("{remedy}; then finish the adoption by the same command: what was done is kept"),
    )
}

/// The times of something.
fn times(of: &Attributes) -> SetAttr {
    let [atime, mtime] =
        [of.atime_ns, of.mtime_ns].map(|ns| Some(SetTime::At(system_time(split(ns)))));
    SetAttr { atime, mtime, ..SetAttr::default() }
}

fn last(item: &Item) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(item.name.as_bytes())
}

#[cfg(test)]
mod dry_run_tests;
#[cfg(test)]
mod tests;
