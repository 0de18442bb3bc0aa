//! Bodies of this crate's fuzz targets (`fuzz/`): their inputs are what anyone who can reach the stores or the list of
//! sessions can write there. cargo-fuzz calls them, and so do the tests below, with the same seeds (docs/TESTING.md,
//! fuzz targets).

use std::fs;
use std::path::Path;

use halocline_model::token::Session;

use crate::agent::hostile_message;
use crate::registry::{Entry, Registry};

pub use crate::glusterfs::fuzzing::translators;
pub use crate::inner_origins::fuzzing::way_below;
pub use crate::names::redis::fuzzing::{answers as name_answers, value as name_value};
pub use crate::store::redis::fuzzing::{answer, tokens};

/// A message of another node about what its cache has.
pub fn peer_message(bytes: &[u8]) {
    hostile_message(bytes);
}

/// An entry of the list of sessions: an accepted entry belongs to its session, and can be shown.
pub fn registry(bytes: &[u8]) {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let scratch = made.expect("a directory");
    fs::write(scratch.path().join("session-0000000000000007"), bytes).expect("it is written");
    let registry = Registry::open(scratch.path()).expect("a directory of our own");
    let session = Session(7);
    let name = registry.name(session);
    assert!(name.contains("0000000000000007") && !name.contains(char::is_control), "{name:?}");
    let Some(entry) = registry.entry(session) else { return };
    assert_eq!(entry.session, session);
    if registry.enter(&entry).is_ok() {
        // A name that grows when it is written again may become too long.
        let same = |again: Entry| {
            Entry { seen: entry.seen, list_id: entry.list_id.clone(), ..again } == entry
        };
        assert!(registry.entry(session).is_none_or(same));
    }
    registry.leave(session).expect("it is removed");
    assert_eq!(registry.sessions().expect("our own"), []);
    fs::write(scratch.path().join("id"), bytes).expect("it is written");
    if let Ok(registry) = Registry::open_existing(scratch.path()) {
        let name = registry.store_name().expect("it can be looked at");
        assert!(name.len() == 32 && name.chars().all(|letter| letter.is_ascii_hexdigit()));
    }
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;
    use crate::agent::message_seeds as messages;
    use crate::names::redis::fuzzing::seeds as names;
    use crate::store::redis::fuzzing::seeds;

    #[test]
    fn hostile_values_of_tokens() {
        run("cluster_tokens", &seeds::tokens(), 5_000, tokens);
    }

    #[test]
    fn hostile_messages_of_peers() {
        run("cluster_peer_message", &messages(), 20_000, peer_message);
    }

    #[test]
    fn hostile_answers_of_scripts() {
        run("cluster_answer", &seeds::answers(), 10_000, answer);
    }

    #[test]
    fn hostile_values_of_names() {
        run("cluster_name_values", &names::values(), 20_000, name_value);
    }

    #[test]
    fn hostile_answers_about_names() {
        run("cluster_name_answers", &names::answers(), 10_000, name_answers);
    }

    #[test]
    fn hostile_ways_to_origins() {
        let names = b"user.a\0trusted.halocline.shared-below.1f\0user.halocline.shared-below.\0";
        let seeds = [("way", b"a/b c".to_vec()), ("names", names.to_vec())];
        run("cluster_way_below", &seeds, 20_000, way_below);
    }

    #[test]
    fn hostile_translators_of_a_client() {
        let kinds = "meta\nprotocol/client\nperformance/io-threads\nperformance/md-cache\nperformance/write-behind\n";
        let plain = "meta\nprotocol/client\nperformance/io-threads\n";
        let seeds = [("caching", kinds), ("plain", plain)];
        let seeds = seeds.map(|(name, kinds)| (name, kinds.into()));
        run("cluster_translators", &seeds, 20_000, translators);
    }

    #[test]
    fn hostile_entries_of_sessions() {
        let entry = Entry {
            session: Session(7),
            node: "n1".to_owned(),
            cache: "/mnt/ssd".into(),
            cache_id: "0e1c2d3f".to_owned(),
            boot_id: "a1b2".to_owned(),
            since: 1_795_577_225,
            cache_seen: None,
            seen: None,
            list_id: None,
        };
        let seeds = [("plain", serde_json::to_vec(&entry).unwrap())];
        run("cluster_registry", &seeds, 1_000, registry);
    }
}
