//! One directory of many entries, which the mounts of all nodes make at once; then one of them lists it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use halocline_os::error::Error;

use super::super::load::{operations_per_second, resident_bytes};
use super::super::record::Large;
use super::{at_once, create};
use crate::child::Signals;
use crate::command::bench::interrupted;
use crate::failure::Failure;

/// Entries between two looks at signals, and two lines for whoever waits.
const PIECE: u64 = 50_000;
/// Of the entries, how many are made in own directories before, and again after; and the least and most.
const OWN_SHARE: u64 = 10;
const OWN_RANGE: (u64, u64) = (200, 100_000);

/// Makes it in the mounts at `places`, whose processes have the numbers `mounts`. Creates in own directories are measured
/// just before and after, since other work on the machine may change meanwhile.
///
/// # Errors
/// If a mount refuses something, another number of entries is listed, or a signal ends it.
pub(super) fn measure(
    places: &[PathBuf],
    mounts: &[u32],
    entries: u64,
    tell: &dyn Fn(&str),
    signals: &mut Signals,
) -> Result<Large, Failure> {
    let nodes = places.len() as u64;
    let own = (entries / OWN_SHARE).clamp(OWN_RANGE.0, OWN_RANGE.1).max(nodes);
    let in_own = |name: &'static str| move |node: usize| format!("large/{name}{node}");
    made(places, &["large", "large/all"])?;
    let before = makes(places, &in_own("before"), own, &|_| (), signals)?;
    let in_one = makes(places, &|_| "large/all".to_owned(), entries, tell, signals)?;
    let after = makes(places, &in_own("after"), own, &|_| (), signals)?;
    let own_per_second = f64::midpoint(before, after);
    let resident = || mounts.first().map_or(0, |id| resident_bytes(*id));
    let resident_bytes_before = resident();
    let mut resident_bytes_most = resident_bytes_before;
    let directory = places[0].join("large/all");
    let begun = Instant::now();
    let mut listed = 0;
    let at = |_: &Path| Error::at(directory.clone(), "list the directory");
    for entry in fs::read_dir(&directory).map_err(at(&directory))? {
        entry.map_err(at(&directory))?;
        listed += 1;
        if listed % PIECE == 0 {
            resident_bytes_most = resident_bytes_most.max(resident());
        }
    }
    let list_seconds = begun.elapsed().as_secs_f64();
    if listed != entries {
        return Err(Failure::failed(format!("{listed} entries are listed of {entries}")));
    }
    Ok(Large {
        entries,
        clients: u32::try_from(nodes).unwrap_or(u32::MAX),
        create_per_second: in_one,
        own_create_per_second: Some(own_per_second),
        ratio: Some(in_one / own_per_second),
        list_seconds,
        listed_per_second: operations_per_second(entries, list_seconds),
        pages: None,
        resident_bytes_before,
        resident_bytes_most: resident_bytes_most.max(resident()),
    })
}

/// Makes directories through the first mount.
fn made(places: &[PathBuf], names: &[&str]) -> Result<(), Failure> {
    for name in names {
        let path = places[0].join(name);
        fs::create_dir_all(&path).map_err(Error::at(&path, "make the directory"))?;
    }
    Ok(())
}

/// How many files a second all mounts together make, each in the directory that `directory` names.
fn makes(
    places: &[PathBuf],
    directory: &(dyn Fn(usize) -> String + Sync),
    entries: u64,
    tell: &dyn Fn(&str),
    signals: &mut Signals,
) -> Result<f64, Failure> {
    for node in 0..places.len() {
        made(places, &[&directory(node)])?;
    }
    let nodes = places.len() as u64;
    let (mut seconds, mut done) = (0.0, 0);
    while done < entries {
        if let Some(signal) = signals.stop_signal() {
            return Err(interrupted(signal));
        }
        let end = (done + PIECE).min(entries);
        let paths = |node: usize| -> Vec<PathBuf> {
            let own = (done..end).filter(|number| number % nodes == node as u64);
            let place = places[node].join(directory(node));
            own.map(|number| place.join(format!("entry{number}"))).collect()
        };
        let took = at_once(places.len(), &paths, create)
            .map_err(Error::at(places[0].join("large"), "make files"))?;
        seconds += took.as_secs_f64();
        done = end;
        tell(&format!(
            "{done} of {entries} entries, {:.0} a second",
            operations_per_second(done, seconds)
        ));
    }
    Ok(operations_per_second(entries, seconds))
}
