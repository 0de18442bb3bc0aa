//! Two mounts with caches of their own over one origin, with a real store between them (I11).

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command, Stdio};

use halocline_testkit::hostile::Random;
use halocline_testkit::program;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use tempfile::TempDir;

/// A store of this test's own, on a socket.
struct Store {
    place: TempDir,
    process: Child,
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Store {
    /// `None`, with the reason, where there is no program for it.
    fn start() -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("socket");
        let started = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--dir"])
            .arg(place.path())
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn();
        let Ok(process) = started else {
            skip("there is no redis-server");
            return None;
        };
        eventually("the store has its socket", || socket.exists());
        Some(Self { place, process })
    }

    fn url(&self) -> String {
        format!("redis+unix://{}/socket", self.place.path().display())
    }
}

/// Two mounts, `one` and `other`.
struct Nodes {
    scratch: Scratch,
    _store: Store,
}

impl Nodes {
    fn new() -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &["one", "other"])?;
        let store = Store::start()?;
        for (mountpoint, cache) in [("one", "cache"), ("other", "cache2")] {
            fs::create_dir_all(scratch.path(cache)).unwrap();
            let url = store.url();
            let place = ["mount", "origin", mountpoint, "--cache", cache, "--policy", "always"];
            scratch.succeed(&[&place[..], &["--cluster", &url, "--node", mountpoint]].concat());
        }
        Some(Self { scratch, _store: store })
    }

    fn open(&self, name: &str) -> [File; 2] {
        ["one", "other"].map(|node| {
            let path = self.scratch.path(node).join(name);
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
        })
    }
}

#[test]
fn i11_mounts_of_a_cluster_see_each_others_changes_at_once() {
    let Some(nodes) = Nodes::new() else { return };
    let files = nodes.open("file");
    let (mut model, mut random) = (Vec::new(), Random(3));
    for step in 0..200_usize {
        let writer = random.below(2);
        let (offset, length) = (random.below(200_000), random.below(20_000) + 1);
        let bytes = vec![u8::try_from(step % 251 + 1).unwrap(); length];
        if step % 16 == 15 {
            files[writer].set_len(offset as u64).unwrap();
            model.resize(offset, 0);
        } else {
            files[writer].write_all_at(&bytes, offset as u64).unwrap();
            model.resize(model.len().max(offset + length), 0);
            model[offset..offset + length].copy_from_slice(&bytes);
        }
        let reader = &files[1 - writer];
        assert_eq!(reader.metadata().unwrap().len(), model.len() as u64, "step {step}");
        let offset = random.below(model.len() + 1);
        let mut found = vec![0; (model.len() - offset).min(30_000)];
        reader.read_exact_at(&mut found, offset as u64).unwrap();
        assert!(found == model[offset..offset + found.len()], "step {step} at {offset}");
    }
    drop(files);
    // One removes what the other has dirty, and both what is not there any more.
    fs::write(nodes.scratch.path("other").join("gone"), vec![7; 100_000]).unwrap();
    fs::remove_file(nodes.scratch.path("one").join("gone")).unwrap();
    assert!(fs::read(nodes.scratch.path("other").join("gone")).is_err());
    for node in ["one", "other"] {
        nodes.scratch.succeed(&["umount", node]);
    }
    assert!(fs::read(nodes.scratch.path("origin/file")).unwrap() == model);
    let sessions = nodes.scratch.path("origin/.halocline-cluster");
    assert_eq!(fs::read_dir(&sessions).unwrap().count(), 0, "both have left");
    assert_eq!(fs::metadata(sessions).unwrap().mode() & 0o777, 0o700);
}

/// The kernel's pages of a shared mapping would outlive what the other node does.
#[test]
fn shared_mappings_are_refused_and_private_ones_are_not() {
    let Some(nodes) = Nodes::new() else { return };
    let [file, _] = nodes.open("file");
    file.write_all_at(&[7; 4096], 0).unwrap();
    let map = |flags| {
        let protection = libc::PROT_READ;
        let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: nothing is mapped over, and nobody reads through the mapping.
        unsafe { libc::mmap(none, 4096, protection, flags, fd, 0) }
    };
    assert_eq!(map(libc::MAP_SHARED), libc::MAP_FAILED);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENODEV));
    let private = map(libc::MAP_PRIVATE);
    assert_ne!(private, libc::MAP_FAILED);
    // SAFETY: it was mapped above, and is used by nobody.
    assert_eq!(unsafe { libc::munmap(private, 4096) }, 0);
}

#[test]
fn what_is_no_cluster_is_refused() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--cluster"];
    for url in ["redis://127.0.0.1:1", "nonsense"] {
        let output = scratch.halocline(&[&mount[..], &[url]].concat());
        assert_eq!(output.status.code(), Some(2), "{url}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("--cluster"), "{said}");
    }
}
