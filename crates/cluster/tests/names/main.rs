//! I15: the names of a file tier over a store in memory, a server and a cluster, by several nodes, with nodes that die
//! at any step and a store that forgets.

mod against_directory;
mod against_reference;
mod buckets;
mod cluster;
mod crowded;
mod kills;
mod leases;
mod server;
mod together;
mod world;
