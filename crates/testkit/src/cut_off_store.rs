//! A store that one of two nodes reaches over a network that can be cut.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;

use crate::networks::Network;
use crate::nodes::{NODES, TokenStore};
use crate::redis_server::RedisServer;

/// A server that the first node reaches through a network of its own, and the other one by its socket.
#[derive(Debug)]
pub struct CutOffStore {
    server: RedisServer,
    network: Network,
    port: u16,
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

impl CutOffStore {
    /// With a network that works.
    pub fn new(server: RedisServer) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = server.socket();
        let network = Network::from(listener, move || UnixStream::connect(&socket));
        Self { server, network, port }
    }

    /// From now on nothing arrives: not even that nothing does.
    pub fn cut(&self) {
        self.network.cut();
    }

    /// What was sent meanwhile arrives now.
    pub fn mend(&self) {
        self.network.mend();
    }
}
