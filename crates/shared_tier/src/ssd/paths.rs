//! The paths of files, by which rules and jobs name them.

use std::cell::RefCell;
use std::path::PathBuf;

use halocline_model::namespace::{EntryName, InodeNumber, ROOT};
use halocline_os::bounded::PATH_BYTES_MAX;
use rustc_hash::FxHashMap;

use crate::directory_paths::DirectoryPaths;
use crate::entry_names::os;

/// The most directories above a file that are looked up to show its path.
const SHOWN_MAX: usize = 64;

/// Where a directory is.
#[derive(Debug, Clone)]
enum Found {
    At(PathBuf),
    /// Its path is longer than one that a program can give: no rule and no job names anything in it.
    TooDeep,
    Gone,
}

/// The paths of files; directories are looked up once.
pub(crate) struct Paths<'a> {
    directories: &'a DirectoryPaths,
    found: RefCell<FxHashMap<u64, Found>>,
}

impl<'a> Paths<'a> {
    pub(crate) fn new(directories: &'a DirectoryPaths) -> Self {
        Self { directories, found: RefCell::default() }
    }

    fn directory(&self, number: InodeNumber) -> Found {
        let (mut names, mut bytes, mut at) = (Vec::new(), 0, number);
        let above = loop {
            if at == ROOT {
                break Found::At(PathBuf::new());
            }
            if let Some(known) = self.found.borrow().get(&at.0) {
                break known.clone();
            }
            let Ok(name) = self.directories.up(at) else { break Found::Gone };
            bytes += name.name.as_bytes().len() + 1;
            if bytes > PATH_BYTES_MAX {
                break Found::TooDeep;
            }
            at = name.directory;
            names.push(name.name);
        };
        let found = match above {
            Found::At(path) if bytes + path.as_os_str().len() > PATH_BYTES_MAX => Found::TooDeep,
            Found::At(mut path) => {
                path.extend(names.iter().rev().map(os));
                Found::At(path)
            }
            other => other,
        };
        self.found.borrow_mut().insert(number.0, found.clone());
        found
    }

    /// The path of a name below the root; `None` if its directory is not found, or is too deep.
    pub(crate) fn of(&self, name: &EntryName) -> Option<PathBuf> {
        match self.directory(name.directory) {
            Found::At(path) => Some(path.join(os(&name.name))),
            Found::TooDeep | Found::Gone => None,
        }
    }

    /// Whether a file is so deep that no rule and no job names it.
    pub(crate) fn is_too_deep(&self, name: &EntryName) -> bool {
        matches!(self.directory(name.directory), Found::TooDeep)
    }

    /// The path of a name for people: of a deep one only the end.
    pub(crate) fn shown(&self, name: &EntryName) -> PathBuf {
        let (mut names, mut at) = (vec![name.name.clone()], name.directory);
        while at != ROOT {
            match self.directories.up(at) {
                Ok(above) if names.len() < SHOWN_MAX => {
                    at = above.directory;
                    names.push(above.name);
                }
                _ => break,
            }
        }
        let begin = if at == ROOT { PathBuf::new() } else { PathBuf::from("...") };
        names.iter().rev().fold(begin, |path, name| path.join(os(name)))
    }
}
