//! The files below a path, as the store has them.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use halocline_api::control::is_glob;
use halocline_api::file_tier::not_found;
use halocline_api::globs::{self, Globs};
use halocline_cluster::names::attributes::Kind;
use halocline_cluster::names::namespace::{Failure, Namespace, StoredInode};
use halocline_model::namespace::{EntryName, Name};
use halocline_os::bounded::PATH_BYTES_MAX;
use halocline_os::error::{Error, Result};
use rustc_hash::FxHashSet;

use crate::base::Base;
use crate::errors::of_names;
use crate::lookup::FoundInode;

/// Calls `each` for what a path names, as [`walk`] does, or else for what matches it as a glob. `listing` is told the path of each
/// directory that is listed, and can end the walk.
///
/// # Errors
/// If there is nothing; if the store does not answer; those of `each`.
pub(crate) fn walk_named(
    base: &Base,
    path: &Path,
    listing: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    each: &mut dyn FnMut(PathBuf, EntryName, StoredInode) -> Result<()>,
) -> Result<()> {
    let text = path.to_string_lossy();
    match base.at(path) {
        Ok((name, stored)) => {
            return walk(&base.names, path, FoundInode { name, stored }, listing, each);
        }
        Err(error) if error.errno() == libc::ENOENT && is_glob(&text) => {}
        Err(error) => return Err(not_found(path, &error)),
    }
    let mut globs = Globs::default();
    globs.add_pin(&text)?;
    let beginning = globs::beginning(&text);
    let mut matched = false;
    match base.at(&beginning) {
        Ok((name, stored)) => {
            walk(
                &base.names,
                &beginning,
                FoundInode { name, stored },
                listing,
                &mut |path, name, stored| {
                    if !globs.pins(&path) {
                        return Ok(());
                    }
                    matched = true;
                    each(path, name, stored)
                },
            )?;
        }
        Err(error) if matches!(error.errno(), libc::ENOENT | libc::ENOTDIR) => {}
        Err(error) => return Err(error),
    }
    if !matched {
        return Err(Error::invalid(
            format!("no file matches {text:?}"),
            "* stays within a directory, as in a shell; ** crosses them",
        ));
    }
    Ok(())
}

/// Calls `each` for what is at a path; if that is a directory, for everything below it except directories. Items that
/// others remove meanwhile are skipped.
///
/// # Errors
/// If the store does not answer; those of `each`.
fn walk(
    names: &Namespace,
    path: &Path,
    found: FoundInode,
    listing: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    each: &mut dyn FnMut(PathBuf, EntryName, StoredInode) -> Result<()>,
) -> Result<()> {
    if let Some(name) = found.name.filter(|_| found.stored.attributes.kind != Kind::Directory) {
        return each(path.to_owned(), name, found.stored);
    }
    // A store whose names somebody forged may have directories in a circle.
    let mut seen = FxHashSet::from_iter([found.stored.inode]);
    // Directories to be listed: how long the path above is, the name there, and the number. What is listed next is always
    // below a directory of the last path, so one path is enough, however deep the tree is.
    let mut todo = vec![(None, found.stored.inode)];
    let mut path = path.as_os_str().as_bytes().to_vec();
    while let Some((at, directory)) = todo.pop() {
        if let Some((above, name)) = at {
            path.truncate(above);
            push(&mut path, &name);
        }
        if listing(&path).is_break() {
            return Ok(());
        }
        let mut after = 0;
        while let Some((listed, is_last)) = unless_gone(names.list(directory, after, usize::MAX))? {
            for one in listed {
                after = one.cursor;
                if one.is_directory {
                    if seen.insert(one.inode) {
                        todo.push((Some((path.len(), one.name)), one.inode));
                    }
                    continue;
                }
                let name = EntryName { directory, name: one.name };
                let stored = match one.attributes {
                    Some(attributes) => {
                        Some(StoredInode { inode: one.inode, attributes, links: 1 })
                    }
                    None => unless_gone(names.lookup(&name))?,
                };
                if let Some(stored) = stored {
                    let mut path = path.clone();
                    push(&mut path, &name.name);
                    each(PathBuf::from(OsString::from_vec(path)), name, stored)?;
                }
            }
            if is_last {
                break;
            }
        }
    }
    Ok(())
}

fn push(path: &mut Vec<u8>, name: &Name) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
}

/// A path to be kept for messages: of one longer than programs can give, the beginning and the end.
pub(crate) fn shortened(path: PathBuf) -> PathBuf {
    const PART: usize = 256;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() <= PATH_BYTES_MAX {
        return path;
    }
    let parts = [&bytes[..PART], b" ... ", &bytes[bytes.len() - PART..]];
    PathBuf::from(OsString::from_vec(parts.concat()))
}

/// `None` if it is no longer in the store.
fn unless_gone<T>(answer: std::result::Result<T, Failure>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Failure::Refused(_)) => Ok(None),
        Err(failure) => Err(of_names(failure)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use halocline_cluster::names::NameStore;
    use halocline_cluster::names::attributes::Attributes;
    use halocline_cluster::names::memory::MemoryNames;
    use halocline_cluster::names::namespace::WaitLimit;
    use halocline_model::namespace::{Change, Entry, ROOT, Script};
    use halocline_model::token::Session;

    use super::*;

    /// Regression: a command walked in a circle until it had used up the memory.
    #[test]
    fn forged_directories_in_a_circle_are_walked_once() {
        let store = Arc::new(MemoryNames::default());
        let new = |kind| Attributes::new(kind, 0o755, 0);
        Namespace::format(&*store, &new(Kind::Directory)).unwrap();
        let names = Namespace::open(Arc::clone(&store) as _, Session(1), WaitLimit::default());
        let names = names.unwrap();
        let at = |directory, name: &str| EntryName { directory, name: Name::from(name) };
        let below = names.make_directory(&at(ROOT, "d"), &new(Kind::Directory)).unwrap().inode;
        names.create(&at(below, "f"), &new(Kind::File)).unwrap();
        for circle in [ROOT, below] {
            let name = Name::from(circle.0.to_string().as_str());
            let forged = Change::Name(name, None, Some(Entry::Directory(circle)));
            store.run(below, &Script::Alone(vec![forged])).unwrap();
        }
        let found = FoundInode { name: None, stored: names.directory(ROOT).unwrap() };
        let mut files = Vec::new();
        let mut each = |path: PathBuf, _, _| {
            files.push(path);
            if files.len() > 9 { Err(Error::invalid("a circle", "end")) } else { Ok(()) }
        };
        let mut listed = Vec::new();
        let mut listing = |path: &[u8]| {
            listed.push(path.to_owned());
            ControlFlow::Continue(())
        };
        walk(&names, Path::new(""), found, &mut listing, &mut each).unwrap();
        assert_eq!(listed, [&b""[..], b"d"]);
        assert_eq!(files, [PathBuf::from("d/f")]);
    }
}
