//! What a file must hold after any crash: for each byte the last acknowledged write, or one that
//! was on its way when the mount process died.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The byte that write number `version` puts at `offset`; version 0 is what nobody wrote.
fn byte(version: u32, offset: u64) -> u8 {
    if version == 0 {
        return 0;
    }
    let mut x = (u64::from(version) << 32 ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    // Never 0, so that a lost write cannot look like a hole.
    u8::try_from(x.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56).expect("eight bits") | 1
}

/// An operation that was issued and not answered.
#[derive(Debug, Clone, Copy)]
enum Unanswered {
    Write { offset: u64, length: u64, version: u32 },
    Truncate { size: u64 },
}

/// The expected content of one file with one writer.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Version of each byte; the length is the file's size.
    versions: Vec<u32>,
    last: u32,
    unanswered: Option<Unanswered>,
}

impl Ledger {
    /// The file's size.
    pub(crate) fn size(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Number of operations issued.
    pub(crate) fn issued(&self) -> u32 {
        self.last
    }

    /// Writes new bytes; they are acknowledged when this returns `Ok`.
    pub(crate) fn write(&mut self, file: &File, offset: u64, length: u64) -> io::Result<()> {
        self.last += 1;
        let version = self.last;
        let bytes: Vec<u8> = (offset..offset + length).map(|at| byte(version, at)).collect();
        self.unanswered = Some(Unanswered::Write { offset, length, version });
        file.write_all_at(&bytes, offset)?;
        self.unanswered = None;
        self.put(offset, length, version);
        Ok(())
    }

    /// Sets the size; acknowledged when this returns `Ok`.
    pub(crate) fn truncate(&mut self, file: &File, size: u64) -> io::Result<()> {
        self.last += 1;
        self.unanswered = Some(Unanswered::Truncate { size });
        file.set_len(size)?;
        self.unanswered = None;
        self.versions.resize(to_index(size), 0);
        Ok(())
    }

    fn put(&mut self, offset: u64, length: u64, version: u32) {
        let (start, end) = (to_index(offset), to_index(offset + length));
        if self.versions.len() < end {
            self.versions.resize(end, 0);
        }
        self.versions[start..end].fill(version);
    }

    /// Checks a range through the mount (I1).
    pub(crate) fn check_read(&self, file: &File, offset: u64, length: u64) -> io::Result<()> {
        let mut bytes = vec![0; to_index(length)];
        file.read_exact_at(&mut bytes, offset)?;
        for (at, found) in (offset..).zip(bytes) {
            let version = self.versions[to_index(at)];
            assert_eq!(found, byte(version, at), "I1: byte {at}, write {version}");
        }
        Ok(())
    }

    /// Checks the whole file after a crash (I4), and takes what the crash left undecided as found.
    pub(crate) fn recover(&mut self, content: &[u8]) -> Result<(), String> {
        let mut sizes = vec![self.versions.len()];
        let mut rewritten = (0..0, 0);
        match self.unanswered.take() {
            // A write that was not answered may be there in part, or have grown the file.
            Some(Unanswered::Write { offset, length, version }) => {
                rewritten = (to_index(offset)..to_index(offset + length), version);
                let end = rewritten.0.end.max(self.versions.len());
                if content.len() > self.versions.len() && content.len() <= end {
                    sizes.push(content.len());
                }
            }
            Some(Unanswered::Truncate { size }) => sizes.push(to_index(size)),
            None => {}
        }
        if !sizes.contains(&content.len()) {
            return Err(format!("I4: size {} where {sizes:?} is possible", content.len()));
        }
        self.versions.resize(content.len(), 0);
        for (at, found) in content.iter().enumerate() {
            let version = &mut self.versions[at];
            let offset = at as u64;
            if *found == byte(*version, offset) {
                continue;
            }
            if rewritten.0.contains(&at) && *found == byte(rewritten.1, offset) {
                *version = rewritten.1;
                continue;
            }
            return Err(format!("I4: byte {at} is {found}, not of acknowledged write {version}"));
        }
        Ok(())
    }
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("fits memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> (Ledger, Vec<u8>) {
        let file = tempfile::tempfile().expect("scratch");
        let mut ledger = Ledger::default();
        ledger.write(&file, 0, 100).expect("write");
        ledger.write(&file, 50, 100).expect("write");
        let mut content = vec![0; 150];
        file.read_exact_at(&mut content, 0).expect("read");
        (ledger, content)
    }

    #[test]
    fn the_ledger_accepts_what_was_acknowledged() {
        let (mut ledger, content) = written();
        assert_eq!(ledger.recover(&content), Ok(()));
    }

    #[test]
    fn the_ledger_finds_a_lost_an_old_and_a_torn_write() {
        let (mut ledger, content) = written();
        assert!(ledger.recover(&content[..149]).is_err(), "lost size");
        let mut old = content.clone();
        (50..100).for_each(|at| old[at] = byte(1, at as u64));
        assert!(ledger.recover(&old).is_err(), "old bytes");
        let mut hole = content.clone();
        hole[120] = 0;
        assert!(ledger.recover(&hole).is_err(), "lost byte");
    }

    #[test]
    fn the_ledger_lets_an_unanswered_write_be_torn() {
        let (mut ledger, mut content) = written();
        ledger.unanswered = Some(Unanswered::Write { offset: 10, length: 20, version: 3 });
        content[15] = byte(3, 15);
        assert_eq!(ledger.recover(&content), Ok(()));
        assert_eq!(ledger.recover(&content), Ok(()), "decided from now on");
        content[16] = byte(3, 16);
        assert!(ledger.recover(&content).is_err(), "no longer on its way");
    }
}
