//! The same calls on names in a store and on a plain local directory: errors and trees are the same.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use halocline_cluster::names::NameStore;
use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::namespace::{AttributeUpdate, Failure, Listed, Namespace, WaitLimit};
use halocline_cluster::names::redis::RedisNames;
use halocline_model::namespace::{EntryName, Flags, InodeNumber, ROOT};
use halocline_testkit::hostile::Random;
use halocline_testkit::redis_cluster::{RedisCluster, STEADY};
use halocline_testkit::redis_server::RedisServer;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::world::{LIMITS, at, directory, file, node};

/// Where symbolic links lead: nowhere.
const TARGET: &str = "nowhere";

#[derive(Debug)]
enum Call {
    Create(String),
    MakeDirectory(String),
    Symlink(String),
    Fifo(String),
    Link(String, String),
    Unlink(String),
    RemoveDirectory(String),
    Rename(String, String, Flags),
    SetMode(String, u32),
    SetSize(String, u64),
}

fn call(random: &mut Random) -> Call {
    let mut path = || {
        let names = ["a", "b", "x"];
        let parts = (0..=random.below(3)).map(|_| names[random.below(names.len())]);
        parts.collect::<Vec<_>>().join("/")
    };
    let (one, other) = (path(), path());
    match random.below(14) {
        0 | 1 => Call::Create(one),
        2 | 3 => Call::MakeDirectory(one),
        4 => Call::Symlink(one),
        5 if random.below(3) == 0 => Call::Fifo(one),
        5 | 6 => Call::Link(one, other),
        7 if random.below(2) == 0 => Call::Unlink(one),
        7 => Call::RemoveDirectory(one),
        8 => Call::SetMode(one, [0o600, 0o644, 0o755, 0o1777][random.below(4)]),
        9 => Call::SetSize(one, random.below(10_000) as u64),
        _ => {
            let flags = [Flags::Replace, Flags::Replace, Flags::NoReplace, Flags::Exchange];
            Call::Rename(one, other, flags[random.below(4)])
        }
    }
}

/// The call on a plain directory.
fn on_directory(top: &Path, call: &Call) -> Result<(), Errno> {
    let io = |result: std::io::Result<()>| {
        result.map_err(|error| Errno::from_io_error(&error).expect("the system's"))
    };
    let path = |path: &String| top.join(path);
    let is_link = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_symlink());
    match call {
        Call::Create(at) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            rustix::fs::open(path(at), flags, Mode::from(0o644)).map(drop)
        }
        Call::MakeDirectory(at) => rustix::fs::mkdir(path(at), Mode::from(0o755)),
        Call::Symlink(at) => rustix::fs::symlink(TARGET, path(at)),
        Call::Fifo(at) => rustix::fs::mknodat(CWD, path(at), FileType::Fifo, Mode::from(0o600), 0),
        Call::Link(from, to) => {
            rustix::fs::linkat(CWD, path(from), CWD, path(to), AtFlags::empty())
        }
        Call::Unlink(at) => rustix::fs::unlink(path(at)),
        Call::RemoveDirectory(at) => rustix::fs::rmdir(path(at)),
        Call::Rename(from, to, flags) => {
            let flags = match flags {
                Flags::Replace => RenameFlags::empty(),
                Flags::NoReplace => RenameFlags::NOREPLACE,
                Flags::Exchange => RenameFlags::EXCHANGE,
            };
            rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags)
        }
        // What is behind a link is none of ours.
        Call::SetMode(at, _) | Call::SetSize(at, _) if is_link(&path(at)) => Err(Errno::LOOP),
        Call::SetMode(at, mode) => io(fs::set_permissions(path(at), Permissions::from_mode(*mode))),
        Call::SetSize(at, size) => match path(at).symlink_metadata() {
            Ok(found) if found.file_type().is_fifo() => Err(Errno::INVAL),
            _ => {
                io(File::options().write(true).open(path(at)).and_then(|file| file.set_len(*size)))
            }
        },
    }
}

/// What a call makes that has a mode.
fn made(call: &Call) -> Option<(&String, u32)> {
    match call {
        Call::Create(path) => Some((path, 0o644)),
        Call::MakeDirectory(path) => Some((path, 0o755)),
        Call::Fifo(path) => Some((path, 0o600)),
        _ => None,
    }
}

fn walk(names: &Namespace, path: &str) -> Result<EntryName, Failure> {
    let mut directory = ROOT;
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    for part in above.split('/').filter(|part| !part.is_empty()) {
        let stored = names.lookup(&at(directory, part))?;
        directory = match stored.attributes.kind {
            Kind::Directory => stored.inode,
            Kind::Symlink => return Err(Failure::Refused(Errno::NOENT)),
            _ => return Err(Failure::Refused(Errno::NOTDIR)),
        };
    }
    Ok(at(directory, name))
}

/// The call on names in a store.
fn on_names(names: &Namespace, call: &Call) -> Result<(), Failure> {
    let set = |path: &String, is_size: bool, changes: &AttributeUpdate| {
        let place = walk(names, path)?;
        match names.lookup(&place)?.attributes.kind {
            Kind::Symlink => Err(Failure::Refused(Errno::LOOP)),
            Kind::Directory if is_size => Err(Failure::Refused(Errno::ISDIR)),
            Kind::Fifo if is_size => Err(Failure::Refused(Errno::INVAL)),
            _ => names.attributes().set_attributes(&place, changes).map(drop),
        }
    };
    match call {
        Call::Create(path) => names.create(&walk(names, path)?, &file()).map(drop),
        Call::MakeDirectory(path) => {
            names.make_directory(&walk(names, path)?, &directory()).map(drop)
        }
        Call::Symlink(path) => {
            let mut attributes = Attributes::new(Kind::Symlink, 0o777, 0);
            attributes.target = TARGET.into();
            names.create(&walk(names, path)?, &attributes).map(drop)
        }
        Call::Fifo(path) => {
            let attributes = Attributes::new(Kind::Fifo, 0o600, 0);
            names.create(&walk(names, path)?, &attributes).map(drop)
        }
        Call::Link(from, to) => {
            let from = walk(names, from)?;
            // The system looks for the file before it walks to the new name.
            names.lookup(&from)?;
            names.link(&from, &walk(names, to)?)
        }
        Call::Unlink(path) => names.unlink(&walk(names, path)?).map(drop),
        Call::RemoveDirectory(path) => names.remove_directory(&walk(names, path)?).map(drop),
        Call::Rename(from, to, flags) => {
            names.rename(&walk(names, from)?, &walk(names, to)?, *flags).map(drop)
        }
        Call::SetMode(path, mode) => {
            set(path, false, &AttributeUpdate { mode: Some(*mode), ..AttributeUpdate::default() })
        }
        Call::SetSize(path, size) => {
            set(path, true, &AttributeUpdate { size: Some(*size), ..AttributeUpdate::default() })
        }
    }
}

/// What there is to compare of one name: type, mode, size, names, target, and which other name leads to the same.
type Compared = (u8, u32, u64, u32, Vec<u8>, String);

fn seen_in_directory(top: &Path) -> BTreeMap<String, Compared> {
    let (mut all, mut first) = (BTreeMap::new(), BTreeMap::new());
    let mut todo = vec![String::new()];
    while let Some(above) = todo.pop() {
        for entry in fs::read_dir(top.join(&above)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{above}{}", entry.file_name().to_str().unwrap());
            let found = entry.metadata().unwrap();
            let (kind, links, size) = match found.file_type() {
                kind if kind.is_dir() => (b'd', 1, 0),
                kind if kind.is_symlink() => (b'l', found.nlink(), 0),
                kind if kind.is_fifo() => (b'p', found.nlink(), 0),
                _ => (b'f', found.nlink(), found.size()),
            };
            let target = fs::read_link(entry.path())
                .map_or(Vec::new(), |target| target.as_os_str().as_bytes().to_vec());
            if kind == b'd' {
                todo.push(format!("{path}/"));
            }
            let links = u32::try_from(links).unwrap();
            let seen = (kind, found.mode() & 0o7777, size, links, target, String::new());
            all.insert(path, (seen, found.ino()));
        }
    }
    for (path, (_, inode)) in &all {
        first.entry(*inode).or_insert_with(|| path.clone());
    }
    let same = |(mut seen, inode): (Compared, u64)| {
        seen.5.clone_from(&first[&inode]);
        seen
    };
    all.into_iter().map(|(path, seen)| (path, same(seen))).collect()
}

/// All entries of a directory, in as many pages as it takes.
fn listed(names: &Namespace, directory: InodeNumber) -> Vec<Listed> {
    let mut all: Vec<Listed> = Vec::new();
    loop {
        let cursor = all.last().map_or(0, |last| last.cursor);
        let (entries, is_last) = names.list(directory, cursor, 1000).unwrap();
        all.extend(entries);
        if is_last {
            return all;
        }
    }
}

fn seen_in_names(names: &Namespace) -> BTreeMap<String, Compared> {
    let (mut all, mut first) = (BTreeMap::new(), BTreeMap::new());
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((above, directory)) = todo.pop() {
        for entry in listed(names, directory) {
            let path = format!("{above}{}", entry.name.as_bytes().escape_ascii());
            let stored = names.lookup(&EntryName { directory, name: entry.name }).unwrap();
            let attributes = stored.attributes;
            let kind = match attributes.kind {
                Kind::Directory => b'd',
                Kind::Symlink => b'l',
                Kind::Fifo => b'p',
                _ => b'f',
            };
            if kind == b'd' {
                todo.push((format!("{path}/"), stored.inode));
            }
            let Attributes { mode, size, target, .. } = attributes;
            all.insert(
                path,
                ((kind, mode, size, stored.links, target, String::new()), stored.inode),
            );
        }
    }
    for (path, (_, inode)) in &all {
        first.entry(*inode).or_insert_with(|| path.clone());
    }
    let same = |(mut seen, inode): (Compared, InodeNumber)| {
        seen.5.clone_from(&first[&inode]);
        seen
    };
    all.into_iter().map(|(path, seen)| (path, same(seen))).collect()
}

fn holds(stores: [Arc<dyn NameStore>; 2], seed: u64, rounds: usize) {
    let place = tempfile::tempdir().unwrap();
    Namespace::format(&*stores[0], &directory()).unwrap();
    let mut session = 0;
    let nodes = stores.map(|store| {
        session += 1;
        node(store, session, WaitLimit::default())
    });
    let mut random = Random(seed);
    let (mut done, mut refused) = (0, BTreeMap::<i32, usize>::new());
    for round in 0..rounds {
        let call = call(&mut random);
        let expected = on_directory(place.path(), &call);
        // Whatever the umask is.
        if let (Ok(()), Some((path, mode))) = (&expected, made(&call)) {
            fs::set_permissions(place.path().join(path), Permissions::from_mode(mode)).unwrap();
        }
        let found = on_names(&nodes[random.below(2)], &call);
        let told = format!("seed {seed}, {round}: {call:?}: {found:?}");
        assert_eq!(found.map_err(|failure| failure.errno()), expected, "{told}");
        match expected {
            Ok(()) => {
                done += 1;
                let shown = seen_in_names(&nodes[random.below(2)]);
                assert_eq!(shown, seen_in_directory(place.path()), "{told}");
            }
            Err(errno) => *refused.entry(errno.raw_os_error()).or_default() += 1,
        }
    }
    println!("seed {seed}: {done} done, {refused:?}");
}

#[test]
fn names_in_memory_are_those_of_a_directory() {
    for seed in 0..12 {
        for limit in LIMITS {
            let first = MemoryNames::default().splitting_from(limit);
            let other = first.for_another_node().splitting_from(limit);
            holds([Arc::new(other), Arc::new(first)], seed, 500);
        }
    }
}

#[test]
fn names_on_a_server_are_those_of_a_directory() {
    let Some(server) = RedisServer::start(&[]) else { return };
    for seed in 20..24 {
        for limit in LIMITS {
            server.command(&["FLUSHALL"]);
            let store = || RedisNames::connect(&server.url(), None, "test").unwrap();
            let store = || Arc::new(store().splitting_from(limit));
            holds([store(), store()], seed, 300);
        }
    }
}

#[test]
fn names_on_a_cluster_are_those_of_a_directory() {
    let Some(cluster) = RedisCluster::start(STEADY) else { return };
    for (limit, origin) in LIMITS.into_iter().zip(["whole", "split"]) {
        let store = || RedisNames::connect(&cluster.urls(), None, origin).unwrap();
        let store = || Arc::new(store().splitting_from(limit));
        holds([store(), store()], 30, 300);
    }
}
