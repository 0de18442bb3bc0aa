//! Locks of whole files (`flock(2)`).

use std::fs::File;
use std::ops::Deref;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// An open file with a lock, which ends with this.
///
/// Closing the file is not enough: a process that another thread is just starting has copies of all descriptors until it
/// executes its program, and with them the lock.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// For a file that the caller has locked for itself alone.
    ///
    /// # Panics
    /// If another one has the lock.
    #[must_use]
    pub fn new(locked: File) -> Self {
        // Of a lock that one has, this changes nothing.
        let again = flock(&locked, FlockOperation::NonBlockingLockExclusive);
        assert_ne!(again, Err(Errno::WOULDBLOCK), "I8: the lock is another one's");
        Self(locked)
    }

    /// For a file whose lock others may share.
    #[must_use]
    pub const fn shared(locked: File) -> Self {
        Self(locked)
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing ends it otherwise.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "I8: the lock is another one's")]
    fn i8_a_lock_that_another_one_has_is_never_taken_for_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let _owner = LockedFile::new(file);
        let _other = LockedFile::new(File::open(&path).unwrap());
    }

    #[test]
    fn a_lock_ends_although_a_copy_of_its_descriptor_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive);
        let file = File::create(&path).unwrap();
        lock(&file).unwrap();
        // As a child has it from its start until it executes its program.
        let (held, _copy) = (LockedFile::new(file.try_clone().unwrap()), file);
        lock(&File::open(&path).unwrap()).unwrap_err();
        drop(held);
        lock(&File::open(&path).unwrap()).unwrap();
    }
}
