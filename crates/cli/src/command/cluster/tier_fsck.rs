//! `halocline cluster fsck --tier`: the names that the store has of a shared tier, and the disks.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use halocline_cluster::names::redis::RedisNames;
use halocline_cluster::registry::Registry;
use halocline_cluster::sessions;
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use halocline_os::counted::{counted, counted_with};
use halocline_os::error::{Error, Result};
use halocline_shared_tier::adopt;
use halocline_shared_tier::repair::{self, Report};
use halocline_shared_tier::{Alone, REGISTRY, is_shared_disk, refuse_unmounted, replace_lost};
use serde::Serialize;

use super::FsckArgs;
use super::print_json;
use crate::cluster;
use crate::failure::{Failure, Outcome};
use crate::print::{say, tell};
use crate::store_password::password;
use crate::text;

/// A node whose SSD is not reached.
#[derive(Debug, Serialize)]
struct MissingJson {
    node: String,
    why: String,
}

/// A report, for scripts.
#[derive(Debug, Serialize)]
struct ReportJson {
    repaired: bool,
    rebuilt: bool,
    named_directories: u64,
    named_files: u64,
    named_others: u64,
    missing_nodes: Vec<MissingJson>,
    unreached_files: u64,
    lost: Vec<String>,
    remade: Vec<String>,
    left_copies: Vec<String>,
    left_directories: Vec<String>,
    relisted: Vec<String>,
    attributes: Vec<String>,
    older: Vec<String>,
    set_aside: Vec<String>,
    conflicts: Vec<String>,
    not_rebuilt: Vec<String>,
    told: Vec<String>,
    may_be_older: bool,
    under_way: u64,
    changed_meanwhile: u64,
}

/// Does it.
pub(super) fn execute(root: &Path, args: &FsckArgs) -> Outcome {
    refuse_other_directories(root).map_err(Failure::refused)?;
    if !args.lost.shared_disk_lost {
        refuse_unmounted(root).map_err(Failure::refused)?;
    }
    if let Some(node) = args.adopt.as_ref().filter(|_| !args.repair) {
        adopt(root, node, None)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(node) = &args.adopt {
        // First: what is refused leaves not even the list of sessions behind, which a mount of one node would show.
        adopt::run(root, node, None).map_err(Failure::refused)?;
    }
    let (names, live) = open(root, args).map_err(Failure::refused)?;
    let alone = (args.repair || args.confirm).then(|| Alone::on(root)).transpose();
    let alone = alone.map_err(Failure::refused)?;
    if let Some(node) = &args.adopt {
        adopt(root, node, alone.as_ref())?;
    }
    if args.lost.shared_disk_lost {
        replace_lost(root).map_err(Failure::refused)?;
    }
    if let Some(alone) = alone.as_ref().filter(|_| args.confirm) {
        let found = repair::confirm(root, args.peers.as_deref(), &names, alone)
            .map_err(Failure::refused)?;
        say!(
            "confirmed: {} in {}; {} of dead nodes were completed",
            counted(found.names, "name"),
            counted(found.directories, "directory"),
            counted(found.intents, "change")
        );
        return agree_with_disks(root, args, &names);
    }
    let peers = args.peers.as_deref();
    let report = if alone.is_some() {
        repair::run(root, peers, &names, alone.as_ref())
    } else {
        repair::check(root, peers, &names, (&live, &Clock::MACHINE))
    };
    let report = report.map_err(Failure::refused)?;
    // Whoever asked for a repair has to choose between files that have one name, or has to give names again.
    let is_clean = report.is_clean();
    let has_conflicts = !report.conflicts.is_empty();
    let has_dropped = report.is_rebuilt && !report.not_rebuilt.is_empty();
    // Nobody is to take a loss for a success.
    let has_older = !report.older.is_empty();
    if args.json {
        print_json(&json(report, args.repair))?;
    } else {
        print(&report, args.repair);
        if args.lost.shared_disk_lost {
            say_read(&report);
        }
        if !args.repair {
            say_remedy(&report, report.may_be_older);
        }
    }
    let is_right = is_clean
        || args.repair
            && !(has_conflicts || has_dropped || has_older)
            && report_is_right(args, root, &names)?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Refuses a directory that is not the root of a tier, as one of its disks or a mount.
fn refuse_other_directories(root: &Path) -> Result<()> {
    let has = |disk: &str| root.join(disk).symlink_metadata().is_ok();
    if has("ssd") || has("hdd") {
        return Ok(());
    }
    if !root.is_dir() {
        return Err(Error::invalid(
            format!("{}: there is no such directory", root.display()),
            "give ROOT, the directory with ssd and hdd, as the mounts have it",
        ));
    }
    Err(Error::invalid(
        format!("{}: there is no ssd and no hdd in it", root.display()),
        "give ROOT, the directory with both, as the mounts have it",
    ))
}

/// Compares names that were confirmed with the disks that are reached: the store may be older than they are.
fn agree_with_disks(root: &Path, args: &FsckArgs, names: &RedisNames) -> Outcome {
    let report = repair::run(root, args.peers.as_deref(), names, None);
    let report = report.map_err(Failure::refused)?;
    let missing = report.missing.clone();
    let reached = Report { missing: Vec::new(), unreached_files: 0, ..report.clone() };
    if reached.is_clean() {
        for (node, _) in missing {
            say!("{}: its SSD is not reached, and not compared", text::line(&node));
        }
        print_not_rebuilt(&report);
        return Ok(ExitCode::SUCCESS);
    }
    print(&report, false);
    say_remedy(&report, true);
    Ok(ExitCode::FAILURE)
}

/// Makes a tier of one node a shared one, or says what that would concern.
fn adopt(root: &Path, node: &str, repair: Option<&Alone>) -> Result<(), Failure> {
    let adopted = adopt::run(root, node, repair).map_err(Failure::refused)?;
    if adopted.is_done {
        tell!("the SSD is that of node {} already", text::line(node));
        tell_settings(&adopted, repair.is_some());
        return Ok(());
    }
    tell!(
        "{}, {} on the SSD and {} below {} adopted; no byte is copied",
        counted(adopted.directories, "directory"),
        counted(adopted.ssd_files, "file"),
        counted(adopted.disk_files, "name"),
        if repair.is_some() { "were" } else { "would be" }
    );
    tell_settings(&adopted, repair.is_some());
    if adopted.unopened > 0 {
        tell!(
            "{} not looked into, because they keep their owner out; --repair would open them, and adopt what is in them, too",
            counted_with(adopted.unopened, "directory", ("was", "were"))
        );
    }
    Ok(())
}

/// Says what all nodes heed from now on, or would, of what commands had set on the tier of one node.
fn tell_settings(adopted: &adopt::Adopted, is_done: bool) {
    if adopted.globs + adopted.jobs > 0 {
        tell!(
            "{} of pin and exclude, and {} announced, {} those of the whole tier",
            counted(adopted.globs, "glob"),
            counted(adopted.jobs, "job"),
            if is_done { "are" } else { "would be" }
        );
    }
}

/// Whether everything fits together after a repair.
fn report_is_right(args: &FsckArgs, root: &Path, names: &RedisNames) -> Result<bool, Failure> {
    let again = repair::run(root, args.peers.as_deref(), names, None);
    again.map(|report| report.is_clean()).map_err(Failure::refused)
}

/// The names, and the sessions that may be at work. To change any name, none may.
fn open(root: &Path, args: &FsckArgs) -> Result<(RedisNames, BTreeSet<Session>)> {
    let (url, password) = (args.url.as_str(), password()?);
    let path = root.join("hdd").join(REGISTRY);
    // A tier that was one node's alone has no list yet.
    let registry = if args.repair {
        Registry::open(&path)
    } else {
        Registry::open_existing(&path).map_err(|error| match error.errno() {
            libc::ENOENT if root.join("hdd").is_dir() => without_list(root),
            _ => error,
        })
    }?;
    let origin = registry.store_name()?;
    let (store, registry) = cluster::of_registry(registry, (url, password.as_deref()))?;
    let nodes = sessions::nodes(&*store, &registry)?;
    let mut live = nodes.iter().filter(|node| node.lease_ms > 0);
    if (args.repair || args.confirm)
        && let Some(node) = live.next()
    {
        return Err(Error::invalid(
            format!("{} uses the tier", registry.name(node.session)),
            format!(
                "unmount all nodes first; one that was killed is gone when its lease is over, {} s from now",
                node.lease_ms.div_ceil(1000)
            ),
        ));
    }
    let live = live.map(|node| node.session).collect();
    let names = RedisNames::connect(url, password.as_deref(), &origin);
    let names = names.map_err(|error| {
        Error::invalid(format!("--cluster: {error}"), "see docs/SHARED_TIER.md")
    })?;
    Ok((names, live))
}

/// The error of a check where no node has a list of sessions.
fn without_list(root: &Path) -> Error {
    let shared = root.join("hdd");
    if is_shared_disk(&shared) {
        return Error::invalid(
            format!(
                "{}: the list of sessions ({REGISTRY}) is missing, as where the shared disk was copied or restored",
                text::path(&shared)
            ),
            "if it was moved away, put it back; otherwise unmount all nodes, and have the names built again from the shared disk and all \
             SSDs: this command with --repair, and with --peers as the mounts have it",
        );
    }
    Error::invalid(
        format!(
            "{}: it is not the shared disk of a tier yet, so there are no names to compare it with (it has no {REGISTRY})",
            text::path(&shared)
        ),
        "mount its first node (halocline mount --tier ROOT MOUNTPOINT --cluster URL --node NAME), or, for files that are there already, \
         have the names built from the disks: this command with --repair",
    )
}

fn json(report: Report, repaired: bool) -> ReportJson {
    let [named_directories, named_files, named_others] = report.named;
    let missing = report.missing.into_iter();
    ReportJson {
        repaired,
        rebuilt: report.is_rebuilt,
        named_directories,
        named_files,
        named_others,
        missing_nodes: missing.map(|(node, why)| MissingJson { node, why }).collect(),
        unreached_files: report.unreached_files,
        lost: report.lost,
        remade: report.remade,
        left_copies: report.left_copies,
        left_directories: report.left_directories,
        relisted: report.relisted,
        attributes: report.attributes,
        older: report.older,
        set_aside: report.set_aside,
        conflicts: report.conflicts,
        not_rebuilt: report.not_rebuilt,
        told: report.told,
        may_be_older: report.may_be_older,
        under_way: report.under_way,
        changed_meanwhile: report.changed_meanwhile,
    }
}

fn print(report: &Report, repaired: bool) {
    let is = |done: &'static str, would: &'static str| if repaired { done } else { would };
    for (node, why) in &report.missing {
        say!("{}: its SSD is not reached: {}", text::line(node), text::line(why));
    }
    if report.unreached_files > 0 {
        say!(
            "{} opened until it is",
            counted_with(
                report.unreached_files,
                "file",
                ("there keeps its name, and cannot be", "there keep their names, and cannot be")
            )
        );
    }
    let [directories, files, others] = report.named;
    if report.is_rebuilt {
        say!(
            "the store has no names, or may have forgotten some: {} built again from the disks",
            is("they were", "they would be")
        );
    }
    if directories + files + others > 0 {
        say!(
            "{}, {} and {} {} names",
            counted(directories, "directory"),
            counted(files, "file"),
            counted(others, "other name"),
            is("got", "would get")
        );
    }
    print_mends(report, is);
    print_not_rebuilt(report);
    for line in &report.told {
        say!("{}", text::line(line));
    }
    if report.is_clean() {
        say!("the names and the disks agree");
    }
    for (count, why) in [
        (report.under_way, "nodes that are mounted have yet to complete what they began"),
        (report.changed_meanwhile, "nodes changed what differed while the check looked"),
    ] {
        if count > 0 {
            say!("{} not told: {why}", counted_with(count, "difference", ("is", "are")));
        }
    }
}

/// Names and attributes that only the store has for certain.
fn print_not_rebuilt(report: &Report) {
    if !report.is_rebuilt && !report.not_rebuilt.is_empty() {
        say!(
            "note: {} would be lost with the store; it is no fault of the disks",
            counted(report.not_rebuilt.len(), "thing")
        );
    }
    for line in &report.not_rebuilt {
        say!("{}", text::line(line));
    }
}

/// Says what was read of a tier whose list of nodes is lost.
fn say_read(report: &Report) {
    let nodes: Vec<_> = report.read.iter().map(|node| text::line(node)).collect();
    say!(
        "the SSDs of these nodes were read: {}. If a node is not among them, mount it, unmount all, and repair again with its SSD \
         reached by --peers: its files get their names then",
        nodes.join(", ")
    );
}

/// Says what to do after a check that has changed nothing.
fn say_remedy(report: &Report, may_be_older: bool) {
    if may_be_older && !report.is_clean() {
        say!(
            "nothing was changed. If the store was loaded from an older file, so that it has lost its last changes: restart its \
             server, and have the names built again from the disks (this command with --repair, and without --confirm)"
        );
        if is_repairable(report) {
            say!("if it has lost nothing: --repair does it");
        }
    } else if is_repairable(report) {
        say!("nothing was changed; --repair does it");
    }
}

/// Whether a repair would change anything: bytes that are missing, or not reached, it does not bring back.
fn is_repairable(report: &Report) -> bool {
    let Report { remade, left_copies, left_directories, relisted, attributes, older, .. } = report;
    let lists = [remade, left_copies, left_directories, relisted, attributes, older];
    report.is_rebuilt
        || report.named.iter().any(|named| *named > 0)
        || lists.iter().any(|list| !list.is_empty())
        || !report.set_aside.is_empty()
}

/// What was put right, or would be.
fn print_mends(report: &Report, is: impl Fn(&'static str, &'static str) -> &'static str) {
    let each = |lines: &[String], what: &str| {
        for line in lines {
            say!("{}: {what}", text::line(line));
        }
    };
    each(&report.lost, "its bytes are not there; bring back the disk that has them");
    each(
        &report.remade,
        is("put as the store has it", "on the shared disk, it is not as the store has it"),
    );
    each(
        &report.left_copies,
        is("a copy that a move left; removed", "a copy that a move left; would be removed"),
    );
    each(
        &report.left_directories,
        is(
            "a directory that was removed, or never got its name; removed",
            "a directory that was removed, or never got its name; would be removed",
        ),
    );
    each(
        &report.relisted,
        is(
            "its names, or its number, are recorded with it as the store has them",
            "the names, or the number, that are recorded with it are not those in the store",
        ),
    );
    each(
        &report.attributes,
        is("the store and the disk agree now", "the store and the disk differ"),
    );
    each(
        &report.older,
        is(
            "the disk has an older version, and the newer one is gone (unless only its time was set back); the store has the older \
             one now",
            "the disk has an older version, as if an earlier state of it was put back, or as after a power loss before a sync; if the \
             disk with the newer one is still there, bring that back; --repair makes the older one the file",
        ),
    );
    each(
        &report.conflicts,
        is(
            "look at both, and rename or remove one",
            "look at both afterwards, and rename or remove one",
        ),
    );
    each(
        &report.set_aside,
        is(
            "no name leads to it; it is in .halocline/leftovers now",
            "no name leads to it; it would be put into .halocline/leftovers",
        ),
    );
}
