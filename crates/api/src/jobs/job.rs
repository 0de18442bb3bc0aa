//! One announced job, and how far it is.
//!
//! A job belongs to the processes that claim it, or otherwise to those that open its files in its order. So it is
//! followed separately for each process group that opens its files, and its position is taken to be that of the group
//! that follows it best: other programs that open its files, or another run of it, change nothing.
//!
//! Announcing a job is never worse than not announcing it: a job whose order nobody follows, or that nobody continues,
//! has no influence on its files.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::job_file::JobFile;
use super::opener::{self, Opener};

/// References that may be skipped at once; a jump farther ahead is a deviation.
const SKIP_MAX: u32 = 64;
/// A follower is no longer trusted once its deviations outweigh this many references in order.
const DEVIATION_MAX: u32 = 16;
/// The weight of one deviation, compared with 1 for a reference in order.
const DEVIATION: u32 = 4;
/// References in order beyond which trust in a follower does not grow.
const MATCHED_MAX: u32 = 16;
/// The files of this many last references are in work: programs may open them once more.
const IN_WORK: usize = 4;
/// Groups of processes that are followed at the same time.
const FOLLOWERS_MAX: usize = 8;
/// A job's recent share of all opens: all of them, the initial assumption, the share below which it
/// counts as stopped or unimportant, and the share from which it is believed again.
const ALL: u32 = 1 << 16;
const SHARE_BEFORE: u32 = ALL / 16 * 3;
const SHARE_MIN: u32 = ALL / 8;
const SHARE_AGAIN: u32 = ALL / 16 * 3;
/// How many opens "recent" covers.
const LATELY: u32 = 64;

/// A job on this node.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: String,
    sequence: Vec<u32>,
    /// Path of each file, by its index.
    paths: Vec<Arc<Path>>,
    /// Positions of each file, ascending, by its index.
    positions: Vec<Arc<[u32]>>,
    files: HashMap<Arc<Path>, u32>,
    /// References made so far, and so the index of the next one.
    next: u32,
    followers: Vec<Follower>,
    /// The processes that follow it best.
    leader: Option<Whose>,
    /// Processes claimed it: no others are its own.
    claimed: bool,
    /// Its last reference has passed, and its files have been opened since.
    over: bool,
    /// Its recent share of all opens.
    share: u32,
    /// That share is too small for the job to count.
    still: bool,
}

/// Processes that may belong to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// They claim it.
    Own,
    /// A process group.
    Group(u32),
}

#[derive(Debug)]
struct Follower {
    whose: Whose,
    next: u32,
    /// References in order, as far as they are counted.
    matched: u32,
    deviation: u32,
}

impl Follower {
    const fn has_deviated(&self) -> bool {
        self.deviation > DEVIATION_MAX
    }
}

/// What an open changed in what is announced of files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Files whose skipped references will not come any more.
    pub skipped: Vec<Arc<Path>>,
    /// What is announced of many files has changed, because a job is no longer believed, is believed again, or is at
    /// another position.
    pub untrusted: bool,
}

/// Announced references of one file that are to come; as cheap for many as for few.
#[derive(Debug, Default)]
pub struct Ahead(Vec<Part>);

/// The references of one job.
#[derive(Debug)]
pub(super) struct Part {
    positions: Arc<[u32]>,
    /// The first of `positions` that is to come.
    from: usize,
    /// The position that the job is at.
    now: u32,
}

impl Ahead {
    /// The references of all jobs that name a file; `None` if none does.
    pub(super) fn of(parts: Vec<Part>) -> Option<Self> {
        (!parts.is_empty()).then_some(Self(parts))
    }

    /// How many references from now the next one is; 1 is the very next.
    pub fn next(&self) -> Option<u64> {
        self.0.iter().filter_map(|part| Some(part.away(*part.coming().first()?))).min()
    }

    /// How many there are among the next `horizon` references of each job.
    pub fn later(&self, horizon: u64) -> u64 {
        let within = |part: &Part| {
            part.coming().partition_point(|position| part.away(*position) <= horizon) as u64
        };
        self.0.iter().map(within).sum()
    }
}

impl Part {
    fn coming(&self) -> &[u32] {
        &self.positions[self.from..]
    }

    fn away(&self, position: u32) -> u64 {
        u64::from(position - self.now) + 1
    }
}

/// How an open fits a job's order.
enum Fit {
    /// It is this reference.
    Reference(u32),
    /// A file in work was opened once more.
    Again,
    /// It is not one of the next references.
    None,
}

impl Job {
    /// The job of a job file for one node.
    pub(super) fn new(JobFile { name, references, .. }: JobFile) -> Self {
        let mut job = Self {
            name,
            sequence: Vec::new(),
            paths: Vec::new(),
            positions: Vec::new(),
            files: HashMap::new(),
            next: 0,
            followers: Vec::new(),
            leader: None,
            claimed: false,
            over: false,
            share: SHARE_BEFORE,
            still: false,
        };
        let mut positions: Vec<Vec<u32>> = Vec::new();
        for (path, times) in references {
            let path: Arc<Path> = path.into();
            let new = u32::try_from(job.paths.len()).expect("references are bounded");
            let file = *job.files.entry(Arc::clone(&path)).or_insert(new);
            if file == new {
                job.paths.push(path);
                positions.push(Vec::new());
            }
            let first = job.len();
            positions[file as usize].extend(first..first + times);
            job.sequence.resize((first + times) as usize, file);
        }
        debug_assert!(positions.iter().all(|of_file| of_file.is_sorted()));
        job.positions = positions.into_iter().map(Arc::from).collect();
        assert_eq!(job.paths.len(), job.positions.len(), "each file has its positions");
        job
    }

    /// Number of references.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.sequence.len()).expect("references are bounded")
    }

    /// Number of files.
    pub(super) fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// References made so far.
    pub(super) const fn position(&self) -> u32 {
        self.next
    }

    /// Continues at the position where an earlier mount ended.
    pub(super) fn resume(&mut self, position: u32) {
        self.next = position.min(self.len());
    }

    /// A new run begins, by processes that claim the job.
    pub(super) fn begin(&mut self) {
        self.followers.clear();
        (self.next, self.leader, self.claimed, self.over) = (0, None, true, false);
        (self.share, self.still) = (SHARE_BEFORE, false);
    }

    /// How far it is, in a word.
    pub(super) fn state(&self) -> &'static str {
        match self {
            job if job.has_deviated() => "deviated",
            Self { next: 0, .. } => "waiting",
            job if job.next == job.len() => "done",
            Self { still: true, .. } => "stopped",
            _ => "running",
        }
    }

    /// Counts an open as another reference, in its order or not.
    const fn count(&mut self, in_order: bool) {
        self.share -= self.share / LATELY;
        if in_order {
            self.share += ALL / LATELY;
        }
        assert!(self.share <= ALL, "a share of all opens");
        self.still = self.share < if self.still { SHARE_AGAIN } else { SHARE_MIN };
    }

    /// Whether a follower deviated and nobody follows the job now.
    fn has_deviated(&self) -> bool {
        self.leader.is_none() && self.followers.iter().any(Follower::has_deviated)
    }

    /// Whether what it announces of its files is believed.
    pub(super) fn is_trusted(&self) -> bool {
        !self.over && !self.still && !self.has_deviated()
    }

    /// The references of a file from now on.
    pub(super) fn ahead(&self, path: &Path) -> Option<Part> {
        let file = *self.files.get(path).filter(|_| self.is_trusted())?;
        let positions = self.positions[file as usize].clone();
        let from = positions.partition_point(|position| *position < self.next);
        Some(Part { positions, from, now: self.next })
    }

    /// Called when a file is opened; returns whether that is the job's own use of it.
    pub(super) fn opened(&mut self, path: &Path, by: &Opener, passed: &mut Passed) -> bool {
        let trusted = self.is_trusted();
        let whose = self.whose(by);
        let file = self.files.get(path).copied();
        let before = self.next;
        let own = match (whose, file) {
            (Some(whose), Some(file)) => self.follow(whose, file, passed),
            _ => false,
        };
        assert!(self.next <= self.len(), "a job is at one of its references or done");
        debug_assert!(self.followers.len() <= FOLLOWERS_MAX);
        self.count(self.next != before || own);
        passed.untrusted |= trusted != self.is_trusted();
        own
    }

    /// The processes to which an opener belongs, if they may be the job's.
    fn whose(&mut self, by: &Opener) -> Option<Whose> {
        match &by.job {
            Some(name) if **name == *self.name => {
                if !self.claimed {
                    // Processes that seemed to run the job did not.
                    self.followers.clear();
                    (self.leader, self.claimed) = (None, true);
                }
                Some(Whose::Own)
            }
            Some(_) => None,
            None => (!self.claimed).then_some(Whose::Group(by.group)),
        }
    }

    fn follow(&mut self, whose: Whose, file: u32, passed: &mut Passed) -> bool {
        let at = self.follower(whose, file);
        let follower = &self.followers[at];
        if follower.has_deviated() {
            return false;
        }
        let is_leader = self.leader == Some(whose);
        if follower.next == self.len() {
            self.over |= is_leader;
            return is_leader;
        }
        match self.fit(follower.next, file) {
            Fit::Reference(position) => {
                let from = follower.next;
                let follower = &mut self.followers[at];
                follower.next = position + 1;
                follower.matched = (follower.matched + 1).min(MATCHED_MAX);
                // The announcement of what was skipped was wrong.
                follower.deviation = match position - from {
                    0 => follower.deviation.saturating_sub(1),
                    skipped => follower.deviation + skipped.min(DEVIATION),
                };
                if follower.has_deviated() {
                    self.dismiss(whose, passed);
                } else if self.leads(at) {
                    self.lead(at, from, position, passed);
                }
            }
            Fit::Again => {}
            Fit::None => {
                let follower = &mut self.followers[at];
                follower.deviation += DEVIATION;
                if follower.has_deviated() {
                    self.dismiss(whose, passed);
                }
            }
        }
        self.leader == Some(whose)
    }

    /// The follower for these processes. A new one whose first open fits the job's position continues there, any other
    /// starts at the beginning.
    fn follower(&mut self, whose: Whose, file: u32) -> usize {
        if let Some(at) = self.followers.iter().position(|follower| follower.whose == whose) {
            return at;
        }
        if self.followers.len() == FOLLOWERS_MAX {
            let keep = self.leader;
            let oldest = self.followers.iter().position(|follower| Some(follower.whose) != keep);
            self.followers.remove(oldest.expect("one of them leads"));
        }
        let goes_on = self.next < self.len()
            && matches!(self.fit(self.next, file), Fit::Reference(_) | Fit::Again);
        let next = if goes_on { self.next } else { 0 };
        self.followers.push(Follower { whose, next, matched: 0, deviation: 0 });
        self.followers.len() - 1
    }

    /// How an open of `file` fits where `next` is expected.
    fn fit(&self, next: u32, file: u32) -> Fit {
        let (sequence, at) = (&self.sequence, next as usize);
        if sequence.get(at) == Some(&file) {
            return Fit::Reference(next);
        }
        if sequence[at.saturating_sub(IN_WORK)..at].contains(&file) {
            return Fit::Again;
        }
        let positions = &self.positions[file as usize];
        match positions.get(positions.partition_point(|position| *position < next)) {
            Some(&position) if position - next <= SKIP_MAX => Fit::Reference(position),
            _ => Fit::None,
        }
    }

    /// Whether a follower that has just made a reference in order is believed: it has made as many as the leader so
    /// far, or the leader's processes are gone.
    fn leads(&self, at: usize) -> bool {
        let (own, leader) = (&self.followers[at], self.leader);
        let leading = |follower: &&Follower| Some(follower.whose) == leader;
        let Some(leader) = self.followers.iter().find(leading) else { return true };
        own.matched >= leader.matched
            || matches!(leader.whose, Whose::Group(group) if opener::is_gone(group))
    }

    /// Called when a follower has deviated.
    fn dismiss(&mut self, whose: Whose, passed: &mut Passed) {
        if self.leader == Some(whose) {
            self.leader = None;
            passed.untrusted = true;
        }
    }

    /// Moves the job to the position of a follower, which came from `from`.
    fn lead(&mut self, at: usize, from: u32, position: u32, passed: &mut Passed) {
        let whose = self.followers[at].whose;
        if self.next == from {
            let skipped = &self.sequence[from as usize..position as usize];
            let paths = skipped.iter().map(|file| self.paths[*file as usize].clone());
            passed.skipped.extend(paths);
        } else {
            passed.untrusted = true;
        }
        (self.leader, self.next, self.over) = (Some(whose), position + 1, false);
    }
}
