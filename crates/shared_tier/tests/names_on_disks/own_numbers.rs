//! Names of links, pipes and devices that end with `~` and their own numbers: programs may give them, and the shared disk
//! gives them to what has to lie beside its name.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use halocline_os::error::Result;
use halocline_vfs::{Engine, Make};

use crate::disks::{Disks, NODES, names};
use crate::mounted::{Act, BY, Mounted};

/// Bytes of the longest name.
const NAME_MAX: usize = 255;

fn make(on: &Mounted, kind: &str, path: &str) -> Result<()> {
    let (above, name) = on.above(path)?;
    let what = match kind {
        "link" => Make::Symlink(OsStr::new("there")),
        "pipe" => Make::Special(libc::S_IFIFO | 0o644, 0),
        "socket" => Make::Special(libc::S_IFSOCK | 0o644, 0),
        _ => Make::Special(libc::S_IFCHR | 0o644, 0),
    };
    on.tier.make((&above, name), what, BY).map(drop)
}

/// A name with the number of what is at a path behind it, shortened as the disk shortens it.
pub(crate) fn numbered(on: &Mounted, path: &str, name: &str) -> Result<String> {
    let number = on.tier.stat(&on.at(path)?, None)?.raw.st_ino;
    let suffix = format!("~{number}");
    let (above, name) = name.rsplit_once('/').map_or(("", name), |(above, name)| (above, name));
    let kept = &name[..name.len().min(NAME_MAX - suffix.len())];
    let slash = if above.is_empty() { "" } else { "/" };
    Ok(format!("{above}{slash}{kept}{suffix}"))
}

/// The names in a directory and below, with `/` behind those of directories.
fn all(on: &Mounted) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut todo = vec![(String::new(), Engine::root(&on.tier))];
    while let Some((path, directory)) = todo.pop() {
        for name in names(&on.tier, &directory) {
            let path = format!("{path}{}", name.to_str().unwrap());
            let (vnode, stat) = on.tier.lookup(&directory, &name).unwrap();
            if stat.raw.st_mode & libc::S_IFMT == libc::S_IFDIR {
                todo.push((format!("{path}/"), vnode));
            }
            found.insert(path);
        }
    }
    found
}

fn on_disk(root: &Path) -> BTreeSet<String> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![String::new()]);
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(root.join(&path)).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{path}{}", entry.file_name().to_str().unwrap());
            if name.starts_with(".halocline") {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                todo.push(format!("{name}/"));
            }
            found.insert(name);
        }
    }
    found
}

/// Unmounts the nodes, and compares the disk, and names that are built again, with those before.
fn are_right(what: &str, disks: &Disks, nodes: Vec<Mounted>) {
    let wanted = all(&nodes[0]);
    for node in &nodes {
        node.tier.close().unwrap();
    }
    drop(nodes);
    assert_eq!(on_disk(&disks.at("shared")), wanted, "{what}: on the disk");
    disks.are_as_in_store(what);
    let left = fs::read_dir(disks.at("shared/.halocline/beside")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "{what}: notes");
    disks.forget();
    disks.repair();
    disks.are_as_in_store(what);
    let node = Mounted::new(disks, false);
    assert_eq!(all(&node), wanted, "{what}: built again");
    node.tier.close().unwrap();
}

/// Regression: the disk took the new name for one beside the old one, and removed it: names that are built again were without.
#[test]
fn i15_what_a_program_calls_by_its_own_number_stays_on_the_disk() {
    type Step = fn(&Mounted, &str, &str) -> Result<()>;
    let steps: [(&str, Step); 9] = [
        ("rename", |_, _, _| Ok(())),
        ("and back", |on, path, own| on.rename(own, path, 0)),
        ("and something else has the old name", |on, path, _| make(on, "socket", path)),
        ("and that goes again", |on, path, _| {
            make(on, "socket", path)?;
            on.unlink(path)
        }),
        ("and something is renamed over that", |on, path, _| {
            make(on, "socket", path)?;
            make(on, "link", "x/other")?;
            on.rename("x/other", path, 0)
        }),
        ("and once more", |on, _, own| on.rename(own, &numbered(on, own, own)?, 0)),
        ("and to another directory", |on, _, own| on.rename(own, &own.replace("x/", "y/"), 0)),
        ("and it has the old name, too", |on, path, own| on.link(own, path)),
        ("and the old name once, too", |on, path, own| {
            on.link(own, path)?;
            on.unlink(path)
        }),
    ];
    let long = format!("x/{}", "n".repeat(NAME_MAX));
    for (what, step) in steps {
        let disks = Disks::new();
        let nodes = NODES.map(|node| Mounted::of_node(&disks, node, true));
        let (one, other) = (&nodes[0], &nodes[1]);
        one.mkdir("x").unwrap();
        one.mkdir("y").unwrap();
        for kind in ["link", "pipe", "device"] {
            for (second, path) in [(None, "short"), (Some("second"), "one"), (None, &long[2..])] {
                let path = format!("x/{path}");
                let by = if kind == "pipe" { other } else { one };
                make(by, kind, &path).unwrap();
                if let Some(second) = second {
                    by.link(&path, &format!("y/{kind}{second}")).unwrap();
                }
                let own = numbered(by, &path, &path).unwrap();
                by.rename(&path, &own, 0).unwrap();
                step(by, &path, &own).unwrap();
                if by.at(&path).is_ok() {
                    by.rename(&path, &format!("y/{kind}{}", second.unwrap_or("")), 0).unwrap();
                }
                // Two names of one object stay in a rename.
                for left in [path, format!("y/{kind}")] {
                    let _gone = by.unlink(&left);
                }
            }
        }
        are_right(what, &disks, nodes.into());
    }
}

/// What a node does at a name that another one's directory still has on the disk.
const AT_FREE_NAME: [(&str, Act); 7] = [
    ("a link's second name", |on| on.link("link", "d")),
    ("a pipe's second name", |on| on.link("pipe", "d")),
    ("a third name", |on| on.link("twice", "d")),
    ("a renamed pipe", |on| on.rename("pipe", "d", 0)),
    ("a renamed one of two names", |on| on.rename("twice", "d", 0)),
    ("what had two names", |on| {
        on.unlink("twice")?;
        on.rename("again", "d", 0)
    }),
    ("a new pipe", |on| make(on, "pipe", "d")),
];

/// Regression: one more name of a link, pipe or device stayed `NAME~NUMBER` on the disk if another node had yet to move a
/// directory away from its name there; no check told it, and names that were built again were called so.
#[test]
fn i15_what_lies_beside_its_name_gets_it_once_a_directory_has_left() {
    for (what, act) in AT_FREE_NAME {
        for requests in 0.. {
            let disks = Disks::new();
            let [one, other] = NODES.map(|node| Arc::new(Mounted::of_node(&disks, node, true)));
            one.mkdir("d").unwrap();
            one.symlink("there", "link").unwrap();
            make(&one, "pipe", "pipe").unwrap();
            make(&one, "pipe", "twice").unwrap();
            one.link("twice", "again").unwrap();
            let by = Arc::clone(&other);
            one.interrupt(requests, move || drop(act(&by)));
            one.rename("d", "e", 0).unwrap();
            if !one.was_interrupted() {
                one.interrupt(i64::MAX, || {});
                break;
            }
            let nodes = [one, other].map(|node| Arc::into_inner(node).expect("it is over"));
            are_right(&format!("{what}, before request {requests}"), &disks, nodes.into());
        }
    }
}

#[test]
fn names_of_ours_are_refused_alike() {
    let disks = Disks::new();
    let node = Mounted::new(&disks, true);
    node.create("f", "text").unwrap();
    node.symlink("there", "l").unwrap();
    node.mkdir("d").unwrap();
    for ours in [".halocline", ".halocline-cluster"] {
        let all = [
            node.create(ours, "text"),
            node.mkdir(ours),
            node.symlink("there", ours),
            make(&node, "pipe", ours),
            node.link("f", ours),
            node.link("l", ours),
            node.rename("f", ours, 0),
            node.rename("d", ours, 0),
            node.rename(ours, "new", 0),
            node.rename("f", ours, libc::RENAME_EXCHANGE),
            node.unlink(ours),
            node.rmdir(ours),
        ];
        let refused = all.map(|done| done.unwrap_err().errno());
        assert_eq!(refused, [libc::EPERM; 12], "{ours}");
        assert_eq!(node.at(ours).map(drop).unwrap_err().errno(), libc::ENOENT);
        node.create(&format!("d/{ours}"), "text").unwrap();
    }
    node.tier.close().unwrap();
}
