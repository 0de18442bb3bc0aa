//! The attributes of a file or directory that are stored beside its names.

use std::collections::BTreeMap;

use halocline_model::token::Session;

pub use super::relative_path::RelativePath;

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// Whether it is neither a file nor a directory: it is then what its name on the shared disk says.
    #[must_use]
    pub const fn is_other(self) -> bool {
        !matches!(self, Self::File | Self::Directory)
    }
}

/// Where the bytes of a file lie: one ordinary file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The node on whose SSD they lie; `None` for the disk that all nodes share.
    pub node: Option<String>,
    /// The tier on that node or disk.
    pub tier: u8,
    /// The number of the directory, on that tier, at which `path` begins. Directories are renamed on the shared disk,
    /// and keep their numbers.
    pub base: u64,
    /// The file's path from there.
    pub path: RelativePath,
}

/// The most sessions that are recorded as having a file open.
pub(crate) const OPENS_MAX: usize = 16;

/// A session that has a file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Open {
    /// The session.
    pub session: Session,
    /// Whether for writing, too: then only the file with the bytes has the current size and times.
    pub writes: bool,
    /// Whether that node's kernel may serve it by itself (passthrough): the kernel goes on with that after the session
    /// is over, and only that node can see when it stops.
    pub by_kernel: bool,
}

/// A copy of a file on an SSD that the shared disk keeps. The file's bytes are those of the copy as long as this stands:
/// whoever changes the file takes it away first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CleanCopy {
    /// A number that no other copy has.
    pub number: u64,
    /// The last change of the content, as the copy has it; [`BEING_MADE`](Self::BEING_MADE) until it is whole.
    pub mtime_ns: i64,
}

impl CleanCopy {
    /// Stands for the time while the copy is being made: nobody may use it, and a writer ends it as any other.
    pub const BEING_MADE: i64 = i64::MIN;
}

/// Attributes. Times are in nanoseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// The type of the file.
    pub kind: Kind,
    /// Permission bits, with set-id bits and the sticky bit.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// The device number, if it is a device.
    pub rdev: u64,
    /// Last read.
    pub atime_ns: i64,
    /// Last change of the content.
    pub mtime_ns: i64,
    /// Last change of the attributes.
    pub ctime_ns: i64,
    /// When it was made.
    pub birth_ns: i64,
    /// Where a symbolic link leads.
    pub target: Vec<u8>,
    /// Where the bytes lie, if there are any.
    pub location: Option<Location>,
    /// The session that is moving the bytes, if one is; the move is void if this value has changed by its end.
    pub writer: Option<Session>,
    /// The copy that the shared disk keeps, if it keeps one. The copy may be gone all the same, to make room.
    pub copy: Option<CleanCopy>,
    /// The sessions that have it open, sorted; at most [`OPENS_MAX`].
    pub opens: Vec<Open>,
    /// Whether more sessions had it open at once than can be recorded: until all of them were examined, any session
    /// may have it open.
    pub many_opens: bool,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Attributes {
    /// The attributes of a new, empty file or directory, made at the given time.
    #[must_use]
    pub const fn new(kind: Kind, mode: u32, now_ns: i64) -> Self {
        Self {
            kind,
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            rdev: 0,
            atime_ns: now_ns,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            birth_ns: now_ns,
            target: Vec::new(),
            location: None,
            writer: None,
            copy: None,
            opens: Vec::new(),
            many_opens: false,
            xattrs: BTreeMap::new(),
        }
    }

    /// Notes that a session has the file open, for writing if it `writes` or did so before, and that nobody moves the
    /// file. A writer ends its clean copy.
    pub fn note_open(&mut self, session: Session, writes: bool) {
        self.writer = None;
        self.copy = self.copy.filter(|_| !writes);
        match self.opens.binary_search_by_key(&session, |open| open.session) {
            Ok(at) => self.opens[at].writes |= writes,
            Err(_) if self.opens.len() >= OPENS_MAX => self.many_opens = true,
            Err(at) => self.opens.insert(at, Open { session, writes, by_kernel: false }),
        }
    }

    /// Notes that the kernel of a session that has the file open may serve it.
    pub fn note_kernel(&mut self, session: Session) {
        if let Ok(at) = self.opens.binary_search_by_key(&session, |open| open.session) {
            self.opens[at].by_kernel = true;
        }
    }

    /// Whether a session's kernel may serve the file.
    #[must_use]
    pub fn is_by_kernel(&self, session: Session) -> bool {
        self.opens.iter().any(|open| open.session == session && open.by_kernel)
    }

    /// Notes that a session no longer has it open.
    pub fn note_close(&mut self, session: Session) {
        self.opens.retain(|open| open.session != session);
    }

    /// Whether a session may have it open: there may be more opens than are noted one by one.
    #[must_use]
    pub fn may_have_open(&self, session: Session) -> bool {
        self.many_opens || self.opens.iter().any(|open| open.session == session)
    }

    /// Whether size and times may be stale here, and current only in the file with the bytes.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.many_opens || self.opens.iter().any(|open| open.writes)
    }

    /// The attributes of a directory whose names last changed at `changed_us` by the store's clock; 0 if they did not
    /// change since these attributes were set.
    #[must_use]
    pub fn changed_at(mut self, changed_us: u64) -> Self {
        if changed_us > 0 {
            self.mtime_ns = i64::try_from(changed_us.saturating_mul(1000)).unwrap_or(i64::MAX);
            self.ctime_ns = self.ctime_ns.max(self.mtime_ns);
        }
        self
    }
}
