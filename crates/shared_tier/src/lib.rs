//! The file tier that several nodes share: names in a store (I15), whole files on each node's SSD and on a disk that all
//! nodes see.
//!
//! - [`places`]: where files and directories are on the disks, by plain names, and how they are made, found and removed;
//! - [`repair`]: names compared with the disks, and built again from them;
//! - [`store_directories`]: where directories are in the store.

pub mod places;
pub mod repair;
pub mod store_directories;
