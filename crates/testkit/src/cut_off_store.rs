//! A store that one of two nodes reaches over a network that can be cut.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::nodes::{NODES, TokenStore};
use crate::redis_server::RedisServer;

/// How often it is looked whether the network is there again.
const PAUSE: Duration = Duration::from_millis(5);

/// A server that the first node reaches through a network of its own, and the other one by its socket.
#[derive(Debug)]
pub struct CutOffStore {
    server: RedisServer,
    network: Arc<Network>,
    port: u16,
}

#[derive(Debug, Default)]
struct Network {
    is_cut: AtomicBool,
    is_over: AtomicBool,
}

impl Deref for CutOffStore {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.server
    }
}

impl DerefMut for CutOffStore {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.server
    }
}

impl TokenStore for CutOffStore {
    fn urls(&self) -> String {
        self.server.url()
    }

    fn urls_of(&self, node: &str) -> String {
        if node == NODES[0] { format!("redis://127.0.0.1:{}", self.port) } else { self.urls() }
    }
}

impl Drop for CutOffStore {
    fn drop(&mut self) {
        self.network.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl CutOffStore {
    /// With a network that works.
    pub fn new(server: RedisServer) -> Self {
        let network = Arc::<Network>::default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (socket, shared) = (server.socket(), Arc::clone(&network));
        thread::spawn(move || {
            for client in listener.incoming() {
                if shared.is_over.load(Ordering::SeqCst) {
                    break;
                }
                // Where the server is away, the client's connection is closed.
                let _ = client.and_then(|client| shared.connect(client, &socket));
            }
        });
        Self { server, network, port }
    }

    /// From now on nothing arrives: not even that nothing does.
    pub fn cut(&self) {
        self.network.is_cut.store(true, Ordering::SeqCst);
    }

    /// What was sent meanwhile arrives now.
    pub fn mend(&self) {
        self.network.is_cut.store(false, Ordering::SeqCst);
    }
}

impl Network {
    fn connect(self: &Arc<Self>, client: TcpStream, socket: &Path) -> io::Result<()> {
        let server = UnixStream::connect(socket)?;
        let (from_client, to_client) = (client.try_clone()?, client);
        let (from_server, to_server) = (server.try_clone()?, server);
        let (there, back) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || {
            there.carry(from_client, &to_server);
            let _ = to_server.shutdown(Shutdown::Both);
        });
        thread::spawn(move || {
            back.carry(from_server, &to_client);
            let _ = to_client.shutdown(Shutdown::Both);
        });
        Ok(())
    }

    /// Until either end is closed.
    fn carry(&self, mut from: impl Read, mut to: impl Write) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            while self.is_cut.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst) {
                sleep(PAUSE);
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
    }
}
