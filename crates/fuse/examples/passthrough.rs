//! Mounts a directory through the front end without a cache: what the front end costs and what it
//! passes is measured and tested on this.
//!
//! `passthrough ORIGIN MOUNTPOINT [direct] [allow_other] [threads=N]`

use std::path::Path;
use std::sync::Arc;

use halocline_fuse::{MountOptions, mount};
use halocline_os::error::{Error, Result};
use halocline_vfs::uncached::Uncached;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [origin, mountpoint, switches @ ..] = arguments.as_slice() else {
        return Err(Error::invalid("ORIGIN and MOUNTPOINT are missing", "give both"));
    };
    let mut options = MountOptions::new(mountpoint);
    options.fsname.clone_from(origin);
    for switch in switches {
        match switch.split_once('=').unwrap_or((switch, "")) {
            ("direct", _) => options.direct = true,
            ("allow_other", _) => options.allow_other = true,
            ("threads", count) => options.threads = count.parse().unwrap_or(options.threads),
            _ => return Err(Error::invalid(format!("unknown switch {switch}"), "leave it out")),
        }
    }
    let engine = Uncached::open(Path::new(origin), options.direct)?;
    mount(Arc::new(engine), &options)?.wait()
}
