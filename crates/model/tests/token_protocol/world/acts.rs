//! What each step does to the world.

use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Answer, Demand, Epoch, Life, Members, Mode, Session, Tokens};

use super::{BLOCKS_MAX, Canary, Change, Copy, FILE, Node, Step, Store, World, block};

/// When marks of what cannot be read have ended, by the store's clock; they are made at 0.
const LATER_MS: u64 = 1_000_000;

impl World {
    pub(super) fn take(&mut self, step: Step, canary: Option<Canary>) -> bool {
        match step {
            Step::Use(at, direction, block_at) => self.serve(at, direction, block_at),
            Step::Ask(at, direction, block_at) => {
                return self.ask(at, (direction, false), (block_at, 0), canary);
            }
            Step::AskLater(at, direction, block_at) => {
                return self.ask(at, (direction, false), (block_at, LATER_MS), canary);
            }
            Step::AskAlone(at, block_at) => {
                return self.ask(at, (Direction::Write, true), (block_at, 0), canary);
            }
            Step::GiveUp(at) => self.give_up(at, canary),
            Step::CannotRead(at) => self.cannot_read(at),
            Step::Commit(at, block_at) => self.commit(at, block_at),
            Step::Deliver(at, heard) => self.deliver(at, heard, canary),
            Step::Drop(at) => {
                self.lost_replies -= 1;
                self.changes.remove(at);
            }
            Step::Timeout(at) => {
                self.lost_replies -= u8::from(self.is_under_way(at));
                self.nodes[at].pending = None;
            }
            Step::LeaseLapses(at) => {
                let node = &mut self.nodes[at];
                node.lease = false;
                self.lapses -= u8::from(node.is_up);
                let is_noticed =
                    !matches!(canary, Some(Canary::SharedAfterLapse | Canary::LeaseNotKept));
                if is_noticed {
                    node.lapse();
                }
            }
            Step::DeclareGone(at) => self.store.members.lease_is_over(self.nodes[at].session),
            Step::Renew(at) => {
                let (session, epoch) = (self.nodes[at].session, self.store.epoch);
                if !self.store.members.renew(session, epoch) {
                    return false;
                }
                self.nodes[at].lease = true;
            }
            Step::Persist => self.kept = (self.store.tokens.clone(), self.store.members.clone()),
            Step::FailOver { empty } => self.fail_over(empty),
            Step::Assert(at) => {
                let (node, store) = (&mut self.nodes[at], &mut self.store);
                store.tokens.assert(node.session, &node.held, store.epoch);
                store.members.assert(node.session, store.epoch);
                node.asserted = store.epoch;
            }
            Step::Confirm => return self.confirm(canary),
            Step::Crash(at) => {
                self.crashes -= 1;
                let node = &mut self.nodes[at];
                node.is_up = false;
                node.pending = None;
                node.held.clear();
                for copy in &mut node.cache {
                    *copy = copy.filter(|copy| copy.dirty);
                }
            }
            Step::Recover(at) => self.recover(at),
        }
        true
    }

    /// The store goes on with what it kept, or with nothing.
    fn fail_over(&mut self, empty: bool) {
        self.failovers -= 1;
        let epoch = Epoch(self.store.epoch.0 + 1);
        let (tokens, members) =
            if empty { (Tokens::new(epoch), Members::default()) } else { self.kept.clone() };
        self.store = Store { epoch, tokens, members };
    }

    fn confirm(&mut self, canary: Option<Canary>) -> bool {
        let registry: Vec<_> = self.registry.iter().copied().collect();
        let Store { epoch, members, .. } = &mut self.store;
        match members.confirm(*epoch, &registry) {
            Ok(()) => true,
            Err(missing) if canary == Some(Canary::ConfirmedEarly) => {
                for session in missing {
                    members.join(session, *epoch);
                }
                members.confirm(*epoch, &registry).is_ok()
            }
            Err(_) => false,
        }
    }

    /// A program's request is served under the token.
    fn serve(&mut self, at: usize, direction: Direction, block_at: usize) {
        let node = &mut self.nodes[at];
        let mode = node.mode_of(block_at).expect("there is a token");
        let read = match node.cache[block_at] {
            Some(copy) if mode.caches() => copy.newest,
            _ => self.origin[block_at],
        };
        if !read {
            self.wrong = Some("a program read old bytes");
        }
        if mode.caches() && node.cache[block_at].is_none() {
            node.cache[block_at] = Some(Copy { newest: read, dirty: false });
        }
        if direction == Direction::Read {
            return;
        }
        self.origin[block_at] = mode == Mode::Direct;
        for (other, node) in self.nodes.iter_mut().enumerate() {
            let Some(copy) = &mut node.cache[block_at] else { continue };
            if other != at && copy.dirty && copy.newest {
                self.wrong = Some("a program wrote beside dirty bytes of another node");
            }
            copy.newest = other == at && mode == Mode::Exclusive;
            copy.dirty |= copy.newest;
        }
    }

    fn ask(
        &mut self,
        at: usize,
        (direction, alone): (Direction, bool),
        (block_at, now_ms): (usize, u64),
        canary: Option<Canary>,
    ) -> bool {
        let session = self.nodes[at].session;
        let mut new = self.store.tokens.clone();
        let mut members = self.store.members.clone();
        match canary {
            Some(Canary::GrantedTwice) => {
                members = Members::default();
                members.join(session, self.store.epoch);
            }
            Some(Canary::GoneIsForgotten) => {
                let gone: Vec<_> = members.sessions().collect();
                for (session, _) in gone.iter().filter(|(_, life)| *life == Life::Gone) {
                    members.remove(*session);
                }
            }
            Some(Canary::UnreadableIsVoid) => {
                for mark in self.store.tokens.unreadable() {
                    new.give_up(mark.session, mark.range, None, self.store.epoch);
                }
            }
            _ => {}
        }
        let demand = Demand { direction, required: block(block_at), desired: FILE, alone };
        match new.ask(session, demand, (self.store.epoch, &members), now_ms) {
            Answer::Lost(_) => return false,
            // It waits there already, or does not any more.
            Answer::Waits(_) | Answer::Unreadable(_) if same(&new, &self.store.tokens) => {
                return false;
            }
            Answer::Waits(_) | Answer::Unreadable(_) | Answer::Granted(_) => {}
        }
        self.send(at, new);
        true
    }

    /// The node gives up what others wait for: first on the origin, then in the store.
    fn give_up(&mut self, at: usize, canary: Option<Canary>) {
        let session = self.nodes[at].session;
        let (range, keep) = self.store.tokens.wanted_from(session).expect("something is wanted");
        for block_at in (0..BLOCKS_MAX).filter(|at| block(*at).overlaps(range)) {
            if canary != Some(Canary::YieldBeforeCommit) {
                self.commit(at, block_at);
            }
            if keep.is_none() && canary != Some(Canary::LostInvalidation) {
                let cached = &mut self.nodes[at].cache[block_at];
                *cached = cached.filter(|copy| copy.dirty);
            }
        }
        let node = &mut self.nodes[at];
        let mut own = Tokens::new(self.store.epoch);
        own.assert(session, &node.held, self.store.epoch);
        own.give_up(session, range, keep, self.store.epoch);
        node.held = own.of(session);
        let mut new = self.store.tokens.clone();
        new.give_up(session, range, keep, self.store.epoch);
        self.send(at, new);
    }

    /// The node says of the dirty bytes that others wait for that it cannot read them.
    fn cannot_read(&mut self, at: usize) {
        self.unreadable -= 1;
        let node = &self.nodes[at];
        let (tried, _) = self.store.tokens.wanted_from(node.session).expect("something is wanted");
        let is_dirty = |at: &usize| node.cache[*at].is_some_and(|copy| copy.dirty);
        let ranges: Vec<_> = (0..BLOCKS_MAX).filter(is_dirty).map(block).collect();
        let (session, mut new) = (node.session, self.store.tokens.clone());
        new.note_unreadable(session, (tried, &ranges), self.store.epoch, 0);
        self.send(at, new);
    }

    fn commit(&mut self, at: usize, block_at: usize) {
        let Some(copy) = &mut self.nodes[at].cache[block_at] else { return };
        if std::mem::take(&mut copy.dirty) {
            if self.origin[block_at] && !copy.newest {
                self.wrong = Some("a flush wrote old bytes over new ones");
            }
            self.origin[block_at] = copy.newest;
        }
    }

    fn send(&mut self, at: usize, mut new: Tokens) {
        // How often it changed hands is not part of what is explored.
        if !self.contended {
            new.calm();
        }
        let number =
            (0..u8::MAX).find(|n| self.changes.iter().all(|c| c.number != *n)).expect("few");
        self.nodes[at].pending = Some(number);
        let (epoch, expected) = (self.store.epoch, self.store.tokens.version);
        self.changes.push(Change { from: at, number, epoch, expected, new });
    }

    fn deliver(&mut self, at: usize, heard: bool, canary: Option<Canary>) {
        let Change { from, number, epoch, expected, new } = self.changes.remove(at);
        let store = &mut self.store;
        let is_of_now = expected == store.tokens.version || canary == Some(Canary::AnyVersion);
        let is_of_epoch = epoch == store.epoch || canary == Some(Canary::AnyEpoch);
        let taken = is_of_now && is_of_epoch && store.members.grants(store.epoch);
        if taken {
            store.tokens = new;
        }
        let node = &mut self.nodes[from];
        if node.pending != Some(number) {
            return;
        }
        if !heard {
            self.lost_replies -= 1;
            return;
        }
        node.pending = None;
        if taken {
            let held = store.tokens.of(node.session);
            // Without a lease the answer is worth what the token would be: nothing that is shared.
            node.held = held;
            if canary != Some(Canary::LostInvalidation) {
                node.drop_what_no_token_caches();
            }
            if !node.lease {
                node.lapse();
            }
        }
    }

    /// The node itself comes back, or another one that reaches its cache: what is dirty goes to the origin.
    fn recover(&mut self, at: usize) {
        for block_at in 0..BLOCKS_MAX {
            self.commit(at, block_at);
        }
        let old = self.nodes[at].session;
        self.store.tokens.give_up(old, ByteRange::new(0, u64::MAX), None, self.store.epoch);
        self.store.members.remove(old);
        self.registry.remove(&old);
        let session = Session(old.0 + 1);
        self.registry.insert(session);
        self.store.members.join(session, self.store.epoch);
        self.nodes[at] = Node {
            session,
            is_up: true,
            lease: true,
            asserted: self.store.epoch,
            held: Vec::new(),
            cache: [None; BLOCKS_MAX],
            pending: None,
        };
    }
}

/// Whether two values differ in nothing but the version.
fn same(one: &Tokens, other: &Tokens) -> bool {
    let mut one = one.clone();
    one.version = other.version;
    one == *other
}
