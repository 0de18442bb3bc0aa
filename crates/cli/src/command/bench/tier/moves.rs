//! Promotion and demotion of a large file, against `cp` between the two directories.
//!
//! A migration makes its copy durable before it removes the original; `cp` alone does not, so it
//! is measured with and without `sync` of the copy.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use halocline_core::control::{Client, MoveReport, Place, Request, Status};
use halocline_core::error::Result;
use rustix::process::Signal;

use super::setup::Setup;
use super::{Row, files, mebibytes, median};
use crate::command::bench::bind::bind;

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

pub(super) fn measure(setup: &Setup, bytes: u64, repetitions: u32) -> Result<Vec<Row>> {
    let path = setup.tier().join(NAME);
    files::open(&path, bytes)?.sync_all()?;
    let place = Place::find(&path)?;
    let mut client = place.connect()?;
    let (mut down, mut up, mut plain, mut synced) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (ssd, hdd) = (setup.below("ssd").join(NAME), setup.below("hdd").join("copied"));
    // The old copy is freed after a move, as cp's copies are removed here after each: not timed. An
    // answered status waits for it.
    let freed = |client: &mut Client| client.call::<Status>(&Request::Status {}, |_| {}).map(drop);
    for _ in 0..repetitions {
        plain.push(copy(&ssd, &hdd, false)?);
        synced.push(copy(&ssd, &hdd, true)?);
        let demote = Request::Evict { path: place.inside.clone(), dry_run: false };
        down.push(timed(|| client.call::<MoveReport>(&demote, |_| {}).map(drop))?);
        freed(&mut client)?;
        let warm = Request::Warm { paths: vec![place.inside.clone()], dry_run: false };
        up.push(timed(|| client.call::<MoveReport>(&warm, |_| {}).map(drop))?);
        freed(&mut client)?;
    }
    fs::remove_file(&path)?;
    let rate = |seconds: Vec<f64>| mebibytes(bytes) / median(seconds);
    let (down, up, plain, synced) = (rate(down), rate(up), rate(plain), rate(synced));
    let row = |what: &str, tier, baseline| {
        Row::new("moves", what.to_owned(), "MiB/s", tier, baseline, None)
    };
    Ok(vec![
        row("demote", down, ("cp and sync", synced)),
        row("promote", up, ("cp and sync", synced)),
        row("demote", down, ("cp, not durable", plain)),
        row("promote", up, ("cp, not durable", plain)),
    ])
}
