//! Reads a directory page by page, in the order in which its names were added.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use halocline_cluster::names::attributes::Kind;
use halocline_cluster::names::namespace::Listed;
use halocline_cluster::names::{NamesError, PAGE_ENTRIES_MAX};
use halocline_os::error::Result;
use halocline_vfs::{DirEntry, OpenDirectory};
use parking_lot::Mutex;

use crate::base::Base;
use crate::errors::{of_names, of_store};
use crate::inodes::Vnode;

/// Cookies of `.` and `..`; those of the names follow.
const DOTS: u64 = 2;

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    base: Arc<Base>,
    pub(crate) vnode: Vnode,
    /// The page that was read last.
    page: Mutex<Option<Arc<Page>>>,
}

#[derive(Debug)]
struct Page {
    /// The page has the names behind this cursor.
    after: u64,
    names: Vec<Listed>,
    is_last: bool,
    /// Index of the name that is asked for next, if names are asked for in order.
    next: AtomicUsize,
}

impl Directory {
    pub(crate) fn new(base: Arc<Base>, vnode: Vnode) -> Self {
        Self { base, vnode, page: Mutex::default() }
    }

    /// The page with the names behind a cursor: the page read last, if it has them.
    fn page(&self, after: u64) -> Result<Arc<Page>> {
        let mut known = self.page.lock();
        if let Some(page) = known.as_ref()
            && page.after <= after
            && (page.is_last || page.names.last().is_some_and(|last| last.cursor > after))
        {
            return Ok(Arc::clone(page));
        }
        let names = &self.base.names;
        let (names, is_last) =
            names.list(self.vnode.0.number, after, PAGE_ENTRIES_MAX).map_err(of_names)?;
        let next = AtomicUsize::new(0);
        let page = Arc::new(Page { after, names, is_last, next });
        *known = Some(Arc::clone(&page));
        Ok(page)
    }

    /// What the last page has on a name, if it came with attributes.
    pub(crate) fn listed(&self, name: &OsStr) -> Option<Listed> {
        let page = self.page.lock().clone()?;
        let is_it = |listed: &Listed| listed.name.as_bytes() == name.as_bytes();
        let next = page.next.load(Ordering::Relaxed);
        let at = match page.names.get(next) {
            Some(listed) if is_it(listed) => next,
            _ => page.names.iter().position(is_it)?,
        };
        page.next.store(at + 1, Ordering::Relaxed);
        page.names.get(at).cloned()
    }
}

fn dot(name: &str, inode: u64, next: u64) -> DirEntry {
    DirEntry { inode, next, kind: libc::DT_DIR, name: name.into() }
}

fn kind(listed: &Listed) -> u8 {
    match &listed.attributes {
        _ if listed.is_directory => libc::DT_DIR,
        None => libc::DT_UNKNOWN,
        Some(attributes) => match attributes.kind {
            Kind::File => libc::DT_REG,
            Kind::Directory => libc::DT_DIR,
            Kind::Symlink => libc::DT_LNK,
            Kind::Fifo => libc::DT_FIFO,
            Kind::Socket => libc::DT_SOCK,
            Kind::CharDevice => libc::DT_CHR,
            Kind::BlockDevice => libc::DT_BLK,
        },
    }
}

impl OpenDirectory for Directory {
    /// A directory that was removed, by whatever node, has no names, as on local file systems.
    fn read(&self, offset: u64, take: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        match self.read_names(offset, take) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            read => read,
        }
    }

    /// Nothing to do: the store answers once a name is as durable as its settings make it.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Directory {
    /// # Errors
    /// `ENOENT` if it is gone.
    fn read_names(&self, offset: u64, take: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let number = self.vnode.0.number;
        if offset <= 1 {
            let above = self.base.names.parent(number).map_err(of_names)?;
            if offset == 0 {
                // From the start, the program wants to see the directory as it is now.
                *self.page.lock() = None;
                if !take(dot(".", number.0, 1)) {
                    return Ok(());
                }
            }
            if !take(dot("..", above.0, DOTS)) {
                return Ok(());
            }
        }
        let mut after = offset.saturating_sub(DOTS);
        loop {
            let page = self.page(after)?;
            for listed in page.names.iter().filter(|listed| listed.cursor > after) {
                let next = listed.cursor.checked_add(DOTS).filter(|next| *next < 1 << 63);
                let next = next.ok_or_else(|| {
                    of_store(&NamesError::Unsound("a place in a directory".to_owned()))
                })?;
                let name = OsStr::from_bytes(listed.name.as_bytes()).to_owned();
                if !take(DirEntry { inode: listed.inode.0, next, kind: kind(listed), name }) {
                    return Ok(());
                }
            }
            match page.names.last() {
                Some(last) if !page.is_last => after = last.cursor,
                _ => return Ok(()),
            }
        }
    }
}
