//! Steps that a test holds, in builds with debug assertions only.
//!
//! If the environment names a socket (`HALOCLINE_HELD_STEPS`), each step on the disks, and each change of the store of
//! names before it is sent and after it is answered, connects to it, says what comes next, and waits until the test ends
//! the connection. So a test can kill or stop this process, or the store, at any step. While nobody listens, nothing
//! waits.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use halocline_cluster::names::{
    ChangedDirectory, InspectedShard, LeaseAnswer, Memory, NameStore, Result, State,
};
use halocline_model::namespace::{Answer, InodeNumber, Script, Slot};

use crate::places::Watcher;

/// The variable with the path of the socket.
const SOCKET: &str = "HALOCLINE_HELD_STEPS";

/// Tells a test of each step.
#[derive(Debug, Clone)]
pub(crate) struct HeldSteps(PathBuf);

impl HeldSteps {
    /// If a test wants to be told.
    pub(crate) fn wanted() -> Option<Self> {
        std::env::var_os(SOCKET).map(|path| Self(path.into()))
    }

    fn hold(&self, what: &str) {
        let Ok(mut test) = UnixStream::connect(&self.0) else { return };
        if writeln!(test, "{what}").is_ok() {
            let _ended = test.read(&mut [0]);
        }
    }

    /// A store whose requests are steps.
    pub(crate) fn store(&self, names: Arc<dyn NameStore>) -> Arc<dyn NameStore> {
        Arc::new(HeldStore { names, steps: self.clone() })
    }
}

impl Watcher for HeldSteps {
    fn before(&self, what: &'static str) -> halocline_os::error::Result<()> {
        self.hold(what);
        Ok(())
    }
}

#[derive(Debug)]
struct HeldStore {
    names: Arc<dyn NameStore>,
    steps: HeldSteps,
}

/// What a script changes, for people; `None` if nothing.
const fn changes(script: &Script) -> Option<&'static str> {
    match script {
        Script::Read(_) | Script::List(..) => None,
        Script::Make(_) => Some("make"),
        Script::Alone(_) => Some("change"),
        Script::Prepare(..) => Some("prepare"),
        Script::Decide(..) => Some("decide"),
        Script::Settle(_) => Some("settle"),
        Script::Finish(..) => Some("finish"),
        Script::Finished(_) => Some("finished"),
        Script::Forget(_) => Some("forget"),
        Script::Fill(_) => Some("fill"),
        Script::Discard(_) => Some("discard"),
        Script::Touch => Some("touch"),
    }
}

impl HeldStore {
    fn asked<T>(&self, what: &str, ask: impl FnOnce() -> T) -> T {
        self.steps.hold(&format!("before the store's {what}"));
        let answer = ask();
        self.steps.hold(&format!("after the store's {what}"));
        answer
    }
}

impl NameStore for HeldStore {
    fn run(&self, shard: InodeNumber, script: &Script) -> Result<Answer> {
        match changes(script) {
            None => self.names.run(shard, script),
            Some(what) => self.asked(what, || self.names.run(shard, script)),
        }
    }

    fn change(
        &self,
        shard: InodeNumber,
        script: &Script,
    ) -> Result<(Answer, Option<ChangedDirectory>)> {
        match changes(script) {
            None => self.names.change(shard, script),
            Some(what) => self.asked(what, || self.names.change(shard, script)),
        }
    }

    fn lease(&self, directory: InodeNumber, version: u64) -> Result<(LeaseAnswer, Duration)> {
        self.names.lease(directory, version)
    }

    fn read_leased(
        &self,
        directory: InodeNumber,
        slot: &Slot,
    ) -> Result<(Answer, Option<(u64, Duration)>)> {
        self.names.read_leased(directory, slot)
    }

    fn refresh(&self) -> Result<State> {
        self.names.refresh()
    }

    fn begin_epoch(&self, is_alone: bool) -> Result<()> {
        self.names.begin_epoch(is_alone)
    }

    fn reserve(&self, count: u64) -> Result<u64> {
        self.names.reserve(count)
    }

    fn shards(&self) -> Result<Vec<InodeNumber>> {
        self.names.shards()
    }

    fn inspect(&self, shard: InodeNumber) -> Result<Option<InspectedShard>> {
        self.names.inspect(shard)
    }

    fn remove(&self, shard: InodeNumber) -> Result<()> {
        self.names.remove(shard)
    }

    fn touched_for(&self) -> Duration {
        self.names.touched_for()
    }

    fn spare(&self, directory: InodeNumber, entries: u64) {
        self.names.spare(directory, entries);
    }

    fn round_trips(&self) -> u64 {
        self.names.round_trips()
    }

    fn memory(&self) -> Result<Option<Memory>> {
        self.names.memory()
    }
}
