//! Fresh file systems as the directories of a striped volume.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use halocline_api::config::{VolumeKind, VolumeShape};
use halocline_os::error::Result;
use halocline_storage::device::Device;
use halocline_storage::volume::Origin;

const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 4096 };

fn undecorated(_: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

fn become_striped(dir: &Path) -> Result<Origin> {
    Origin::open_or_create(dir, SHAPE, &undecorated)
}

/// Regression: a fresh ext4 could not become a server, because of its `lost+found`.
#[test]
fn what_a_new_file_system_has_is_in_no_servers_way() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for part in ["server-1", "namespace", ""] {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join(part).join("lost+found")).unwrap();
        drop(become_striped(scratch.path()).unwrap());
        drop(become_striped(scratch.path()).unwrap());
    }
}

/// The message named the directory alone.
#[test]
fn the_file_that_is_in_the_way_is_named() {
    let cases =
        [("server-1", "data"), ("server-1/lost+found", "#12"), ("namespace", "data\n"), ("x", "y")];
    for (part, name) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join(part);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name), "").unwrap();
        let error = become_striped(scratch.path()).unwrap_err().to_string();
        let way = match (part, name) {
            ("server-1/lost+found", _) => "(server-1/lost+found)".to_owned(),
            ("x", _) => "(x)".to_owned(),
            _ => format!("({part}/{})", name.escape_debug()),
        };
        assert!(error.contains(&way), "{way}: {error}");
        assert!(dir.join(name).exists());
    }
}
