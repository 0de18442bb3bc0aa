//! A Redis Cluster of which one of two nodes reaches each server over a network that can be cut.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};

use crate::networks::{Enclave, Network};
use crate::nodes::{NODES, TokenStore};
use crate::redis_cluster::RedisCluster;

/// A cluster whose servers have the same addresses for all. The first node is in a network of its own, where a way leads from
/// each address to the server; the other one reaches them without.
#[derive(Debug)]
pub struct CutOffMasters {
    cluster: RedisCluster,
    ways: Vec<Network>,
    enclave: Enclave,
}

impl Deref for CutOffMasters {
    type Target = RedisCluster;

    fn deref(&self) -> &RedisCluster {
        &self.cluster
    }
}

impl DerefMut for CutOffMasters {
    fn deref_mut(&mut self) -> &mut RedisCluster {
        &mut self.cluster
    }
}

impl TokenStore for CutOffMasters {
    fn urls(&self) -> String {
        self.cluster.urls()
    }

    fn beside<T>(&self, node: &str, act: impl FnOnce() -> T) -> T {
        if node == NODES[0] { self.enclave.within(act) } else { act() }
    }
}

impl CutOffMasters {
    /// With networks that work; `None`, with the reason, where there can be none.
    pub fn new(cluster: RedisCluster) -> Option<Self> {
        let enclave = Enclave::new()?;
        let ports = cluster.ports();
        let ways = ports.map(|port| {
            let here = (Ipv4Addr::LOCALHOST, port);
            let listener = enclave.within(|| TcpListener::bind(here).unwrap());
            // Its thread is not in the enclave.
            Network::from(listener, move || TcpStream::connect(here))
        });
        let ways = ways.collect();
        Some(Self { cluster, ways, enclave })
    }

    /// From now on nothing arrives of what the first node and a server send each other: not even that nothing does.
    pub fn cut(&self, server: usize) {
        self.ways[server].cut();
    }

    /// What was sent meanwhile arrives now.
    pub fn mend(&self, server: usize) {
        self.ways[server].mend();
    }
}
