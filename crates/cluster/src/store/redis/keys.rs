//! Names of the keys of an origin.

use halocline_cache::coherence::SharedFile;
use halocline_model::token::Session;

/// The keys with one hash tag.
pub(super) struct Keys {
    pub(super) prefix: String,
    pub(super) epoch: String,
    pub(super) members: String,
    pub(super) leases: String,
    pub(super) working: String,
    pub(super) serving: String,
}

impl Keys {
    /// The keys with a hash tag.
    pub(super) fn new(tag: &str) -> Self {
        let prefix = format!("halocline:{{{tag}}}:");
        let key = |name: &str| format!("{prefix}{name}");
        Self {
            epoch: key("epoch"),
            members: key("members"),
            leases: key("leases"),
            working: key("working"),
            serving: key("serving"),
            prefix,
        }
    }

    pub(super) fn file(&self, file: SharedFile) -> String {
        format!("{}file:{}", self.prefix, named(file))
    }

    pub(super) fn messages(&self, session: Session) -> String {
        format!("{}told:{:016x}", self.prefix, session.0)
    }

    pub(super) fn peer_messages(&self, session: Session) -> String {
        format!("{}letters:{:016x}", self.prefix, session.0)
    }
}

pub(super) fn named(file: SharedFile) -> String {
    format!("{:x}:{:x}", file.inode, file.born_ns.cast_unsigned())
}

pub(super) fn file_of(name: &str) -> Option<SharedFile> {
    let (inode, born) = name.split_once(':')?;
    let inode = u64::from_str_radix(inode, 16).ok()?;
    let born_ns = u64::from_str_radix(born, 16).ok()?.cast_signed();
    Some(SharedFile { inode, born_ns })
}
