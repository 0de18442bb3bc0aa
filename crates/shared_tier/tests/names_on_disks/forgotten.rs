//! A node changes names, and its store forgets everything before each request in turn. Acknowledged changes are there
//! when the names are rebuilt from the disks; unacknowledged ones are made or not.

use std::collections::BTreeMap;
use std::fs;
use std::thread;

use halocline_model::namespace::Shards;

use crate::disks::{self, Disks};
use crate::mounted::{Act, Mounted};

const OF_FILES: [(&str, Act); 8] = [
    ("create", |on| on.create("a/new", "new")),
    ("link", |on| on.link("a/f", "b/new")),
    ("a third link", |on| on.link("a/linked", "b/new")),
    ("rename", |on| on.rename("a/f", "b/new", 0)),
    ("rename in a directory", |on| on.rename("a/f", "a/new", 0)),
    ("rename of one of two names", |on| on.rename("a/linked", "b/new", 0)),
    ("unlink", |on| on.unlink("a/f")),
    ("unlink of one of two names", |on| on.unlink("a/linked")),
];
const OF_TWO_FILES: [(&str, Act); 4] = [
    ("rename over a file", |on| on.rename("a/f", "b/g", 0)),
    ("rename over one of two names", |on| on.rename("a/f", "b/linked", 0)),
    ("exchange", |on| on.rename("a/f", "b/g", libc::RENAME_EXCHANGE)),
    ("exchange with one of two names", |on| on.rename("a/f", "b/linked", libc::RENAME_EXCHANGE)),
];
const OF_TWO_LINKS: [(&str, Act); 2] = [
    ("rename of a link over a link", |on| on.rename("a/symlink", "b/symlink", 0)),
    ("exchange of links", |on| on.rename("a/symlink", "b/symlink", libc::RENAME_EXCHANGE)),
];
const OF_A_FILE_AND_ANOTHER: [(&str, Act); 11] = [
    ("rename of a link over a file", |on| on.rename("a/symlink", "b/g", 0)),
    ("rename of a link over a file beside it", |on| on.rename("a/symlink", "a/f", 0)),
    ("rename of a link over one of two names", |on| on.rename("a/symlink", "b/linked", 0)),
    ("rename of a link over the first of two names", |on| on.rename("b/symlink", "a/linked", 0)),
    ("rename of a file over a link", |on| on.rename("a/f", "b/symlink", 0)),
    ("rename of one of two names over a link", |on| on.rename("a/linked", "b/symlink", 0)),
    ("exchange of a link and a file", |on| on.rename("a/symlink", "b/g", libc::RENAME_EXCHANGE)),
    ("exchange of a file and a link", |on| on.rename("b/g", "a/symlink", libc::RENAME_EXCHANGE)),
    ("exchange of a directory and a file", |on| on.rename("a/below", "b/g", libc::RENAME_EXCHANGE)),
    ("exchange of a directory and one of two names", |on| {
        on.rename("a/below", "a/linked", libc::RENAME_EXCHANGE)
    }),
    ("exchange of one of two names and a directory", |on| {
        on.rename("b/linked", "a/below", libc::RENAME_EXCHANGE)
    }),
];
const OF_OTHERS: [(&str, Act); 8] = [
    ("mkdir", |on| on.mkdir("a/new")),
    ("symlink", |on| on.symlink("nowhere", "b/new")),
    ("rename of a link", |on| on.rename("a/symlink", "b/new", 0)),
    ("rename of a link in a directory", |on| on.rename("a/symlink", "a/new", 0)),
    ("rename of a directory", |on| on.rename("a/below", "b/new", 0)),
    ("rename over a directory", |on| on.rename("a/below", "b/empty", 0)),
    ("exchange of directories", |on| on.rename("a/below", "b/empty", libc::RENAME_EXCHANGE)),
    ("rmdir", |on| on.rmdir("b/empty")),
];

fn filled(to_ssd: bool) -> (Disks, Mounted) {
    let disks = Disks::new();
    let mounted = Mounted::new(&disks, to_ssd);
    mounted.fill();
    (disks, mounted)
}

/// The tree after the names were rebuilt, if they have to be.
fn built_again((disks, what): (&Disks, &str), mounted: Mounted) -> BTreeMap<String, String> {
    mounted.tier.close().unwrap();
    drop(mounted);
    disks.repair();
    disks.are_as_in_store(what);
    let mounted = Mounted::new(disks, true);
    let tree = disks::tree(&mounted.tier);
    mounted.tier.close().unwrap();
    tree
}

type FoundTree = BTreeMap<String, String>;

fn none_is_lost_or_half_made(acts: &[(&str, Act)]) {
    none_is_lost(acts, FoundTree::clone, true);
}

fn none_is_lost_or_half_made_wherever_files_lie(acts: &[(&str, Act)]) {
    for to_ssd in [true, false] {
        none_is_lost(acts, FoundTree::clone, to_ssd);
    }
}

/// `half` is what an unacknowledged change may leave of what was before.
fn none_is_lost(acts: &[(&str, Act)], half: fn(&FoundTree) -> FoundTree, to_ssd: bool) {
    // Side by side, because they mostly wait.
    let wrong: Vec<String> = thread::scope(|scope| {
        let begun: Vec<_> =
            acts.iter().map(|act| scope.spawn(move || wrong_ends(*act, half, to_ssd))).collect();
        begun.into_iter().flat_map(|act| act.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is neither before nor after a change, if the store forgets everything before a request.
fn wrong_ends(
    (what, act): (&str, Act),
    half: fn(&FoundTree) -> FoundTree,
    to_ssd: bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let (disks, mounted) = filled(to_ssd);
    let before = built_again((&disks, what), mounted);
    let (disks, mounted) = filled(to_ssd);
    act(&mounted).unwrap();
    let after = built_again((&disks, what), mounted);
    assert_ne!(before, after, "{what}");
    for requests in 0.. {
        let (disks, mounted) = filled(to_ssd);
        let names = disks.names.for_another_node();
        mounted.interrupt(requests, move || names.restart(Shards(BTreeMap::new())));
        let done = act(&mounted);
        let was_forgotten = mounted.was_interrupted();
        if !was_forgotten {
            // Everything was done, and then the store forgets it.
            done.as_ref().unwrap();
            disks.forget();
        }
        let found = built_again((&disks, what), mounted);
        let may_be = found == before || found == half(&before);
        if found != after && (done.is_ok() || !may_be) {
            wrong.push(format!("{what}, before request {requests}: {done:?}; {found:?}"));
        }
        if !was_forgotten {
            break;
        }
    }
    wrong
}

#[test]
fn names_of_files_are_those_that_were_acknowledged_though_the_store_forgot_everything() {
    none_is_lost_or_half_made(&OF_FILES);
}

#[test]
fn two_files_on_the_shared_disk_are_renamed_as_one_though_the_store_forgot_everything() {
    none_is_lost(&OF_TWO_FILES, FoundTree::clone, false);
}

#[test]
fn a_file_and_another_thing_are_renamed_as_one_though_the_store_forgot_everything() {
    none_is_lost_or_half_made_wherever_files_lie(&OF_A_FILE_AND_ANOTHER);
}

#[test]
fn two_files_are_renamed_as_one_though_the_store_forgot_everything() {
    none_is_lost_or_half_made(&OF_TWO_FILES);
}

#[test]
fn other_names_are_those_that_were_acknowledged_though_the_store_forgot_everything() {
    none_is_lost_or_half_made(&OF_OTHERS);
}

/// Links carry no notes: one that was to replace another may have changed names with it.
#[test]
fn neither_of_two_links_is_lost_though_the_store_forgot_everything() {
    let half_made = |before: &FoundTree| {
        let mut tree = before.clone();
        let [one, other] = ["/a/symlink", "/b/symlink"].map(|path| before[path].clone());
        tree.extend([("/a/symlink".to_owned(), other), ("/b/symlink".to_owned(), one)]);
        tree
    };
    none_is_lost(&OF_TWO_LINKS, half_made, true);
}

/// Regression: a directory was renamed in the store alone, and other nodes did not find it until all were unmounted and
/// checked; a link was made in the store alone.
#[test]
fn what_the_shared_disk_refuses_is_refused_to_programs() {
    let (disks, mounted) = filled(true);
    for private in ["renaming", "tmp"] {
        fs::remove_dir(disks.at(&format!("shared/.halocline/{private}"))).unwrap();
    }
    assert!(mounted.rename("a/below", "b/new", 0).is_err());
    assert!(mounted.rename("a/below", "b/empty", libc::RENAME_EXCHANGE).is_err());
    assert!(mounted.symlink("nowhere", "b/new").is_err());
    assert!(mounted.at("a/below/h").is_ok() && mounted.at("b/new").is_err());
    mounted.create("a/below/new", "new").unwrap();
    mounted.tier.close().unwrap();
    disks.are_as_in_store("what is refused");
}
