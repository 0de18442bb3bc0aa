//! Servers and striping: files whose bytes are distributed round-robin over several directories.
//!
//! [`Server`] is one directory with its device and its worker threads; [`Volume`] is a sequence of servers with a
//! stripe; [`VolumeFile`] reads and writes a file distributed over them as its [`Distribution`] says. The cache keeps
//! its bytes in [`objects::CacheObjects`]; the origin's data is behind [`origin::Origin`], and [`unstripe`] makes its
//! files plain again.
//!
//! What must hold: the part of a request on one server is one contiguous local range (docs/ALGORITHMS.md, section 1.1)
//! and goes to the device as one vectored call; a request that touches one server runs in the caller's thread; a call
//! returns after all its parts ended, with the first error in file order.

use std::path::Path;
use std::sync::Arc;

use crate::device::Device;
use halocline_os::counted::counted;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

pub mod distribution;
pub mod file;
pub mod label;
mod lazy_file;
mod object_paths;
pub mod objects;
pub mod origin;
mod queue;
pub mod run_writes;
pub mod server;
pub mod unstripe;

pub use distribution::Distribution;
pub use file::VolumeFile;
pub use object_paths::ObjectKey;
pub use objects::CacheObjects;
pub use origin::{Origin, OriginFile};
pub use server::Server;

/// Decorates the device of the server with the given index.
pub type Decorate<'a> = &'a dyn Fn(usize, Arc<dyn Device>) -> Arc<dyn Device>;

/// A set of servers, and the stripe with which files are distributed over them.
#[derive(Debug, Clone)]
pub struct Volume {
    servers: Vec<Arc<Server>>,
    stripe: u64,
}

impl Volume {
    /// A volume over `servers`, striped in units of `stripe` bytes.
    ///
    /// # Panics
    /// If there is no server or the stripe is 0.
    pub fn new(servers: Vec<Arc<Server>>, stripe: u64) -> Self {
        assert!(!servers.is_empty() && stripe > 0, "a volume needs a server and a stripe");
        Self { servers, stripe }
    }

    /// A volume of `count` servers under `dir`: the directory itself for one, otherwise its subdirectories `server-0`,
    /// `server-1`, ..., which are created if missing. All are private to this user.
    pub fn in_directory(
        dir: &Path,
        count: u32,
        stripe: u64,
        decorate: Decorate<'_>,
    ) -> Result<Self> {
        if count == 0 || stripe == 0 {
            return Err(Error::invalid(
                format!(
                    "{}: a volume of {}, stripe {stripe}",
                    dir.display(),
                    counted(count, "server")
                ),
                "give at least one server and a stripe of at least one byte",
            ));
        }
        let top = PrivateDir::open(dir)?;
        if count == 1 {
            return Ok(Self::new(vec![Server::private(&top, "server-0", 0, decorate)?], stripe));
        }
        let servers = (0..count as usize).map(|index| {
            let name = format!("server-{index}");
            Server::private(&top.sub(&name)?, &name, index, decorate)
        });
        Ok(Self::new(servers.collect::<Result<_>>()?, stripe))
    }

    /// The volume of a cache that another process owns, to read: nothing is made, changed or closed to others. `count`
    /// and `stripe` are not 0.
    ///
    /// # Errors
    /// If a server's directory is not there, is a link, belongs to somebody else, or others may change it.
    pub fn of_another(dir: &Path, count: u32, stripe: u64, decorate: Decorate<'_>) -> Result<Self> {
        let place = |index: usize| match count {
            1 => dir.to_owned(),
            _ => dir.join(format!("server-{index}")),
        };
        let server = |index| Server::of_another(&place(index), index, decorate);
        let servers = (0..count as usize).map(server).collect::<Result<_>>()?;
        Ok(Self::new(servers, stripe))
    }

    /// The servers.
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }

    /// Stripe in bytes.
    pub const fn stripe(&self) -> u64 {
        self.stripe
    }
}
