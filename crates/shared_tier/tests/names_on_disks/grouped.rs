//! Links, pipes, sockets and devices carry no number on the shared disk, and many look alike. Whatever nodes do to their
//! names, two names that are one object for programs are one inode on the disk, and two objects are two, with their own
//! attributes; names that are built again are grouped as before.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use halocline_os::error::Result;
use halocline_testkit::hostile::Random;
use halocline_vfs::{Engine, Make, SetAttr, Tree};
use parking_lot::Mutex;

use crate::disks::{Disks, NODES, names};
use crate::mounted::{Act, BY, CALLER, Mounted};
use crate::own_numbers::numbered;

/// How many trees are made, and how many changes are made to each.
const SEEDS: u64 = 24;
const CHANGES: usize = 120;
/// How many trees are made at once.
const SIDE_BY_SIDE: usize = 8;

/// Every name of what is not a directory, with what it is and all names of the same object.
type Groups = BTreeMap<String, String>;

/// A name: its inode number and what that is.
type Seen = (String, (u64, String));

fn grouped(seen: &[Seen]) -> Groups {
    let mut by_inode: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (name, (inode, _)) in seen {
        by_inode.entry(*inode).or_default().push(name);
    }
    for names in by_inode.values_mut() {
        names.sort_unstable();
    }
    let described = seen.iter().map(|(name, (inode, what))| {
        (name.clone(), format!("{what}, of {}", by_inode[inode].join(" ")))
    });
    described.collect()
}

/// By which objects are told from each other that are alike otherwise.
fn time(seconds: i64, ns: i64) -> String {
    format!(", {seconds}.{ns:09}")
}

/// All directories that programs see, and all that is no directory; files only if they are wanted.
fn mounted(node: &Mounted, with_files: bool) -> (Vec<String>, Groups) {
    let (mut directories, mut seen) = (vec![String::new()], Vec::new());
    let mut todo = vec![(String::new(), Engine::root(&node.tier))];
    while let Some((path, directory)) = todo.pop() {
        for name in names(&node.tier, &directory) {
            let path = format!("{path}{}", name.to_str().unwrap());
            let (vnode, stat) = node.tier.lookup(&directory, &name).unwrap();
            let what = match stat.raw.st_mode & libc::S_IFMT {
                libc::S_IFDIR => {
                    directories.push(format!("{path}/"));
                    todo.push((format!("{path}/"), vnode));
                    continue;
                }
                libc::S_IFREG if !with_files => continue,
                libc::S_IFREG => "file".to_owned(),
                libc::S_IFLNK => {
                    let (below, vnode) = node.tier.below(&vnode);
                    format!("link to {}", below.read_link(&vnode).unwrap().display())
                }
                _ => format!("{:o} {}", stat.raw.st_mode, stat.raw.st_rdev),
            };
            let at = time(stat.raw.st_mtime, stat.raw.st_mtime_nsec);
            let at = if what == "file" { String::new() } else { at };
            seen.push((path, (stat.raw.st_ino, what + &at)));
        }
    }
    directories.sort_unstable();
    let groups = grouped(&seen);
    (directories, groups)
}

/// What the shared disk has of it, or is to have at these names once all nodes are unmounted. `called` is what programs see.
fn on_disk(root: &Path, is_under_way: bool, called: &Groups) -> Groups {
    let (mut seen, mut todo) = (Vec::new(), vec![String::new()]);
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(root.join(&path)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            // While a file that has other names lies at its name; it gets that some time after the file has gone. Programs
            // use such names, too.
            let plain = name.rsplit_once('~').map(|(plain, _)| plain);
            let plain = plain.filter(|_| !called.contains_key(&format!("{path}{name}")));
            let at = |plain: &str| root.join(&path).join(plain).symlink_metadata();
            let plain = plain.filter(|plain| match at(plain) {
                Ok(at) => at.is_file(),
                Err(_) => is_under_way,
            });
            let name = format!("{path}{}", plain.unwrap_or(&name));
            let stat = entry.metadata().unwrap();
            let kind = stat.file_type();
            if kind.is_dir() {
                if name != ".halocline" {
                    todo.push(format!("{name}/"));
                }
                continue;
            }
            let what = if kind.is_symlink() {
                format!("link to {}", fs::read_link(entry.path()).unwrap().display())
            } else if kind.is_fifo() || kind.is_socket() || kind.is_char_device() {
                format!("{:o} {}", stat.mode(), stat.rdev())
            } else {
                continue;
            };
            seen.push((name, (stat.ino(), what + &time(stat.mtime(), stat.mtime_nsec()))));
        }
    }
    grouped(&seen)
}

/// A change of a program.
#[derive(Debug, Clone)]
enum Change {
    Make(u32, String),
    Symlink(&'static str, String),
    File(String),
    Directory(String),
    Link(String, String),
    Rename(String, String, u32),
    Unlink(String),
    Mode(String, u32),
    /// To its own number behind a name.
    RenameToNumber(String, String),
    LinkToNumber(String, String),
}

impl Change {
    fn make(&self, on: &Mounted) -> Result<()> {
        match self {
            Self::Make(mode, name) => {
                let (above, name) = on.above(name)?;
                on.tier.make((&above, name), Make::Special(*mode, 0), BY).map(drop)
            }
            Self::Symlink(target, name) => on.symlink(target, name),
            Self::File(name) => on.create(name, "text"),
            Self::Directory(name) => on.mkdir(name),
            Self::Link(from, to) => on.link(from, to),
            Self::Rename(from, to, flags) => on.rename(from, to, *flags),
            Self::Unlink(name) => on.unlink(name),
            Self::RenameToNumber(from, to) => on.rename(from, &numbered(on, from, to)?, 0),
            Self::LinkToNumber(from, to) => on.link(from, &numbered(on, from, to)?),
            Self::Mode(name, mode) => {
                let change = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                on.tier.set_attr(&on.at(name)?, None, &change, CALLER).map(drop)
            }
        }
    }

    /// Any change of what there is.
    /// `by_number` are names that are numbers of what they lead to.
    fn any(
        random: &mut Random,
        (directories, there): &(Vec<String>, Groups),
        by_number: bool,
    ) -> Self {
        let there: Vec<&String> = there.keys().collect();
        let some = |random: &mut Random| match there.as_slice() {
            [] => "none".to_owned(),
            all => all[random.below(all.len())].clone(),
        };
        let directory = |random: &mut Random| directories[random.below(directories.len())].clone();
        let new = |random: &mut Random| {
            let name = ["a", "b", "c", "x", "y"][random.below(5)];
            directory(random) + name
        };
        let mode = |random: &mut Random| [0o644, 0o600][random.below(2)];
        match random.below(28) {
            0..4 => Self::Make(libc::S_IFIFO | mode(random), new(random)),
            4 => Self::Make(libc::S_IFSOCK | 0o644, new(random)),
            // One that everybody may make.
            5 => Self::Make(libc::S_IFCHR | 0o644, new(random)),
            6 => Self::Symlink(["one", "two"][random.below(2)], new(random)),
            7 => Self::File(new(random)),
            8 => Self::Mode(some(random), mode(random)),
            9..12 => Self::Link(some(random), new(random)),
            12..14 => Self::Rename(some(random), new(random), 0),
            14 => Self::Rename(some(random), some(random), 0),
            15..20 => Self::Rename(some(random), some(random), libc::RENAME_EXCHANGE),
            20..22 => {
                let [one, other] = [directory(random), directory(random)];
                let [one, other] = [one, other].map(|path| path.trim_end_matches('/').to_owned());
                Self::Rename(one, other, libc::RENAME_EXCHANGE)
            }
            22..26 if by_number => {
                let from = some(random);
                // Beside its own name, or that of something else.
                let beside = [from.clone(), some(random), new(random)][random.below(3)].clone();
                let beside = beside.split('~').next().unwrap_or_default().to_owned();
                let links = random.below(4) == 0;
                let change = if links { Self::LinkToNumber } else { Self::RenameToNumber };
                change(from, beside)
            }
            26 if there.len() > 6 => Self::Unlink(some(random)),
            _ => Self::Directory(["p", "q", "p/s", "q/t"][random.below(4)].to_owned()),
        }
    }
}

/// What is wrong on the way, or after the names were built again.
fn wrong_end(seed: u64) -> Option<String> {
    let mut random = Random(seed);
    let disks = Disks::new();
    // With files on the shared disk, which may lie at names that they no longer have, what is called by its number may keep
    // another one from lying beside its name.
    let to_ssd = seed.is_multiple_of(3);
    let nodes = NODES.map(|node| Arc::new(Mounted::of_node(&disks, node, to_ssd)));
    for directory in ["p", "q", "p/s", "q/t"] {
        nodes[0].mkdir(directory).unwrap();
    }
    let shared = disks.at("shared");
    let mut made: Vec<String> = Vec::new();
    let mut with_files = mounted(&nodes[0], true);
    for _ in 0..CHANGES {
        let on = random.below(2);
        let change = Change::any(&mut random, &with_files, to_ssd);
        // Now and then it stands still in the midst of it, and the other one works meanwhile.
        let stands_still = random.below(3) == 0;
        let meanwhile = Change::any(&mut random, &with_files, to_ssd);
        let requests = i64::try_from(random.below(12)).unwrap();
        if stands_still {
            let (by, meanwhile) = (Arc::clone(&nodes[1 - on]), meanwhile.clone());
            nodes[on].interrupt(requests, move || drop(meanwhile.make(&by)));
        }
        let done = change.make(&nodes[on]).map_err(|error| error.errno());
        let was_still = stands_still && nodes[on].was_interrupted();
        nodes[on].interrupt(i64::MAX, || {});
        let meanwhile = was_still.then_some((requests, meanwhile));
        made.push(format!("{} {change:?} {done:?}, meanwhile {meanwhile:?}", NODES[on]));
        let wanted = mounted(&nodes[0], false).1;
        with_files = mounted(&nodes[1], true);
        let found = on_disk(&shared, true, &wanted);
        if found != wanted {
            let last = made[made.len().saturating_sub(40)..].join("\n  ");
            return Some(format!("seed {seed}: after\n  {last}\n{}", difference(&wanted, &found)));
        }
    }
    let wanted = mounted(&nodes[0], false).1;
    for node in nodes {
        node.tier.close().unwrap();
    }
    let unmounted = difference(&wanted, &on_disk(&shared, false, &wanted));
    let problems = disks.problems();
    disks.forget();
    disks.repair();
    let left = disks.problems();
    let again = mounted(&Mounted::new(&disks, false), true);
    let is_right = [&unmounted, &problems, &left].iter().all(|wrong| wrong.is_empty());
    let is_right = is_right && again == with_files;
    let groups = difference(&with_files.1, &again.1);
    (!is_right)
        .then(|| format!("seed {seed}: {unmounted}; {problems}; built again: {left}; {groups}"))
}

fn difference(wanted: &Groups, found: &Groups) -> String {
    let names = wanted.keys().chain(found.keys()).collect::<std::collections::BTreeSet<_>>();
    let lines = names.into_iter().filter(|name| wanted.get(*name) != found.get(*name));
    let lines =
        lines.map(|name| format!("{name}: {:?}, not {:?}", found.get(name), wanted.get(name)));
    lines.collect::<Vec<_>>().join("\n")
}

/// `HALOCLINE_GROUPED=1000` tries so many seeds.
#[test]
fn i15_names_are_one_object_on_the_disk_and_when_built_again_if_they_are_for_programs() {
    let seeds = env::var("HALOCLINE_GROUPED").ok().and_then(|text| text.parse().ok());
    let seeds = seeds.unwrap_or(SEEDS);
    // Side by side, because they mostly wait.
    let wrong: Vec<String> = thread::scope(|scope| {
        let tried = |first: usize| {
            let seeds = (0..seeds).skip(first).step_by(SIDE_BY_SIDE);
            seeds.filter_map(wrong_end).collect::<Vec<_>>()
        };
        let begun: Vec<_> =
            (0..SIDE_BY_SIDE).map(|first| scope.spawn(move || tried(first))).collect();
        begun.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} wrong ends:\n{}", wrong.len(), wrong.join("\n"));
}

/// Pipes that look alike: `p/one` with one name, one with the names `p/two` and `q/two`, and more of them.
fn filled(node: &Mounted) {
    for directory in ["p", "q", "d"] {
        node.mkdir(directory).unwrap();
    }
    let pipe =
        |name: &str| Change::Make(libc::S_IFIFO | 0o644, name.to_owned()).make(node).unwrap();
    for name in ["p/one", "q/one", "p/two", "p/over", "d/only"] {
        pipe(name);
    }
    node.link("p/two", "q/two").unwrap();
    for name in ["p/link", "q/link"] {
        node.symlink("there", name).unwrap();
    }
    node.create("p/f", "text").unwrap();
}

/// Regression: the node that exchanged them on the disk took the one that had come to a name for the other one, which
/// looked alike, exchanged them again, and then replaced the one with a single name.
#[test]
fn i15_a_pipe_with_one_name_is_exchanged_with_one_that_has_two() {
    for made_by in 0..2 {
        for (from, to) in [("q/t/x", "q/y"), ("q/y", "q/t/x")] {
            let disks = Disks::new();
            let nodes = NODES.map(|node| Mounted::of_node(&disks, node, true));
            let (one, other) = (&nodes[made_by], &nodes[1 - made_by]);
            for directory in ["p", "q", "p/s", "q/t"] {
                one.mkdir(directory).unwrap();
            }
            let pipe = |name: &str| Change::Make(libc::S_IFIFO | 0o644, name.to_owned());
            pipe("p/b").make(one).unwrap();
            other.rename("p/b", "q/t/b", 0).unwrap();
            other.rename("q/t/b", "q/t/x", 0).unwrap();
            pipe("p/s/y").make(one).unwrap();
            other.rename("p/s/y", "q/y", 0).unwrap();
            one.link("q/t/x", "p/s/c").unwrap();
            other.rename("p/s/c", "q/t/a", 0).unwrap();
            other.rename(from, to, libc::RENAME_EXCHANGE).unwrap();
            let wanted = mounted(one, true).1;
            let found = on_disk(&disks.at("shared"), false, &wanted);
            assert_eq!(found, wanted, "{from} and {to}");
            for node in nodes {
                node.tier.close().unwrap();
            }
            disks.are_as_in_store("an exchange of pipes");
            disks.forget();
            disks.repair();
            assert_eq!(mounted(&Mounted::new(&disks, true), true).1, wanted, "{from} and {to}");
        }
    }
}

/// What two nodes do with the same names.
const ACTS: [(&str, Act); 22] = [
    ("exchange of one and two", |on| on.rename("p/one", "p/two", libc::RENAME_EXCHANGE)),
    ("exchange of two and one", |on| on.rename("q/two", "p/one", libc::RENAME_EXCHANGE)),
    ("exchange of one and one", |on| on.rename("p/one", "q/one", libc::RENAME_EXCHANGE)),
    ("exchange of links", |on| on.rename("p/link", "q/link", libc::RENAME_EXCHANGE)),
    ("exchange of a pipe and a link", |on| on.rename("p/link", "p/two", libc::RENAME_EXCHANGE)),
    ("exchange of a pipe and a file", |on| on.rename("p/f", "p/two", libc::RENAME_EXCHANGE)),
    ("exchange of the directories", |on| on.rename("p", "q", libc::RENAME_EXCHANGE)),
    ("rename", |on| on.rename("p/one", "q/new", 0)),
    ("rename of one of two", |on| on.rename("p/two", "q/new", 0)),
    ("rename over one", |on| on.rename("p/over", "p/one", 0)),
    ("rename over one of two", |on| on.rename("p/over", "p/two", 0)),
    ("rename of one of two over one", |on| on.rename("p/two", "q/one", 0)),
    ("link", |on| on.link("p/one", "q/new")),
    ("link to a link", |on| on.link("p/link", "q/new")),
    ("unlink of one of two, and a new one", |on| {
        on.unlink("p/two")?;
        Change::Make(libc::S_IFIFO | 0o644, "p/two".to_owned()).make(on)
    }),
    ("rename of the only name in a directory", |on| on.rename("d/only", "q/new", 0)),
    ("unlink of the only name in a directory", |on| on.unlink("d/only")),
    ("change of the mode", |on| Change::Mode("p/one".to_owned(), 0o600).make(on)),
    ("rename of a directory", |on| on.rename("d", "e", 0)),
    ("link to the name of a directory", |on| on.link("p/two", "d")),
    ("link to a link, at the name of a directory", |on| on.link("p/link", "d")),
    ("rename to its own number", |on| on.rename("p/one", &numbered(on, "p/one", "p/one")?, 0)),
];

/// What is wrong if the second node does `other` in the midst of what the first one does.
fn wrong_ends((what, act): (&str, Act), (other, by_other): (&str, Act)) -> Vec<String> {
    let mut wrong = Vec::new();
    for requests in 0.. {
        let disks = Disks::new();
        let [first, second] = NODES.map(|node| Mounted::of_node(&disks, node, true));
        filled(&first);
        let second = Arc::new(second);
        let by = Arc::clone(&second);
        first.interrupt(requests, move || drop(by_other(&by)));
        let done = act(&first);
        if !first.was_interrupted() {
            return wrong;
        }
        let [wanted, with_files] = [false, true].map(|files| mounted(&first, files).1);
        for node in [first, Arc::into_inner(second).expect("it is over")] {
            node.tier.close().unwrap();
        }
        let found = difference(&wanted, &on_disk(&disks.at("shared"), false, &wanted));
        let problems = disks.problems();
        disks.forget();
        disks.repair();
        let again = difference(&with_files, &mounted(&Mounted::new(&disks, true), true).1);
        if [&found, &problems, &again].iter().any(|wrong| !wrong.is_empty()) {
            wrong.push(format!(
                "{other} before request {requests} of {what}: {done:?}: {found}; {problems}; built again: {again}"
            ));
        }
    }
    wrong
}

/// `HALOCLINE_CROSSING=1` tries each pair.
#[test]
fn i15_two_nodes_change_the_same_names_of_pipes_that_look_alike() {
    let one_in = env::var("HALOCLINE_CROSSING").ok().and_then(|text| text.parse().ok());
    let all = ACTS.into_iter().flat_map(|one| ACTS.map(|other| (one, other)));
    let left = Mutex::new(all.step_by(one_in.unwrap_or(13)));
    let tried = || {
        let mut wrong = Vec::new();
        loop {
            let Some((one, other)) = left.lock().next() else { return wrong };
            wrong.extend(wrong_ends(one, other));
        }
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let begun: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(tried)).collect();
        begun.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} wrong ends:\n{}", wrong.len(), wrong.join("\n"));
}
