//! One directory of files, without directories in it, as a bare mount shows it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{fs, io};

use fuser::{FileAttr, FileType, INodeNo};

use crate::attributes::attributes;

const ROOT: u64 = 1;

/// The directory and the names that were looked up.
pub(crate) struct Directory {
    dir: PathBuf,
    names: Mutex<HashMap<u64, OsString>>,
}

impl Directory {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        Ok(Self { dir: fs::canonicalize(dir)?, names: Mutex::default() })
    }

    /// Path of a file that was looked up, or of the directory.
    pub(crate) fn path(&self, number: INodeNo) -> PathBuf {
        match self.names.lock().expect("no panic").get(&number.0) {
            Some(name) => self.dir.join(name),
            None => self.dir.clone(),
        }
    }

    pub(crate) fn attributes(&self, path: &Path) -> io::Result<FileAttr> {
        let meta = fs::symlink_metadata(path)?;
        let number = if path == self.dir { ROOT } else { meta.ino() };
        let kind = if meta.is_dir() { FileType::Directory } else { FileType::RegularFile };
        Ok(FileAttr {
            size: meta.len(),
            blocks: meta.blocks(),
            uid: meta.uid(),
            gid: meta.gid(),
            ..attributes(number, kind)
        })
    }

    /// Looks a name up.
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<FileAttr> {
        let found = self.attributes(&self.dir.join(name))?;
        self.names.lock().expect("no panic").insert(found.ino.0, name.to_owned());
        Ok(found)
    }
}
