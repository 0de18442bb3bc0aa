//! Promotion and demotion of a large file, against `cp` between the two directories.
//!
//! A migration makes its copy durable before it removes the original; `cp` alone does not, so it
//! is measured with and without `sync` of the copy.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use halocline_core::control::{Client, MoveReport, Place, Request, Status};
use halocline_core::error::{Error, Result};
use rustix::process::Signal;

use super::setup::Setup;
use super::{Row, files, mebibytes, median};
use crate::command::bench::bind::bind;
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

    /// Brings a file into this state: what was measured before may have left it in another.
    fn prepare(self, path: &Path) -> Result<()> {
        match self {
            Self::InMemory => drop(io::copy(&mut File::open(path)?, &mut io::sink())?),
            Self::OnDevice => scratch::forget_pages_of(path)?,
        }
        Ok(())
    }
}

/// Seconds of each repetition.
#[derive(Default)]
struct Seconds {
    down: Vec<f64>,
    up: Vec<f64>,
    plain: Vec<f64>,
    synced: Vec<f64>,
}

pub(super) fn measure(setup: &Setup, bytes: u64, repetitions: u32) -> Result<Vec<Row>> {
    let path = setup.tier().join(NAME);
    files::open(&path, bytes)?.sync_all()?;
    let place = Place::find(&path)?;
    let mut client = place.connect()?;
    let mut seconds = Source::ALL.map(|_| Seconds::default());
    for _ in 0..repetitions {
        for ((source, _), seconds) in Source::ALL.iter().zip(&mut seconds) {
            repeat(setup, &place, &mut client, *source, seconds)?;
        }
    }
    fs::remove_file(&path)?;
    let rows = Source::ALL.iter().zip(seconds);
    Ok(rows.flat_map(|((_, state), seconds)| seconds.rows(state, bytes)).collect())
}

/// Each once.
fn repeat(
    setup: &Setup,
    place: &Place,
    client: &mut Client,
    source: Source,
    seconds: &mut Seconds,
) -> Result<()> {
    let hdd = setup.below("hdd");
    let (ssd, moved, copied) = (setup.below("ssd").join(NAME), hdd.join(NAME), hdd.join("copied"));
    // The old copy is freed after a move, as cp's copies are removed here after each: not timed. An
    // answered status waits for it.
    let mut asked = |request: &Request| {
        let taken = timed(|| {
            let report = client.call::<MoveReport>(request, |_| {})?;
            let stayed = report.skipped.first().map(|file| io::Error::other(file.reason.clone()));
            stayed.map_or(Ok(()), |why| Err(Error::at(NAME, "move")(why)))
        })?;
        client.call::<Status>(&Request::Status {}, |_| {})?;
        Ok::<_, Error>(taken)
    };
    source.prepare(&ssd)?;
    seconds.plain.push(copy(&ssd, &copied, false)?);
    source.prepare(&ssd)?;
    seconds.synced.push(copy(&ssd, &copied, true)?);
    source.prepare(&ssd)?;
    let path = place.inside.clone();
    seconds.down.push(asked(&Request::Evict { path: path.clone(), dry_run: false })?);
    source.prepare(&moved)?;
    seconds.up.push(asked(&Request::Warm { paths: vec![path], dry_run: false })?);
    Ok(())
}

impl Seconds {
    fn rows(self, state: &str, bytes: u64) -> [Row; 4] {
        let rate = |seconds: Vec<f64>| mebibytes(bytes) / median(seconds);
        let (down, up) = (rate(self.down), rate(self.up));
        let synced = ("cp and sync", rate(self.synced));
        let plain = ("cp, not durable", rate(self.plain));
        let row = |what, tier, baseline| {
            Row::new("moves", format!("{what}, {state}"), "MiB/s", tier, baseline, None)
        };
        [
            row("demote", down, synced),
            row("promote", up, synced),
            row("demote", down, plain),
            row("promote", up, plain),
        ]
    }
}
