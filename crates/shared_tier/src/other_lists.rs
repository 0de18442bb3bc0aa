//! Nodes of a tier that are at work with another shared disk than the one that is mounted here, so that other names are
//! theirs, while the SSDs are the same.
//!
//! Each mount notes on its SSD under which list of sessions it is in the store. The locks of SSDs tell of such nodes, too, but
//! reach no further than those of their file systems.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use halocline_api::control::tier::PRIVATE;
use halocline_cluster::store::Store;
use halocline_model::token::Session;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

use crate::disk_users::of_tier;
use crate::errors::of_store;

/// The file on an SSD with the list of sessions (its name in the store) and the session of its last mount, a line each.
const LIST: &str = "sessions";
/// The most bytes of it.
const BYTES_MAX: u64 = 1024;
/// The longest name of a list in the store.
const NAME_BYTES_MAX: usize = 64;

/// Notes on an SSD where the session of its mount is found. A full disk is no error.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn note(own: &PrivateDir, list: &str, session: Session) -> Result<()> {
    match own.replace(LIST, format!("{list}\n{:016x}\n", session.0).as_bytes()) {
        Err(error) if error.is_full() => {
            tracing::warn!(%error, "a repair with another shared disk may not notice this mount");
            Ok(())
        }
        noted => noted,
    }
}

fn parse(bytes: &[u8]) -> Option<(String, Session)> {
    let (list, session) = std::str::from_utf8(bytes).ok()?.trim_end().split_once('\n')?;
    let is_name = list.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_name = is_name && !list.is_empty() && list.len() <= NAME_BYTES_MAX;
    let session = Session(u64::from_str_radix(session, 16).ok()?);
    is_name.then(|| (list.to_owned(), session))
}

/// Refuses to use the tier below `root` while one of its nodes is at work under another list of sessions than `own`: it was
/// mounted with another shared disk. `open` opens the part of the store in which the sessions of a list are.
///
/// # Errors
/// [`Error::Cluster`] names the node; or the store does not answer.
pub fn refuse_other_lists<S: AsRef<dyn Store>>(
    (root, peers): (&Path, Option<&str>),
    own: Option<&str>,
    open: impl Fn(&str) -> Result<S>,
) -> Result<()> {
    let mut lists: BTreeMap<String, BTreeMap<Session, String>> = BTreeMap::new();
    for (path, whose) in of_tier(root, peers) {
        let noted = PrivateDir::look(&path.join(PRIVATE)).and_then(|dir| dir.read(LIST, BYTES_MAX));
        // Of an earlier version, or one that is no more reached.
        let Some((list, session)) = noted.ok().flatten().as_deref().and_then(parse) else {
            continue;
        };
        lists.entry(list).or_default().insert(session, whose.node);
    }
    for (list, nodes) in lists.iter().filter(|(list, _)| own != Some(list)) {
        let roll = open(list)?.as_ref().roll().map_err(|error| of_store(&error.into()))?;
        let members: BTreeSet<Session> =
            roll.members.sessions().map(|(session, _)| session).collect();
        // Those whose SSDs are reached have a name, so they come first.
        let named = nodes.keys().filter(|session| members.contains(session));
        let living = named.chain(&members).find(|session| !roll.is_over(**session));
        if let Some(session) = living {
            return Err(living_elsewhere(nodes.get(session), *session, roll.lease_ms(*session)));
        }
    }
    Ok(())
}

fn living_elsewhere(node: Option<&String>, session: Session, lease_ms: u64) -> Error {
    let who = match node {
        Some(node) => format!("node {node}"),
        None => format!("session {:016x}", session.0),
    };
    Error::Cluster {
        what: format!(
            "{who} of this tier is at work with another shared disk than the one that is at hdd here, and has other names"
        ),
        remedy: format!(
            "mount its shared disk here; or, if that is lost, unmount all nodes first: one that was killed is gone when its lease \
             is over, {} s from now",
            lease_ms.div_ceil(1000)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_ssd_notes_of_a_session_is_read_as_it_was_written() {
        let scratch = tempfile::tempdir().unwrap();
        let own = PrivateDir::make(&scratch.path().join(PRIVATE)).unwrap();
        note(&own, "0a1b", Session(0x1f)).unwrap();
        let bytes = own.read(LIST, BYTES_MAX).unwrap().unwrap();
        assert_eq!(parse(&bytes), Some(("0a1b".to_owned(), Session(0x1f))));
        for foreign in ["", "\n1", "a b\n1", "0a1b", "0a1b\nsession", "{x}*\n1"] {
            assert_eq!(parse(foreign.as_bytes()), None, "{foreign:?}");
        }
    }
}
