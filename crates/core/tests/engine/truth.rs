//! What every file must hold, kept beside an engine: each change is made to both, and compared.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use halocline_core::control::Controlled;
use halocline_core::device::Allocate;
use halocline_core::engine::{Engine, SetAttr};

use crate::fixture::{Fixture, ME};

/// An engine and the truth.
pub(crate) struct Truth {
    pub(crate) fixture: Fixture,
    files: BTreeMap<String, Vec<u8>>,
}

pub(crate) fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Bytes that tell where they belong and which write they are of.
pub(crate) fn pattern(seed: u8, offset: u64, len: u64) -> Vec<u8> {
    let byte = |at: u64| u8::try_from((at * 31 + u64::from(seed) * 7 + 1) % 251).unwrap();
    (offset..offset + len).map(byte).collect()
}

impl Truth {
    pub(crate) fn new(fixture: Fixture) -> Self {
        Self { fixture, files: BTreeMap::new() }
    }

    pub(crate) fn write(&mut self, name: &str, offset: u64, len: u64, seed: u8) {
        let data = pattern(seed, offset, len);
        self.fixture.write(name, offset, &data);
        self.wrote(name, offset, &data);
    }

    /// Notes a write that was acknowledged.
    pub(crate) fn wrote(&mut self, name: &str, offset: u64, data: &[u8]) {
        let file = self.files.entry(name.to_owned()).or_default();
        let end = at(offset) + data.len();
        file.resize(file.len().max(end), 0);
        file[at(offset)..end].copy_from_slice(data);
    }

    pub(crate) fn truncate(&mut self, name: &str, size: u64) {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fixture.engine().set_attr(&self.fixture.node(name), None, &change, ME).unwrap();
        self.files.get_mut(name).unwrap().resize(at(size), 0);
    }

    pub(crate) fn punch(&mut self, name: &str, offset: u64, len: u64) {
        let handle = self.fixture.handle(name);
        self.fixture.engine().allocate(&handle, offset, len, Allocate::PunchHole).unwrap();
        let file = self.files.get_mut(name).unwrap();
        let end = file.len().min(at(offset + len));
        file[at(offset).min(end)..end].fill(0);
    }

    pub(crate) fn unlink(&mut self, name: &str) {
        let engine = self.fixture.engine();
        engine.unlink(&engine.root(), OsStr::new(name)).unwrap();
        self.files.remove(name);
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str, flags: u32) {
        let engine = self.fixture.engine();
        let root = engine.root();
        engine.rename((&root, OsStr::new(from)), (&root, OsStr::new(to)), flags).unwrap();
        let moved = self.files.remove(from).unwrap();
        let before = self.files.insert(to.to_owned(), moved);
        if flags & libc::RENAME_EXCHANGE != 0 {
            self.files.insert(from.to_owned(), before.unwrap());
        }
    }

    pub(crate) fn fsync(&self, name: &str) {
        self.fixture.engine().fsync(&self.fixture.handle(name), false).unwrap();
    }

    /// I1: every file reads as it must.
    pub(crate) fn compare(&self, when: &str) {
        for (name, file) in &self.files {
            assert_eq!(self.fixture.size(name), file.len() as u64, "size of {name} {when}");
            let read = self.fixture.read(name, 0, file.len() + 10);
            let wrong = read.iter().zip(file).position(|(got, want)| got != want);
            assert!(read.len() == file.len() && wrong.is_none(), "I1: {name} at {wrong:?} {when}");
        }
    }

    /// I7: the origin alone holds everything.
    pub(crate) fn compare_origin(&self, when: &str) {
        for (name, file) in &self.files {
            let found = std::fs::read(self.fixture.origin.path().join(name)).unwrap();
            let wrong = found.iter().zip(file).position(|(got, want)| got != want);
            assert!(
                found.len() == file.len() && wrong.is_none(),
                "I7: {name} on the origin at {wrong:?} {when}"
            );
        }
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.fixture.engine().status().dirty_bytes
    }
}

/// Copies a directory.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
