//! I11 to I14: several agents over one store. Nodes read and write the same blocks while messages are lost, the store
//! forgets, and nodes die; a ledger knows what must be read.

mod cluster;
mod contract;
mod idle;
mod keeping;
mod memory;
mod server;
mod stops;
mod unreadable;
mod world;
