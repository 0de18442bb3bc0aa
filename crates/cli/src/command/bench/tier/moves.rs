//! Promotion and demotion of a large file, against `cp` between the two directories; and of many
//! small ones ([`small`]).
//!
//! A migration makes its copy durable before it removes the original; `cp` alone does not, so it is measured with and
//! without `sync` of the copy. All directories are on one device: copying costs the same in both directions, except for
//! the effects of what came before.

pub(super) mod small;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use halocline_api::control::{Client, MountedPath, MoveReport, Request, Status};
use halocline_os::bound_process::bind;
use halocline_os::error::{Error, Result};
use rustix::process::Signal;

use super::setup::Setup;
use super::{Row, files, mebibytes, median};
use crate::command::bench::scratch;

const NAME: &str = "large";

/// Seconds that `act` takes.
fn timed(act: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    act()?;
    Ok(begun.elapsed().as_secs_f64())
}

fn copy(from: &Path, to: &Path, sync: bool) -> Result<f64> {
    let seconds = timed(|| {
        bind(Command::new("cp").arg(from).arg(to), Signal::KILL).status()?;
        if sync {
            File::open(to)?.sync_all()?;
        }
        Ok(())
    })?;
    fs::remove_file(to)?;
    Ok(seconds)
}

/// Where the bytes of a file are before it is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    InMemory,
    OnDevice,
}

impl Source {
    const ALL: [(Self, &str); 2] =
        [(Self::InMemory, "in memory"), (Self::OnDevice, "not in memory")];

    /// Brings a file into this state, because earlier measurements may have left it in another.
    fn prepare(self, path: &Path) -> Result<()> {
        match self {
            Self::InMemory => drop(io::copy(&mut File::open(path)?, &mut io::sink())?),
            Self::OnDevice => scratch::forget_pages_of(path)?,
        }
        Ok(())
    }
}

/// How a file gets to the other tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MoveMethod {
    Move,
    CopyAndSync,
    Copy,
}

impl MoveMethod {
    const ALL: [Self; 3] = [Self::Move, Self::CopyAndSync, Self::Copy];
}

/// Seconds of each repetition, by [`MoveMethod`].
#[derive(Debug, Default)]
struct Seconds {
    down: [Vec<f64>; MoveMethod::ALL.len()],
    up: [Vec<f64>; MoveMethod::ALL.len()],
}

pub(super) fn measure(setup: &Setup, bytes: u64, repetitions: u32) -> Result<Vec<Row>> {
    let path = setup.tier().join(NAME);
    files::open(&path, bytes)?.sync_all()?;
    let mut migrator = Migrator::of(&path)?;
    let mut seconds = Source::ALL.map(|_| Seconds::default());
    migrator.moved(MoveDirection::Down)?;
    migrator.moved(MoveDirection::Up)?;
    for _ in 0..repetitions {
        for ((source, _), seconds) in Source::ALL.iter().zip(&mut seconds) {
            for how in MoveMethod::ALL {
                there_and_back(setup, &mut migrator, (*source, how), seconds)?;
            }
        }
    }
    fs::remove_file(&path)?;
    let rows = Source::ALL.iter().zip(seconds);
    Ok(rows.flat_map(|((_, state), seconds)| seconds.rows(state, bytes)).collect())
}

/// Moves the file down and up again. Each timed move comes right after a copy that is not timed, and that copy after a
/// move in the other direction: what was written and removed before determines how expensive new pages and blocks are,
/// especially in a virtual machine.
fn there_and_back(
    setup: &Setup,
    migrator: &mut Migrator,
    (source, how): (Source, MoveMethod),
    seconds: &mut Seconds,
) -> Result<()> {
    let copy_to = setup.below("bare").join("copied");
    let directions = [
        ("ssd", MoveDirection::Down, &mut seconds.down),
        ("hdd", MoveDirection::Up, &mut seconds.up),
    ];
    for (side, direction, seconds) in directions {
        let path = setup.below(side).join(NAME);
        copy(&path, &copy_to, false)?;
        source.prepare(&path)?;
        let mut by_cp = None;
        if how != MoveMethod::Move {
            by_cp = Some(copy(&path, &copy_to, how == MoveMethod::CopyAndSync)?);
            source.prepare(&path)?;
        }
        let by_move = migrator.moved(direction)?;
        seconds[how as usize].push(by_cp.unwrap_or(by_move));
    }
    Ok(())
}

/// From one tier to the other.
#[derive(Debug, Clone, Copy)]
enum MoveDirection {
    Down,
    Up,
}

/// Moves a file, or everything in a directory, through the mount's control socket.
struct Migrator {
    client: Client,
    path: PathBuf,
}

impl Migrator {
    fn of(path: &Path) -> Result<Self> {
        let mounted = MountedPath::find(path)?;
        Ok(Self { client: mounted.connect()?, path: mounted.inside })
    }

    /// Seconds that moving it takes.
    fn moved(&mut self, direction: MoveDirection) -> Result<f64> {
        let path = self.path.clone();
        let request = match direction {
            MoveDirection::Down => Request::Evict { path, dry_run: false },
            MoveDirection::Up => Request::Warm { paths: vec![path], dry_run: false },
        };
        let taken = timed(|| {
            let report = self.client.call::<MoveReport>(&request, |_| {})?;
            let stayed = report.skipped.first().map(|file| io::Error::other(file.reason.clone()));
            stayed.map_or(Ok(()), |why| Err(Error::at(&self.path, "move")(why)))
        })?;
        // The old copy is freed after a move, just as cp's copies are removed here after each copy: neither is timed. A
        // status is answered only once it has been freed.
        self.client.call::<Status>(&Request::Status {}, |_| {})?;
        Ok(taken)
    }
}

impl Seconds {
    fn rows(self, state: &str, bytes: u64) -> [Row; 4] {
        let rate = |seconds: Vec<f64>| mebibytes(bytes) / median(seconds);
        let [[down, down_synced, down_plain], [up, up_synced, up_plain]] =
            [self.down, self.up].map(|seconds| seconds.map(rate));
        let row = |what, tier, baseline| {
            Row::new("moves", format!("{what}, {state}"), "MiB/s", tier, baseline, None)
        };
        [
            row("demote", down, ("cp and sync", down_synced)),
            row("promote", up, ("cp and sync", up_synced)),
            row("demote", down, ("cp, not durable", down_plain)),
            row("promote", up, ("cp, not durable", up_plain)),
        ]
    }
}
