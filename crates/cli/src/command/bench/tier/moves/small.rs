//! Promotion and demotion of many small files, against `cp -a` and a sync of their file system.
//!
//! Both take the same files, from the same directory of a tier, one right after the other: so both see the machine in
//! the same state, and sources that were made in the same way.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use halocline_api::control::{MoveReport, Request};
use halocline_os::bound_process::bind;
use halocline_os::error::{Error, Result};
use rustix::process::Signal;

use super::super::setup::Setup;
use super::super::{Row, median};
use super::{Migrator, MoveDirection, timed};

/// The directory of the files.
const NAME: &str = "small";
/// Bytes of each.
const BYTES: usize = 4 << 10;

/// Seconds of each repetition.
#[derive(Debug, Default)]
struct Seconds {
    moved: Vec<f64>,
    copied: Vec<f64>,
}

/// Rows of `count` files that are moved by one command.
pub(in super::super) fn measure(setup: &Setup, count: u64, repetitions: u32) -> Result<Vec<Row>> {
    let dir = setup.tier().join(NAME);
    fs::create_dir(&dir)?;
    for number in 0..count {
        fs::write(dir.join(format!("f{number}")), [number.to_le_bytes()[0]; BYTES])?;
    }
    let mut migrator = Migrator::of(&dir)?;
    let copy_to = setup.below("bare").join("copied");
    let mut directions =
        [("ssd", "demote", MoveDirection::Down), ("hdd", "promote", MoveDirection::Up)]
            .map(|of_direction| (of_direction, Seconds::default()));
    for _ in 0..repetitions {
        for ((side, _, direction), seconds) in &mut directions {
            let from = setup.below(side).join(NAME);
            settle(&mut migrator, &from)?;
            seconds.copied.push(copy(&from, &copy_to)?);
            settle(&mut migrator, &from)?;
            seconds.moved.push(migrator.moved(*direction)?);
        }
    }
    fs::remove_dir_all(&dir)?;
    let rows = directions.map(|((_, name, _), seconds)| {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = |seconds: Vec<f64>| count as f64 / median(seconds);
        let baseline = ("cp -a and sync", rate(seconds.copied));
        let what = format!("{name}, {count} files of 4 KiB");
        Row::new("moves", what, "1/s", rate(seconds.moved), baseline, None)
    });
    Ok(rows.into())
}

/// Seconds that `cp -a` of a directory and a sync take. The copy is removed, which is not timed.
fn copy(from: &Path, to: &Path) -> Result<f64> {
    let seconds = timed(|| {
        let ended = bind(Command::new("cp").arg("-a").arg(from).arg(to), Signal::KILL).status()?;
        if !ended.success() {
            return Err(Error::at(from, "copy")(io::Error::other(ended.to_string())));
        }
        Ok(rustix::fs::syncfs(File::open(to)?)?)
    })?;
    fs::remove_dir_all(to)?;
    Ok(seconds)
}

/// Waits until everything that earlier moves and copies left to do is done, so that it is not timed.
fn settle(migrator: &mut Migrator, on: &Path) -> Result<()> {
    let flush = Request::Flush { path: "".into(), dry_run: false };
    migrator.client.call::<MoveReport>(&flush, |_| {})?;
    Ok(rustix::fs::syncfs(File::open(on)?)?)
}
