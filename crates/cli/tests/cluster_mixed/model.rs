//! What the files are to have.

use std::collections::BTreeMap;

/// Few names, so that calls meet each other.
pub(crate) const NAMES: [&str; 6] = ["a", "b", "c", "d", "dir/a", "dir/b"];

/// A file, under any number of names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    /// The modification time in seconds that a program set, if nothing changed the file since.
    pub(crate) time: Option<i64>,
}

impl Content {
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset..end].copy_from_slice(bytes);
        self.time = None;
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.write(self.bytes.len(), bytes);
    }

    pub(crate) fn resize(&mut self, size: usize) {
        self.bytes.resize(size, 0);
        self.time = None;
    }

    /// Zeros, as far as the file reaches.
    pub(crate) fn clear(&mut self, offset: usize, length: usize) {
        let end = self.bytes.len().min(offset + length);
        if offset < end {
            self.bytes[offset..end].fill(0);
        }
        self.time = None;
    }

    pub(crate) fn grow(&mut self, size: usize) {
        self.resize(self.bytes.len().max(size));
    }

    /// What a read returns.
    pub(crate) fn read(&self, offset: usize, length: usize) -> &[u8] {
        let start = offset.min(self.bytes.len());
        &self.bytes[start..self.bytes.len().min(offset + length)]
    }
}

/// The names, and the files that they lead to.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<&'static str, usize>,
    pub(crate) files: Vec<Content>,
}

impl Model {
    /// A new file under a name that nobody has.
    pub(crate) fn create(&mut self, name: &'static str) -> usize {
        self.files.push(Content::default());
        self.names.insert(name, self.files.len() - 1);
        self.files.len() - 1
    }
}
