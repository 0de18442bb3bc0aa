//! Moving a file between tiers.
//!
//! Copy, fsync, place, switch: see `docs/decisions/0001-file-tier.md`. What must hold (I10): the
//! place changes by one rename on the SSD, while `place` is held exclusively and the copy is
//! known to be the file; the SSD directory is durable before `place` is let go.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use rustix::fs::{fsync, symlinkat};

use super::copy::{self, Told};
use super::crash::point;
use super::inode::{Away, Inode, Place};
use super::intents::{Intent, Removal};
use super::numbers::keep_number;
use super::residents::Reserved;
use super::{Core, PRIVATE, is_private_path};
use crate::engine::{SetAttr, Stat};
use crate::error::Error;
use crate::namespace::{Node, reopen, stat_descriptor};

/// Longest place that a link can name together with its root.
const PLACE_BYTES_MAX: usize = 3000;
/// Room that a copy needs besides its data.
pub(super) const COPY_SLACK: u64 = 16 << 10;

/// Why a file stayed where it was.
#[derive(Debug)]
pub(super) enum Stayed {
    /// It is there already.
    There,
    /// Only regular files move.
    NotAFile,
    /// It has several names.
    HardLinked,
    /// The kernel serves it by itself while it is open.
    PassedThrough,
    /// It changed while it was copied.
    Changed,
    /// It was removed.
    Gone,
    /// No tier that it may go to has room.
    NoRoom,
    /// An exclude glob keeps it off the SSD.
    Excluded,
    /// A pin glob keeps it on the SSD.
    Pinned,
    /// The copy failed.
    Failed(Error),
}

impl fmt::Display for Stayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::There => write!(f, "it is there already"),
            Self::NotAFile => write!(f, "only regular files are moved"),
            Self::HardLinked => write!(f, "it has several names (hard links): it stays"),
            Self::PassedThrough => {
                write!(f, "the kernel serves it by itself until it is closed: try again then")
            }
            Self::Changed => write!(f, "it is being changed: try again"),
            Self::Gone => write!(f, "it was removed"),
            Self::NoRoom => write!(f, "there is no room: free some, or raise the limit"),
            Self::Excluded => write!(f, "an exclude glob keeps it off the SSD"),
            Self::Pinned => write!(f, "a pin glob keeps it on the SSD: unpin it first"),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl<E: Into<Error>> From<E> for Stayed {
    fn from(error: E) -> Self {
        let error = error.into();
        match error.errno() {
            libc::ENOSPC | libc::EDQUOT => Self::NoRoom,
            _ => Self::Failed(error),
        }
    }
}

/// How a migration treats programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// It gives up when the file changes.
    Yielding,
    /// Programs that use the file wait: it must move, or they fail.
    Forcing,
}

/// A file as it was when the copy began.
struct Source {
    from: usize,
    file: File,
    stat: Stat,
    entry: Node,
    /// Its name; `None` for an open file that was removed.
    name: Option<(Node, OsString)>,
    changes: u64,
}

/// A copy that is durable but not yet the file.
struct Copied {
    tier: usize,
    temporary: String,
    file: File,
    /// Its place on a lower tier.
    placed: Option<(PathBuf, Intent)>,
    _reserved: Option<Reserved>,
}

/// What a switch needs and leaves.
struct Switch {
    /// What replaces the name's entry on the SSD, in the directory of temporary names.
    new_name: String,
    /// The old place on a lower tier.
    old: Option<Intent>,
}

impl Core {
    /// Moves a file to `tier`, telling `told` of bytes copied. Returns its size.
    pub(super) fn migrate(
        &self,
        inode: &Arc<Inode>,
        tier: usize,
        manner: Manner,
        told: Told<'_>,
    ) -> Result<u64, Stayed> {
        let _moving = inode.moving.lock();
        let early = (manner == Manner::Forcing).then(|| inode.place.write());
        let source = match &early {
            Some(place) => self.source(inode, place)?,
            None => self.source(inode, &inode.place.read())?,
        };
        if source.from == tier {
            return Err(Stayed::There);
        }
        let mut copied = self.copy(inode, &source, tier, told)?;
        point("the copy");
        let switched = self
            .settle(&source, &mut copied)
            .and_then(|()| self.switch(inode, &source, &copied, early));
        match switched {
            Ok(()) => {
                let bytes = source.stat.raw.st_size.unsigned_abs();
                self.counters.moved(tier == 0, bytes);
                Ok(bytes)
            }
            Err(stayed) => {
                self.undo(&copied);
                Err(stayed)
            }
        }
    }

    /// Moves a file that the SSD has no room for to the first lower tier that has.
    pub(super) fn demote(
        &self,
        inode: &Arc<Inode>,
        manner: Manner,
        told: Told<'_>,
    ) -> Result<u64, Stayed> {
        let mut last = Stayed::NoRoom;
        for tier in 1..self.sides.len() {
            match self.migrate(inode, tier, manner, told) {
                Err(Stayed::NoRoom) => last = Stayed::NoRoom,
                Err(Stayed::Failed(error)) => last = Stayed::Failed(error),
                other => return other,
            }
        }
        Err(last)
    }

    fn source(&self, inode: &Arc<Inode>, place: &Place) -> Result<Source, Stayed> {
        let changes = inode.changes.load(Ordering::Acquire);
        if inode.passed.load(Ordering::Acquire) > 0 {
            return Err(Stayed::PassedThrough);
        }
        let fd = self.physical(inode, place)?;
        let stat = stat_descriptor(&fd)?;
        if stat.raw.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Stayed::NotAFile);
        }
        let from = place.away.as_ref().map_or(0, |away| away.tier);
        let name = place.entry.known_as();
        if stat.raw.st_nlink > 1 {
            return Err(Stayed::HardLinked);
        }
        let file = match reopen(&fd, libc::O_RDONLY | libc::O_NOATIME) {
            Err(error) if error.errno() == libc::EPERM => reopen(&fd, libc::O_RDONLY)?,
            other => other?,
        };
        Ok(Source { from, file, stat, entry: place.entry.clone(), name, changes })
    }

    /// Copies the file to a temporary name on `tier`, durably.
    fn copy(
        &self,
        inode: &Inode,
        source: &Source,
        tier: usize,
        told: Told<'_>,
    ) -> Result<Copied, Stayed> {
        let raw = &source.stat.raw;
        let need = raw.st_blocks.unsigned_abs() * 512 + COPY_SLACK;
        let reserved = match tier {
            0 => Some(self.residents.reserve(need).ok_or(Stayed::NoRoom)?),
            _ => None,
        };
        if self.sides[tier].room()? < need {
            return Err(Stayed::NoRoom);
        }
        let temporary = self.fresh_name();
        let file = self.sides[tier].temporary(&temporary)?;
        let copied = Copied { tier, temporary, file, placed: None, _reserved: reserved };
        let filled = copy::contents(&source.file, &copied.file, raw.st_size.unsigned_abs(), told)
            .and_then(|()| copy::attributes(&source.file, &source.stat, &copied.file))
            .and_then(|()| keep_number(&copied.file, inode.number))
            .and_then(|()| Ok(fsync(&copied.file)?));
        match filled {
            Ok(()) => Ok(copied),
            Err(error) => {
                self.undo(&copied);
                Err(error.into())
            }
        }
    }

    /// Gives the copy its place on a lower tier, where a link can name it.
    fn settle(&self, source: &Source, copied: &mut Copied) -> Result<(), Stayed> {
        if copied.tier == 0 || source.name.is_none() {
            return Ok(());
        }
        let side = &self.sides[copied.tier];
        let own = self.namespace.path_of(&source.entry);
        let other = Path::new(PRIVATE).join("files").join(&copied.temporary);
        let fits = own.as_os_str().len() < PLACE_BYTES_MAX && !is_private_path(&own);
        for place in [fits.then_some(own), Some(other)].into_iter().flatten() {
            let made = side.make_parents(&place, &mut |dir| self.directory_attributes(dir));
            if made.is_err() && place.starts_with(PRIVATE) {
                return Ok(made?);
            }
            let name = format!("{}-{}", copied.temporary, copied.tier);
            let intent = self.intents.note(name, copied.tier, &place)?;
            point("the intent of the copy");
            match side.settle(&copied.temporary, &place) {
                Ok(()) => {
                    copied.placed = Some((place, intent));
                    point("the place of the copy");
                    return Ok(());
                }
                Err(error) => {
                    self.intents.clear(&intent);
                    let taken = matches!(
                        error.errno(),
                        libc::EEXIST | libc::ENOTDIR | libc::ENOENT | libc::ENAMETOOLONG
                    );
                    if !taken || place.starts_with(PRIVATE) {
                        return Err(error.into());
                    }
                }
            }
        }
        Err(Stayed::Gone)
    }

    /// Owner and mode of a directory of the tree, for its likeness on a lower tier.
    pub(super) fn directory_attributes(&self, path: &Path) -> Option<SetAttr> {
        let node = self.walk(path)?;
        let raw = self.namespace.stat(&node).ok()?.raw;
        Some(SetAttr {
            mode: Some(raw.st_mode & 0o7777),
            uid: Some(raw.st_uid),
            gid: Some(raw.st_gid),
            ..SetAttr::default()
        })
    }

    /// The namespace's node at a path.
    pub(super) fn walk(&self, path: &Path) -> Option<Node> {
        path.iter().try_fold(self.namespace.root(), |node, name| {
            self.namespace.lookup(&node, name).ok().map(|(node, _)| node)
        })
    }

    /// Makes the copy the file.
    fn switch<'i>(
        &self,
        inode: &'i Arc<Inode>,
        source: &Source,
        copied: &Copied,
        early: Option<RwLockWriteGuard<'i, Place>>,
    ) -> Result<(), Stayed> {
        let mut place = early.unwrap_or_else(|| inode.place.write());
        if inode.passed.load(Ordering::Acquire) > 0 {
            return Err(Stayed::PassedThrough);
        }
        if inode.changes.load(Ordering::Acquire) != source.changes
            || differs(&source.stat, &stat_descriptor(&source.file)?)
        {
            return Err(Stayed::Changed);
        }
        let Some((parent, name)) = &source.name else {
            return self.switch_nameless(inode, &mut place, copied);
        };
        let switch = self.prepare(inode.number, &place, copied)?;
        point("preparing the switch");
        let names = self.names.write();
        let replaced = self.replace(source, (parent, name), &switch.new_name);
        let (entry, stat) = match replaced {
            Ok(replaced) => replaced,
            Err(stayed) => {
                drop(names);
                self.sides[0].drop_temporary(&switch.new_name);
                if let Some(old) = &switch.old {
                    self.intents.clear(old);
                }
                return Err(stayed);
            }
        };
        point("the switch");
        self.table.moved(inode, source.entry.key(), entry.key());
        let left = self.residents.remove(source.entry.key(), true);
        place.resident = (copied.tier == 0).then(|| {
            let name = (parent.clone(), name.clone());
            let blocks = stat.raw.st_blocks.unsigned_abs();
            self.residents.add(entry.key(), inode.number, name, blocks)
        });
        drop(names);
        place.entry = entry;
        place.away =
            copied.placed.as_ref().map(|(path, _)| Away { tier: copied.tier, path: path.clone() });
        place.moves += 1;
        if let Ok(now) = stat_descriptor(&copied.file) {
            inode.keep_ctime(&source.stat, &now);
        }
        // Durable before anybody writes to the new place: a later fsync there must not be lost
        // with the link (I4).
        let durable = self.sync_directory(parent);
        point("syncing the switch");
        self.follow(inode, &place);
        drop(place);
        if let Some(left) = left {
            left.dropped();
        }
        self.keeper.moved(inode.number, copied.tier == 0);
        self.clean_up(copied, switch.old, durable.is_ok().then_some(parent));
        Ok(durable?)
    }

    /// Makes what the switching rename needs, and notes what it will leave.
    fn prepare(&self, number: u64, place: &Place, copied: &Copied) -> Result<Switch, Stayed> {
        let new_name = match &copied.placed {
            Some((to, _)) => {
                let link = format!("{}-link", copied.temporary);
                symlinkat(self.links.to(copied.tier, to), self.sides[0].tmp(), &link)?;
                self.number_link(&link, number);
                link
            }
            None => copied.temporary.clone(),
        };
        // The old copy is a leftover from the switch on.
        let old = match &place.away {
            Some(away) => {
                let name = format!("{}-old", copied.temporary);
                Some(self.intents.note(name, away.tier, &away.path)?)
            }
            None => None,
        };
        Ok(Switch { new_name, old })
    }

    /// The switching rename. The caller holds `names` exclusively.
    fn replace(
        &self,
        source: &Source,
        name: (&Node, &OsString),
        new_name: &str,
    ) -> Result<(Node, Stat), Stayed> {
        // A hard link made since we looked would keep the old inode.
        if stat_descriptor(&source.file)?.raw.st_nlink != 1 {
            return Err(Stayed::HardLinked);
        }
        let from = (self.sides[0].tmp().as_fd(), new_name.as_ref());
        let to = (name.0, name.1.as_os_str());
        self.namespace.replace(from, to, source.entry.key()).map_err(|error| match error.errno() {
            libc::ESTALE | libc::ENOENT => Stayed::Gone,
            _ => error.into(),
        })
    }

    /// Moves an open file that has no name any more: only its handles know it.
    fn switch_nameless(
        &self,
        inode: &Arc<Inode>,
        place: &mut Place,
        copied: &Copied,
    ) -> Result<(), Stayed> {
        let side = &self.sides[copied.tier];
        if copied.tier == 0 {
            return Err(Stayed::Gone);
        }
        *inode.kept.lock() = Some(Arc::new(copied.file.try_clone()?.into()));
        side.drop_temporary(&copied.temporary);
        place.away = Some(Away { tier: copied.tier, path: PathBuf::new() });
        place.moves += 1;
        self.follow(inode, place);
        if let Some(left) = place.resident.take() {
            left.loses_name();
            left.dropped();
        }
        Ok(())
    }

    /// Opens every handle at the new place; one that cannot be now is when it is next used.
    fn follow(&self, inode: &Arc<Inode>, place: &Place) {
        for handle in inode.handles() {
            let opened = handle.file(place.moves, |flags| self.open_again(inode, place, flags));
            if let Err(error) = opened {
                tracing::warn!(%error, "an open file is opened at its new place later");
            }
        }
    }

    /// After a switch: what it left goes, and the intents with it.
    fn clean_up(&self, copied: &Copied, old: Option<Intent>, durable_in: Option<&Node>) {
        if let (Some((_, intent)), Some(_)) = (&copied.placed, durable_in) {
            self.intents.clear(intent);
        }
        point("clearing the copy's intent");
        let Some(old) = old else { return };
        if durable_in.is_none() {
            // Nobody knows which of the two a power loss would leave: the next mount decides.
            return;
        }
        if let Err(error) = self.sides[old.tier].remove(&old.place) {
            tracing::warn!(%error, "the old copy is removed at the next mount");
            return;
        }
        point("removing the old copy");
        // Gone for the tier's users; the intent goes once that is durable.
        self.intents.later(Removal::Done(old));
    }

    /// Takes back what a migration that did not happen has made.
    fn undo(&self, copied: &Copied) {
        match &copied.placed {
            None => self.sides[copied.tier].drop_temporary(&copied.temporary),
            Some((place, intent)) => {
                if self.sides[copied.tier].remove(place).is_ok() {
                    let _ = self.sides[copied.tier].sync_parent(place);
                    self.intents.clear(intent);
                }
            }
        }
    }

    pub(super) fn sync_directory(&self, dir: &Node) -> crate::error::Result<()> {
        self.namespace.open_dir(dir)?.sync()
    }
}

/// Whether a file changed between two looks; reading it is no change.
fn differs(before: &Stat, after: &Stat) -> bool {
    let of = |stat: &Stat| {
        let raw = &stat.raw;
        (
            raw.st_size,
            raw.st_mtime,
            raw.st_mtime_nsec,
            raw.st_ctime,
            raw.st_ctime_nsec,
            raw.st_nlink,
        )
    };
    of(before) != of(after)
}
