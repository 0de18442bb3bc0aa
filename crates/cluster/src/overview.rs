//! An overview of a store's content, for people: how many tokens each session holds, and inconsistencies.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cache::coherence::SharedFile;
use halocline_model::token::{Held, Mode, Session};
use halocline_os::error::Result;
use serde::Serialize;

use crate::agent::cluster_error;
use crate::registry::Registry;
use crate::sessions::{self, Node};
use crate::store::{Store, StoreError};

/// How many files are examined; if there are more, only the first ones are counted, and the overview says so.
const FILES_MAX: usize = 1_000_000;

/// After this many missing answers the store is not asked any more: each takes some seconds.
const SILENT_MAX: usize = 4;

/// The numbers of a session's tokens, by mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Holdings {
    /// Files of which it holds something.
    pub files: u64,
    /// Tokens to read and cache, together with others.
    pub shared: u64,
    /// Tokens to read, write and cache, exclusively.
    pub exclusive: u64,
    /// Tokens to read and write on the origin, and cache nothing.
    pub direct: u64,
    /// Files of which it waits for tokens.
    pub waits: u64,
}

/// A session and the tokens that it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionTokens {
    /// The session.
    #[serde(flatten)]
    pub node: Node,
    /// Its tokens.
    pub tokens: Holdings,
}

/// An inconsistency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "kebab-case")]
pub enum Problem {
    /// A session that is gone: what it holds exclusively is granted to no one, and while the store does not know it, no
    /// new tokens are granted.
    Gone {
        /// Its name, or its number.
        node: String,
        /// Files that it holds exclusively: its cache may have dirty bytes of them.
        files: u64,
    },
    /// A session that the store knows but the list on the origin does not have.
    Unlisted {
        /// Its number.
        session: Session,
    },
    /// Tokens of an unknown session. They delay no one: the next request for the file drops them.
    Stray {
        /// Inode of the file.
        inode: u64,
        /// Its number.
        session: Session,
    },
    /// Two sessions hold tokens that exclude each other (I11).
    Conflict {
        /// Inode of the file.
        inode: u64,
        /// One of them.
        one: Session,
        /// The other.
        other: Session,
    },
    /// A live session could not read dirty bytes from its cache when others wanted them: they are an error for all.
    Unreadable {
        /// Inode of the file.
        inode: u64,
        /// Its name, or its number.
        node: String,
        /// How many bytes.
        bytes: u64,
    },
    /// A value that was not written by Halocline.
    Unsound {
        /// Inode of the file.
        inode: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A partition of the store does not answer: its files' tokens can be neither seen nor changed.
    Silent {
        /// Which server and part, and why.
        what: String,
    },
}

impl Problem {
    /// Whether it resolves by itself.
    #[must_use]
    pub const fn ends_by_itself(&self) -> bool {
        matches!(self, Self::Stray { .. })
    }
}

/// The combined view of the store and the list of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// The life of the store.
    pub epoch: u64,
    /// Whether it grants new tokens, which requires that all listed sessions have reported what they hold.
    pub grants: bool,
    /// All sessions.
    pub nodes: Vec<SessionTokens>,
    /// Files with tokens.
    pub files: u64,
    /// Whether all files were counted.
    pub all_files: bool,
    /// Files with ranges that no one caches, because they changed hands too often or are wanted by many.
    pub contended_files: u64,
    /// Nodes that have low-priority work on the origin, each of which takes an equal part of what one node alone would
    /// use; null where the store does not say.
    pub working: Option<u64>,
    /// Nodes whose programs use the origin.
    pub serving: Option<u64>,
    /// Inconsistencies.
    pub problems: Vec<Problem>,
}

impl Overview {
    fn note_silent(&mut self, what: String) {
        self.all_files = false;
        let problem = Problem::Silent { what };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn silent(&self) -> usize {
        self.problems.iter().filter(|one| matches!(one, Problem::Silent { .. })).count()
    }
}

/// Examines everything and changes nothing; nodes continue meanwhile, and files are counted one after another.
///
/// Anything that cannot be seen because a partition of the store does not answer is reported as such.
///
/// # Errors
/// If the members or the list cannot be read.
pub fn overview(store: &dyn Store, registry: &Registry) -> Result<Overview> {
    let roll = store.roll().map_err(cluster_error)?;
    let listed = registry.sessions()?;
    let nodes = sessions::nodes_of(&roll, listed.clone(), registry);
    // Only informative, so an error here is no reason to fail.
    let users = store.users(None).ok();
    let mut found = Overview {
        epoch: roll.epoch.0,
        grants: roll.members.grants(roll.epoch),
        nodes: Vec::new(),
        files: 0,
        all_files: true,
        contended_files: 0,
        working: users.map(|users| users.working),
        serving: users.map(|users| users.serving),
        problems: Vec::new(),
    };
    let files = match store.files(FILES_MAX) {
        Err(StoreError::NoAnswer(what)) => {
            found.note_silent(what);
            Vec::new()
        }
        files => files.map_err(cluster_error)?,
    };
    found.all_files &= files.len() < FILES_MAX;
    let mut held: BTreeMap<Session, Holdings> =
        nodes.iter().map(|node| (node.session, Holdings::default())).collect();
    for file in files {
        look_at((store, registry), file, roll.now_ms, &mut held, &mut found)?;
        if found.silent() > SILENT_MAX {
            break;
        }
    }
    for node in nodes {
        let tokens = held[&node.session];
        let is_gone = node.lease_ms == 0;
        if !listed.contains(&node.session) {
            found.problems.push(Problem::Unlisted { session: node.session });
        } else if is_gone {
            let name = registry.node(node.session);
            found.problems.push(Problem::Gone { node: name, files: tokens.exclusive });
        }
        found.nodes.push(SessionTokens { node, tokens });
    }
    Ok(found)
}

/// Counts the tokens of one file.
fn look_at(
    (store, registry): (&dyn Store, &Registry),
    file: SharedFile,
    now_ms: u64,
    held: &mut BTreeMap<Session, Holdings>,
    found: &mut Overview,
) -> Result<()> {
    let inode = file.inode;
    let tokens = match sessions::current(store, file) {
        Err(StoreError::Unsound(what)) => {
            found.problems.push(Problem::Unsound { inode, what });
            return Ok(());
        }
        Err(StoreError::NoAnswer(what)) => {
            found.note_silent(what);
            return Ok(());
        }
        tokens => tokens.map_err(cluster_error)?,
    };
    if tokens.is_empty() {
        return Ok(());
    }
    found.files += 1;
    let mut seen = BTreeSet::new();
    for token in tokens.all() {
        let Some(holdings) = held.get_mut(&token.session) else {
            found.problems.push(Problem::Stray { inode, session: token.session });
            continue;
        };
        holdings.files += u64::from(seen.insert(token.session));
        *match token.mode {
            Mode::Shared => &mut holdings.shared,
            Mode::Direct => &mut holdings.direct,
            Mode::Exclusive => &mut holdings.exclusive,
        } += 1;
    }
    for waiter in tokens.waiters() {
        if let Some(holdings) = held.get_mut(&waiter) {
            holdings.waits += 1;
        }
    }
    let is_contended =
        |held: &Held| held.mode == Mode::Direct && tokens.is_contended(held.range, now_ms);
    found.contended_files += u64::from(tokens.all().iter().any(is_contended));
    let mut unreadable: BTreeMap<Session, u64> = BTreeMap::new();
    for entry in tokens.unreadable() {
        let bytes = unreadable.entry(entry.session).or_default();
        *bytes = bytes.saturating_add(entry.range.len());
    }
    for (session, bytes) in unreadable {
        let node = registry.node(session);
        found.problems.push(Problem::Unreadable { inode, node, bytes });
    }
    if let Some((one, other)) = conflict(tokens.all()) {
        found.problems.push(Problem::Conflict { inode, one, other });
    }
    Ok(())
}

/// Two sessions with conflicting tokens for the same byte.
fn conflict(held: &[Held]) -> Option<(Session, Session)> {
    let mut by_start: Vec<&Held> = held.iter().collect();
    by_start.sort_unstable_by_key(|held| held.range.start);
    // Tokens that extend beyond the start of the next one.
    let mut open: Vec<&Held> = Vec::new();
    for held in by_start {
        open.retain(|before| before.range.end > held.range.start);
        let other = open
            .iter()
            .find(|before| before.session != held.session && before.mode.conflicts(held.mode));
        if let Some(other) = other {
            return Some((other.session, held.session));
        }
        open.push(held);
    }
    None
}

#[cfg(test)]
mod tests {
    use halocline_model::request::ByteRange;

    use super::*;

    fn held(session: u64, mode: Mode, range: (u64, u64)) -> Held {
        Held { session: Session(session), mode, range: ByteRange::new(range.0, range.1) }
    }

    #[test]
    fn tokens_that_exclude_each_other_are_found() {
        let (shared, exclusive) = (Mode::Shared, Mode::Exclusive);
        let beside = [held(1, exclusive, (0, 10)), held(2, exclusive, (10, 20))];
        assert_eq!(conflict(&beside), None);
        assert_eq!(conflict(&[held(1, shared, (0, 10)), held(2, shared, (5, 20))]), None);
        assert_eq!(conflict(&[held(1, exclusive, (0, 10)), held(1, shared, (5, 20))]), None);
        let around =
            [held(1, shared, (0, 100)), held(2, shared, (5, 20)), held(3, exclusive, (50, 60))];
        assert_eq!(conflict(&around), Some((Session(1), Session(3))));
    }
}
