//! The threads of an agent.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use halocline_os::catch_panic::caught;

use super::peer_queries::PeerQueries;
use super::{Shared, idle_tokens, yielding};

/// Number of threads that give up what others want.
const WORKERS: usize = 4;

/// Starts them.
pub(super) fn spawn(shared: &Arc<Shared>) -> io::Result<Vec<JoinHandle<()>>> {
    let start = |name: &str, run: fn(&Arc<Shared>)| {
        let shared = Arc::clone(shared);
        thread::Builder::new().name(name.to_owned()).spawn(move || live(&shared, run))
    };
    let mut threads = vec![start("lease", renew_in_time)?];
    threads.push(start("session", keep_session)?);
    threads.push(start("tokens heard", yielding::listen)?);
    threads.push(start("tokens back", idle_tokens::give_back)?);
    if shared.options.peers.is_some() {
        threads.push(start("peer queries", PeerQueries::run)?);
    }
    for _ in 0..WORKERS {
        threads.push(start("tokens given", yielding::give_up)?);
    }
    Ok(threads)
}

/// Does a thread's work until the agent stops. A panic is logged and ends only the current round: without the thread,
/// others would wait for this node for ever, and nobody would know why.
fn live(shared: &Arc<Shared>, run: fn(&Arc<Shared>)) {
    while !shared.is_stopped() {
        if caught(|| run(shared)).is_ok() {
            return;
        }
        shared.options.wait_clock.sleep(shared.options.poll);
    }
}

/// Keeps the session until the agent stops.
fn keep_session(shared: &Arc<Shared>) {
    let (own_session, options) = (&shared.own_session, &shared.options);
    let third = own_session.lease.lasts() / 3;
    while !shared.is_stopped() {
        let kept = shared.upkeep.keep();
        if kept.is_ok() {
            shared.background.tell(own_session.roll.nodes());
        }
        let pause = if kept.is_ok() { third } else { third.min(options.poll) };
        if let Err(error) = kept {
            tracing::debug!("node {}: {error}", options.node);
            own_session.note_obstacle(error.to_string());
        }
        own_session.wait_woken(&options.wait_clock, options.wait_clock.instant() + pause);
    }
}

/// Renews the lease whenever the thread that keeps the session is late with it, until the agent stops.
fn renew_in_time(shared: &Arc<Shared>) {
    let (own_session, options) = (&shared.own_session, &shared.options);
    let third = own_session.lease.lasts() / 3;
    let late = own_session.lease.lasts().saturating_sub(third + third / 4);
    while !shared.is_stopped() {
        shared.upkeep.renew_if_late(late);
        let until = options.wait_clock.instant() + (third / 4).min(options.poll);
        own_session.wait_until(&options.wait_clock, until, || shared.is_stopped());
    }
}
