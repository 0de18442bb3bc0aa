//! Clients and what they do.

use std::fmt::Display;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::coding::encode_attributes;
use halocline_cluster::names::namespace::{Failure as Refused, Namespace, WaitLimit};
use halocline_cluster::names::redis::RedisNames;
use halocline_cluster::names::{NameStore, PAGE_ENTRIES_MAX};
use halocline_cluster::store::redis::polled_by_this_thread;
use halocline_model::namespace::{EntryName, Flags, InodeNumber, ROOT};
use halocline_model::token::Session;
use halocline_os::process_status::ProcessStatus;
use rustix::time::{ClockId, clock_gettime};

use super::super::store_server::Server;
use super::own_benchmark::OwnBenchmark;
use super::record::Large;
use super::row::Row;
use crate::failure::Failure;

/// What the benchmark's names are called in the store.
const ORIGIN: &str = "bench-metadata";
/// The most names that the server's own benchmark makes.
const NATIVE_MAX: u64 = 200_000;

/// What all clients do at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Create,
    Stat,
    List,
    Rename,
    Move,
    Unlink,
    CreateShared,
    StatShared,
    UnlinkShared,
}

impl Phase {
    /// In their order: each needs what the one before left.
    pub(super) const ALL: [Self; 9] = [
        Self::Create,
        Self::Stat,
        Self::List,
        Self::Rename,
        Self::Move,
        Self::Unlink,
        Self::CreateShared,
        Self::StatShared,
        Self::UnlinkShared,
    ];

    /// Whether the server's own benchmark can do the same.
    pub(super) const fn creates(self) -> bool {
        matches!(self, Self::Create | Self::CreateShared)
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Create => ("create", "own"),
            Self::Stat => ("stat", "own"),
            Self::List => ("list", "own"),
            Self::Rename => ("rename", "own"),
            Self::Move => ("move", "own"),
            Self::Unlink => ("unlink", "own"),
            Self::CreateShared => ("create", "shared"),
            Self::StatShared => ("stat", "shared"),
            Self::UnlinkShared => ("unlink", "shared"),
        }
    }
}

/// Connects to a server; directories are split from so many entries on.
pub(super) fn connect((server, split): (&Server, Option<u64>)) -> Result<RedisNames, Failure> {
    let (url, password) = server.address();
    let names = RedisNames::connect(url, password, ORIGIN);
    let names = names.map_err(|error| Failure::refused(error.to_string()))?;
    Ok(if split.is_some() { names.splitting_from(split) } else { names })
}

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn directory() -> Attributes {
    Attributes::new(Kind::Directory, 0o755, now_ns())
}

fn file() -> Attributes {
    Attributes::new(Kind::File, 0o644, now_ns())
}

pub(super) fn failed(error: impl Display) -> Failure {
    Failure::failed(error.to_string())
}

fn at(directory: InodeNumber, name: &str) -> EntryName {
    EntryName { directory, name: name.into() }
}

/// One client, with two directories of its own.
struct Client {
    names: Namespace,
    /// Another node, which looks at what the client made: the client itself knows that for a while.
    reader: Namespace,
    number: u32,
    own: InodeNumber,
    other: InodeNumber,
}

/// What one client did.
struct Work {
    operations: u64,
    /// How long it was busy only with waiting.
    polled: Duration,
    /// How long each create took.
    took_ns: Vec<u64>,
}

pub(super) struct Clients {
    all: Vec<Client>,
    store: Arc<RedisNames>,
    shared: InodeNumber,
    scratch: InodeNumber,
    files: u32,
}

impl Clients {
    pub(super) fn new(
        server: (&Server, Option<u64>),
        count: u32,
        files: u32,
    ) -> Result<Self, Failure> {
        let open = |session: u32| {
            let store = Arc::new(connect(server)?);
            let session = Session(u64::from(session) + 1);
            Namespace::open(store, session, WaitLimit::default()).map_err(failed)
        };
        let store = Arc::new(connect(server)?);
        store.refresh().map_err(failed)?;
        let first = open(count)?;
        let make = |name: String| {
            let made = first.make_directory(&at(ROOT, &name), &directory());
            made.map(|node| node.inode).map_err(failed)
        };
        let client = |number: u32| {
            let [own, other] = [make(format!("own{number}"))?, make(format!("other{number}"))?];
            let names = open(number)?;
            // Connects, reserves numbers and sends the scripts.
            names.create(&at(own, "first"), &file()).map_err(failed)?;
            names.unlink(&at(own, "first")).map_err(failed)?;
            let reader = open(count + 1 + number)?;
            Ok(Client { names, reader, number, own, other })
        };
        let all = (0..count).map(client).collect::<Result<_, Failure>>()?;
        let [shared, scratch] = [make("shared".to_owned())?, make("scratch".to_owned())?];
        Ok(Self { all, store, shared, scratch, files })
    }

    /// Creates a second that the server's own benchmark reaches, with as many connections.
    pub(super) fn native(&self, native: &OwnBenchmark) -> Result<f64, Failure> {
        let attributes = encode_attributes(&file()).expect("they are short");
        let command = self.store.create_command(self.scratch, &attributes);
        let requests = (self.all.len() as u64 * u64::from(self.files)).clamp(2000, NATIVE_MAX);
        native.run(self.all.len(), requests, &command)
    }

    /// Runs one phase with all clients at once.
    pub(super) fn run(&self, phase: Phase, server: &Server) -> Result<Row, Failure> {
        let before = self.round_trips();
        let begun = (processor_time(), server.worked());
        let barrier = Barrier::new(self.all.len() + 1);
        let (seconds, done) = thread::scope(|scope| {
            let work = |client| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    self.work(client, phase)
                })
            };
            let workers: Vec<_> = self.all.iter().map(work).collect();
            barrier.wait();
            let begun = Instant::now();
            let done: Vec<_> =
                workers.into_iter().map(|worker| worker.join().expect("it panics not")).collect();
            (begun.elapsed().as_secs_f64(), done)
        });
        let done: Vec<Work> = done.into_iter().collect::<Result<_, _>>().map_err(failed)?;
        let operations: u64 = done.iter().map(|work| work.operations).sum();
        let polled: Duration = done.iter().map(|work| work.polled).sum();
        let (operation, directories) = phase.names();
        let per_second = operations_per_second(operations, seconds);
        let round_trips = self.round_trips() - before;
        let worked = processor_time().saturating_sub(begun.0);
        let by_server = server.worked().zip(begun.1).map(|(now, begun)| now.saturating_sub(begun));
        let us = |time: Duration| time.as_secs_f64() * 1e6 / as_number(operations.max(1));
        Ok(Row {
            masters: None,
            clients: u32::try_from(self.all.len()).unwrap_or(u32::MAX),
            operation,
            directories,
            operations,
            seconds,
            per_second,
            round_trips_per_operation: operations_per_second(round_trips, as_number(operations)),
            native_per_second: None,
            ratio: None,
            client_us_per_operation: us(worked),
            server_us_per_operation: by_server.map(us),
            polled_us_per_operation: us(polled),
            took_ns: done.into_iter().flat_map(|work| work.took_ns).collect(),
        })
    }

    fn round_trips(&self) -> u64 {
        let of = |names: &Namespace| names.counts().round_trips;
        self.all.iter().map(|client| of(&client.names) + of(&client.reader)).sum()
    }

    /// What one client does.
    fn work(&self, client: &Client, phase: Phase) -> Result<Work, Refused> {
        let polled = polled_by_this_thread();
        let mut took_ns = Vec::new();
        let operations = self.operations(client, phase, &mut took_ns)?;
        Ok(Work { operations, polled: polled_by_this_thread().saturating_sub(polled), took_ns })
    }

    /// How many operations these were.
    fn operations(
        &self,
        client: &Client,
        phase: Phase,
        took_ns: &mut Vec<u64>,
    ) -> Result<u64, Refused> {
        let Client { names, reader, number, own, other } = client;
        if phase == Phase::List {
            return list(names, *own, &mut || true).map(|listed| listed.0);
        }
        let mut begun = Instant::now();
        for file_number in 0..self.files {
            let name = format!("file{number}-{file_number}");
            let renamed = format!("renamed{number}-{file_number}");
            match phase {
                Phase::Create => {
                    names.create(&at(*own, &name), &file())?;
                    let now = Instant::now();
                    took_ns.push(u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX));
                    begun = now;
                }
                Phase::Stat => drop(reader.lookup(&at(*own, &name))?),
                Phase::Rename => {
                    names.rename(&at(*own, &name), &at(*own, &renamed), Flags::Replace)?;
                }
                Phase::Move => {
                    names.rename(&at(*own, &renamed), &at(*other, &name), Flags::Replace)?;
                }
                Phase::Unlink => drop(names.unlink(&at(*other, &name))?),
                Phase::CreateShared => drop(names.create(&at(self.shared, &name), &file())?),
                Phase::StatShared => drop(reader.lookup(&at(self.shared, &name))?),
                Phase::UnlinkShared => drop(names.unlink(&at(self.shared, &name))?),
                Phase::List => {}
            }
        }
        Ok(u64::from(self.files))
    }

    /// A directory of many entries, made by all clients at once and listed by one.
    pub(super) fn large(
        &self,
        entries: u64,
        own_creates: Option<f64>,
        go_on: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<Large, Failure> {
        let clients = self.all.len() as u64;
        let share =
            |number: u32| entries / clients + u64::from(u64::from(number) < entries % clients);
        let begun = Instant::now();
        // In pieces, so that a signal is heeded.
        let most = share(0);
        let mut first = 0;
        while first < most {
            go_on()?;
            let piece = first..(first + 10_000).min(most);
            let make = &|client: &Client| {
                for number in piece.start..piece.end.min(share(client.number)) {
                    let name = format!("entry{}-{number}", client.number);
                    client.names.create(&at(self.shared, &name), &file())?;
                }
                Ok(())
            };
            let created: Result<Vec<()>, Refused> = thread::scope(|scope| {
                let workers: Vec<_> =
                    self.all.iter().map(|client| scope.spawn(move || make(client))).collect();
                workers.into_iter().map(|worker| worker.join().expect("it panics not")).collect()
            });
            created.map_err(failed)?;
            first = piece.end;
        }
        let create_seconds = begun.elapsed().as_secs_f64();
        let before = resident_bytes(std::process::id());
        let mut most_bytes = before;
        let mut stopped = Ok(());
        let begun = Instant::now();
        let mut after_page = || {
            most_bytes = most_bytes.max(resident_bytes(std::process::id()));
            stopped = go_on();
            stopped.is_ok()
        };
        let (listed, pages) =
            list(&self.all[0].names, self.shared, &mut after_page).map_err(failed)?;
        stopped?;
        if listed != entries {
            return Err(Failure::failed(format!("{listed} entries are listed of {entries}")));
        }
        let list_seconds = begun.elapsed().as_secs_f64();
        let create_per_second = operations_per_second(entries, create_seconds);
        Ok(Large {
            entries,
            clients: u32::try_from(clients).unwrap_or(u32::MAX),
            create_per_second,
            own_create_per_second: own_creates,
            ratio: own_creates.map(|own| create_per_second / own),
            list_seconds,
            listed_per_second: operations_per_second(entries, list_seconds),
            pages: Some(pages),
            resident_bytes_before: before,
            resident_bytes_most: most_bytes,
        })
    }
}

/// How many entries of a directory are listed, and in how many pages; until `goes_on` says no.
fn list(
    names: &Namespace,
    directory: InodeNumber,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(u64, u64), Refused> {
    let (mut cursor, mut listed, mut pages) = (0, 0, 0);
    loop {
        let (entries, is_last) = names.list(directory, cursor, PAGE_ENTRIES_MAX)?;
        listed += entries.len() as u64;
        pages += 1;
        cursor = entries.last().map_or(cursor, |entry| entry.cursor);
        if is_last || !goes_on() {
            return Ok((listed, pages));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark")]
const fn as_number(count: u64) -> f64 {
    count as f64
}

pub(super) fn operations_per_second(operations: u64, seconds: f64) -> f64 {
    as_number(operations) / seconds.max(f64::MIN_POSITIVE)
}

/// How long all threads of this process have worked.
fn processor_time() -> Duration {
    let worked = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(worked).unwrap_or_default()
}

/// Memory that this process has now; 0 if the system does not say.
pub(super) fn resident_bytes(process: u32) -> u64 {
    let kib = ProcessStatus::of(process).ok().and_then(|status| status.numbers("VmRSS").next());
    u64::from(kib.unwrap_or(0)) * 1024
}
