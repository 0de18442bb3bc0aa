//! The files that a bulk operation applies to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::extent::file::CachedFile;
use crate::known_files::KnownFiles;
use crate::origin_access::OriginAccess;
use crate::path_lookup::says_not_there;
use halocline_api::control::Skipped;
use halocline_os::error::{Error, Result};
use halocline_vfs::DirEntry;
use halocline_vfs::namespace::{Namespace, Vnode};

/// Regular files below given paths. When this is dropped, those not in use are forgotten again.
pub(super) struct Walk<'a> {
    known: &'a KnownFiles,
    pub(super) found: Vec<(PathBuf, Arc<CachedFile>)>,
    /// What could not be examined.
    pub(super) skipped: Vec<Skipped>,
}

impl<'a> Walk<'a> {
    /// Every regular file that is one of `paths` or below one.
    pub(super) fn below(
        origin: &OriginAccess,
        namespace: &Namespace,
        known: &'a KnownFiles,
        paths: &[PathBuf],
    ) -> Result<Self> {
        let mut walk = Self { known, found: Vec::new(), skipped: Vec::new() };
        for path in paths {
            let vnode = origin.vnode_at(path)?.ok_or_else(|| {
                Error::invalid(
                    format!("{} is not on this mount", path.display()),
                    "name files or directories below the mount point",
                )
            })?;
            walk.visit(namespace, &vnode, path.clone());
        }
        Ok(walk)
    }

    /// Without recursion, because trees may be arbitrarily deep. Entries that disappear meanwhile are ignored.
    fn visit(&mut self, namespace: &Namespace, vnode: &Vnode, path: PathBuf) {
        let mut left = vec![(vnode.clone(), path)];
        while let Some((vnode, path)) = left.pop() {
            match self.step(namespace, &vnode, &path, &mut left) {
                Err(error) if !says_not_there(&error) => {
                    self.skipped.push(Skipped { path, reason: error.to_string() });
                }
                _ => {}
            }
        }
    }

    fn step(
        &mut self,
        namespace: &Namespace,
        vnode: &Vnode,
        path: &Path,
        left: &mut Vec<(Vnode, PathBuf)>,
    ) -> Result<()> {
        match namespace.stat(vnode)?.kind() {
            libc::S_IFREG => self.found.push((path.to_owned(), self.known.file_of(vnode)?)),
            libc::S_IFDIR => {
                for DirEntry { name, .. } in namespace.entries(vnode)?.into_iter().rev() {
                    match namespace.lookup(vnode, &name) {
                        Ok((child, _)) => left.push((child, path.join(&name))),
                        Err(error) if says_not_there(&error) => {}
                        Err(error) => {
                            let (path, reason) = (path.join(&name), error.to_string());
                            self.skipped.push(Skipped { path, reason });
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        for (_, file) in &self.found {
            self.known.forget_idle(file);
        }
    }
}
