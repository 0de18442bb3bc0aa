//! The names of the tier as an engine's tree.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use halocline_cluster::names::attributes::Kind;
use halocline_os::error::Result;
use halocline_vfs::namespace::reopen;
use halocline_vfs::{Caller, Tree};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::attribute_changes::AttributeChanges;
use crate::base::Base;
use crate::directory::Directory;
use crate::files::{Files, place_of};
use crate::inodes::Vnode;
use crate::lookup::Lookup;
use crate::name_changes::NameChanges;
use crate::places::{SHARED, SSD};

/// The names in the store.
#[derive(Debug)]
pub struct SharedTree {
    pub(crate) base: Arc<Base>,
    pub(crate) lookup: Arc<Lookup>,
    pub(crate) names: NameChanges,
    pub(crate) attributes: AttributeChanges,
}

/// The device of all inodes.
const DEVICE: u64 = 0;

impl SharedTree {
    pub(crate) fn new(base: Arc<Base>, lookup: Arc<Lookup>, files: &Arc<Files>) -> Self {
        let names = NameChanges::new(&base, &lookup, files);
        let attributes = AttributeChanges::new(&base, &lookup, files);
        Self { base, lookup, names, attributes }
    }
}

impl Tree for SharedTree {
    type Vnode = Vnode;
    type Directory = Directory;

    fn key(&self, vnode: &Vnode) -> (u64, u64) {
        (DEVICE, vnode.0.number.0)
    }

    fn path_of(&self, vnode: &Vnode) -> PathBuf {
        self.base.paths.shown(&vnode.0)
    }

    fn open_file(&self, vnode: &Vnode, flags: i32) -> Result<File> {
        self.base.sessions.check()?;
        let Some(found) = self.lookup.find(&vnode.0)? else {
            let open = vnode.0.without_name.lock().file.clone();
            let open = open.ok_or_else(|| self.lookup.gone(&vnode.0))?;
            return reopen(&*open, flags);
        };
        let flags = OFlags::from_bits_retain((flags & libc::O_ACCMODE).cast_unsigned());
        let place = place_of(&found.stored.attributes)?;
        Ok(File::from(self.base.places.open_file(place, vnode.0.number.0, flags)?))
    }

    fn read_link(&self, vnode: &Vnode) -> Result<OsString> {
        let found = self.lookup.attributes(&vnode.0)?;
        match found.kind {
            Kind::Symlink => Ok(OsString::from_vec(found.target)),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn remove_dir(&self, parent: &Vnode, name: &OsStr, by: Caller) -> Result<()> {
        self.names.remove_dir(parent, name, by)
    }

    fn open_dir(&self, vnode: &Vnode) -> Result<Directory> {
        if vnode.0.is_directory {
            Ok(Directory::new(Arc::clone(&self.base), vnode.clone()))
        } else {
            Err(Errno::NOTDIR.into())
        }
    }

    /// Totals of the shared disk and this node's SSD together; available is what fits on one of them.
    fn statfs(&self, _node: &Vnode) -> Result<libc::statvfs64> {
        let places = &self.base.places;
        let (mut all, ssd) = (places.totals(SHARED)?, places.totals(SSD)?);
        if all.f_fsid == ssd.f_fsid {
            return Ok(all);
        }
        let unit = all.f_frsize.max(1);
        let of_ssd = |blocks: u64| blocks.saturating_mul(ssd.f_frsize) / unit;
        all.f_blocks = all.f_blocks.saturating_add(of_ssd(ssd.f_blocks));
        all.f_bfree = all.f_bfree.saturating_add(of_ssd(ssd.f_bfree));
        all.f_bavail = all.f_bavail.max(of_ssd(ssd.f_bavail));
        Ok(all)
    }

    fn get_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<Vec<u8>> {
        self.attributes.get_xattr(&vnode.0, name)
    }

    fn list_xattr(&self, vnode: &Vnode) -> Result<Vec<u8>> {
        self.attributes.list_xattr(&vnode.0)
    }

    fn set_xattr(&self, vnode: &Vnode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        self.attributes.set_xattr(&vnode.0, name, value, flags)
    }

    fn remove_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<()> {
        self.attributes.remove_xattr(&vnode.0, name)
    }
}
