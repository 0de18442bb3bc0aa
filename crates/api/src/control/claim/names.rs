//! The names of claims, and the list of existing ones.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

/// The sockets of this network namespace (`proc_pid_net(5)`).
const TABLE: &str = "/proc/net/unix";
/// Limit for examining one line at once, in bytes; names end after 108.
const LINE_BYTES_MAX: u64 = 4096;
/// Prefix of the names. Part of the interface between versions: versions with different prefixes do not see each
/// other's claims.
const PREFIX: &str = "halocline/1/";

/// Device and inode of a directory.
pub(super) type Id = (u64, u64);

/// What is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The directory in the name.
    At,
    /// A directory below it.
    Below,
    /// The mount whose device has the numbers given in the name in place of the directory's.
    Mount,
}

/// How a claimed directory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// It is only read.
    Read,
    /// Its files are changed, by this claimant alone.
    Change,
    /// Its files are changed by several claimants that coordinate; each has a cache with this identity, which has one
    /// user.
    Share(Id),
}

impl Access {
    /// Whether two uses exclude each other in one directory, or, if not `same`, when one directory is inside the other.
    pub(super) fn excludes(self, other: Self, same: bool) -> bool {
        match (self, other) {
            (Self::Read, Self::Read) => false,
            (Self::Share(own), Self::Share(other)) => !same || own == other,
            _ => true,
        }
    }
}

/// A claim's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) id: Id,
    pub(super) access: Access,
    /// Distinguishes claims.
    pub(super) nonce: u64,
}

impl Entry {
    /// The name of the abstract socket: at most 102 bytes of 107.
    pub(super) fn name(&self) -> String {
        let kind = match self.kind {
            Kind::At => "at",
            Kind::Below => "in",
            Kind::Mount => "on",
        };
        let access = match self.access {
            Access::Read => "ro".to_owned(),
            Access::Change => "rw".to_owned(),
            Access::Share((device, inode)) => format!("sh:{device:x}:{inode:x}"),
        };
        let ((device, inode), nonce) = (self.id, self.nonce);
        format!("{PREFIX}{kind}/{device:x}:{inode:x}/{access}/{nonce:016x}")
    }

    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('/');
        let kind = match parts.next()? {
            "at" => Kind::At,
            "in" => Kind::Below,
            "on" => Kind::Mount,
            _ => return None,
        };
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (device, inode) = parts.next()?.split_once(':')?;
        let access = match parts.next()? {
            "rw" => Access::Change,
            "ro" => Access::Read,
            shared => {
                let (device, inode) = shared.strip_prefix("sh:")?.split_once(':')?;
                Access::Share((hex(device)?, hex(inode)?))
            }
        };
        let id = (hex(device)?, hex(inode)?);
        let entry = Self { kind, id, access, nonce: hex(parts.next()?)? };
        // Only names that we would write ourselves.
        (entry.name() == name).then_some(entry)
    }
}

/// All existing names. Anyone may listen on one, and a name may contain line breaks that make it look like several: so
/// each listener must be asked.
///
/// The list is read however long it is: a user who makes it long must not hide the claims of others.
pub(super) fn all() -> io::Result<Vec<Entry>> {
    parse_table(BufReader::new(File::open(TABLE)?))
}

fn parse_table(mut table: impl BufRead) -> io::Result<Vec<Entry>> {
    let name = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'@')?;
        Entry::parse(std::str::from_utf8(&line[at + 1..]).ok()?)
    };
    let (mut found, mut line) = (Vec::new(), Vec::new());
    while table.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? > 0 {
        found.extend(name(line.strip_suffix(b"\n").unwrap_or(&line)));
        line.clear();
    }
    // A connection to a listening socket is listed under the same name.
    found.sort_by_key(|entry| (entry.id, entry.nonce));
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were_given() {
        let all = (u64::MAX, u64::MAX);
        let shared = Access::Share(all);
        for (kind, access) in
            [(Kind::At, Access::Change), (Kind::Below, Access::Read), (Kind::At, shared)]
        {
            let entry = Entry { kind, id: all, access, nonce: u64::MAX };
            assert_eq!(Entry::parse(&entry.name()), Some(entry));
            assert!(entry.name().len() <= 107, "{}", entry.name());
        }
    }

    #[test]
    fn only_well_formed_names_are_taken_from_the_table() {
        let good = Entry { kind: Kind::At, id: (0x801, 0x2a), access: Access::Change, nonce: 9 };
        let table = format!(
            "Num       RefCount Protocol Flags    Type St Inode Path\n\
             00000000ffff: 00000002 00000000 00010000 0001 01 20511 @{0}\n\
             00000000ffff: 00000003 00000000 00000000 0001 03 20512 @{0}\n\
             00000000ffff: 00000002 00000000 00010000 0001 01 20513 /run/halocline/1/at/1:1/rw/1\n\
             00000000ffff: 00000002 00000000 00010000 0001 01 20514 @halocline/1/at/1:2:3/rw/1\n\
             00000000ffff: 00000002 00000000 00010000 0001 01 20515 @halocline/1/at/+1:2/rw/1\n\
             00000000ffff: 00000002 00000000 00010000 0001 01 20516\n",
            good.name()
        );
        assert_eq!(parse_table(table.as_bytes()).unwrap(), [good]);
    }

    /// Regression: a list of more than 256 MiB was ignored, and its claims were not seen.
    #[test]
    fn claims_are_seen_behind_any_number_of_sockets() {
        let good = Entry { kind: Kind::At, id: (0x801, 0x2a), access: Access::Change, nonce: 9 };
        let last =
            format!("\n00000000ffff: 00000002 00000000 00010000 0001 01 20511 @{}\n", good.name());
        let others = io::repeat(b'x').take(300 << 20);
        assert_eq!(parse_table(BufReader::new(others.chain(last.as_bytes()))).unwrap(), [good]);
    }
}
