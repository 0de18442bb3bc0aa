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
use halocline_storage::volume::origin::relayout::{self, LayoutChange, Move, Relayout, Step, Wish};
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
/// The origin must not be mounted. Everything is checked before anything is moved: servers, files, free space. A file
/// that is killed on its way, or cannot be moved, has its old layout or its new one; the same command goes on. What is wrong with one
/// file keeps no other from being moved.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    place: PlacementArgs,
    /// Only tell what would be moved
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Where the plan leaves the layout alone, move its files to the default stripes that it was compared with
    #[arg(long)]
    to_default: bool,
}

/// What `apply --json` says.
#[derive(Debug, Serialize)]
struct Applied {
    dry_run: bool,
    cleared: bool,
    left_alone: bool,
    bytes: u64,
    files: Vec<FileJson>,
    missing: Vec<String>,
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
        let found = args.place.look(&origin, &wishes)?;
        let moves = relayout::moves(&origin, &found.files).map_err(Failure::refused)?;
        return report(args, &plan, &origin, &ApplyResult { found, moves, cleared: false });
    }
    let wanted = ClaimRequest { dirs: &[&dir], cache: Path::new(""), use_as: UseAs::OnlyUser };
    let _claim = Claim::take(&wanted).map_err(|taken| Failure::refused(Error::from(taken)))?;
    let volume = Relayout::open(&dir).map_err(Failure::refused)?;
    let origin = volume.origin();
    let wishes = wishes(args, &mut plan, origin)?;
    let interruption = Interruption::listen()?;
    let mut found = args.place.look(origin, &wishes)?;
    let files = &found.files;
    let cleared = volume.clear_moves(&mut |_| Ok(()))?;
    let moves = relayout::moves(origin, files).map_err(Failure::refused)?;
    // The check may take long, and if everything is in place nothing else checks for signals.
    if let Some(signal) = interruption.signal() {
        return Err(interrupted(signal, 0, files.iter().filter(|file| !file.agrees()).count()));
    }
    let failed = move_all(&volume, &moves, &interruption, args.place.json)?;
    let left: BTreeSet<&Path> = failed.iter().map(|(path, _)| path.as_path()).collect();
    found.files.retain(|file| !left.contains(file.path.as_path()));
    found.failed.extend(failed);
    // The earlier state stays in the answer; the space used is the current one, unless the file is gone by now.
    for file in &mut found.files {
        file.used = relayout::used(origin, file).unwrap_or_default();
        file.used.resize(origin.servers().len(), 0);
    }
    report(args, &plan, origin, &ApplyResult { found, moves, cleared })
}

impl ApplyArgs {
    /// Whether nothing is to be moved, however the files lie.
    fn leaves_alone(&self, plan: &Plan) -> bool {
        plan.leaves_alone() && !self.to_default
    }
}

/// The layouts of the plan for the files of `origin`; those that they have, in the plan, too, where it leaves them alone.
fn wishes(args: &ApplyArgs, plan: &mut Plan, origin: &Origin) -> Result<Vec<Wish>, Failure> {
    args.place.check_servers(plan, origin)?;
    if args.leaves_alone(plan) {
        args.place.plan_as_they_lie(plan, origin)?;
    }
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
/// An interruption, and a failure after which the next move would lose what the last one left.
fn move_all(
    volume: &Relayout,
    moves: &[Move],
    interruption: &Interruption,
    quiet: bool,
) -> Result<Vec<(PathBuf, Error)>, Failure> {
    // Sizes are set by users, also of files with holes.
    let total_bytes = moves.iter().map(|it| it.change.size).fold(0, u64::saturating_add);
    let files = |moves: &[Move]| moves.iter().filter(|it| !it.is_detour).count();
    let mut meter = Meter::new("moving", quiet);
    let (mut done_bytes, mut failed) = (0_u64, Vec::<(PathBuf, Error)>::new());
    for (tried, Move { change: file, .. }) in moves.iter().enumerate() {
        // Its detour, which comes just before it, failed.
        if failed.last().is_some_and(|(path, _)| *path == file.path) {
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
        if let Err(Stopped { error, cut_over }) = move_one(volume, file, &mut before, &mut tell) {
            let (ended, all) = (files(&moves[..tried]).saturating_sub(failed.len()), files(moves));
            if !cut_over && let Some(signal) = interruption.signal() {
                drop(meter);
                return Err(interrupted(signal, ended, all));
            }
            if !cut_over {
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
    }
    Ok(failed)
}

/// What a system call that changes an attribute says if it has changed nothing.
const REFUSED_CUTOVER: [i32; 7] = [
    libc::ENODATA,
    libc::EEXIST,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::E2BIG,
    libc::EACCES,
    libc::EPERM,
];

/// A move that failed.
#[derive(Debug)]
struct Stopped {
    error: Error,
    /// It was at the cutover, or later.
    cut_over: bool,
}

/// Moves a file. If the move fails before the cutover, clears what it left; at the cutover or later, it may be known only
/// in memory which object the file names, so both objects stay for the next apply.
fn move_one(
    volume: &Relayout,
    file: &LayoutChange,
    before: &mut dyn FnMut(Step) -> Result<(), Error>,
    tell: &mut dyn FnMut(u64),
) -> Result<(), Stopped> {
    let (mut cut_over, mut settled) = (false, false);
    let mut before = |step| {
        before(step)?;
        cut_over |= step >= Step::CutOver;
        settled |= step >= Step::Settle;
        Ok(())
    };
    let Err(error) = volume.relayout(file, &mut before, tell) else { return Ok(()) };
    // The file's owner, or what room its attributes leave, kept it from naming another object: it is as it was.
    cut_over &= !REFUSED_CUTOVER.contains(&error.errno()) || settled;
    if !cut_over && let Err(error) = volume.clear_moves(&mut |_| Ok(())) {
        tell!("what the move left is cleared by the next one: {error}");
    }
    Err(Stopped { error, cut_over })
}

/// What was done, or would be.
struct ApplyResult {
    found: FoundFiles,
    moves: Vec<Move>,
    /// Whether an interrupted move had left something.
    cleared: bool,
}

fn report(args: &ApplyArgs, plan: &Plan, origin: &Origin, done: &ApplyResult) -> Outcome {
    let ApplyResult { found: FoundFiles { files, missing, failed }, moves, cleared } = done;
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
        let (dry_run, cleared, left_alone) = (args.dry_run, *cleared, args.leaves_alone(plan));
        let failed = failed.iter().map(FailedJson::of).collect();
        print_json(&Applied {
            dry_run,
            cleared,
            left_alone,
            bytes,
            files,
            missing,
            failed,
            servers,
        })?;
        return outcome(args, done);
    }
    if *cleared {
        say!("what an interrupted move had left is removed");
    }
    if args.leaves_alone(plan) {
        say!(
            "the plan leaves the layout of its files alone, however they lie: nothing to move; --to-default moves them to the \
             default stripes"
        );
    }
    let verb = if args.dry_run { "would be moved" } else { "moved" };
    for file in to_move() {
        let (path, bytes) = (text::path(&file.path), text::bytes(file.data_bytes()));
        let (now, wished) = (placement::told(&file.now), placement::told(&file.wished));
        say!("{path}: {bytes} {verb}, from {now} to {wished}");
        if let Some(Move { change, .. }) = detours.get(file.path.as_path()) {
            let way = placement::told(&change.wished);
            say!("{path}: by way of {way}, because the copy does not fit beside it");
        }
    }
    for path in missing {
        say!("{}: not there, left out", text::path(path));
    }
    for server in &servers {
        let dir = text::path(Path::new(&server.directory));
        let planned = text::bytes(server.planned_bytes);
        say!("{} ({dir}): {planned} of the plan's files", server.name);
    }
    let in_place = files.len() - to_move().count();
    let (files, bytes) = (counted(to_move().count(), "file"), text::bytes(bytes));
    say!("{files}, {bytes} {verb}; {in_place} in place already");
    outcome(args, done)
}

/// Tells of the files that cannot be moved; there is no success then.
fn outcome(args: &ApplyArgs, done: &ApplyResult) -> Outcome {
    let FoundFiles { files, failed, .. } = &done.found;
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    for (path, error) in failed {
        let error = error.to_string();
        let told = text::path(path);
        tell!("{}", if error.contains(&told) { error } else { format!("{told}: {error}") });
    }
    let to_move = files.iter().filter(|file| !file.agrees()).count();
    let (all, moved) = (to_move + failed.len(), counted(to_move, "file"));
    let verb = if args.dry_run { "would be moved" } else { "moved" };
    let (them, have) =
        (counted(failed.len(), "file"), if failed.len() == 1 { "has" } else { "have" });
    Err(Failure::failed(format!(
        "{moved} of {all} {verb}; {them} {have} the old layout, for the reasons above: apply the plan again when they are mended"
    )))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use halocline_api::config::{VolumeKind, VolumeShape};
    use halocline_model::file_layout::FileLayout;

    const SHAPE: VolumeShape = VolumeShape { kind: VolumeKind::Striped, servers: 3, stripe: 4096 };

    /// What failed after the cutover was cleared like what failed before it: after a power loss the file could name the
    /// object that was gone.
    #[test]
    fn what_a_move_leaves_is_cleared_only_where_it_failed_before_the_cutover() {
        for (failing, clears) in [
            (Step::Copy, true),
            (Step::CutOver, true),
            (Step::Settle, false),
            (Step::Remove, false),
        ] {
            let scratch = tempfile::tempdir().unwrap();
            let made = Origin::open_or_create(scratch.path(), SHAPE, &|_, device| device).unwrap();
            let path = made.namespace_dir().join("file");
            let node = File::options().create_new(true).read(true).write(true).open(path).unwrap();
            made.adopt_data(node).unwrap().write_at(0, &vec![7; 100_000]).unwrap();
            drop(made);
            let mut volume = Err(());
            // A process that another test starts has its lock until it runs its program.
            halocline_testkit::waiting::eventually("the volume", || {
                volume = Relayout::open(scratch.path()).map_err(drop);
                volume.is_ok()
            });
            let volume = volume.unwrap();
            let layout = FileLayout::from_parts([(0, vec![4096, 4096, 16384])]).unwrap();
            let wishes = [Wish { path: "file".into(), layout }];
            let file = relayout::look(volume.origin(), &wishes, true).unwrap().remove(0);
            let mut before = |step| {
                let error = std::io::Error::from(std::io::ErrorKind::StorageFull).into();
                if step == failing { Err(error) } else { Ok(()) }
            };
            let stopped = move_one(&volume, &file, &mut before, &mut |_| ()).unwrap_err();
            assert_eq!(stopped.cut_over, !clears, "{failing:?}: {}", stopped.error);
            let left = volume.clear_moves(&mut |_| Ok(())).unwrap();
            assert_eq!(left, !clears, "{failing:?}: both objects stay for the next apply");
        }
    }
}
