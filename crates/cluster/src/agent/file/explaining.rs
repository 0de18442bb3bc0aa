//! Why a request would wait for other nodes, or go to the origin because of them.

use halocline_cache::coherence::Want;
use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Life, Mode, Tokens};

use super::{File, filled};
use crate::store::{Reading, StoreError};

/// The most nodes that an explanation names.
const NAMED: usize = 3;

/// Examines what this node holds and, if that does not explain it, the store. Changes nothing.
pub(super) fn explained(file: &File, want: Want) -> Option<String> {
    let now = why_not_now(file, filled(want));
    let last = file.state.lock().last_wait.clone().map(|wait| {
        let ago =
            file.shared.options.clock.boot_instant().saturating_duration_since(wait.at).as_secs();
        let (ms, on) = (wait.lasted.as_millis(), wait.on);
        format!("the last request of the file that waited did so {ago} s ago, {ms} ms for {on}")
    });
    let told: Vec<String> = now.into_iter().chain(last).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn why_not_now(file: &File, want: Want) -> Option<String> {
    let shared = &file.shared;
    if !shared.own_session.lease.runs() {
        return Some(format!("this node has no lease, so all waits: {}", shared.own_session.why()));
    }
    let (closed, held, last) = {
        let state = file.state.lock();
        let held: Vec<_> = state.pieces.all().collect();
        (state.pieces.is_closed(want.range), held, file.stored.last())
    };
    if closed {
        return Some(
            "it waits: these bytes are being brought to the origin for another node".to_owned(),
        );
    }
    let within = |range: &ByteRange| range.overlaps(want.range);
    if let Some((range, _)) =
        held.iter().find(|(range, mode)| *mode == Mode::Direct && within(range))
    {
        let others = last.map_or_else(String::new, |last| named(file, &last, *range));
        return Some(format!(
            "{} are contended, so it goes to the origin and nothing is cached there{others}",
            bytes(*range)
        ));
    }
    let mut at = want.range.start;
    for (range, mode) in held.iter().filter(|(_, mode)| mode.allows(want.direction)) {
        debug_assert!(mode.caches(), "contended ones were found above");
        if range.start <= at && at < range.end {
            at = range.end;
        }
    }
    if at >= want.range.end { None } else { why_asked(file, want) }
}

/// Why a token that this node does not hold cannot be granted at once.
fn why_asked(file: &File, want: Want) -> Option<String> {
    let shared = &file.shared;
    let answer = shared.store.read(file.id).and_then(|reading| Ok((reading, shared.store.roll()?)));
    let (Reading { tokens, epoch }, roll) = match answer {
        Ok(answer) => answer,
        Err(error @ StoreError::NoAnswer(_)) => return Some(format!("it waits: {error}")),
        Err(error) => return Some(error.to_string()),
    };
    if !roll.members.grants(roll.epoch) {
        return Some(format!("it waits: {}", shared.own_session.why()));
    }
    let wanted = match want.direction {
        Direction::Read => Mode::Shared,
        Direction::Write => Mode::Exclusive,
    };
    let of_now = if tokens.epoch() == epoch { tokens.all() } else { &[] };
    let in_the_way = of_now.iter().find(|held| {
        held.session != shared.session
            && held.range.overlaps(want.range)
            && held.mode.conflicts(wanted)
    })?;
    let node = shared.registry.name(in_the_way.session);
    let held = bytes(in_the_way.range);
    Some(match (roll.members.life(in_the_way.session), in_the_way.mode) {
        (Some(Life::Live), Mode::Direct) => {
            format!(
                "{held} are contended, with {node}: it may go to the origin, and is not cached there"
            )
        }
        (Some(Life::Live), _) => {
            format!("it waits until {node} has brought {held} to the origin, or dropped its copies")
        }
        _ => format!("it fails: {node} is gone and may have newer bytes of {held}; recover it"),
    })
}

/// The other nodes that use a range, as far as this node knows.
fn named(file: &File, tokens: &Tokens, range: ByteRange) -> String {
    let own = file.shared.session;
    let others =
        tokens.all().iter().filter(|held| held.session != own && held.range.overlaps(range));
    let mut sessions: Vec<_> = others.map(|held| held.session).collect();
    sessions.sort_unstable();
    sessions.dedup();
    let names: Vec<_> =
        sessions.iter().take(NAMED).map(|one| file.shared.registry.name(*one)).collect();
    match (names.is_empty(), sessions.len() - names.len()) {
        (true, _) => String::new(),
        (false, 0) => format!(", with {}", names.join(", ")),
        (false, more) => format!(", with {} and {more} more", names.join(", ")),
    }
}

pub(super) fn bytes(range: ByteRange) -> String {
    match range.end {
        u64::MAX => format!("bytes {} to the end", range.start),
        end => format!("bytes {} to {end}", range.start),
    }
}
