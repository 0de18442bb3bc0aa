//! Turns a policy's terms into the answer of `explain`, and says why something is not cached now.

use std::sync::atomic::Ordering;

use halocline_model::admit;
use halocline_model::request::{ByteRange, Direction};

use super::components::Components;
use crate::extent::file::CachedFile;
use crate::health::HealthState;
use halocline_api::config::Mode;
use halocline_api::control::{CostTerms, Explanation, Side};

/// Picoseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn seconds(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1e12
}

/// The answer to a question whose request has `cached_bytes` on the cache already.
pub(super) fn explanation(terms: &admit::Explanation, cached_bytes: u64) -> Explanation {
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    let benefit_s = terms.benefit_ps as f64 / 1e12;
    Explanation {
        policy: terms.policy.clone(),
        processes: terms.processes,
        cached_bytes,
        decision: if terms.critical { Side::Cache } else { Side::Origin },
        reason: terms.reason.clone(),
        now: None,
        note: None,
        nodes: None,
        layout: terms.layout,
        costs: terms.costs.iter().map(cost).collect(),
        benefit_s,
    }
}

fn cost(terms: &admit::CostTerms) -> CostTerms {
    CostTerms {
        side: if terms.on_cache { Side::Cache } else { Side::Origin },
        layout: terms.layout,
        servers: terms.servers,
        largest_part_bytes: terms.largest_part_bytes,
        startup_s: seconds(terms.startup_ps),
        transfer_s: seconds(terms.transfer_ps),
        total_s: seconds(terms.total_ps),
    }
}

/// Why bytes of `range` that are on the origin are not on the cache now, and what would bring
/// them. `critical` is what the policy says of the request.
pub(super) fn why_not_now(
    parts: &Components,
    file: &CachedFile,
    range: ByteRange,
    direction: Direction,
    critical: bool,
) -> Option<String> {
    if file.excluded.load(Ordering::Relaxed) {
        return Some("an exclude glob keeps the file off the cache".to_owned());
    }
    if file.hint.read().cache == Some(false) {
        return Some("a program's hint keeps the file off the cache".to_owned());
    }
    if file.read_below.load(Ordering::Acquire) {
        let why = "the kernel serves the file from memory by itself (`warm_passthrough`)";
        return Some(why.to_owned());
    }
    if !critical {
        return None;
    }
    if !parts.health.admits(parts.clock.now_ms()) {
        let health = parts.health.report();
        let reason = health.reason.unwrap_or_default();
        return Some(match health.state {
            HealthState::Full => format!("nothing is admitted: {reason}"),
            _ => format!("a device of the cache failed and rests: {reason}"),
        });
    }
    match direction {
        Direction::Write if parts.settings.config.mode == Mode::ReadOnly => {
            Some("in mode read-only writes go to the origin".to_owned())
        }
        Direction::Write => None,
        Direction::Read => Some(why_not_fetched(parts, file, range)),
    }
}

/// Why a critical range is not on the cache: what the rebuilder and the filler wait for.
fn why_not_fetched(parts: &Components, file: &CachedFile, range: ByteRange) -> String {
    parts.fetcher.note_wants();
    let id = file.id();
    let mut wanted = parts.store.dmt.wanted(usize::MAX);
    wanted.retain(|wanted| Some(wanted.file) == id && wanted.range.overlaps(range));
    if wanted.is_empty() {
        return "it has not been read since it was last off the cache: a first read that \
                misses makes it wanted"
            .to_owned();
    }
    let config = &parts.settings.config;
    if parts.fetcher.lacks_room() || parts.fills.lack_room() {
        return "it is wanted, but there is no room: what is on the cache is dirty, pinned or \
                was used more; it is looked for again when programs want more, or after `evict`"
            .to_owned();
    }
    let filled = if config.fill {
        "when it is read again it is filled from what the program gets"
    } else {
        "nothing is filled from what programs read (`fill` is off)"
    };
    let fetched = match (config.rebuild, parts.origin.is_idle()) {
        (false, _) => "nothing is fetched in the background (`rebuild` is off)",
        (true, true) => "it is about to be fetched",
        (true, false) => {
            "it waits for an idle origin, and until then gets its turn in a small share of the \
             origin's time"
        }
    };
    format!("it is wanted since a read missed it: {fetched}; {filled}")
}
