//! Sessions as people see and end them: the members, what each holds, and how a dead one is removed.

use std::path::PathBuf;

use halocline_cache::coherence::SharedFile;
use halocline_model::token::{Held, Life, Mode, Session, Tokens};
use halocline_os::error::{Error, Result};
use serde::Serialize;

use crate::agent::{cluster_error, remove};
use crate::registry::{FileIdentity, Registry};
use crate::store::{self, Lease, Reading, Roll, Store};

/// How many files are examined to find what a session holds.
const FILES_MAX: usize = 1_000_000;

/// A node of a cluster with its session, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub session: Session,
    /// The node's name, if its entry can be read.
    pub node: Option<String>,
    /// Its cache directory, as the node names it.
    pub cache: Option<PathBuf>,
    /// Identifies that cache, whatever it is called elsewhere.
    pub cache_id: Option<String>,
    /// The boot of the machine that its process runs, or ran, on.
    pub boot_id: Option<String>,
    /// Which directory its cache is on that machine.
    #[serde(skip)]
    pub cache_seen: Option<FileIdentity>,
    /// Whether it is alive; `None` if the store does not know it.
    pub life: Option<Life>,
    /// How long its lease may still run by the store's clock, in milliseconds: while the store may have forgotten
    /// leases, any of them may still run.
    pub lease_ms: u64,
    /// Whether it has reported what it holds since the store may last have forgotten it.
    pub is_known: bool,
}

/// All sessions of the registry and of the store.
///
/// # Errors
/// If either cannot be read.
pub fn nodes(store: &dyn Store, registry: &Registry) -> Result<Vec<Node>> {
    Ok(nodes_of(&store.roll().map_err(cluster_error)?, registry.sessions()?, registry))
}

/// The sessions of a roll and those that are `listed`, with their entries.
pub(crate) fn nodes_of(roll: &Roll, listed: Vec<Session>, registry: &Registry) -> Vec<Node> {
    let mut sessions = listed;
    sessions.extend(roll.members.sessions().map(|(session, _)| session));
    sessions.sort_unstable();
    sessions.dedup();
    let node = |session| {
        let entry = registry.entry(session);
        Node {
            session,
            node: entry.as_ref().map(|entry| entry.node.clone()),
            cache: entry.as_ref().map(|entry| entry.cache.clone()),
            cache_id: entry.as_ref().map(|entry| entry.cache_id.clone()),
            cache_seen: entry.as_ref().and_then(|entry| entry.cache_seen),
            boot_id: entry.map(|entry| entry.boot_id),
            life: roll.members.life(session),
            lease_ms: roll.lease_ms(session),
            is_known: roll.members.has_asserted(session, roll.epoch),
        }
    };
    sessions.into_iter().map(node).collect()
}

/// Who holds and who waits for which bytes of a file.
///
/// # Errors
/// If the store cannot be read.
pub fn tokens(store: &dyn Store, file: SharedFile) -> Result<Tokens> {
    current(store, file).map_err(cluster_error)
}

/// The valid tokens of a file, without those of an earlier epoch of the store.
pub(crate) fn current(store: &dyn Store, file: SharedFile) -> store::Result<Tokens> {
    let Reading { tokens, epoch } = store.read(file)?;
    Ok(if tokens.epoch() == epoch { tokens } else { Tokens::new(epoch) })
}

/// A session's exclusive tokens, as far as the store knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exclusive {
    /// Where the session may have dirty bytes.
    pub held: Vec<(SharedFile, Held)>,
    /// Whether none is missing: the session has reported what it holds since the store may last have forgotten it, and
    /// all files were examined.
    pub is_complete: bool,
}

/// Finds a session's exclusive tokens, as far as the store knows: it may have dirty bytes there.
///
/// # Errors
/// If the store cannot be read.
pub fn exclusive(store: &dyn Store, session: Session) -> Result<Exclusive> {
    let mut found = Vec::new();
    let files = store.files(FILES_MAX).map_err(cluster_error)?;
    let all_files = files.len() < FILES_MAX;
    for file in files {
        let own = tokens(store, file)?.of(session).into_iter();
        found.extend(own.filter(|held| held.mode == Mode::Exclusive).map(|held| (file, held)));
    }
    // Read last: the store may have forgotten something meanwhile.
    let roll = store.roll().map_err(cluster_error)?;
    let is_known = roll.members.has_asserted(session, roll.epoch);
    Ok(Exclusive { held: found, is_complete: is_known && all_files })
}

/// Ends a session that is gone: all dirty bytes of its cache are on the origin, or are given up. From now on others may
/// get its tokens. The caller holds the lock of that cache, or acts for a person who knows that the node cannot come
/// back.
///
/// # Errors
/// If its lease is still valid, or if something cannot be written; in that case call it again.
pub fn end(store: &dyn Store, registry: &Registry, session: Session) -> Result<()> {
    let roll = store.roll().map_err(cluster_error)?;
    if !roll.is_over(session) {
        let seconds = roll.lease_ms(session).div_ceil(1000);
        return Err(Error::Cluster {
            what: format!(
                "{} is there, or may be: its lease may run for another {seconds} s",
                registry.name(session)
            ),
            remedy: "unmount it on its node, or wait until its lease is over".to_owned(),
        });
    }
    // In this order, because a session that asserts what it holds reads the registry after that.
    registry.leave(session)?;
    remove(store, session, Lease::IsOver(session)).map_err(cluster_error)
}

/// Ends a session whose process the caller knows to have ended: the caller holds the lock of that cache, in the same
/// directory of the same machine. Its lease need not have expired. All its dirty bytes are on the origin.
///
/// # Errors
/// If something cannot be written; in that case call it again.
pub fn end_own(store: &dyn Store, registry: &Registry, session: Session) -> Result<()> {
    registry.leave(session)?;
    remove(store, session, Lease::Ends(session)).map_err(cluster_error)
}
