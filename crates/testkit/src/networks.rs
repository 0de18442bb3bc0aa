//! Networks that can be cut, and that only some programs are in.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::skipping::skip;

/// How often it is looked whether the network is there again, and whether there is a client.
const PAUSE: Duration = Duration::from_millis(5);

/// What carries bytes.
pub(crate) trait Stream: Read + Write + Send + Sized + 'static {
    /// Another end of the same.
    fn twin(&self) -> io::Result<Self>;
    /// Nothing more is carried.
    fn end(&self);
}

impl Stream for TcpStream {
    fn twin(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Stream for UnixStream {
    fn twin(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// The way from clients to a server. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Network(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_cut: AtomicBool,
    is_over: AtomicBool,
}

impl Drop for Network {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

impl Network {
    /// From clients that connect there, to a server. Where the server is away, the client's connection is closed.
    pub(crate) fn from<S: Stream>(
        listener: TcpListener,
        connect: impl Fn() -> io::Result<S> + Send + 'static,
    ) -> Self {
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            while !shared.is_over.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((client, _)) => drop(shared.join(client, &connect)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(PAUSE),
                    Err(_) => break,
                }
            }
        });
        Self(state)
    }

    /// From now on nothing arrives: not even that nothing does.
    pub(crate) fn cut(&self) {
        self.0.is_cut.store(true, Ordering::SeqCst);
    }

    /// What was sent meanwhile arrives now.
    pub(crate) fn mend(&self) {
        self.0.is_cut.store(false, Ordering::SeqCst);
    }
}

impl State {
    fn join<S: Stream>(
        self: &Arc<Self>,
        client: TcpStream,
        connect: impl Fn() -> io::Result<S>,
    ) -> io::Result<()> {
        client.set_nonblocking(false)?;
        let server = connect()?;
        let (from_client, to_client) = (client.twin()?, client);
        let (from_server, to_server) = (server.twin()?, server);
        let (there, back) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || there.carry(from_client, to_server));
        thread::spawn(move || back.carry(from_server, to_client));
        Ok(())
    }

    /// Until either end is closed.
    fn carry(&self, mut from: impl Stream, mut to: impl Stream) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            while self.is_cut.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst) {
                sleep(PAUSE);
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        to.end();
    }
}

/// A network namespace: what is in it sees no other network than its own loopback.
#[derive(Debug)]
pub(crate) struct Enclave(File);

impl Enclave {
    /// A new one; `None`, with the reason, where none can be made.
    pub(crate) fn new() -> Option<Self> {
        let script = "ip link set lo up && echo ready && read -r _";
        let made = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut process) = made else {
            skip("there is no unshare");
            return None;
        };
        let mut said = String::new();
        let read = BufReader::new(process.stdout.take()?).read_line(&mut said);
        // It stays as long as this file is open.
        let file = File::open(format!("/proc/{}/ns/net", process.id()));
        drop(process.stdin.take());
        let _ = process.wait();
        match file {
            Ok(file) if read.is_ok() && said == "ready\n" => Some(Self(file)),
            _ => {
                skip("no network namespace can be made");
                None
            }
        }
    }

    /// Does something in it: sockets and programs that are made there stay there.
    pub(crate) fn within<T>(&self, act: impl FnOnce() -> T) -> T {
        let _back = Back(File::open("/proc/thread-self/ns/net").unwrap());
        enter(&self.0);
        act()
    }
}

fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Where a thread was before.
struct Back(File);

impl Drop for Back {
    fn drop(&mut self) {
        enter(&self.0);
    }
}
