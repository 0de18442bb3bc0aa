//! Nodes that come back, or find that others share what they want.

use std::fs;
use std::os::unix::fs::FileExt;
use std::thread;

use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;

/// Its first request got a token of the whole file, and what it had cached elsewhere in the file was believed.
#[test]
fn i11_a_node_that_was_killed_believes_nothing_that_it_had_cached_before() {
    const LENGTH: usize = 1 << 20;
    let Some(nodes) = Nodes::new(program!(), &[]) else { return };
    let [file, beside] = nodes.open("file");
    file.write_all_at(&vec![1; LENGTH], 0).unwrap();
    nodes.succeed(&["flush", "one"]);
    let mapped = nodes.status("one")["mapped_bytes"].as_u64();
    assert_eq!(mapped, Some(LENGTH as u64), "it is cached, and clean");
    drop(file);
    nodes.kill("one");
    // Another node cannot write there until the session has ended, which the next mount of the cache does.
    thread::scope(|scope| {
        let writes = scope.spawn(|| beside.write_all_at(&vec![2; LENGTH], 0));
        let again = nodes.mount("one", "cache");
        assert!(again.status.success(), "{}", said(&again));
        writes.join().unwrap().unwrap();
    });
    let file = fs::File::open(nodes.path("one/file")).unwrap();
    for length in [4096, LENGTH] {
        let mut found = vec![0; length];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 2), "{length}");
    }
}

/// A mount of what lies above would cache the same files without tokens, also on another machine: killed nodes claim
/// nothing on this one.
#[test]
fn i11_a_directory_above_a_shared_one_is_refused_to_others() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["one", "other", "above"]) else {
        return;
    };
    let Some(store) = RedisServer::start(&[]) else { return };
    fs::create_dir_all(scratch.path("origin/part/inner")).unwrap();
    let origins = ["origin/part/inner"; 2].map(str::to_owned);
    let nodes = Nodes::over(scratch, origins, store, &[]);
    for node in ["one", "other"] {
        nodes.kill(node);
    }
    fs::create_dir_all(nodes.path("cache3")).unwrap();
    let url = nodes.store.url();
    for above in ["origin", "origin/part"] {
        let mount = ["mount", above, "above", "--cache", "cache3", "--cluster", &url];
        for mount in [&mount[..], &mount[..5]] {
            let refused = nodes.halocline(mount);
            assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
            assert!(said(&refused).contains("part/inner"), "{}", said(&refused));
        }
    }
    for (node, cache) in [("one", "cache"), ("other", "cache2")] {
        let again = nodes.mount(node, cache);
        assert!(again.status.success(), "{}", said(&again));
        nodes.succeed(&["umount", node]);
    }
    nodes.succeed(&["mount", "origin", "above", "--cache", "cache3"]);
}
