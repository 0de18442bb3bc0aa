//! Real programs and conformance suites on real mounts; docs/TESTING.md says how to run one.

#[path = "../../src/command/bench/bind.rs"]
mod bind;
#[path = "../shared/command.rs"]
mod command;
#[path = "../shared/fuse_device.rs"]
mod fuse_device;
#[path = "../shared/skipping.rs"]
mod skipping;
#[path = "../shared/waiting.rs"]
mod waiting;

mod behind;
mod differential;
mod fsx;
mod io_uring;
mod kill;
mod ledger;
mod many_files;
mod mount;
mod mount_helper;
mod mount_over;
mod mpi_hints;
mod mpi_programs;
mod ordinary_user;
mod pjdfstest;
mod programs;
mod read_only_cache;
mod set_id;
mod source_tree;
mod sqlite;
mod tier_growth;
mod tier_kill;
mod tier_limits;
mod tier_links;
mod tier_mover;
mod tier_programs;
mod tier_suites;
mod tier_timeouts;
mod tier_told;
mod tier_users;
mod warm_passthrough;
