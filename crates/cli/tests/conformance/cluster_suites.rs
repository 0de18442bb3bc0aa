//! The suites on a mount that is a node: what tokens, direct reads and locks on the origin change must not show.

use halocline_testkit::redis_server::RedisServer;

use crate::mount::{self, IO_URING};
use crate::{differential, fsx};

/// Shared mappings are refused on a node.
fn without_mappings() -> String {
    fsx::CONFIG.replace("mapread = 5\nmapwrite = 5\n", "mapread = 0\nmapwrite = 0\n")
}

#[test]
fn fsx_on_a_node() {
    let Some(store) = RedisServer::start(&[]) else { return };
    fsx::exercise_with(&without_mappings(), "21", &["--cluster", &store.url()]);
}

#[test]
fn calls_answer_as_on_a_directory_on_a_node() {
    let Some(store) = RedisServer::start(&[]) else { return };
    let url = store.url();
    let node = ["--cluster", &url];
    (700..702).for_each(|seed| differential::compare(seed, &node));
    if mount::ring_obstacle().is_none() {
        differential::compare(702, &[&node[..], &[IO_URING]].concat());
    }
}
