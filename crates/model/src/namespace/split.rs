//! Splits a directory into buckets: its entries are copied into shards to which nothing leads, and then one script
//! replaces them by the numbers of these, if nothing was changed meanwhile.

use super::{
    Answer, Body, Buckets, Change, Entry, InodeNumber, Intent, Name, SPLIT_PLACE_MAX, Script,
};

/// The most bytes of entries that are sent at once.
const FILL_BYTES_MAX: usize = 256 << 10;

/// How a split ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SplitEnd {
    /// The directory has these buckets, from this split or another one.
    Split(Buckets),
    /// It has none: it was changed meanwhile, or this intent was in the way.
    Again(Option<Intent>),
    /// It has none, and cannot be split: it has had too many names before.
    Unfit,
    /// An answer was lost.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    List,
    Make(usize),
    Fill(usize),
    Commit,
    /// Discards this and all later buckets, and then ends like this.
    Discard(usize, SplitEnd),
    End(SplitEnd),
}

/// A split in progress. It is invisible to others until it is done, and the node may die at any point: that leaves
/// buckets to which no directory leads, which a check removes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Split {
    directory: InodeNumber,
    buckets: Buckets,
    /// The most entries of one request.
    page: usize,
    /// How many of the buckets were made.
    made: usize,
    /// The place that was reached, whether that is the last, and the version that is listed.
    after: u64,
    is_last: bool,
    version: Option<u64>,
    /// How many entries were listed.
    entries: u64,
    /// Entries of each bucket that were not sent yet.
    waiting: Vec<Vec<(u64, Name, Entry)>>,
    stage: Stage,
}

fn bytes(entries: &[(u64, Name, Entry)]) -> usize {
    let size = |(_, name, entry): &(u64, Name, Entry)| {
        let attributes = match entry {
            Entry::Single(_, attributes) => attributes.as_bytes().len(),
            _ => 0,
        };
        name.as_bytes().len() + attributes
    };
    entries.iter().map(size).sum()
}

impl Split {
    /// Begins to split a directory into buckets, whose numbers were never used. At most `page` entries are sent at once.
    #[must_use]
    pub fn new(directory: InodeNumber, buckets: Buckets, page: usize) -> Self {
        let waiting = vec![Vec::new(); buckets.numbers().len()];
        Self {
            directory,
            buckets,
            page: page.max(1),
            made: 0,
            after: 0,
            is_last: false,
            version: None,
            entries: 0,
            waiting,
            stage: Stage::List,
        }
    }

    /// What to send now, once; or how it ended.
    ///
    /// # Errors
    /// The end.
    pub fn step(&self) -> Result<(InodeNumber, Script), &SplitEnd> {
        let numbers = self.buckets.numbers();
        Ok(match &self.stage {
            Stage::List => (self.directory, Script::List(self.after, self.page)),
            Stage::Make(at) => (numbers[*at], Script::Make(Body::bucket(self.directory))),
            Stage::Fill(at) => (numbers[*at], Script::Fill(self.waiting[*at].clone())),
            Stage::Commit => {
                let version = self.version.unwrap_or_default();
                let (entries, buckets) = (self.entries, self.buckets.clone());
                let split = Change::Split { version, entries, buckets };
                (self.directory, Script::Alone(vec![split]))
            }
            Stage::Discard(at, _) => (numbers[*at], Script::Discard(self.directory)),
            Stage::End(end) => return Err(end),
        })
    }

    /// Takes the answer to what was sent; `None` if none came in time.
    pub fn answer(&mut self, answer: Option<Answer>) {
        let stage = std::mem::replace(&mut self.stage, Stage::End(SplitEnd::Unknown));
        self.stage = match (stage, answer) {
            (Stage::List, Some(Answer::Entries { entries, is_last, version })) => {
                self.listed(entries, is_last, version)
            }
            (Stage::Make(at), Some(Answer::Done)) => {
                self.made = at + 1;
                self.fill()
            }
            (Stage::Fill(at), Some(Answer::Done)) => {
                self.waiting[at].clear();
                self.fill()
            }
            (Stage::Commit, Some(Answer::Done)) => {
                Stage::End(SplitEnd::Split(self.buckets.clone()))
            }
            // It may be made at any time, as long as the directory stays what it was: the buckets must stay.
            (Stage::Commit, None) => Stage::End(SplitEnd::Unknown),
            (Stage::List | Stage::Commit, Some(Answer::Split(buckets))) => {
                self.discard(SplitEnd::Split(buckets))
            }
            (Stage::List | Stage::Commit, Some(Answer::Busy(intent))) => {
                self.discard(SplitEnd::Again(Some(intent)))
            }
            (Stage::List | Stage::Commit | Stage::Make(_) | Stage::Fill(_), Some(_)) => {
                self.discard(SplitEnd::Again(None))
            }
            // Nothing leads to the buckets, and nothing will.
            (Stage::List | Stage::Make(_) | Stage::Fill(_), None) => {
                self.discard(SplitEnd::Unknown)
            }
            (Stage::Discard(at, end), _) => self.discard_from(at + 1, end),
            (Stage::End(end), _) => Stage::End(end),
        };
    }

    fn listed(&mut self, entries: Vec<(u64, Name, Entry)>, is_last: bool, version: u64) -> Stage {
        let last = entries.last().map_or(self.after, |(place, ..)| *place);
        if last > SPLIT_PLACE_MAX {
            return self.discard(SplitEnd::Unfit);
        }
        let leads_nowhere = !is_last && last <= self.after;
        if leads_nowhere || self.version.is_some_and(|before| before != version) {
            return self.discard(SplitEnd::Again(None));
        }
        (self.version, self.after, self.is_last) = (Some(version), last, is_last);
        self.entries += entries.len() as u64;
        for (place, name, entry) in entries {
            let index = self.buckets.index(&name);
            self.waiting[index].push((place, name, entry));
        }
        if self.made == 0 { Stage::Make(0) } else { self.fill() }
    }

    /// Sends what is enough for a request, or all once everything is listed.
    fn fill(&self) -> Stage {
        if self.made < self.waiting.len() {
            return Stage::Make(self.made);
        }
        let is_due = |entries: &Vec<_>| {
            entries.len() >= self.page
                || bytes(entries) >= FILL_BYTES_MAX
                || self.is_last && !entries.is_empty()
        };
        match self.waiting.iter().position(is_due) {
            Some(at) => Stage::Fill(at),
            None if self.is_last => Stage::Commit,
            None => Stage::List,
        }
    }

    fn discard(&self, end: SplitEnd) -> Stage {
        self.discard_from(0, end)
    }

    /// Not the bucket whose making was not answered: it may not be there, or come later.
    fn discard_from(&self, at: usize, end: SplitEnd) -> Stage {
        if at < self.made { Stage::Discard(at, end) } else { Stage::End(end) }
    }
}
