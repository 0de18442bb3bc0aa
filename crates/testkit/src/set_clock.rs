//! A store beside one of two nodes whose wall clock somebody sets.

use std::fs::{self, File};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::nodes::{NODES, TokenStore};
use crate::redis_server::RedisServer;
use crate::skipping::skip;

/// A server, and the clock of the first node's mounts. Their monotonic clocks are the machine's, as are all clocks of the
/// other node, of the server, and of the kernel.
#[derive(Debug)]
pub struct SetClock {
    server: RedisServer,
    place: TempDir,
    ahead: File,
}

impl Deref for SetClock {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.server
    }
}

impl DerefMut for SetClock {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.server
    }
}

impl TokenStore for SetClock {
    fn urls(&self) -> String {
        self.server.url()
    }

    fn stand_in(&self, program: PathBuf) -> PathBuf {
        let path = self.place.path().join("halocline");
        let (library, ahead) = (self.library(), self.ahead_path());
        let script = format!(
            "#!/bin/sh\ncase \"$1 $3\" in\n'mount {}') export WALL_CLOCK='{}' LD_PRELOAD='{}' ;;\nesac\nexec '{}' \"$@\"\n",
            NODES[0],
            ahead.display(),
            library.display(),
            program.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl SetClock {
    /// With clocks that agree; `None`, with the reason, where a clock cannot be set.
    pub fn new(server: RedisServer) -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            skip("clocks can only be set on x86-64");
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        let ahead = File::create(place.path().join("ahead")).unwrap();
        let clock = Self { server, place, ahead };
        clock.set_ahead(0);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wall_clock.c");
        let mut compile = Command::new("gcc");
        compile.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(clock.library());
        let compiled = compile.arg(source).arg("-ldl").output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(clock)
    }

    fn library(&self) -> PathBuf {
        self.place.path().join("wall_clock.so")
    }

    fn ahead_path(&self) -> PathBuf {
        self.place.path().join("ahead")
    }

    /// From now on the node's wall clock is so many seconds ahead of the machine's, or behind.
    pub fn set_ahead(&self, seconds: i64) {
        self.ahead.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}
