//! Shared by the tables of policies: the error for an unknown name.

use std::fmt;

/// A policy name that no table row has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPolicy {
    kind: &'static str,
    name: String,
    known: Vec<&'static str>,
}

impl UnknownPolicy {
    /// No `kind` policy is called `name`; the `known` ones are named in the message.
    pub(crate) fn new(
        kind: &'static str,
        name: &str,
        known: impl Iterator<Item = &'static str>,
    ) -> Self {
        Self { kind, name: name.to_owned(), known: known.collect() }
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, known } = self;
        write!(f, "no {kind} policy is called \"{name}\"; choose one of: {}", known.join(", "))
    }
}

impl std::error::Error for UnknownPolicy {}
