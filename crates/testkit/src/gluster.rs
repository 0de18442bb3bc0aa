//! A `GlusterFS` volume of a test's own: one brick from a volume file, without the daemon that manages volumes.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::skipping::skip;
use crate::waiting::eventually;

/// What the brick runs: files with their locks.
const BRICK: &str = "
volume posix
  type storage/posix
  option directory PLACE/brick
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume /brick
  type performance/io-threads
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port PORT
  option auth.addr./brick.allow 127.0.0.1
  subvolumes /brick
end-volume
";

/// What each client runs: none of `GlusterFS`'s own caches, which do not hear of other clients.
const CLIENT: &str = "
volume client
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port PORT
  option remote-subvolume /brick
end-volume
";

/// What a client with two of those caches runs in addition.
const CACHES: &str = "
volume behind
  type performance/write-behind
  subvolumes client
end-volume
volume kept
  type performance/io-cache
  subvolumes behind
end-volume
";

/// The volume. Dropping it ends its clients and its brick.
#[derive(Debug)]
pub struct Gluster {
    place: TempDir,
    brick: Child,
    clients: Vec<(PathBuf, Child)>,
}

impl Drop for Gluster {
    fn drop(&mut self) {
        for (at, client) in &mut self.clients {
            let _ = Command::new("umount").arg("-l").arg(at).status();
            let _ = client.kill();
            let _ = client.wait();
        }
        self.kill_brick();
    }
}

impl Gluster {
    /// A volume that is empty; `None`, with the reason, where there are no programs for it.
    pub fn start() -> Option<Self> {
        for program in ["glusterfsd", "glusterfs"] {
            if Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err() {
                skip(format!("there is no {program}"));
                return None;
            }
        }
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("brick")).unwrap();
        // Somebody may get the port before the brick has it: then the clients find none.
        let port =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let caching = format!("{CLIENT}{CACHES}");
        let volumes = [("brick.vol", BRICK), ("client.vol", CLIENT), ("caching.vol", &caching)];
        for (name, text) in volumes {
            let text = text.replace("PLACE", &place.path().display().to_string());
            let text = text.replace("PORT", &port.to_string());
            fs::write(place.path().join(name), text).unwrap();
        }
        let brick = spawn_brick(place.path());
        Some(Self { place, brick, clients: Vec::new() })
    }

    /// Mounts it once more: where, which goes with the volume.
    pub fn mount(&mut self, options: &[&str]) -> String {
        self.mount_volume("client.vol", options)
    }

    /// The same by a client with caches that do not hear of other clients.
    pub fn mount_with_caches(&mut self) -> String {
        self.mount_volume("caching.vol", &[])
    }

    fn mount_volume(&mut self, volume: &str, options: &[&str]) -> String {
        let at = self.place.path().join(format!("client-{}", self.clients.len()));
        fs::create_dir(&at).unwrap();
        let mut command = program("glusterfs", self.place.path(), volume);
        let client = command.args(options).arg(&at).spawn().unwrap();
        self.clients.push((at.clone(), client));
        let own = fs::metadata(self.place.path()).unwrap();
        eventually("GlusterFS is mounted", || {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(&at).is_ok_and(|stat| stat.dev() != own.dev())
        });
        at.to_str().unwrap().to_owned()
    }

    /// Where the brick keeps a file.
    pub fn on_brick(&self, name: &str) -> PathBuf {
        self.place.path().join("brick").join(name)
    }

    /// Kills the brick.
    pub fn kill_brick(&mut self) {
        let _ = self.brick.kill();
        let _ = self.brick.wait();
    }

    /// Starts the brick again, and waits until all clients have found it.
    pub fn revive_brick(&mut self) {
        self.kill_brick();
        self.brick = spawn_brick(self.place.path());
        eventually("the clients find the brick", || {
            self.clients.iter().all(|(at, _)| fs::read_dir(at).is_ok())
        });
    }
}

fn spawn_brick(place: &Path) -> Child {
    program("glusterfsd", place, "brick.vol").spawn().unwrap()
}

/// In the foreground, with its log in a file: it keeps one anyway.
fn program(name: &str, place: &Path, volume: &str) -> Command {
    let mut command = Command::new(name);
    command.args(["--no-daemon", "--volfile"]).arg(place.join(volume));
    command.arg("--log-file").arg(place.join(format!("{name}.log")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
