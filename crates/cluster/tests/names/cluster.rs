//! A cluster whose masters are replaced.

use std::sync::Arc;

use halocline_cluster::names::NamesError;
use halocline_cluster::names::namespace::{Failure, Namespace, WaitLimit};
use halocline_cluster::names::redis::RedisNames;
use halocline_model::namespace::{InodeNumber, ROOT};
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster};
use halocline_testkit::waiting::eventually;

use super::world::{at, directory, file, node};

/// A replica that takes its master's place may lack what was acknowledged: names of its partitions are not believed, and
/// those of other partitions are.
#[test]
fn i15_a_promoted_replica_is_not_believed() {
    // So long that no other master is replaced because the machine is slow.
    let settings = &["--cluster-node-timeout", "8000"];
    let Some(mut cluster) = RedisCluster::start(settings) else { return };
    let store = Arc::new(RedisNames::connect(&cluster.urls(), None, "test").unwrap());
    Namespace::format(&*store, &directory()).unwrap();
    let names = node(store, 1, WaitLimit::default());
    let dirs: Vec<InodeNumber> = (0..20)
        .map(|number| {
            let place = at(ROOT, &format!("d{number}"));
            names.make_directory(&place, &directory()).unwrap().inode
        })
        .collect();
    let key_of = |dir: &InodeNumber| {
        let pattern = format!("halocline:*:names:{:x}:shard", dir.0);
        let keys: String = (0..MASTERS)
            .map(|server| cluster.command(server, &["KEYS", &pattern]) + "\n")
            .collect();
        keys.lines().find(|key| key.starts_with("halocline")).unwrap().to_owned()
    };
    let keys: Vec<String> = dirs.iter().map(key_of).collect();
    let killed = cluster.master_of(&keys[0]);
    let of_killed = |key: &String| cluster.master_of(key) == killed;
    let (here, there): (Vec<_>, Vec<_>) =
        dirs.iter().zip(&keys).partition(|(_, key)| of_killed(key));
    assert!(!here.is_empty() && !there.is_empty());
    let replica = cluster.cut_replica_of(killed);
    names.create(&at(*here[0].0, "f"), &file()).unwrap();
    cluster.kill(killed);
    cluster.signal(replica, rustix::process::Signal::CONT);
    cluster.wait_for_successor(killed, &keys[0]);
    let mut last = None;
    eventually("the new master answers", || {
        let found = names.lookup(&at(*here[0].0, "f"));
        let answers = !matches!(found, Err(Failure::Store(NamesError::NoAnswer(_))));
        last = Some(found);
        answers
    });
    assert!(matches!(last, Some(Err(Failure::Store(NamesError::Forgot(_))))), "{last:?}");
    for (dir, _) in &here {
        let made = names.create(&at(**dir, "g"), &file());
        assert!(matches!(made, Err(Failure::Store(NamesError::Forgot(_)))), "{made:?}");
    }
    for (dir, _) in &there {
        names.create(&at(**dir, "g"), &file()).unwrap();
    }
}
