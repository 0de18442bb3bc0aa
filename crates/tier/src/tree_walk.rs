//! The tree as programs see it, walked for commands: files by path, by glob, below a directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec;

use super::foundation::Foundation;
use super::inode::{Inode, Table, Vnode};
use super::inodes::Inodes;
use super::tiers::Tiers;
use halocline_api::control::is_glob;
use halocline_api::file_tier::not_found;
use halocline_api::globs::{self, Globs};
use halocline_os::error::{Error, Result};
use halocline_vfs::Stat;
use halocline_vfs::namespace;

/// The most files in one answer.
pub(super) const LISTED_MAX: usize = 1 << 20;

/// A regular file that a command names.
pub(super) struct Named {
    pub(super) path: PathBuf,
    pub(super) inode: Arc<Inode>,
    /// Bytes of data: holes do not count.
    pub(super) size: u64,
    /// Bytes of blocks.
    pub(super) disk_bytes: u64,
    pub(super) tier: usize,
    pub(super) has_other_names: bool,
}

impl Named {
    fn new(path: PathBuf, vnode: &Vnode, stat: &Stat) -> Self {
        let disk_bytes = stat.disk_bytes();
        Self {
            path,
            inode: vnode.0.clone(),
            size: stat.raw.st_size.unsigned_abs().min(disk_bytes),
            disk_bytes,
            tier: vnode.0.place.read().tier(),
            has_other_names: stat.raw.st_nlink > 1,
        }
    }
}

/// A directory whose names are being read.
struct Below {
    dir: namespace::Vnode,
    names: vec::IntoIter<OsString>,
}

/// Walks the tree for commands.
#[derive(Debug)]
pub(super) struct TreeWalk {
    tiers: Arc<Tiers>,
    table: Arc<Table>,
    inodes: Arc<Inodes>,
}

impl TreeWalk {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation, inodes: &Arc<Inodes>) -> Self {
        Self { tiers: base.tiers.clone(), table: base.table.clone(), inodes: inodes.clone() }
    }

    /// The vnode at a path below the root.
    pub(super) fn node_at(&self, path: &Path) -> Result<Vnode> {
        let mut at = self.tiers.tree().root();
        let mut names = path.iter().peekable();
        while let Some(name) = names.next() {
            let (vnode, _) = self.inodes.lookup(&at, name)?;
            if names.peek().is_none() {
                return Ok(vnode);
            }
            at = vnode.0.entry();
        }
        Ok(Vnode(self.table.intern(&at, || (at.key().1, None, None))))
    }

    /// All regular files at and below `path`.
    fn below(&self, path: &Path, most: usize) -> Result<Vec<Named>> {
        let vnode = self.node_at(path).map_err(|error| not_found(path, &error))?;
        let mut found = Vec::new();
        self.visit(&vnode, path.to_owned(), most, &mut found)?;
        Ok(found)
    }

    /// The regular files at and below a vnode, in the order of their names. A file that cannot be examined does not hide
    /// the others. Trees may have any depth: there is no recursion.
    fn visit(
        &self,
        vnode: &Vnode,
        path: PathBuf,
        most: usize,
        found: &mut Vec<Named>,
    ) -> Result<()> {
        let stat = self.inodes.stat(&vnode.0)?;
        match stat.kind() {
            libc::S_IFREG => found.push(Named::new(path, vnode, &stat)),
            libc::S_IFDIR => {
                let dir = vnode.0.entry();
                let names = self.names_below(&dir)?.into_iter();
                self.visit_below(vec![Below { dir, names }], path, most, found)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// `path` is that of the last directory. There is one for all of them: those of a deep tree would take memory by the
    /// square of its depth.
    fn visit_below(
        &self,
        mut dirs: Vec<Below>,
        mut path: PathBuf,
        most: usize,
        found: &mut Vec<Named>,
    ) -> Result<()> {
        while let Some(Below { dir, names }) = dirs.last_mut() {
            let Some(name) = names.next() else {
                dirs.pop();
                path.pop();
                continue;
            };
            let Ok((child, _)) = self.inodes.lookup(dir, &name) else { continue };
            let Ok(stat) = self.inodes.stat(&child.0) else { continue };
            match stat.kind() {
                libc::S_IFREG if found.len() == most => {
                    return Err(Error::invalid(
                        format!("there are more than {most} files"),
                        "ask for one directory below at a time",
                    ));
                }
                libc::S_IFREG => found.push(Named::new(path.join(&name), &child, &stat)),
                libc::S_IFDIR => {
                    let dir = child.0.entry();
                    let Ok(names) = self.names_below(&dir) else { continue };
                    path.push(&name);
                    dirs.push(Below { dir, names: names.into_iter() });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn names_below(&self, dir: &namespace::Vnode) -> Result<Vec<std::ffi::OsString>> {
        let names = self.tiers.tree().entries(dir)?.into_iter().map(|entry| entry.name);
        let mut names: Vec<_> = names.filter(|name| !self.tiers.is_private(dir, name)).collect();
        names.sort();
        Ok(names)
    }

    /// Files that `path` names, as a path or else as a glob.
    pub(super) fn named(&self, path: &Path, most: usize) -> Result<Vec<Named>> {
        let missing = self.node_at(path).is_err_and(|error| error.errno() == libc::ENOENT);
        let text = path.to_string_lossy();
        if !missing || !is_glob(&text) {
            return self.below(path, most);
        }
        let found = self.matching(&text)?;
        if found.is_empty() {
            return Err(Error::invalid(
                format!("no file matches {text:?}"),
                "* stays within a directory, as in a shell; ** crosses them",
            ));
        }
        Ok(found)
    }

    /// Files that a glob matches.
    pub(super) fn matching(&self, glob: &str) -> Result<Vec<Named>> {
        let mut globs = Globs::default();
        globs.add_pin(glob)?;
        let beginning = globs::beginning(glob);
        let mut found = Vec::new();
        match self.node_at(&beginning) {
            Ok(vnode) => self.visit(&vnode, beginning, usize::MAX, &mut found)?,
            Err(error) if matches!(error.errno(), libc::ENOENT | libc::ENOTDIR) => {}
            Err(error) => return Err(error),
        }
        found.retain(|file| globs.pins(&file.path));
        Ok(found)
    }
}
