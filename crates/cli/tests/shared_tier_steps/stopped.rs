//! A node that is stopped between an answer of the store and the step on a disk that follows it, for longer than its lease,
//! while another node has the names built again.

use std::fs;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{self, SharedTiers};
use halocline_testkit::standstill::Standstill;
use halocline_testkit::waiting::WAIT_LIMIT;
use rustix::process::{Signal, kill_process};

use crate::held::Held;

const NODES: [&str; 2] = ["one", "two"];
const PAUSE: Duration = Duration::from_millis(200);

/// Has the names repaired, once no lease is left.
fn repair(nodes: &SharedTiers) -> Output {
    let begun = Instant::now();
    loop {
        let repaired = shared_tiers::fsck(&nodes.scratch, &nodes.store.url(), &["--repair"]);
        if !said(&repaired).contains("uses the tier") || begun.elapsed() >= WAIT_LIMIT {
            return repaired;
        }
        thread::sleep(PAUSE);
    }
}

/// Two nodes, of which the first one tells of its steps.
fn nodes() -> Option<SharedTiers> {
    let nodes = SharedTiers::new(Scratch::with_mountpoints(program!(), &NODES)?, &NODES)?;
    let (url, peers) = (nodes.store.url(), shared_tiers::peers(&nodes.scratch));
    let cluster = ["--cluster", &url, "--node", "one", "--peers", &peers];
    let args = [&["mount", "--tier", "one-tiers", "one"][..], &cluster].concat();
    let mut command = nodes.scratch.command(&args);
    let mounted =
        command.env("HALOCLINE_HELD_STEPS", nodes.scratch.path("steps")).output().unwrap();
    assert!(mounted.status.success(), "{}", said(&mounted));
    Some(nodes.mounted(&["two"], &[]))
}

/// Regression: the repair did not notice the stopped process, gave the file its name again, and then its bytes were removed.
#[test]
fn i15_names_are_not_built_again_under_a_node_that_is_stopped_before_a_step() {
    let Some(nodes) = nodes() else { return };
    let text = |node: &str| fs::read_to_string(nodes.at(node, "f"));
    fs::write(nodes.at("one", "f"), "first").unwrap();
    nodes.until_closed("one", "f");
    thread::scope(|scope| {
        // In here, so that everything goes on after a failure.
        let held = Held::first(&nodes.scratch.path("steps"), |_, what| what == "removing a name");
        let file = nodes.at("one", "f");
        let unlink = scope.spawn(|| fs::remove_file(file));
        held.wait(|| unlink.is_finished()).expect("the bytes are removed after the name");
        let pid = nodes.scratch.pid("one");
        let still = Standstill::of(pid);
        shared_tiers::unmount(&nodes.scratch, "two");
        nodes.store.command(&["FLUSHALL"]);
        let repaired = repair(&nodes);
        let was_refused = !repaired.status.success();
        if was_refused {
            let told = said(&repaired);
            let process = format!("process {} on ", pid.as_raw_nonzero());
            assert!(told.contains("node one ") && told.contains(&process), "{told}");
            kill_process(pid, Signal::KILL).unwrap();
            nodes.scratch.clear("one");
            let repaired = repair(&nodes);
            assert!(repaired.status.success(), "{}{}", said(&repaired), written(&repaired));
        }
        let mounted = nodes.mount("two", &[]);
        assert!(mounted.status.success(), "{}", said(&mounted));
        assert_eq!(text("two").unwrap(), "first", "it has its name again");
        drop(still);
        held.release();
        let unlinked = unlink.join().unwrap();
        assert_eq!(text("two").unwrap(), "first", "the stopped node ended with {unlinked:?}");
        assert!(was_refused, "{}", written(&repaired));
    });
}
