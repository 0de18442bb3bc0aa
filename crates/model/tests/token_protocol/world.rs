//! A small world for the model checker: nodes with a cache and a journal each, a store that forgets, one
//! file of two blocks, and messages that are late or lost. All decisions about tokens are those of
//! `halocline_model::token`.

mod acts;

use std::collections::BTreeSet;

use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Demand, Epoch, Held, Life, Members, Mode, REGION, Session, Tokens};

pub(crate) const BLOCKS_MAX: usize = 2;

/// What is broken on purpose, to see that the checker notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Canary {
    /// A token is granted though others hold it.
    GrantedTwice,
    /// A node that gives up a token keeps what it cached.
    LostInvalidation,
    /// A token is given up before dirty bytes are on the origin.
    YieldBeforeCommit,
    /// A node goes on without a lease.
    LeaseNotKept,
    /// What was cached under a shared token is believed after the lease lapsed.
    SharedAfterLapse,
    /// Tokens are granted in a new epoch before all have said what they hold.
    ConfirmedEarly,
    /// The store takes changes that were computed for another version.
    AnyVersion,
    /// The store takes changes that were computed for another epoch.
    AnyEpoch,
    /// Exclusive tokens of a node that is gone are void like all others.
    GoneIsForgotten,
    /// Exclusive tokens of bytes that their holder cannot read are void.
    UnreadableIsVoid,
}

/// A cached copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Copy {
    /// Whether it is what was written last.
    newest: bool,
    dirty: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    session: Session,
    is_up: bool,
    /// Its lease runs by its own clock.
    lease: bool,
    /// The store's epoch in which it said what it holds.
    asserted: Epoch,
    held: Vec<Held>,
    /// The SSD; what is dirty survives the process, with the journal that says so.
    cache: [Option<Copy>; BLOCKS_MAX],
    /// The one change of tokens that it waits for.
    pending: Option<u8>,
}

/// A change of the file's tokens on its way to the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Change {
    from: usize,
    number: u8,
    epoch: Epoch,
    expected: u64,
    new: Tokens,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    epoch: Epoch,
    tokens: Tokens,
    members: Members,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    store: Store,
    /// What the store would find after a failover: of some time ago.
    kept: (Tokens, Members),
    /// Whether the origin has what was written last.
    origin: [bool; BLOCKS_MAX],
    registry: BTreeSet<Session>,
    changes: Vec<Change>,
    contended: bool,
    blocks: usize,
    /// How many more of these may happen.
    failovers: u8,
    crashes: u8,
    lapses: u8,
    lost_replies: u8,
    unreadable: u8,
    /// What must never happen, and did.
    pub(crate) wrong: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Use(usize, Direction, usize),
    Ask(usize, Direction, usize),
    /// The same after marks of what cannot be read have ended.
    AskLater(usize, Direction, usize),
    /// For a change that no two nodes may make side by side.
    AskAlone(usize, usize),
    GiveUp(usize),
    /// The node fails to read the dirty bytes that others wait for.
    CannotRead(usize),
    Commit(usize, usize),
    /// The store takes or refuses a change and the node hears of it, or does not.
    Deliver(usize, bool),
    Drop(usize),
    Timeout(usize),
    LeaseLapses(usize),
    DeclareGone(usize),
    Renew(usize),
    Persist,
    FailOver {
        empty: bool,
    },
    Assert(usize),
    Confirm,
    Crash(usize),
    Recover(usize),
}

/// How much may go wrong in one history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) nodes: usize,
    /// Blocks of the file that programs use.
    pub(crate) blocks: usize,
    pub(crate) failovers: u8,
    pub(crate) crashes: u8,
    pub(crate) lapses: u8,
    pub(crate) lost_replies: u8,
    /// How often a node cannot read its cache.
    pub(crate) unreadable: u8,
    /// The file is contended from the beginning.
    pub(crate) contended: bool,
}

fn block(at: usize) -> ByteRange {
    ByteRange::at(at as u64, 1)
}

/// All of the file, as much as anybody wants of it.
const FILE: ByteRange = ByteRange::new(0, BLOCKS_MAX as u64);

impl World {
    pub(crate) fn new(budget: Budget) -> Self {
        let epoch = Epoch(1);
        let mut members = Members::default();
        let sessions: Vec<_> = (0..budget.nodes).map(|node| Session(node as u64 * 10)).collect();
        for session in &sessions {
            members.join(*session, epoch);
        }
        members.confirm(epoch, &sessions).unwrap();
        let mut tokens = Tokens::new(epoch);
        if budget.contended {
            contend(&mut tokens, epoch, &members);
        }
        let node = |session: &Session| Node {
            session: *session,
            is_up: true,
            lease: true,
            asserted: epoch,
            held: Vec::new(),
            cache: [None; BLOCKS_MAX],
            pending: None,
        };
        let mut world = Self {
            nodes: sessions.iter().map(node).collect(),
            kept: (tokens.clone(), members.clone()),
            store: Store { epoch, tokens, members },
            origin: [true; BLOCKS_MAX],
            registry: sessions.into_iter().collect(),
            changes: Vec::new(),
            contended: budget.contended,
            blocks: budget.blocks,
            failovers: budget.failovers,
            crashes: budget.crashes,
            lapses: budget.lapses,
            lost_replies: budget.lost_replies,
            unreadable: budget.unreadable,
            wrong: None,
        };
        world.rebase();
        world
    }

    pub(crate) fn steps(&self, steps: &mut Vec<Step>, canary: Option<Canary>) {
        if self.wrong.is_some() {
            return;
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let may_act = node.is_up && (node.lease || canary == Some(Canary::LeaseNotKept));
            for block_at in 0..self.blocks {
                for direction in [Direction::Read, Direction::Write] {
                    let allowed = node.allows(direction, block_at);
                    if may_act && allowed {
                        steps.push(Step::Use(at, direction, block_at));
                    }
                    if may_act && !allowed && self.may_change(at) {
                        steps.extend(self.demands(at, direction, block_at));
                    }
                }
                steps.extend(self.ask_alone(at, block_at).filter(|_| may_act));
                if may_act && node.cache[block_at].is_some_and(|copy| copy.dirty) {
                    steps.push(Step::Commit(at, block_at));
                }
            }
            let wanted = self.store.tokens.wanted_from(node.session).is_some();
            if may_act && wanted && self.may_change(at) {
                steps.push(Step::GiveUp(at));
                steps.extend(self.fail_to_read(at));
            }
            if node.pending.is_some() && (!self.is_under_way(at) || self.lost_replies > 0) {
                steps.push(Step::Timeout(at));
            }
            if node.lease && (self.lapses > 0 || !node.is_up) {
                steps.push(Step::LeaseLapses(at));
            }
            let life = self.store.members.life(node.session);
            if !node.lease && life == Some(Life::Live) {
                steps.push(Step::DeclareGone(at));
            }
            let is_known = node.asserted == self.store.epoch;
            if node.is_up && node.pending.is_none() {
                if !node.lease && is_known {
                    steps.push(Step::Renew(at));
                }
                if !is_known {
                    steps.push(Step::Assert(at));
                }
            }
            if node.is_up && self.crashes > 0 {
                steps.push(Step::Crash(at));
            }
            if !node.is_up && !node.lease && life != Some(Life::Live) {
                steps.push(Step::Recover(at));
            }
        }
        for at in 0..self.changes.len() {
            steps.push(Step::Deliver(at, true));
            if self.lost_replies > 0 {
                steps.push(Step::Deliver(at, false));
                steps.push(Step::Drop(at));
            }
        }
        if self.failovers > 0 {
            if self.kept != (self.store.tokens.clone(), self.store.members.clone()) {
                steps.push(Step::Persist);
            }
            steps.push(Step::FailOver { empty: false });
            steps.push(Step::FailOver { empty: true });
        }
        if !self.store.members.grants(self.store.epoch) {
            steps.push(Step::Confirm);
        }
    }

    /// Whether the change that a node waits for may still be taken.
    fn is_under_way(&self, at: usize) -> bool {
        let is_it =
            |change: &Change| (change.from, Some(change.number)) == (at, self.nodes[at].pending);
        self.changes.iter().any(is_it)
    }

    /// In contended worlds: a node wants what it has not for itself.
    fn ask_alone(&self, at: usize, block_at: usize) -> Option<Step> {
        let is_alone = self.nodes[at].mode_of(block_at) == Some(Mode::Exclusive);
        let asks = self.contended && !is_alone && self.may_change(at);
        asks.then_some(Step::AskAlone(at, block_at))
    }

    /// A node asks for a token, before or after the end of marks.
    fn demands(
        &self,
        at: usize,
        direction: Direction,
        block_at: usize,
    ) -> impl Iterator<Item = Step> {
        let later = self.is_marked().then_some(Step::AskLater(at, direction, block_at));
        [Some(Step::Ask(at, direction, block_at)), later].into_iter().flatten()
    }

    /// A node that has dirty bytes may fail to read them.
    fn fail_to_read(&self, at: usize) -> Option<Step> {
        let is_dirty = self.nodes[at].cache.iter().flatten().any(|copy| copy.dirty);
        (self.unreadable > 0 && is_dirty).then_some(Step::CannotRead(at))
    }

    /// Whether a node may compute a change of tokens now.
    fn may_change(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        node.pending.is_none()
            && node.asserted == self.store.epoch
            && self.store.members.grants(self.store.epoch)
            && self.changes.len() <= self.nodes.len()
    }

    pub(crate) fn after(&self, step: Step, canary: Option<Canary>) -> Option<Self> {
        let mut next = self.clone();
        let taken = next.take(step, canary);
        next.rebase();
        taken.then_some(next)
    }

    /// Versions count from the oldest that anybody remembers: only their differences matter.
    fn rebase(&mut self) {
        if self.failovers == 0 {
            // Nobody will ask for it.
            self.kept = (self.store.tokens.clone(), self.store.members.clone());
        }
        let tables = || [&self.store.tokens, &self.kept.0].into_iter();
        let versions = tables().map(|table| table.version);
        let oldest = versions.chain(self.changes.iter().map(|change| change.expected)).min();
        let oldest = oldest.unwrap_or_default();
        self.store.tokens.version -= oldest;
        self.kept.0.version -= oldest;
        for change in &mut self.changes {
            change.expected -= oldest;
            change.new.version -= oldest;
        }
    }

    /// How far the versions are apart that somebody remembers.
    pub(crate) fn spread(&self) -> u64 {
        self.store.tokens.version
    }

    /// I11: no two nodes that may act hold what conflicts.
    pub(crate) fn tokens_agree(&self) -> bool {
        let acting = self.nodes.iter().filter(|node| node.is_up && node.lease);
        let held: Vec<_> = acting.flat_map(|node| &node.held).collect();
        held.iter().all(|one| {
            held.iter().all(|other| {
                one.session == other.session
                    || !one.range.overlaps(other.range)
                    || !one.mode.conflicts(other.mode)
            })
        })
    }

    /// Whether two nodes use a contended range side by side.
    pub(crate) fn is_shared_directly(&self) -> bool {
        let direct = |node: &&Node| node.held.iter().any(|held| held.mode == Mode::Direct);
        self.nodes.iter().filter(direct).count() > 1
    }

    /// Whether a node that was recovered holds a token again.
    pub(crate) fn is_back(&self) -> bool {
        self.nodes.iter().any(|node| node.session.0 % 10 > 0 && !node.held.is_empty())
    }

    /// Whether somebody got a token in an epoch after the first.
    pub(crate) fn grants_again(&self) -> bool {
        let epoch = self.store.epoch;
        epoch.0 > 1 && self.nodes.iter().any(|node| node.asserted == epoch && !node.held.is_empty())
    }

    /// Whether a node reads what another one wrote.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.nodes.iter().filter(|node| !node.held.is_empty()).count() > 1
    }

    /// Whether somebody could not read what others waited for.
    pub(crate) fn is_marked(&self) -> bool {
        !self.store.tokens.unreadable().is_empty()
    }

    /// Whether somebody gave up what it once could not read.
    pub(crate) fn is_given_after_all(&self) -> bool {
        self.unreadable == 0 && !self.is_marked() && self.is_handed_over()
    }

    /// What was acknowledged is somewhere, and whoever has it alone can bring it to the origin.
    pub(crate) fn nothing_is_lost(&self) -> bool {
        (0..BLOCKS_MAX).all(|at| {
            self.origin[at]
                || self
                    .nodes
                    .iter()
                    .any(|node| node.cache[at].is_some_and(|copy| copy.newest && copy.dirty))
        })
    }
}

impl Node {
    fn mode_of(&self, block_at: usize) -> Option<Mode> {
        self.held.iter().find(|held| held.range.contains(block(block_at))).map(|held| held.mode)
    }

    fn allows(&self, direction: Direction, block_at: usize) -> bool {
        // A change that is on its way may take it away.
        self.mode_of(block_at).is_some_and(|mode| mode.allows(direction))
    }

    /// The lease was over: others may have written what was not exclusive.
    fn lapse(&mut self) {
        self.held.retain(|held| held.mode == Mode::Exclusive);
        self.drop_what_no_token_caches();
    }

    fn drop_what_no_token_caches(&mut self) {
        for at in 0..BLOCKS_MAX {
            if !self.mode_of(at).is_some_and(Mode::caches) {
                self.cache[at] = self.cache[at].filter(|copy| copy.dirty);
            }
        }
    }
}

/// Two sessions take a block from each other until it is contended.
fn contend(tokens: &mut Tokens, epoch: Epoch, members: &Members) {
    let demand = Demand {
        direction: Direction::Write,
        required: block(0),
        desired: ByteRange::new(0, REGION),
        alone: false,
    };
    let sessions: Vec<_> = members.sessions().map(|(session, _)| session).take(2).collect();
    for round in 0..60 {
        let (one, other) = (sessions[round % 2], sessions[(round + 1) % 2]);
        tokens.ask(one, demand, (epoch, members), 0);
        tokens.give_up(other, FILE, None, epoch);
        tokens.ask(one, demand, (epoch, members), 0);
    }
    for session in sessions {
        tokens.give_up(session, ByteRange::new(0, u64::MAX), None, epoch);
    }
}
