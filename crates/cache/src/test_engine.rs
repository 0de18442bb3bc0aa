//! An engine for tests of its components.

use std::ffi::OsStr;

use tempfile::TempDir;

use crate::Decorations;
use crate::engine::ExtentEngine;
use halocline_api::config::Config;
use halocline_meta::FileId;
use halocline_vfs::{Caller, Engine, Maker};

/// An engine over an origin and a cache.
pub(crate) fn open(dirs: &[TempDir; 2]) -> ExtentEngine {
    let config = Config { policy: "always".to_owned(), rebuild: false, ..Config::default() };
    let around = Decorations { data_bytes: Some(1 << 20), ..Decorations::NONE };
    let engine = ExtentEngine::open_decorated(dirs[0].path(), dirs[1].path(), &config, around);
    engine.expect("it opens")
}

/// An engine with a file whose only block is dirty.
pub(crate) fn one_dirty_file() -> (ExtentEngine, FileId, [TempDir; 2]) {
    let dirs = [(); 2].map(|()| TempDir::new().expect("a directory"));
    let engine = open(&dirs);
    let caller = Caller { uid: 0, gid: 0, pid: 1 };
    let by = Maker { caller, umask: 0 };
    let made = engine.create((&engine.root(), OsStr::new("file")), 0o644, libc::O_RDWR, by);
    let (_, _, handle) = made.expect("it is made");
    engine.write(&handle, 0, &[1; 4096], caller).expect("it is written");
    let id = handle.file.id().expect("it is cached");
    assert_eq!(engine.base.store.dmt.index().dirty_bytes(id), 4096);
    (engine, id, dirs)
}
