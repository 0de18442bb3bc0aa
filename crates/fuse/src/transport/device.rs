//! Requests through `/dev/fuse`, with the library's event loop.

mod filesystem;
mod locking;
pub(crate) mod negotiation;
mod parking;
mod reading;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Generation, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyXattr, Request, TimeOrNow,
};
use halocline_os::catch_panic::catch_panic;
use halocline_os::served_program::{Serving, serving};
use halocline_vfs::{Caller, Engine, Maker, SetTime};

use crate::front::directories::{Added, Listed};
use crate::front::inodes::Entry;
use crate::front::xattrs::Value;
use crate::front::{Answer, Front, Refused};
use negotiation::Agreed;
use parking::{Parking, RequestTiming};

/// A front end as the library's file system.
#[derive(Debug)]
pub(crate) struct Device<E: Engine> {
    front: Arc<Front<E>>,
    parking: Parking,
    agreed: Arc<Agreed>,
}

impl<E: Engine> Device<E> {
    /// Serves `front` with `threads` threads; what is negotiated with the kernel is noted in `agreed`.
    pub(crate) fn new(front: Arc<Front<E>>, threads: usize, agreed: Arc<Agreed>) -> Self {
        Self { front, parking: Parking::new(threads), agreed }
    }

    /// Begins a request on this thread.
    fn begin(&self, request: &Request) -> (Serving, RequestTiming<'_>) {
        (serving(request.pid()), self.parking.begin())
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

fn maker(request: &Request, umask: u32) -> Maker {
    Maker { caller: caller(request), umask }
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(time_from_kernel(at)),
    }
}

/// Undoes how the library reads a time before 1970: it takes the kernel's nanoseconds, which count forwards from a
/// negative second, for part of the distance to the epoch.
fn time_from_kernel(time: SystemTime) -> SystemTime {
    match UNIX_EPOCH.duration_since(time) {
        Ok(before) => {
            let nanoseconds = Duration::from_nanos(u64::from(before.subsec_nanos()));
            UNIX_EPOCH - Duration::from_secs(before.as_secs()) + nanoseconds
        }
        Err(_) => time,
    }
}

/// Answers a request that returns an entry.
fn named(reply: ReplyEntry, find: impl FnOnce() -> Answer<Entry>) {
    match catch_panic(find) {
        Ok(it) => {
            let generation = Generation(it.generation);
            reply.entry_with_ttls(&it.attr_timeout, &it.timeout, &it.attr, generation);
        }
        Err(Refused(errno)) => reply.error(errno),
    }
}

/// Answers a request for an extended attribute or for their list.
fn valued(reply: ReplyXattr, value: &Value) {
    match value {
        Value::Size(size) => reply.size(*size),
        Value::Bytes(bytes) => reply.data(bytes),
    }
}

/// Adds a name to a list. The library has no form for a name of unknown type.
fn add_name(reply: &mut ReplyDirectory, it: &Listed<'_>) -> Added {
    let Some(kind) = it.kind else { return Added::NoForm };
    Added::from(!reply.add(it.number, it.next, kind, it.name))
}

/// The same with attributes, if they are known. The library has no form for a name without an inode number.
fn add_entry(reply: &mut ReplyDirectoryPlus, it: &Listed<'_>, known: Option<&Entry>) -> Added {
    let unknown = it.kind.map(Entry::not_looked_up);
    let Some(entry) = known.or(unknown.as_ref()) else { return Added::NoForm };
    let generation = Generation(entry.generation);
    let is_full =
        reply.add(entry.attr.ino, it.next, it.name, &entry.timeout, &entry.attr, generation);
    Added::from(!is_full)
}
