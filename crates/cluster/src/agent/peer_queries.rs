//! Messages between nodes about what their caches have: a question, and its answer.
//!
//! They go through the store. A late answer cannot be mistaken for a current one: an answer has the number of its
//! question, which was asked after this node got its token. Messages are bounded and checked before they are used
//! ([`message`]).

pub(crate) mod message;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use halocline_cache::coherence::{ANSWER_LIMIT, Cached, PeerCache, SharedFile, Want};
use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{REGION, Session};
use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::file::end_unseen;
use crate::registry::Entry;
use message::{CachedText, Message, read};

/// The most sessions whose caches are remembered.
const PEERS_MAX: usize = 4096;
/// For how long a session that did not answer is not asked again.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// This node's questions, and the nodes that it asks.
#[derive(Debug, Default)]
pub(super) struct PeerQueries {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Where the answer to each question goes, by its number.
    waiting: BTreeMap<u64, Arc<Inbox>>,
    /// Caches by session; `None` if it cannot be reached.
    caches: BTreeMap<Session, Option<Arc<PeerCache>>>,
    silent: BTreeMap<Session, Instant>,
}

/// Questions that are waiting for their answers.
pub(super) struct PendingQueries<'s> {
    of: &'s PeerQueries,
    inbox: Arc<Inbox>,
    open: BTreeMap<u64, Session>,
    deadline: Instant,
}

/// Where a waiting thread gets its answers.
#[derive(Debug, Default)]
struct Inbox {
    answers: Mutex<Vec<Answer>>,
    filled: Condvar,
}

/// The answer to the question with this number.
#[derive(Debug)]
struct Answer {
    number: u64,
    cached: Cached,
    is_all: bool,
}

/// The contents of the caches of the nodes that were asked.
pub(super) struct Answers {
    pub(super) cached: Vec<(Session, Cached)>,
    /// Whether all nodes have answered, completely.
    pub(super) are_all: bool,
}

impl Drop for PendingQueries<'_> {
    fn drop(&mut self) {
        let waiting = &mut self.of.state.lock().waiting;
        self.open.keys().for_each(|number| drop(waiting.remove(number)));
    }
}

impl PeerQueries {
    /// Answers the questions of others, and hands their answers to the threads that wait.
    pub(super) fn run(shared: &Arc<Shared>) {
        while !shared.is_stopped() {
            for bytes in shared.store.receive(shared.session, shared.options.poll) {
                match read(&bytes) {
                    Some(Message::Question { number, from, inode, born_ns, range }) => {
                        Self::answer(shared, (number, from), SharedFile { inode, born_ns }, range);
                    }
                    Some(Message::Answer { number, cached, is_all }) => {
                        let Some(cached) = cached.checked() else { continue };
                        let inbox = shared.peer_queries.state.lock().waiting.remove(&number);
                        // The thread that asked may have continued without the answer.
                        if let Some(inbox) = inbox {
                            inbox.answers.lock().push(Answer { number, cached, is_all });
                            inbox.filled.notify_one();
                        }
                    }
                    None => tracing::debug!("a message that no node wrote"),
                }
            }
        }
    }

    fn answer(shared: &Shared, (number, from): (u64, Session), file: SharedFile, range: ByteRange) {
        if range.len() > REGION {
            return;
        }
        let (cached, is_all) = Self::clean_of(shared, file, range);
        let cached = cached.map_or_else(CachedText::nothing, |cached| CachedText::of(&cached));
        if let Ok(message) = serde_json::to_vec(&Message::Answer { number, cached, is_all }) {
            shared.store.send(from, &message);
        }
    }

    /// The clean blocks that this node has cached of a file, under its tokens, and whether these are all.
    fn clean_of(shared: &Shared, file: SharedFile, range: ByteRange) -> (Option<Cached>, bool) {
        let local_cache = shared.local_cache.get().and_then(Weak::upgrade);
        let known = shared.files.get(file);
        let (Some(local_cache), Some(known)) = (local_cache, known) else { return (None, true) };
        let (mut all, mut is_all): (Option<Cached>, bool) = (None, true);
        for (held, _) in known.all().into_iter().filter(|(_, mode)| mode.caches()) {
            let Some(range) = held.intersect(range) else { continue };
            let touches = ByteRange::new(range.start, range.start);
            let want = Want { direction: Direction::Read, range, touches, alone: false };
            // Others may be waiting for part of it, for example the node that asks; this delays nobody.
            let Some(grant) = known.permit(want) else {
                is_all = false;
                continue;
            };
            // If others may have changed what this node cached, that was not checked yet.
            let is_sure = grant.caches && !grant.renewed;
            let cached = if is_sure { local_cache.cached(file, range) } else { None };
            end_unseen(&known, grant);
            is_all &= is_sure;
            match (&mut all, cached) {
                (Some(all), Some(cached)) => all.blocks.extend(cached.blocks),
                (None, cached) => all = cached,
                (Some(_), None) => {}
            }
        }
        (all, is_all)
    }

    /// The cache of a session, if it can be reached here and answers.
    pub(super) fn cache_of(&self, shared: &Shared, session: Session) -> Option<Arc<PeerCache>> {
        let pattern = shared.options.peers.as_deref()?;
        let now = shared.options.clock.boot_instant();
        {
            let state = self.state.lock();
            let is_silent = |since: &Instant| now.saturating_duration_since(*since) < SILENT_FOR;
            if state.silent.get(&session).is_some_and(is_silent) {
                return None;
            }
            if let Some(known) = state.caches.get(&session) {
                return known.clone();
            }
        }
        // A session always has the same cache.
        let entry = shared.registry.entry(session)?;
        let cache = place(pattern, entry).map(Arc::new);
        let caches = &mut self.state.lock().caches;
        if caches.len() >= PEERS_MAX {
            caches.clear();
        }
        caches.insert(session, cache.clone());
        cache
    }

    /// Asks sessions, each about a range of a file.
    pub(super) fn ask_all(
        &self,
        shared: &Shared,
        file: SharedFile,
        asked: &[(Session, ByteRange)],
    ) -> PendingQueries<'_> {
        let inbox = Arc::<Inbox>::default();
        let clock = &shared.options.wait_clock;
        let mut open = BTreeMap::new();
        // A store that hangs must not cost more than a node that does.
        let deadline = clock.instant() + ANSWER_LIMIT;
        for (session, range) in asked {
            let number = {
                let state = &mut *self.state.lock();
                if state.next == 0 {
                    // Answers to an earlier session, which used the same numbers, must not count.
                    state.next = shared.session.0 >> 1;
                }
                state.next = state.next.wrapping_add(1);
                state.waiting.insert(state.next, Arc::clone(&inbox));
                state.next
            };
            open.insert(number, *session);
            let SharedFile { inode, born_ns } = file;
            let question =
                Message::Question { number, from: shared.session, inode, born_ns, range: *range };
            if let Ok(message) = serde_json::to_vec(&question)
                && clock.instant() < deadline
            {
                shared.store.send(*session, &message);
            }
        }
        PendingQueries { of: self, inbox, open, deadline }
    }

    /// The answers that arrive in time. Nodes that do not answer are not asked for a while.
    pub(super) fn wait_for_answers(
        &self,
        shared: &Shared,
        mut waiting: PendingQueries<'_>,
    ) -> Answers {
        let clock = &shared.options.wait_clock;
        let mut answers = Answers { cached: Vec::new(), are_all: true };
        while !waiting.open.is_empty() && !shared.is_stopped() {
            let answer = {
                let mut came = waiting.inbox.answers.lock();
                let is_empty = |came: &mut Vec<Answer>| came.is_empty();
                clock.wait_while(&waiting.inbox.filled, &mut came, is_empty, waiting.deadline);
                came.pop()
            };
            let Some(answer) = answer else { break };
            let Some(session) = waiting.open.remove(&answer.number) else { continue };
            answers.cached.push((session, answer.cached));
            answers.are_all &= answer.is_all;
        }
        let now = shared.options.clock.boot_instant();
        let silent = &mut self.state.lock().silent;
        if silent.len() >= PEERS_MAX {
            silent.clear();
        }
        silent.extend(waiting.open.values().map(|session| (*session, now)));
        answers
    }
}

/// The path at which a session's cache is reached, according to a pattern.
fn place(pattern: &str, entry: Entry) -> Option<PeerCache> {
    let Entry { node, cache, cache_id, .. } = entry;
    let is_a_name = Path::new(&node).components().eq([Component::Normal(node.as_ref())]);
    if pattern.contains("{node}") && !is_a_name {
        return None;
    }
    let own = cache.to_str().filter(|_| cache.is_absolute());
    if pattern.contains("{cache}") && own.is_none() {
        return None;
    }
    let dir = pattern.replace("{node}", &node).replace("{cache}", own.unwrap_or_default());
    let dir = PathBuf::from(dir);
    dir.is_absolute().then_some(PeerCache { node, dir, cache_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(node: &str, cache: &str) -> Entry {
        let (node, cache) = (node.to_owned(), PathBuf::from(cache));
        Entry { node, cache, ..crate::registry::tests::entry(1) }
    }

    #[test]
    fn caches_are_where_the_pattern_says() {
        let dir = |pattern, node, cache| place(pattern, entry(node, cache)).map(|peer| peer.dir);
        let some = |path: &str| Some(PathBuf::from(path));
        assert_eq!(dir("/cluster/{node}/ssd", "n1", "/ssd"), some("/cluster/n1/ssd"));
        assert_eq!(dir("{cache}", "n1", "/ssd/n1"), some("/ssd/n1"));
        assert_eq!(dir("/remote/{node}{cache}", "n1", "/ssd"), some("/remote/n1/ssd"));
        for node in ["", "..", ".", "a/b", "/a"] {
            assert_eq!(dir("/cluster/{node}", node, "/ssd"), None, "{node}");
        }
        assert_eq!(dir("{cache}", "n1", "ssd"), None);
        assert_eq!(dir("ssd", "n1", "/ssd"), None);
    }
}
