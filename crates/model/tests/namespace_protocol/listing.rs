//! A node that lists a directory page by page, as a program that reads it does.

use std::collections::BTreeSet;

use halocline_model::namespace::{Answer, Buckets, Completion, Cursor, InodeNumber, Name, Script};

use super::canary::Canary;

/// A listing in progress, of pages of one name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Listing {
    directory: InodeNumber,
    buckets: Option<Buckets>,
    cursor: u64,
    listed: Vec<Name>,
    /// What has been there since it began.
    stayed: BTreeSet<Name>,
    completion: Option<Completion>,
    is_over: bool,
}

impl Listing {
    pub(crate) fn new(directory: InodeNumber, there: BTreeSet<Name>) -> Self {
        Self { directory, stayed: there, is_over: false, ..Self::over() }
    }

    /// One that is over.
    pub(crate) const fn over() -> Self {
        Self {
            directory: InodeNumber(0),
            buckets: None,
            cursor: 0,
            listed: Vec::new(),
            stayed: BTreeSet::new(),
            completion: None,
            is_over: true,
        }
    }

    pub(crate) fn message(&self) -> Option<(InodeNumber, Script)> {
        if self.is_over {
            return None;
        }
        if let Some(message) = self.completion.as_ref().and_then(Completion::step) {
            return Some(message);
        }
        let cursor = Cursor::from_number(self.cursor);
        let (shard, after) = cursor.shard(self.directory, self.buckets.as_ref())?;
        Some((shard, Script::List(after, 1)))
    }

    pub(crate) fn answer(&mut self, answer: Option<Answer>, canary: Option<Canary>) {
        if let Some(completion) = &mut self.completion {
            completion.answer(answer);
            self.completion.take_if(|completion| completion.step().is_none());
            return;
        }
        let cursor = Cursor::from_number(self.cursor);
        let cursor = match answer {
            Some(Answer::Entries { entries, is_last, .. }) => {
                let last = entries.last().map(|(place, ..)| *place);
                self.listed.extend(entries.into_iter().map(|(_, name, _)| name));
                let next = self.buckets.as_ref().and_then(|all| cursor.next_bucket(all));
                match (is_last, next) {
                    (false, _) => last.map(|place| cursor.after(place)),
                    (true, Some(Cursor::Bucket { index, .. }))
                        if canary == Some(Canary::ListedWithoutMet) =>
                    {
                        Some(Cursor::Bucket { index, met: 0, after: 0 })
                    }
                    (true, next) => next,
                }
            }
            Some(Answer::Split(buckets)) => {
                self.buckets = Some(buckets);
                match cursor.among_buckets() {
                    Cursor::Bucket { index, met, .. }
                        if canary == Some(Canary::ListedFromStart) =>
                    {
                        Some(Cursor::Bucket { index, met, after: 0 })
                    }
                    among => Some(among),
                }
            }
            Some(Answer::Busy(intent)) => {
                self.completion = Some(Completion::new(intent));
                return;
            }
            // The directory is gone, and nothing stayed.
            _ => {
                self.stayed.clear();
                None
            }
        };
        match cursor {
            Some(cursor) => self.cursor = cursor.number(),
            None => self.is_over = true,
        }
    }

    /// Sees what is there now.
    pub(crate) fn see(&mut self, is_there: impl Fn(InodeNumber, &Name) -> bool) {
        if !self.is_over {
            self.stayed.retain(|name| is_there(self.directory, name));
        }
    }

    /// Whether what stayed was listed once, once it is over.
    pub(crate) fn is_whole(&self) -> bool {
        let times = |name: &Name| self.listed.iter().filter(|other| *other == name).count();
        !self.is_over || self.stayed.iter().all(|name| times(name) == 1)
    }
}
