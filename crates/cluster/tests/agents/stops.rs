//! A node that was stopped while it waited for the store's answer takes that answer when it goes on.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use halocline_cluster::store::Store;
use halocline_cluster::store::redis::RedisStore;
use halocline_testkit::standstill;
use rustix::process::{Pid, Signal, kill_process};

use super::world::file;

const URL: &str = "HALOCLINE_TEST_STOPS_URL";
/// Of a file of which the store has nothing: epoch, version, tokens.
const ANSWER: &[u8] = b"*3\r\n$1\r\n7\r\n$0\r\n\r\n$0\r\n\r\n";
/// How often the node is stopped before each part of the answer, and for how long in all: a slow machine takes long for
/// one stop, and the node waits for 3 s.
const STOPS: usize = 20;
const STOPS_LAST: Duration = Duration::from_secs(1);
/// Longer than an answer may take.
const LONG: Duration = Duration::from_secs(4);
/// Less than an answer may take.
const LATER: Duration = Duration::from_millis(1500);

/// The process of a node.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

impl Node {
    fn stop_for(&self, time: Duration) {
        let id = self.0.id();
        let pid = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        standstill::stop(pid);
        thread::sleep(time);
        kill_process(pid, Signal::CONT).unwrap();
        // Until it waits again, mostly.
        thread::sleep(Duration::from_millis(2));
    }

    fn stop_often(&self) {
        let begun = Instant::now();
        for _ in 0..STOPS {
            self.stop_for(Duration::ZERO);
            if begun.elapsed() > STOPS_LAST {
                break;
            }
        }
    }
}

/// The words of a request, of which the whole is there.
fn request(stream: &mut UnixStream) -> String {
    let mut bytes = vec![0; 1 << 16];
    let count = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

fn answer_settings(stream: &mut UnixStream) {
    assert!(request(stream).contains("INFO"));
    stream.write_all(b"$12\r\nmaxmemory:0\n\r\n").unwrap();
}

fn begin(place: &Path) -> (UnixListener, Node) {
    let socket = place.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let node = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "stops::a_node_asks_its_store"])
        .env(URL, format!("redis+unix://{}", socket.display()))
        .spawn();
    (listener, Node(node.unwrap()))
}

/// What [`begin`] runs.
#[test]
#[ignore = "run by i13_an_answer_that_is_waited_for_over_stops_is_not_lost"]
fn a_node_asks_its_store() {
    let url = std::env::var(URL).unwrap();
    let store = RedisStore::connect(&url, None, "test").unwrap();
    assert_eq!(store.read(file(1)).unwrap().epoch.0, 7);
    assert_eq!(store.read(file(2)).unwrap().epoch.0, 7);
    assert_eq!(store.read(file(3)).unwrap().epoch.0, 7);
}

/// Regression: a read of a socket with a time limit ends with `EINTR` when its process goes on after a stop, and that was taken for no
/// answer, so that programs got `EIO`.
#[test]
fn i13_an_answer_that_is_waited_for_over_stops_is_not_lost() {
    let place = tempfile::tempdir().unwrap();
    let (listener, mut node) = begin(place.path());
    let (mut stream, _) = listener.accept().unwrap();
    answer_settings(&mut stream);
    assert!(request(&mut stream).contains("EVALSHA"));
    for part in ANSWER.chunks(ANSWER.len().div_ceil(3)) {
        node.stop_often();
        stream.write_all(part).unwrap();
    }
    // And one that came while it stood still for longer than it would have waited.
    assert!(request(&mut stream).contains("EVALSHA"));
    thread::scope(|scope| {
        let stopped = scope.spawn(|| node.stop_for(LONG));
        thread::sleep(LONG / 2);
        stream.write_all(ANSWER).unwrap();
        stopped.join().unwrap();
    });
    // And one that comes later: the server may have stood still for as long, with all of the machine.
    assert!(request(&mut stream).contains("EVALSHA"));
    node.stop_for(LONG);
    thread::sleep(LATER);
    stream.write_all(ANSWER).unwrap();
    // Over the same connection.
    assert!(node.0.wait().unwrap().success());
}
