//! What every file must hold, kept beside an engine: each change is made to both, and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use halocline_api::control::Controlled;
use halocline_os::error::Result;
use halocline_vfs::Allocate;
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{Fixture, ME};

/// An engine and the truth.
pub(crate) struct Truth {
    pub(crate) fixture: Fixture,
    files: BTreeMap<String, Contents>,
}

/// What a file must hold; where a request failed, what it may hold instead.
#[derive(Debug, Default)]
struct Contents {
    bytes: Vec<u8>,
    doubts: BTreeMap<usize, BTreeSet<u8>>,
    sizes: BTreeSet<usize>,
}

impl Contents {
    fn change(&mut self, offset: u64, data: &[u8]) {
        let (start, end) = (at(offset), at(offset) + data.len());
        if data.is_empty() {
            return;
        }
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start..end].copy_from_slice(data);
        self.doubts.retain(|byte, _| !(start..end).contains(byte));
    }

    fn resize(&mut self, size: usize) {
        self.bytes.resize(size, 0);
        self.doubts.retain(|byte, _| *byte < size);
        self.sizes.clear();
    }

    /// A change failed: any part of it may have been made.
    fn doubt(&mut self, offset: u64, data: &[u8]) {
        for (byte, value) in (at(offset)..).zip(data) {
            let may = self.doubts.entry(byte).or_default();
            may.insert(*value);
            may.insert(0);
        }
        self.sizes.insert(at(offset) + data.len());
    }

    /// Where `found` is nothing that it may be.
    fn wrong(&self, offset: usize, found: &[u8]) -> Option<usize> {
        (offset..).zip(found).find_map(|(byte, value)| {
            let must = self.bytes.get(byte).copied().unwrap_or(0);
            let may = self.doubts.get(&byte).is_some_and(|may| may.contains(value));
            (must != *value && !may).then_some(byte)
        })
    }
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
        self.try_write(name, offset, len, seed).unwrap();
    }

    /// A write that may fail: then each of its bytes may be written or not.
    pub(crate) fn try_write(&mut self, name: &str, offset: u64, len: u64, seed: u8) -> Result<()> {
        let data = pattern(seed, offset, len);
        let handle = self.fixture.handle(name);
        let done = self.fixture.engine().write(&handle, offset, &data, ME);
        let file = self.files.entry(name.to_owned()).or_default();
        match done {
            Ok(()) => file.change(offset, &data),
            Err(_) => file.doubt(offset, &data),
        }
        done
    }

    pub(crate) fn truncate(&mut self, name: &str, size: u64) {
        self.try_truncate(name, size).unwrap();
    }

    pub(crate) fn try_truncate(&mut self, name: &str, size: u64) -> Result<()> {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        let done =
            self.fixture.engine().set_attr(&self.fixture.vnode(name), None, &change, ME).map(drop);
        let file = self.files.get_mut(name).unwrap();
        match done {
            Ok(()) => file.resize(at(size)),
            Err(_) => drop(file.sizes.insert(at(size))),
        }
        done
    }

    pub(crate) fn punch(&mut self, name: &str, offset: u64, len: u64) {
        self.try_punch(name, offset, len).unwrap();
    }

    pub(crate) fn try_punch(&mut self, name: &str, offset: u64, len: u64) -> Result<()> {
        let handle = self.fixture.handle(name);
        let done = self.fixture.engine().allocate(&handle, offset, len, Allocate::PunchHole);
        let file = self.files.get_mut(name).unwrap();
        let end = file.bytes.len().min(at(offset + len));
        let zeros = vec![0; end.saturating_sub(at(offset))];
        match done {
            Ok(()) => file.change(offset, &zeros),
            Err(_) => file.doubt(offset, &zeros),
        }
        done
    }

    /// A read that may fail; if it does not, it is right.
    pub(crate) fn try_read(&self, name: &str, offset: u64, len: u64) -> Result<()> {
        let found = self.fixture.try_read(name, offset, at(len))?;
        let file = &self.files[name];
        assert_eq!(file.wrong(at(offset), &found), None, "I1: {name} read at {offset}");
        Ok(())
    }

    pub(crate) fn unlink(&mut self, name: &str) {
        let engine = self.fixture.engine();
        engine.unlink(&engine.root(), OsStr::new(name), ME).unwrap();
        self.files.remove(name);
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str, flags: u32) {
        let engine = self.fixture.engine();
        let root = engine.root();
        engine.rename((&root, OsStr::new(from)), (&root, OsStr::new(to)), flags, ME).unwrap();
        let moved = self.files.remove(from).unwrap();
        let before = self.files.insert(to.to_owned(), moved);
        if flags & libc::RENAME_EXCHANGE != 0 {
            self.files.insert(from.to_owned(), before.unwrap());
        }
    }

    pub(crate) fn fsync(&self, name: &str) {
        self.fixture.engine().fsync(&self.fixture.handle(name), false).unwrap();
    }

    /// I1: every file reads as it must. What was in doubt is as it was found from then on.
    pub(crate) fn compare(&mut self, when: &str) {
        for (name, file) in &mut self.files {
            let size = at(self.fixture.size(name));
            let known = size == file.bytes.len() || file.sizes.contains(&size);
            assert!(known, "size {size} of {name} {when}, not {}", file.bytes.len());
            let found = self.fixture.read(name, 0, size + 10);
            assert_eq!(found.len(), size, "bytes of {name} {when}");
            let wrong = file.wrong(0, &found);
            assert!(wrong.is_none(), "I1: {name} at {wrong:?} {when}");
            *file = Contents { bytes: found, ..Contents::default() };
        }
    }

    /// I7: the origin alone holds everything.
    pub(crate) fn compare_origin(&self, when: &str) {
        for (name, file) in &self.files {
            let found = std::fs::read(self.fixture.origin.path().join(name)).unwrap();
            let wrong = file.wrong(0, &found);
            assert!(
                found.len() == file.bytes.len() && wrong.is_none(),
                "I7: {name} on the origin at {wrong:?} {when}"
            );
        }
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.fixture.engine().status().dirty_bytes
    }
}
