//! Over real servers, which are restarted, killed and stopped.

use std::net::TcpListener;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use halocline_cache::coherence::{Coherence, Permit};
use halocline_cluster::agent::Options;
use halocline_cluster::store::redis::RedisStore;
use halocline_cluster::store::{Store, StoreError};
use halocline_model::request::Direction;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};
use rustix::process::Signal;

use super::contract;
use super::world::{Node, Origin, Random, file, run};

/// A server of this test's own, and clients of it.
struct Server(RedisServer);

impl Deref for Server {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.0
    }
}

impl Server {
    /// `None`, with the reason, where there is no program for it.
    fn start(settings: &'static [&'static str]) -> Option<Self> {
        RedisServer::start(settings).map(Self)
    }

    fn command(&self, words: &[&str]) {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.exec(&mut connection).unwrap();
    }

    fn store(&self) -> Arc<RedisStore> {
        Arc::new(RedisStore::connect(&self.url(), None, "test").unwrap())
    }
}

/// Regression: leases were not renewed in a full store, so that after some seconds all nodes were without one, and no
/// new one could join.
#[test]
fn i12_nodes_of_a_full_store_keep_their_leases_and_give_up_what_they_hold() {
    let Some(server) = Server::start(&[]) else { return };
    let origin = Arc::default();
    let mut all = nodes(&server, &origin, &["one", "two"]);
    all[0].request(0, Node::want(Direction::Write, 0, false)).unwrap();
    let store = server.store();
    contract::tokens_get_smaller_when_it_is_full(&*store, || {
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    });
    let roll = store.roll().unwrap();
    assert_eq!(roll.leases.len(), 2);
    for (session, _) in &roll.leases {
        assert!(store.renew(*session, roll.epoch, 30_000).unwrap());
    }
    all.extend(nodes(&server, &origin, &["three"]));
    assert_eq!(store.roll().unwrap().leases.len(), 3);
    end(all, &origin);
    assert!(store.roll().unwrap().leases.is_empty());
    assert!(store.read(file(0)).unwrap().tokens.is_empty(), "it gave up what it held");
}

fn nodes(server: &Server, origin: &Arc<Origin>, names: &[&str]) -> Vec<Node> {
    let registry = server.place().join("registry");
    let node = |name: &&str| {
        let change = |options: &mut Options| options.wait_limit = WAIT_LIMIT;
        Node::new(name, server.store(), &registry, origin, change)
    };
    names.iter().map(node).collect()
}

fn end(nodes: Vec<Node>, origin: &Origin) {
    for node in nodes {
        node.agent.keep().unwrap();
        node.agent.leave().unwrap();
    }
    origin.check();
}

#[test]
fn i14_a_server_is_killed_and_comes_back_with_all_some_or_nothing() {
    let Some(mut server) = Server::start(&[]) else { return };
    for seed in 0..6 {
        println!("seed {seed}");
        let origin = Arc::default();
        let nodes = nodes(&server, &origin, &["a", "b", "c"]);
        thread::scope(|scope| {
            for (at, node) in nodes.iter().enumerate() {
                let seed = seed * 1000 + at as u64;
                scope.spawn(move || run(node, seed, 60).unwrap());
            }
            let mut random = Random(seed);
            match random.below(3) {
                0 => server.forget(),
                // Others change it before it is killed.
                _ => server.command(&["SAVE"]),
            }
            server.restart();
            for node in &nodes {
                eventually("it says what it holds", || node.agent.keep().is_ok());
            }
        });
        end(nodes, &origin);
    }
}

/// `HALOCLINE_OPENED_FILES` and `HALOCLINE_HELD_FILES` measure it with other numbers; the figures are in docs/CLUSTER.md.
#[test]
fn a_node_says_anew_what_it_uses_and_not_all_that_it_ever_opened() {
    let Some(mut server) = Server::start(&[]) else { return };
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |set| set.parse().unwrap());
    let opened: u64 = number("HALOCLINE_OPENED_FILES", 3000);
    let limit: u64 = number("HALOCLINE_HELD_FILES", 200);
    let change = |options: &mut Options| {
        options.wait_limit = WAIT_LIMIT;
        options.files_max = usize::try_from(limit).unwrap();
    };
    let registry = server.place().join("registry");
    let node = Node::new("a", server.store(), &registry, &Arc::default(), change);
    let began = Instant::now();
    for number in 0..opened {
        let tokens = node.agent.tokens(file(number)).unwrap();
        drop(Permit::wait(&*tokens, Node::want(Direction::Read, 0, false)).unwrap());
    }
    let most = node.agent.counts().files;
    println!("{opened} files opened in {:?}; {most} held at the end", began.elapsed());
    eventually("what rests is given back", || node.agent.counts().files <= limit);
    server.forget();
    server.restart();
    let (began, before) = (Instant::now(), node.agent.counts().round_trips);
    eventually("it says what it holds", || {
        node.agent.keep().is_ok() && node.agent.counts().epochs > 0
    });
    let (held, asked) = (node.agent.counts().files, node.agent.counts().round_trips - before);
    println!("{held} files said anew in {:?}, {asked} round trips", began.elapsed());
    assert!(asked < 2 * limit + 200, "{asked} round trips for {held} files");
    node.agent.leave().unwrap();
}

#[test]
fn i11_nodes_share_blocks_over_a_server_that_stops_for_a_while() {
    let Some(server) = Server::start(&["--appendonly", "yes"]) else { return };
    let origin = Arc::default();
    let nodes = nodes(&server, &origin, &["a", "b", "c"]);
    thread::scope(|scope| {
        for (at, node) in nodes.iter().enumerate() {
            scope.spawn(move || run(node, at as u64, 60).unwrap());
        }
        server.signal(Signal::STOP);
        thread::sleep(Duration::from_millis(200));
        server.signal(Signal::CONT);
    });
    end(nodes, &origin);
}

#[test]
fn i14_the_epoch_changes_whenever_the_server_may_have_forgotten_something() {
    let Some(mut server) = Server::start(&[]) else { return };
    let store = server.store();
    let mut last = store.roll().unwrap().epoch;
    assert_eq!(server.store().roll().unwrap().epoch, last, "the same for all, while it lives");
    let mut changed = |what: &str| {
        // What was connected before is not any more.
        eventually("it answers", || store.roll().is_ok());
        let now = store.roll().unwrap().epoch;
        assert_ne!(now, last, "{what}");
        last = now;
    };
    server.command(&["SAVE"]);
    server.restart();
    changed("killed, with its file");
    server.forget();
    server.restart();
    changed("killed, without");
    server.command(&["FLUSHALL"]);
    changed("emptied");
    server.command(&["SWAPDB", "0", "1"]);
    changed("another database");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    changed("promoted");
}

#[test]
fn it_keeps_what_a_store_promises() {
    let Some(mut server) = Server::start(&[]) else { return };
    let store = server.store();
    contract::holds(&*store);
    contract::refuses_long_leases(&*store);
    server.restart();
    eventually("it answers", || store.roll().is_ok());
    contract::respects_forgotten_leases(&*store);
}

#[test]
fn what_others_wrote_into_the_server_is_an_error() {
    let Some(server) = Server::start(&[]) else { return };
    let store = server.store();
    store.roll().unwrap();
    let key = "halocline:{test}:file:1:1";
    let unsound = |what: &str| {
        let read = store.read(file(1));
        assert!(matches!(read, Err(StoreError::Unsound(_))), "{what}: {read:?}");
    };
    server.command(&["HSET", key, "v", "1", "t", "{}"]);
    unsound("no tokens");
    server.command(&["HSET", key, "v", "x"]);
    unsound("no version");
    server.command(&["DEL", key]);
    server.command(&["SET", key, "x"]);
    unsound("another kind of value");
    server.command(&["DEL", key]);
    server.command(&["SETRANGE", "large", "16777217", "x"]);
    server.command(&[
        "EVAL",
        &format!("redis.call('HSET', '{key}', 'v', 1, 't', redis.call('GET', 'large'))"),
        "0",
    ]);
    unsound("too large");
    server.command(&["HSET", "halocline:{test}:members", "v", "1", "m", "[]"]);
    assert!(matches!(store.roll(), Err(StoreError::Unsound(_))));
    server.command(&["RPUSH", "halocline:{test}:told:0000000000000005", "x"]);
    let told = store.listen(halocline_model::token::Session(5), Duration::from_millis(10));
    assert_eq!(told, []);
}

#[test]
fn a_password_is_needed_and_never_shown() {
    let Some(server) = Server::start(&["--requirepass", "s3cret"]) else { return };
    let right = RedisStore::connect(&server.url(), Some("s3cret"), "test").unwrap();
    right.roll().unwrap();
    let with = |password: &str| format!("{}?pass={password}", server.url());
    RedisStore::connect(&with("s3cret"), None, "test").unwrap();
    // Something that speaks no TLS.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let hangs_up = thread::spawn(move || drop(other.accept().unwrap()));
    let errors = [
        RedisStore::connect(&server.url(), None, "test").unwrap_err(),
        RedisStore::connect(&server.url(), Some("wr0ng"), "test").unwrap_err(),
        RedisStore::connect(&with("wr0ng"), None, "test").unwrap_err(),
        RedisStore::connect(&format!("rediss://:s3cret@{address}"), None, "test").unwrap_err(),
        RedisStore::connect("redis://:s3cret@ho st:x", None, "test").unwrap_err(),
    ];
    hangs_up.join().unwrap();
    for error in &errors {
        println!("{error}");
    }
    for shown in errors.iter().map(ToString::to_string).chain([format!("{right:?}")]) {
        assert!(!shown.contains("s3cret") && !shown.contains("wr0ng"), "{shown}");
    }
    assert!(errors[..3].iter().all(|error| matches!(error, StoreError::Unusable(_))), "{errors:?}");
    // Regression: who had given none was not told how.
    let is_told =
        |error: &StoreError| error.to_string().contains("HALOCLINE_CLUSTER_PASSWORD_FILE names");
    assert!(errors[..3].iter().all(is_told), "{errors:?}");
}

#[test]
fn a_server_that_makes_room_by_forgetting_is_refused() {
    let settings = &["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let Some(server) = Server::start(settings) else { return };
    let refused = RedisStore::connect(&server.url(), None, "test").unwrap_err();
    assert!(
        matches!(&refused, StoreError::Unusable(why) if why.contains("noeviction")),
        "{refused}"
    );
}
