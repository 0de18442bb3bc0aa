//! The socket end to end: a stand-in for the engine behind a real server and client.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::bounds::REQUEST_BYTES_MAX;
use super::*;
use halocline_os::error::Error;

/// Answers with what it was asked.
#[derive(Default)]
struct Fake {
    hints: Mutex<Vec<ProcessHint>>,
}

impl Controlled for Fake {
    fn status(&self) -> Status {
        panic!("on purpose")
    }
    fn report(&self) -> Report {
        Report { policy: "adaptive".into(), ssd_bytes_written: 7, ..Report::default() }
    }
    fn locate(&self, path: &Path, range: Option<ByteRange>) -> Result<Vec<ExtentInfo>> {
        let range = range.ok_or_else(|| Error::at(path, "open")(from_errno(libc::ENOENT)))?;
        Ok(vec![ExtentInfo {
            offset: range.start,
            length: range.len(),
            side: Side::Cache,
            layout: Some(Layout::OneDv),
            group: 3,
            dirty: true,
            last_use_ms: Some(1),
            dirty_since_ms: Some(1),
        }])
    }
    fn explain(&self, _: &Question) -> Result<Explanation> {
        Err(Error::invalid("no", "yes"))
    }
    fn flush(&self, path: Option<&Path>, _: bool, tell: ProgressSink<'_>) -> Result<MoveReport> {
        for done_bytes in 0..3 {
            let path = path.map(Path::to_owned).unwrap_or_default();
            assert!(tell(Progress { done_bytes, total_bytes: 3, path }).is_continue());
        }
        Ok(MoveReport { bytes: 3, ..MoveReport::default() })
    }
    fn warm(&self, paths: &[PathBuf], _: bool, _: ProgressSink<'_>) -> Result<MoveReport> {
        Ok(MoveReport { files: paths.len() as u64, ..MoveReport::default() })
    }
    fn evict(&self, _: &Path, _: bool, tell: ProgressSink<'_>) -> Result<MoveReport> {
        // Works until the client is gone.
        for done_bytes in 0.. {
            let now = Progress { done_bytes, total_bytes: u64::MAX, path: PathBuf::new() };
            if tell(now) == ControlFlow::Break(()) {
                self.hints.lock().push(ProcessHint { pid: 4242, ..ProcessHint::default() });
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(MoveReport::default())
    }
    fn change_rules(&self, change: &RuleChange) -> Result<Rules> {
        let RuleChange::Pin(glob) = change else { return Ok(Rules::default()) };
        Ok(Rules { pin: vec![glob.clone()], exclude: vec![] })
    }
    fn hint(&self, hint: &ProcessHint) -> Result<()> {
        self.hints.lock().push(hint.clone());
        Ok(())
    }
}

impl Mounted for Fake {
    fn transport(&self) -> &'static str {
        "device"
    }

    fn unmount(&self, force: bool, _: bool, _: ProgressSink<'_>) -> Result<MoveReport> {
        if force { Ok(MoveReport::default()) } else { Err(from_errno(libc::EBUSY).into()) }
    }
}

fn from_errno(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

fn started(dir: &Path) -> (Server, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let mountpoint = Path::new("/mnt/x");
    (Server::start(dir, mountpoint, Arc::clone(&fake) as _, Arc::clone(&fake) as _).unwrap(), fake)
}

/// Regression: a client that asks and never reads, such as a stopped one, kept a mount from ending.
#[test]
fn a_client_that_reads_nothing_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (server, fake) = started(dir.path());
    let mut stopped = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    stopped.set_write_timeout(Some(Duration::from_mins(1))).unwrap();
    let mut line = serde_json::to_vec(&Request::Report {}).unwrap();
    line.push(b'\n');
    // More answers than fit into the buffers between the two: in the end the server accepts no requests either.
    while stopped.write_all(&line).is_ok() {}
    let ended = std::thread::spawn(move || drop(server));
    halocline_testkit::waiting::eventually("the server ends", || ended.is_finished());
    ended.join().unwrap();
    assert!(fake.hints.lock().is_empty());
}

#[test]
fn commands_reach_the_engine_and_answers_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (server, fake) = started(dir.path());
    let mut client = Client::connect(server.socket()).unwrap();
    let report: Report = client.call(&Request::Report {}, |_| {}).unwrap();
    assert_eq!(report.ssd_bytes_written, 7);

    let locate = |range| Request::Locate { path: "a/b".into(), range };
    let found: Vec<ExtentInfo> = client.call(&locate(Some((4, 8))), |_| {}).unwrap();
    assert_eq!((found[0].offset, found[0].length, found[0].group), (4, 8, 3));
    let error = client.call::<Vec<ExtentInfo>>(&locate(None), |_| {}).unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT);
    assert!(error.to_string().contains("a/b"), "{error}");

    let mut seen = 0;
    let flush = Request::Flush { path: "x".into(), dry_run: false };
    let moved: MoveReport = client.call(&flush, |_| seen += 1).unwrap();
    assert_eq!(moved.bytes, 3);
    assert!(seen >= 1, "the first progress is always told");

    let unmount = Request::Unmount { force: false, keep_dirty: false };
    let busy = client.call::<MoveReport>(&unmount, |_| {}).unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY);

    let hint = ProcessHint { pid: 1, size: Some(8), ..ProcessHint::default() };
    let () = client.call(&Request::Hint(hint), |_| {}).unwrap();
    let noted = fake.hints.lock().pop().unwrap();
    assert_eq!((noted.pid, noted.size), (std::process::id(), Some(8)), "the peer's pid counts");
}

#[test]
fn a_hint_names_its_file_as_the_program_sees_it() {
    let dir = tempfile::tempdir().unwrap();
    let (server, fake) = started(dir.path());
    let mut raw = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    // As the MPI shim writes it.
    raw.write_all(
        b"{\"hint\":{\"pid\":1,\"rank\":2,\"size\":8,\"path\":\"/mnt/x/a/b\",\"cache\":null,\
          \"policy\":null,\"direct\":true}}\n",
    )
    .unwrap();
    raw.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    raw.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "{\"ok\":null}\n");
    let noted = fake.hints.lock().pop().unwrap();
    assert_eq!((noted.path, noted.rank, noted.direct), ("a/b".into(), Some(2), true));
}

#[test]
fn paths_that_leave_the_mount_and_garbage_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _fake) = started(dir.path());
    for path in ["../etc", "/etc", "a/../../b"] {
        let mut client = Client::connect(server.socket()).unwrap();
        let request = Request::Warm { paths: vec![path.into()], dry_run: false };
        let error = client.call::<MoveReport>(&request, |_| {}).unwrap_err().to_string();
        assert!(error.contains("below the mount"), "{path}: {error}");
    }
    let mut raw = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    raw.write_all(b"{\"format-disk\":{}}\n").unwrap();
    raw.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    raw.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("{\"error\""), "{answer}");
}

/// Regression: a list of more than 16 MiB was cut off there, and then refused as invalid JSON.
#[test]
fn long_lists_are_taken_and_too_long_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _fake) = started(dir.path());
    let mut client = Client::connect(server.socket()).unwrap();
    let warm =
        |count, path: String| Request::Warm { paths: vec![path.into(); count], dry_run: false };
    let report: MoveReport = client.call(&warm(5000, "d/".repeat(2000)), |_| {}).unwrap();
    assert_eq!(report.files, 5000);
    let too_long = warm(1, "d/".repeat(REQUEST_BYTES_MAX / 2));
    let error = client.call::<MoveReport>(&too_long, |_| {}).unwrap_err().to_string();
    assert!(error.contains("fewer files"), "{error}");
}

/// Only lists may be long, a few at a time, and the rest of a line that is too long is not taken for the next request.
#[test]
fn a_line_that_is_too_long_ends_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (server, fake) = started(dir.path());
    for long in ["{\"hint\":{\"path\":\"", "{\"rules\":{\"glob\":[", "["] {
        let raw = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
        let mut writer = raw.try_clone().unwrap();
        // The server may close while we still write.
        let _ = writer.write_all(long.as_bytes());
        let _ = writer.write_all("1,".repeat(60_000).as_bytes());
        let _ = writer.write_all(b"\n{\"hint\":{\"pid\":1}}\n");
        let _ = writer.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(raw), &mut answer);
        assert!(answer.is_empty() || answer.contains("more than"), "{answer}");
        assert_eq!(*fake.hints.lock(), [], "the rest of a line is not a request");
    }
}

#[test]
fn the_socket_is_private_replaces_a_stale_one_and_goes_away() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(SOCKET_NAME), "stale").unwrap();
    let (server, _fake) = started(dir.path());
    let socket = server.socket().to_owned();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // An idle client must not keep the server alive.
    let _idle = Client::connect(&socket).unwrap();
    drop(server);
    assert!(!socket.exists());
    let error = Client::connect(&socket).unwrap_err().to_string();
    assert!(error.contains("no mount process answers"), "{error}");
}

/// Regression: anybody with write access to a directory can listen there, and so root ran programs of an ordinary user.
#[test]
fn a_process_of_another_user_is_not_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (server, fake) = started(dir.path());
    let error = Client::connect_to(server.socket(), 54_321).unwrap_err();
    assert_eq!(error.errno(), libc::EPERM, "{error}");
    assert_eq!(*fake.hints.lock(), []);
    Client::connect_to(server.socket(), rustix::process::geteuid().as_raw()).unwrap();
}

/// Regression: a blank now and then kept a command waiting indefinitely.
#[test]
fn an_answer_that_trickles_ends() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(SOCKET_NAME);
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let trickling = std::thread::spawn(move || {
        // Until the reader is gone.
        let trickle = |mut peer: std::os::unix::net::UnixStream, text: &[u8]| {
            while peer.write_all(text).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        trickle(listener.accept().unwrap().0, b" ");
        trickle(listener.accept().unwrap().0, b" ");
        trickle(listener.accept().unwrap().0, b"{\"progress\":{\"bytes\":1,\"files\":1}}\n");
    });
    let asks = [Request::Status {}, Request::Ending {}, Request::Status {}];
    for ask in asks {
        let mut client = Client::connect(&socket).unwrap();
        client.silence = Duration::from_millis(100);
        let answer: Result<serde_json::Value, _> = client.call(&ask, |_| {});
        answer.unwrap_err();
    }
    trickling.join().unwrap();
}

/// Root asks the mounts of all users for their status, and would hold a gibibyte from each in memory.
#[test]
fn a_status_without_an_end_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(SOCKET_NAME);
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let flood = std::thread::spawn(move || {
        let mut peer = listener.accept().unwrap().0;
        let piece = vec![b'['; 1 << 20];
        (0..256).take_while(|_| peer.write_all(&piece).is_ok()).count()
    });
    let mut client = Client::connect(&socket).unwrap();
    let answer: Result<serde_json::Value, _> = client.call(&Request::Status {}, |_| {});
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("without an end"), "{error}");
    drop(client);
    let sent_mib = flood.join().unwrap();
    assert!(sent_mib < 128, "{sent_mib}");
}

#[test]
fn a_client_that_goes_away_stops_its_work() {
    let dir = tempfile::tempdir().unwrap();
    let (server, fake) = started(dir.path());
    let mut raw = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    raw.write_all(b"{\"evict\":{}}\n").unwrap();
    drop(raw);
    drop(server);
    assert_eq!(fake.hints.lock().pop().map(|hint| hint.pid), Some(4242));
}

#[test]
fn a_cache_directory_of_any_depth_works() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    let (_server, _fake) = started(&deep);
    let mounted = MountedPath::find(&deep).unwrap();
    assert_eq!(mounted.inside, PathBuf::new());
    let report: Report = mounted.connect().unwrap().call(&Request::Report {}, |_| {}).unwrap();
    assert_eq!(report.policy, "adaptive");
}

/// Regression: the client waited forever, because the thread was gone but a descriptor of the connection was not.
#[test]
fn a_request_that_panics_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _fake) = started(dir.path());
    let mut client = Client::connect(server.socket()).unwrap();
    let error = client.call::<AnyStatus>(&Request::Status {}, |_| {}).unwrap_err();
    assert!(error.to_string().contains("has a defect"), "{error}");
    let report: Report = client.call(&Request::Report {}, |_| {}).unwrap();
    assert_eq!(report.ssd_bytes_written, 7);
}

/// Regression: `umount` said that no mount process answers while the process was ending and about to report what it
/// did.
#[test]
fn a_process_that_is_ending_is_heard_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut client = Client::connect(&socket).unwrap();
    client.silence = Duration::from_millis(20);
    let ending = std::thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        // The client asks on another connection whether the process works. That one ends without an answer; by then the
        // answer is on this one, however slow this thread is.
        let other = listener.accept().unwrap();
        first.write_all(b"{\"ok\":7}\n").unwrap();
        drop((other, listener));
        // Until the client has read it.
        let _ = first.read(&mut [0; 1024]);
    });
    assert_eq!(client.call::<u32>(&Request::Report {}, |_| {}).unwrap(), 7);
    drop(client);
    ending.join().unwrap();
}

/// Regression: one client too many was told "Resource temporarily unavailable", or that a pipe broke.
#[test]
fn a_client_too_many_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = started(dir.path());
    let asks = || {
        let mut client = Client::connect(server.socket())?;
        client.call::<Report>(&Request::Report {}, |_| {})
    };
    let connected: Vec<_> =
        (0..server::CLIENTS_MAX).map(|_| UnixStream::connect(server.socket()).unwrap()).collect();
    // Answered before it asks, and after.
    for _ in 0..200 {
        let error = asks().unwrap_err();
        assert_eq!(error.errno(), libc::EAGAIN, "{error}");
        assert!(error.to_string().contains("end commands and programs"), "{error}");
    }
    drop(connected);
}
