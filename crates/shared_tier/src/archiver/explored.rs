//! The protocol of clean copies, explored: two writers, makers that die and their successors, and a store that is built again
//! from the disks, in every order of their steps.
//!
//! Only the marks count here: that a maker also compares size, times and attributes is not needed for what must hold. The
//! first states are explored; there are 943,546 (`STATES`).

use std::collections::{HashSet, VecDeque};

/// How many copies may be begun.
const COPIES: usize = 2;
/// How often each writer may open the file.
const CHANGES: u8 = 1;
/// How many states are explored.
const STATES: usize = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Mark {
    number: usize,
    is_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Maker {
    Idle,
    Announced(usize),
    /// It reads the file; what it has read so far is of this version.
    Copying(usize, u8),
    Put(usize),
    Marked(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Idle,
    Looked(Option<Mark>),
    /// Has removed one of the two names of the copy.
    RemovedOne(Option<Mark>),
    Removed(Option<Mark>),
    Noted,
}

/// A step is left out or made in another order, and the exploration must notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Canary {
    None,
    FinalNameFirst,
    ClearsBeforeItRemoves,
    RemovesFinalFirst,
    TakesAnyMark,
    MarksWhatIsOpen,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    mark: Option<Mark>,
    /// Versions of the file, of the copies that have a name for now, and of those with the final one.
    file: u8,
    unmarked: [Option<u8>; COPIES],
    finals: [Option<u8>; COPIES],
    begun: usize,
    maker: Maker,
    writers: [(Writer, u8); 2],
    /// Writers that died while they had the file open, and whose sessions are not over.
    dead: u8,
}

/// What a copy has that was read while the file changed.
const TORN: u8 = u8::MAX;

impl World {
    const fn new() -> Self {
        Self {
            mark: None,
            file: 0,
            unmarked: [None; COPIES],
            finals: [None; COPIES],
            begun: 0,
            maker: Maker::Idle,
            writers: [(Writer::Idle, 0); 2],
            dead: 0,
        }
    }

    fn is_written(&self) -> bool {
        self.dead > 0 || self.writers.iter().any(|(writer, _)| *writer == Writer::Noted)
    }

    /// Every step that somebody can make.
    fn next(&self, canary: Canary) -> Vec<Self> {
        let mut all = Vec::new();
        all.extend(self.maker_step(canary));
        for at in 0..2 {
            all.extend(self.writer_step(at, canary));
        }
        let with = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            next
        };
        // The maker dies; its successor removes what has no mark.
        all.push(with(&|next| {
            next.maker = Maker::Idle;
            next.unmarked = [None; COPIES];
            for (number, copy) in next.finals.iter_mut().enumerate() {
                *copy = copy.filter(|_| next.mark.is_some_and(|mark| mark.number == number));
            }
        }));
        for at in 0..2 {
            // A writer dies; and later its session is over.
            all.push(with(&|next| {
                next.dead += u8::from(next.writers[at].0 == Writer::Noted);
                next.writers[at].0 = Writer::Idle;
            }));
        }
        all.push(with(&|next| next.dead = 0));
        // The store is lost, and built again from the disks, alone.
        all.push(with(&|next| {
            next.maker = Maker::Idle;
            next.unmarked = [None; COPIES];
            next.writers.iter_mut().for_each(|(writer, _)| *writer = Writer::Idle);
            next.dead = 0;
            let last = next.finals.iter().rposition(Option::is_some);
            next.mark = last.map(|number| Mark { number, is_whole: true });
        }));
        all
    }

    fn maker_step(&self, canary: Canary) -> Option<Self> {
        let mut next = self.clone();
        match self.maker {
            Maker::Idle if self.begun < COPIES => {
                let is_kept = |mark: Mark| mark.is_whole && self.finals[mark.number].is_some();
                let is_open = self.is_written() && canary != Canary::MarksWhatIsOpen;
                if is_open || self.mark.is_some_and(is_kept) {
                    return None;
                }
                next.mark = Some(Mark { number: self.begun, is_whole: false });
                next.maker = Maker::Announced(self.begun);
                next.begun += 1;
            }
            Maker::Idle => return None,
            Maker::Announced(number) => next.maker = Maker::Copying(number, self.file),
            Maker::Copying(number, version) => {
                next.unmarked[number] = Some(if version == self.file { version } else { TORN });
                next.maker = Maker::Put(number);
            }
            Maker::Put(number) if canary == Canary::FinalNameFirst => {
                next.finals[number] = next.unmarked[number].take();
                next.maker = Maker::Marked(number);
            }
            Maker::Put(number) => {
                let announced = Some(Mark { number, is_whole: false });
                if self.mark == announced {
                    next.mark = Some(Mark { number, is_whole: true });
                    next.maker = Maker::Marked(number);
                } else {
                    next.unmarked[number] = None;
                    next.maker = Maker::Idle;
                }
            }
            Maker::Marked(number) => {
                if let Some(copy) = next.unmarked[number].take() {
                    next.finals[number] = Some(copy);
                }
                next.maker = Maker::Idle;
            }
        }
        Some(next)
    }

    fn writer_step(&self, at: usize, canary: Canary) -> Vec<Self> {
        let (writer, changes) = self.writers[at];
        let mut next = self.clone();
        let now = &mut next.writers[at].0;
        let first_is_final = canary == Canary::RemovesFinalFirst;
        match writer {
            Writer::Idle if changes == CHANGES => return Vec::new(),
            Writer::Idle => *now = Writer::Looked(self.mark),
            Writer::Looked(Some(mark)) => {
                *now = Writer::RemovedOne(Some(mark));
                let names = if first_is_final { &mut next.finals } else { &mut next.unmarked };
                names[mark.number] = None;
                if canary == Canary::ClearsBeforeItRemoves {
                    next.mark = None;
                }
            }
            Writer::RemovedOne(Some(mark)) => {
                *now = Writer::Removed(Some(mark));
                let names = if first_is_final { &mut next.unmarked } else { &mut next.finals };
                names[mark.number] = None;
            }
            Writer::Looked(None) | Writer::RemovedOne(None) | Writer::Removed(_) => {
                let taken = if let Writer::Removed(taken) = writer { taken } else { None };
                let may =
                    self.mark.is_none() || self.mark == taken || canary == Canary::TakesAnyMark;
                *now = if may { Writer::Noted } else { Writer::Looked(self.mark) };
                next.mark = self.mark.filter(|_| !may);
            }
            Writer::Noted => {
                let mut closed = self.clone();
                closed.writers[at] = (Writer::Idle, changes + 1);
                next.file += 1;
                let may_change = self.file < 2 * CHANGES;
                return if may_change { vec![closed, next] } else { vec![closed] };
            }
        }
        vec![next]
    }

    /// What must hold: each copy with its final name has the file's newest content.
    fn is_right(&self) -> bool {
        self.finals.iter().flatten().all(|copy| *copy == self.file)
    }
}

/// Goes through the first states; returns how many there are, and whether a copy with its final name was an old one.
fn explore(canary: Canary) -> (usize, bool) {
    let mut seen = HashSet::from([World::new()]);
    let mut todo = VecDeque::from([World::new()]);
    while let Some(world) = todo.pop_front().filter(|_| seen.len() < STATES) {
        for next in world.next(canary) {
            if !next.is_right() {
                return (seen.len(), true);
            }
            if seen.insert(next.clone()) {
                todo.push_back(next);
            }
        }
    }
    (seen.len(), false)
}

#[test]
fn i13_i14_a_copy_with_its_final_name_is_never_an_old_one() {
    let (states, is_wrong) = explore(Canary::None);
    assert!(!is_wrong && states > 10_000, "{states} states");
}

#[test]
fn the_exploration_notices_each_canary() {
    for canary in [
        Canary::FinalNameFirst,
        Canary::ClearsBeforeItRemoves,
        Canary::RemovesFinalFirst,
        Canary::TakesAnyMark,
        Canary::MarksWhatIsOpen,
    ] {
        let (states, is_wrong) = explore(canary);
        assert!(is_wrong, "{canary:?} in {states} states");
    }
}
