//! A check while nodes are at work: it looks again before it tells of a difference.
//!
//! The disks are read before the store, and a change is made on one before the other. So what is made, moved, renamed,
//! written or removed meanwhile differs, and no longer does when the change is over.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use halocline_cluster::names::{NameStore, State};
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use halocline_os::error::Result;

use super::copies::CleanCopies;
use super::disks::Disks;
use super::findings::Findings;
use super::merge::merge;
use super::numbers::Shown;
use super::report::Report;
use super::view::View;
use super::{Repair, found_elsewhere, is_sound, long_lists, of_store, run, unseen};
use crate::places::own_xattrs::owner_permissions::OnlyLooking;

/// The pauses before it looks again. Together longer than a change takes: its node waits 3 s for the store's answer, and
/// a quarter of a second for another node's lease.
const PAUSES: [Duration; 2] = [Duration::from_millis(1500), Duration::from_millis(2500)];

/// Looks once, and changes nothing. The sessions in `live` may be changing names, attributes and places meanwhile.
pub(super) fn look(
    (root, peers): (&Path, Option<&str>),
    store: &dyn NameStore,
    live: &BTreeSet<Session>,
) -> Result<Findings> {
    let _looking = OnlyLooking::begin();
    let mut disks = Disks::read(root, peers)?;
    let state = store.refresh().map_err(of_store)?;
    let is_sound = is_sound(&state, &disks)?;
    let mut view = match state {
        State::Confirmed if is_sound => View::read(store).map_err(of_store)?,
        State::Held if is_sound => return Err(disks.why_held()?),
        _ => View::default(),
    };
    if is_sound {
        unseen::assume(&mut disks, &view);
        long_lists::read_by_name(&mut disks, &view);
    }
    let mut numbers = Shown::new();
    let mut found = merge(&disks.all, &view, &mut numbers)?;
    let mut clean = CleanCopies::read(&disks, (&mut found, &view), !is_sound, &numbers)?;
    let moved = found_elsewhere::follow(&disks, &mut view, &found);
    let mut repair = Repair::new(&disks, view, (!is_sound, live))?;
    let mut findings = repair.plan(&found)?;
    found_elsewhere::tell(&moved, &repair, &mut findings);
    clean.plan(&repair, &found, &mut findings);
    Ok(findings)
}

/// As [`run`] without a repair, of a tier that the sessions in `live` use. Told is what each look finds; of
/// the rest how much there was.
///
/// # Errors
/// If the store does not answer, or the shared disk cannot be read.
pub fn check(
    root: &Path,
    peers: Option<&str>,
    store: &dyn NameStore,
    (live, clock): (&BTreeSet<Session>, &Clock),
) -> Result<Report> {
    if live.is_empty() {
        return run(root, peers, store, None);
    }
    let mut findings = look((root, peers), store, live)?;
    let mut changed = 0;
    for pause in PAUSES {
        if findings.is_rebuilt || findings.are_none() && findings.under_way == 0 {
            break;
        }
        clock.sleep(pause);
        let mut later = look((root, peers), store, live)?;
        if later.is_rebuilt {
            return Ok(Findings::report(later));
        }
        changed += findings.keep_those_in(&mut later);
    }
    Ok(Report { changed_meanwhile: changed, ..findings.report() })
}

#[cfg(test)]
mod tests;
