//! `halocline apply`: the files of a striped origin in the layouts of a plan (docs/PLANNING.md).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clap::Args;
use halocline_api::control::{Claim, ClaimRequest, Progress, UseAs};
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_os::open_files::raise_limit;
use halocline_plan::plan_file::Plan;
use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::relayout::{
    self, Cleared, LayoutChange, Leftovers, Move, Moved, Relayout, Step, Stopped, Wish,
};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::placement::{self, FailedJson, FoundFiles, PartJson, PlacementArgs, ServerBytes};
use super::print_json;
use crate::child::is_ignored;
use crate::failure::{Failure, Outcome};
use crate::print::{say, tell};
use crate::progress::Meter;
use crate::text;

/// Move the files of a striped origin to the layouts of a plan
///
/// The origin must not be mounted. Everything is checked before anything is moved: servers, files, free space. Whatever is killed
/// or fails, a file has all its bytes, in its old layout, its new one or one on the way; the same command goes on. What is wrong with
/// one file keeps no other from being moved.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    place: PlacementArgs,
    /// Only tell what would be moved
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// What `apply --json` says.
#[derive(Debug, Serialize)]
struct Applied {
    dry_run: bool,
    cleared: bool,
    left: usize,
    left_alone: bool,
    bytes: u64,
    files: Vec<FileJson>,
    missing: Vec<String>,
    outside: Vec<String>,
    failed: Vec<FailedJson>,
    servers: Vec<ServerBytes>,
}

#[derive(Debug, Serialize)]
struct FileJson {
    path: String,
    state: &'static str,
    detour: bool,
    bytes: u64,
    before: Vec<PartJson>,
    planned: Vec<PartJson>,
}

/// Applies.
pub(crate) fn execute(args: &ApplyArgs) -> Outcome {
    // Each server, and each file on it, takes some.
    raise_limit();
    let mut plan = placement::read(&args.place.plan)?;
    args.place.wishes(&plan)?;
    let dir = args.place.canonical_dir()?;
    if args.dry_run {
        let origin = Origin::open_to_look(&dir).map_err(Failure::refused)?;
        let wishes = wishes(args, &mut plan, &origin)?;
        let found = args.place.look(&plan, &origin, &wishes)?;
        let left = Leftovers::of(&origin).map_err(Failure::refused)?;
        let freed = left.bytes_by_server(&origin).map_err(Failure::refused)?;
        let moves = relayout::moves(&origin, &found.files, &freed).map_err(Failure::refused)?;
        let leftovers = Cleared { left: left.objects().len(), ..Cleared::default() };
        return report(args, &plan, &origin, &ApplyResult { found, moves, leftovers });
    }
    let wanted = ClaimRequest { dirs: &[&dir], cache: Path::new(""), use_as: UseAs::OnlyUser };
    let _claim = Claim::take(&wanted).map_err(|taken| Failure::refused(Error::from(taken)))?;
    let volume = Relayout::open(&dir).map_err(Failure::refused)?;
    let origin = volume.origin();
    let wishes = wishes(args, &mut plan, origin)?;
    let interruption = Interruption::listen()?;
    let mut found = args.place.look(&plan, origin, &wishes)?;
    let files = &found.files;
    let earlier = volume.clear_moves(&mut |_| Ok(())).map_err(Failure::refused)?;
    let moves = relayout::moves(origin, files, &[]).map_err(Failure::refused)?;
    // The check may take long, and if everything is in place nothing else checks for signals.
    if let Some(signal) = interruption.signal() {
        return Err(interrupted(signal, 0, files.iter().filter(|file| !file.agrees()).count()));
    }
    let failed = move_all(&volume, &moves, &interruption, args.place.json);
    if let (Err(error), Err(_)) = (volume.settle_removals(), &failed) {
        tracing::debug!("what was moved stays noted: {error}");
    }
    let failed = failed?;
    let left: BTreeSet<&Path> = failed.iter().map(|(path, _)| path.as_path()).collect();
    found.files.retain(|file| !left.contains(file.path.as_path()));
    found.failed.extend(failed);
    // The earlier state stays in the answer; the space used is the current one, unless the file is gone by now.
    for file in &mut found.files {
        file.used = relayout::used(origin, file).unwrap_or_default();
        file.used.resize(origin.servers().len(), 0);
    }
    // What was left where names changed may be told by now.
    let later = volume.clear_moves(&mut |_| Ok(()))?;
    let removed = earlier.removed + later.removed;
    report(
        args,
        &plan,
        origin,
        &ApplyResult { found, moves, leftovers: Cleared { removed, ..later } },
    )
}

/// The layouts of the plan for the files of `origin`, or what is wished instead, in the plan, too.
fn wishes(args: &ApplyArgs, plan: &mut Plan, origin: &Origin) -> Result<Vec<Wish>, Failure> {
    args.place.check_servers(plan, origin)?;
    args.place.replace_layouts(plan, origin)?;
    args.place.wishes(plan)
}

/// The first signal that would have ended this process; the next one does.
struct Interruption(Arc<AtomicUsize>);

impl Interruption {
    /// Notes signals from now on.
    fn listen() -> Result<Self, Failure> {
        let (came, again) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if is_ignored(signal) {
                continue;
            }
            let number = usize::try_from(signal).unwrap_or(0);
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            flag::register_usize(signal, Arc::clone(&came), number)?;
        }
        Ok(Self(came))
    }

    /// Its number, if it has come.
    fn signal(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
    }
}

fn interrupted(signal: u8, moved: usize, all: usize) -> Failure {
    let moved = counted(moved, "file");
    Failure::with_status(
        128_u8.saturating_add(signal),
        format!("interrupted; {moved} of {all} moved: apply the plan again to go on"),
    )
}

/// Moves those that need it. Returns the ones that do not have their new layout, each with its error.
///
/// # Errors
/// An interruption, and a failure after which it may be known in memory only which object a file names.
fn move_all(
    volume: &Relayout,
    moves: &[Move],
    interruption: &Interruption,
    quiet: bool,
) -> Result<Vec<(PathBuf, String)>, Failure> {
    // Sizes are set by users, also of files with holes.
    let total_bytes = moves.iter().map(|it| it.change.size).fold(0, u64::saturating_add);
    let files = |moves: &[Move]| moves.iter().filter(|it| !it.is_detour).count();
    let mut meter = Meter::new("moving", quiet);
    let (mut done_bytes, mut failed) = (0_u64, Vec::<(PathBuf, String)>::new());
    let (mut stopped_files, mut on_their_way) = (BTreeSet::new(), BTreeMap::new());
    for (tried, moving) in moves.iter().enumerate() {
        let file = &moving.change;
        // Its detour, which comes before it, failed.
        if stopped_files.contains(&file.path) {
            continue;
        }
        let mut tell = |bytes: u64| {
            done_bytes = bytes.saturating_add(done_bytes);
            let total_bytes = total_bytes.max(done_bytes);
            meter.tell(&Progress { done_bytes, total_bytes, path: file.path.clone() });
        };
        // A file that was cut over is ended whatever comes: little is left to do, and its names must be durable.
        let mut before = |step| match interruption.signal() {
            Some(_) if step <= Step::CutOver => {
                Err(std::io::Error::from(std::io::ErrorKind::Interrupted).into())
            }
            _ => Ok(()),
        };
        let Stopped { error, cut_over } = match volume.relayout(file, &mut before, &mut tell) {
            // If its former object could not be removed, that is tried again at the end, and told.
            Ok(Moved { .. }) => {
                on_their_way.extend(moving.is_detour.then_some((&file.path, &file.wished)));
                continue;
            }
            Err(stopped) => stopped,
        };
        let (ended, all) = (files(&moves[..tried]).saturating_sub(failed.len()), files(moves));
        if !cut_over && let Some(signal) = interruption.signal() {
            drop(meter);
            return Err(interrupted(signal, ended, all));
        }
        if !cut_over {
            let way = on_their_way.get(&file.path).map(|way| placement::told(way));
            let error = way
                .map_or(error.to_string(), |way| format!("{error}; it lies on its way, in {way}"));
            stopped_files.insert(&file.path);
            failed.push((file.path.clone(), error));
            continue;
        }
        drop(meter);
        let ended = counted(ended, "file");
        return Err(Failure::failed(format!(
            "{error}; {ended} of {all} moved, this one has its old layout or its new one: \
             apply the plan again to go on"
        )));
    }
    Ok(failed)
}

/// What was done, or would be.
struct ApplyResult {
    found: FoundFiles,
    moves: Vec<Move>,
    /// What moves have left that were interrupted, or could not remove all.
    leftovers: Cleared,
}

fn report(args: &ApplyArgs, plan: &Plan, origin: &Origin, done: &ApplyResult) -> Outcome {
    let ApplyResult { found: FoundFiles { files, missing, failed }, moves, leftovers } = done;
    let detours = moves.iter().filter(|it| it.is_detour).map(|it| (it.change.path.as_path(), it));
    let detours: BTreeMap<&Path, &Move> = detours.collect();
    let servers = placement::by_server(plan, origin, files);
    let to_move = || files.iter().filter(|file| !file.agrees());
    let bytes = to_move().map(LayoutChange::data_bytes).fold(0, u64::saturating_add);
    if args.place.json {
        let state = |file: &LayoutChange| match (file.agrees(), args.dry_run) {
            (true, _) => "in place",
            (false, true) => "to move",
            (false, false) => "moved",
        };
        let file = |file: &LayoutChange| FileJson {
            path: file.path.to_string_lossy().into_owned(),
            state: state(file),
            detour: detours.contains_key(file.path.as_path()),
            bytes: file.data_bytes(),
            before: placement::parts(&file.now),
            planned: placement::parts(&file.wished),
        };
        let files = files.iter().map(file).collect();
        let missing = missing.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        let (cleared, left) = (leftovers.removed > 0, leftovers.left);
        let outside = args.place.outside(plan);
        let outside = outside.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        let (dry_run, left_alone) = (args.dry_run, args.place.leaves_alone(plan));
        let failed = failed.iter().map(FailedJson::of).collect();
        print_json(&Applied {
            dry_run,
            cleared,
            left,
            left_alone,
            bytes,
            files,
            missing,
            outside,
            failed,
            servers,
        })?;
        return outcome(args, done);
    }
    say_what_is_cleared(args, leftovers);
    if args.place.leaves_alone(plan) {
        say!(
            "the plan leaves the layout of its files alone, however they lie: nothing to move; --to-default moves them to the \
             default stripes"
        );
    }
    say_files(args, &done.found, &detours);
    args.place.say_outside(&args.place.outside(plan));
    placement::say_absent(plan, origin, files);
    for server in &servers {
        let dir = text::path(Path::new(&server.directory));
        say!("{} ({dir}): {}", server.name, server.planned("of the plan's files"));
    }
    let verb = if args.dry_run { "would be moved" } else { "moved" };
    let in_place = files.len() - to_move().count();
    let (files, bytes) = (counted(to_move().count(), "file"), text::bytes(bytes));
    say!("{files}, {bytes} {verb}; {in_place} in place already");
    outcome(args, done)
}

/// The files that are moved, or would be, those that are not, and those that are not there.
fn say_files(args: &ApplyArgs, found: &FoundFiles, detours: &BTreeMap<&Path, &Move>) {
    let FoundFiles { files, missing, failed } = found;
    let (verb, not) = if args.dry_run {
        ("would be moved", "would not be moved")
    } else {
        ("moved", "not moved")
    };
    for file in files.iter().filter(|file| !file.agrees()) {
        let (path, bytes) = (text::path(&file.path), text::bytes(file.data_bytes()));
        let (now, wished) = (placement::told(&file.now), placement::told(&file.wished));
        say!("{path}: {bytes} {verb}, from {now} to {wished}");
        if let Some(Move { change, makes_room_for, .. }) = detours.get(file.path.as_path()) {
            let way = placement::told(&change.wished);
            match makes_room_for {
                Some(other) => {
                    say!("{path}: by way of {way}, to make room for {}", text::path(other));
                }
                None => say!("{path}: by way of {way}, because the copy does not fit beside it"),
            }
        }
    }
    for (path, error) in failed {
        say!("{}: {not}: {error}", text::path(path));
    }
    for path in missing {
        say!("{}: not there, left out", text::path(path));
    }
}

fn say_what_is_cleared(args: &ApplyArgs, leftovers: &Cleared) {
    if args.dry_run && leftovers.left > 0 {
        say!("what an interrupted move has left would be removed");
    }
    if leftovers.removed > 0 {
        say!("what an interrupted move had left is removed");
    }
}

/// What to do about the rest of a move in a copy of a volume in which nothing attests whose it is.
const REMOVE_BY_HAND: &str = "Mount the volume with a cache, and unmount it; then `halocline fsck CACHE` lists what no file names, \
     and tells how to remove it";

/// Tells of what stays of moves that were interrupted, or could not remove all.
fn tell_leftovers(leftovers: &Cleared) {
    if leftovers.left == 0 {
        return;
    }
    for error in &leftovers.unread {
        tell!("{error}");
    }
    let moves = counted(leftovers.left, "move");
    let again = "it is removed when the plan is applied again";
    match &leftovers.error {
        Some(error) => tell!(
            "what {moves} left still takes space ({error}): {again}, or by `halocline fsck CACHE --repair`"
        ),
        None if leftovers.likely == leftovers.left => tell!(
            "what {moves} left still takes space, because this volume is a copy, and nothing tells there whose it is; the files of these \
             moves have other data. {REMOVE_BY_HAND}"
        ),
        None => tell!(
            "what {moves} left still takes space, because no file is found that names one of its objects: it was moved out of the \
             tree, or past the reader, or is in a directory that cannot be read, or on a file system that is not mounted, or gone; {again} and the file is there. If \
             that is gone for good, `halocline fsck CACHE` tells how"
        ),
    }
}

/// Tells of the files that cannot be moved; there is no success then.
fn outcome(args: &ApplyArgs, done: &ApplyResult) -> Outcome {
    if !args.dry_run {
        tell_leftovers(&done.leftovers);
    }
    let FoundFiles { files, failed, .. } = &done.found;
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    for (path, error) in failed {
        let told = text::path(path);
        tell!("{}", if error.contains(&told) { error.clone() } else { format!("{told}: {error}") });
    }
    let to_move = files.iter().filter(|file| !file.agrees()).count();
    let (all, moved) = (to_move + failed.len(), counted(to_move, "file"));
    let verb = if args.dry_run { "would be moved" } else { "moved" };
    let others = counted(failed.len(), "file");
    Err(Failure::failed(format!(
        "{moved} of {all} {verb}; {others} not, for the reasons above: apply the plan again when they are mended"
    )))
}
