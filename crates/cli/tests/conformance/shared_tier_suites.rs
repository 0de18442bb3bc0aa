//! The suites on a tier that nodes share: names in a store, bytes in place on whichever node they are.

use std::path::Path;

use halocline_testkit::redis_server::RedisServer;

use crate::cluster_suites::{fsx_by_turns, weights};
use crate::mount::{self, IO_URING, Mount};
use crate::{differential, fsx, pjdfstest, programs};

/// What fails on any shared tier.
const LINKS_OF_DIRECTORIES: (&str, &str) = (
    "rename::updates_link_parent",
    "directories have one link each, as on btrfs: to count those in one would change two shards",
);

/// The flags of a node.
fn node<'a>(url: &'a str, name: &'a str, peers: &'a str) -> [&'a str; 7] {
    ["--allow-other=true", "--cluster", url, "--node", name, "--peers", peers]
}

/// Where the SSDs of the nodes are for each other.
fn peers(aside: &Path) -> String {
    format!("{}/{{node}}", aside.display())
}

/// One node, or two, with the directory in which they find each other.
pub(crate) struct Nodes {
    pub(crate) mounts: Vec<Mount>,
    _aside: tempfile::TempDir,
    _store: RedisServer,
}

pub(crate) fn nodes(names: &[&str], more: &[&str]) -> Option<Nodes> {
    let store = RedisServer::start(&[])?;
    let aside = tempfile::tempdir().expect("scratch");
    let (url, peers) = (store.url(), peers(aside.path()));
    let mut mounts: Vec<Mount> = Vec::new();
    for name in names {
        let options = [&node(&url, name, &peers)[..], more].concat();
        let mount = match mounts.first() {
            None => Mount::tier(&options),
            Some(first) => Mount::tier_beside(first, &options),
        };
        std::os::unix::fs::symlink(mount.root().join("ssd"), aside.path().join(name))
            .expect("link");
        mounts.push(mount);
    }
    Some(Nodes { mounts, _aside: aside, _store: store })
}

#[test]
fn calls_on_a_shared_tier_answer_as_on_a_directory() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    for (seed, more) in [(800, &[][..]), (801, &[]), (802, &[IO_URING])] {
        if mount::ring_obstacle().is_some() && more.contains(&IO_URING) {
            continue;
        }
        let Some(mut nodes) = nodes(&["one"], more) else { return };
        let mount = &mut nodes.mounts[0];
        let plain = differential::compare_on(seed, mount);
        mount.unmount();
        mount.start();
        let when = format!("seed {seed}: after the next mount");
        differential::assert_same_tree(&mount.path(), plain.path(), &when);
    }
}

/// Each call on one of two nodes, while what the other one opened, wrote and named is in use.
#[test]
fn i15_calls_on_two_nodes_of_a_shared_tier_answer_as_on_a_directory() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    for seed in [810, 811] {
        let Some(nodes) = nodes(&["one", "two"], &[]) else { return };
        let mounts: Vec<&Mount> = nodes.mounts.iter().collect();
        differential::compare_over(seed, &mounts);
    }
}

#[test]
fn fsx_on_a_shared_tier_seed_23() {
    if let Some(reason) = fsx::obstacle() {
        return programs::skip(reason);
    }
    let Some(nodes) = nodes(&["one", "two"], &[]) else { return };
    let file = |at: usize| nodes.mounts[at].path().join("file");
    fsx::run("23", &fsx::operations(), &weights(1), &file(0));
    // The other node reads and writes it where it is.
    fsx::run("24", &fsx::operations(), &weights(1), &file(1));
}

/// The file is opened on one node or the other, all the time.
#[test]
fn i15_fsx_by_turns_on_two_nodes_of_a_shared_tier_seed_25() {
    if let Some(reason) = fsx::obstacle() {
        return programs::skip(reason);
    }
    let Some(nodes) = nodes(&["one", "two"], &[]) else { return };
    let places = [0, 1].map(|at: usize| nodes.mounts[at].path());
    fsx_by_turns("25", &places);
    let [one, two] = places.map(|place| std::fs::read(place.join("file")).expect("the file"));
    assert!(one == two, "both show the same");
}

#[test]
fn pjdfstest_on_a_shared_tier() {
    if let Some(reason) = pjdfstest::obstacle() {
        return programs::skip(reason);
    }
    let Some(nodes) = nodes(&["one"], &[]) else { return };
    pjdfstest::passes_but_for(&nodes.mounts[0], &[LINKS_OF_DIRECTORIES]);
}

/// Each call of the suite on one of two nodes: what one makes, the other one changes, renames and removes.
/// `HALOCLINE_CLUSTER_SEED` spreads them otherwise.
#[test]
fn i15_pjdfstest_with_its_calls_on_two_nodes_of_a_shared_tier() {
    if let Some(reason) = pjdfstest::obstacle() {
        return programs::skip(reason);
    }
    let Some(nodes) = nodes(&["one", "two"], &[]) else { return };
    let seed = std::env::var("HALOCLINE_CLUSTER_SEED").unwrap_or_else(|_| "1".to_owned());
    pjdfstest::passes_over([&nodes.mounts[0], &nodes.mounts[1]], &seed, &[LINKS_OF_DIRECTORIES]);
}
