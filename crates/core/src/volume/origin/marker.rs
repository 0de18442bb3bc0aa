//! `halocline-volume.toml`: the mark of a striped origin with its geometry.

use std::fs::File;
use std::io;

use halocline_model::striping::Striping;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::config::{SERVERS_MAX, STRIPE_BYTES_MAX};
use crate::error::{Error, Result};

use super::home::Home;

/// The only format so far.
const FORMAT: u32 = 1;

/// Name of the mark in the origin's directory.
pub(super) const NAME: &str = "halocline-volume.toml";

/// Name of the directory with the tree that programs see.
pub(super) const NAMESPACE: &str = "namespace";

const HEAD: &str = "\
# This directory is a striped Halocline volume: docs/FORMAT.md describes it.
# `halocline unstripe` turns its files back into plain ones. Do not edit.
";

/// How a striped volume is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Beside others that read and write files.
    Shared,
    /// By nobody else.
    Alone,
}

/// Locks the mark of the volume in `home` until the answer is dropped.
pub(super) fn lock(home: &Home, how: Use) -> Result<File> {
    let path = home.path().join(NAME);
    let file = home.file(NAME)?;
    let file = file.ok_or_else(|| Error::at(&path, "open")(io::ErrorKind::NotFound.into()))?;
    let operation = match how {
        Use::Shared => FlockOperation::NonBlockingLockShared,
        Use::Alone => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(&file, operation) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(Error::invalid(
            format!("the striped volume {} is in use by another process", home.path().display()),
            "unmount it, or wait until its check is done",
        )),
        Err(errno) => Err(Error::at(path, "lock")(errno.into())),
    }
}

/// What the mark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Marker {
    format: u32,
    pub(super) servers: u32,
    pub(super) stripe: u64,
}

impl Marker {
    pub(super) const fn new(servers: u32, stripe: u64) -> Self {
        Self { format: FORMAT, servers, stripe }
    }

    pub(super) const fn striping(self) -> Striping {
        Striping::new(self.servers, self.stripe)
    }

    /// The mark of the origin in `home`, if it has one.
    pub(super) fn read(home: &Home) -> Result<Option<Self>> {
        let path = home.path().join(NAME);
        let Some(text) = home.read(NAME)? else { return Ok(None) };
        let damaged = |what: String| {
            let what = format!("{}: {what}", path.display());
            Error::invalid(what, "restore the file: docs/FORMAT.md shows what it must hold")
        };
        let marker: Self = toml::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if marker.format != FORMAT {
            return Err(Error::invalid(
                format!("{}: format {} of the volume is unknown", path.display(), marker.format),
                "use the version of Halocline that made it, or a newer one",
            ));
        }
        if marker.servers == 0 || marker.stripe == 0 {
            return Err(damaged("servers and stripe must not be 0".into()));
        }
        if marker.servers > SERVERS_MAX || marker.stripe > STRIPE_BYTES_MAX {
            let what =
                format!("more than {SERVERS_MAX} servers, or a stripe above {STRIPE_BYTES_MAX}");
            return Err(damaged(what));
        }
        Ok(Some(marker))
    }

    /// Makes the mark durable: it is whole or not there.
    pub(super) fn write(self, home: &Home) -> Result<()> {
        let body = toml::to_string(&self).expect("three numbers are TOML");
        home.write(NAME, &format!("{HEAD}{body}"))
    }
}
