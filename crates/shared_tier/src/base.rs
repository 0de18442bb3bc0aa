//! What all components of the tier use.

use std::path::Path;
use std::sync::{Arc, Weak};

use halocline_cluster::names::attributes::{Kind, Location};
use halocline_cluster::names::namespace::{Namespace, StoredInode};
use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::contested_names::ContestedNames;
use crate::directory_paths::DirectoryPaths;
use crate::disk_names::DiskNames;
use crate::errors::of_names;
use crate::inodes::Table;
use crate::late_names::{Late, LateNames};
use crate::passthrough::Passthrough;
use crate::places::copies::{Copies, give_way_by};
use crate::places::room::{MakesRoom, Need};
use crate::places::{DirectoryStep, Places};
use crate::sessions::Sessions;
use crate::told_names::{Changed, or_note, tell_names};
use crate::waiting_closes::WaitingCloses;

/// The names, the places and the session of one node.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) names: Arc<Namespace>,
    pub(crate) places: Places,
    pub(crate) table: Arc<Table>,
    pub(crate) paths: Arc<DirectoryPaths>,
    pub(crate) sessions: Sessions,
    pub(crate) passthrough: Passthrough,
    pub(crate) closes: WaitingCloses,
    /// What the shared disk could not follow.
    pub(crate) late: LateNames,
    /// Names that other nodes took away just now.
    pub(crate) contested: ContestedNames,
    pub(crate) clock: Clock,
}

/// What all components share; clean copies give way on its disks from now on.
pub(crate) fn shared(base: Base) -> Arc<Base> {
    let base = Arc::new(base);
    let by = Arc::downgrade(&base);
    give_way_by(&base.places, &(by as Weak<dyn MakesRoom>));
    base
}

/// Clean copies give way.
impl MakesRoom for Base {
    fn make_room(&self, need: Need, user: Option<u32>) -> bool {
        let given = Copies::give_way(&self.places, need, user);
        given.inspect_err(|error| tracing::debug!(%error, "no copies give way")).unwrap_or(false)
    }
}

impl Base {
    /// The steps to a directory as this node knows them.
    pub(crate) fn near(&self, directory: InodeNumber) -> Result<Vec<DirectoryStep>> {
        self.paths.known(directory)
    }

    /// The names on the shared disk.
    pub(crate) fn disk(&self) -> DiskNames<'_> {
        DiskNames { names: &self.names, places: &self.places, directories: &*self.paths }
    }

    /// Records changed names of a file with its bytes, or notes them; what neither disk takes now, it takes later.
    ///
    /// # Errors
    /// Those of [`tell_names`].
    pub(crate) fn tell_names(
        &self,
        number: InodeNumber,
        place: Result<&Location>,
        changed: Changed<'_>,
    ) -> Result<()> {
        let place = place?;
        let told = tell_names(self.listing(), number, Ok(place), changed);
        self.or_told_later((number, place), changed, told)
    }

    /// After a try to record changed names of a file: what an SSD has missed is noted, or that is done later.
    ///
    /// # Errors
    /// Those of [`or_note`].
    pub(crate) fn or_note(
        &self,
        (number, place): (InodeNumber, &Location),
        changed: Changed<'_>,
        told: Result<()>,
    ) -> Result<()> {
        let told = or_note(self.listing(), (number, place), changed, told);
        self.or_told_later((number, place), changed, told)
    }

    fn or_told_later(
        &self,
        (number, place): (InodeNumber, &Location),
        (is, was): Changed<'_>,
        told: Result<()>,
    ) -> Result<()> {
        let names = |names: &[&EntryName]| names.iter().map(|name| (*name).clone()).collect();
        self.late.add(told, || vec![Late::Told(number, place.clone(), [names(is), names(was)])])
    }

    /// Where names are, and where they are recorded with files.
    pub(crate) fn listing(&self) -> (&Namespace, &Places) {
        (&self.names, &self.places)
    }

    /// What is at a path below the root; the root has no name.
    pub(crate) fn at(&self, path: &Path) -> Result<(Option<EntryName>, StoredInode)> {
        let (mut name, mut stored) = (None, self.names.directory(ROOT).map_err(of_names)?);
        for part in path {
            if stored.attributes.kind != Kind::Directory {
                return Err(Errno::NOTDIR.into());
            }
            let part = Name::from(part.as_encoded_bytes());
            let at = EntryName { directory: stored.inode, name: part };
            stored = self.names.lookup(&at).map_err(of_names)?;
            name = Some(at);
        }
        Ok((name, stored))
    }

    /// The time for attributes, in nanoseconds since 1970.
    pub(crate) fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }
}
