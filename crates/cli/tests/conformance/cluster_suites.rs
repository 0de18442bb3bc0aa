//! The suites on a mount that is a node: what tokens, direct reads and locks on the origin change must not show.

use halocline_testkit::redis_server::RedisServer;

use crate::differential;
use crate::mount::{self, IO_URING};

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
