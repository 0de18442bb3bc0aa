//! What the tests of several crates share. Nothing here uses Halocline's own crates, so that the tests of
//! each of them may use it, and what it expects of the command it knows from the command alone.

pub mod closes;
pub mod commands;
pub mod copying;
pub mod cut_off_masters;
pub mod cut_off_store;
pub mod fuse_device;
pub mod fuzz_target;
pub mod gluster;
pub mod hadoop;
pub mod hostile;
pub mod leased;
mod networks;
pub mod nodes;
pub mod plot;
pub mod program;
pub mod redis_cluster;
pub mod redis_server;
pub mod sandbox;
pub mod scratch;
pub mod set_clock;
pub mod shared_tiers;
pub mod signals;
pub mod skipping;
pub mod small_disk;
pub mod stalling_server;
pub mod standstill;
pub mod striped_volume;
pub mod stuck;
pub mod waiting;
