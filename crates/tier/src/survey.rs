//! What an examination of the tiers finds.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;

use super::tiers::Entry;
use halocline_api::control::tier::ScanFindings;
use halocline_vfs::Stat;
use halocline_vfs::namespace::Vnode;

/// One of our links on the SSD.
pub(super) struct OwnLink {
    pub(super) path: PathBuf,
    pub(super) parent: Vnode,
    pub(super) name: OsString,
    /// The link itself.
    pub(super) entry: Entry,
    /// The link may have several names.
    pub(super) shared: bool,
    /// The link names a root of an earlier mount.
    pub(super) former: bool,
}

/// The files on the tiers.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) named: HashMap<(usize, PathBuf), Vec<OwnLink>>,
    /// Places named by links that are not believed.
    pub(super) doubted: HashSet<(usize, PathBuf)>,
    /// Files on the SSD with several names.
    pub(super) counted: HashSet<Entry>,
    /// How many names of files with several there are, and one of them.
    pub(super) linked: Option<(u64, PathBuf)>,
    /// Leftovers that cannot be removed now.
    pub(super) stay: HashSet<(usize, PathBuf)>,
    /// Files on the SSD that copy records name, by inode; `None` until one is found.
    pub(super) recorded: HashMap<u64, Option<Recorded>>,
    /// Clean copies, which are not files of their own.
    pub(super) copies: HashSet<(usize, PathBuf)>,
    /// Files on the SSD that state which number they keep.
    pub(super) numbered: Vec<Numbered>,
    /// Inode numbers of everything else there.
    pub(super) own_numbers: HashSet<u64>,
    pub(super) found: ScanFindings,
}

/// A name of a file on the SSD that states which number it keeps.
pub(super) struct Numbered {
    pub(super) dir: Vnode,
    pub(super) name: OsString,
    pub(super) entry: Entry,
    pub(super) disk_bytes: u64,
    pub(super) number: u64,
}

/// A file on the SSD that may be a record's.
pub(super) struct Recorded {
    pub(super) path: PathBuf,
    pub(super) stat: Stat,
    /// It has a copy that is believed.
    pub(super) has_copy: bool,
}
