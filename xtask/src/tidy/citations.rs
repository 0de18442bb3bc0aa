//! Who follows a citation finds what it names: documents are in the repository, and so are their
//! numbered sections, the decisions (`D` and a number) of `docs/DESIGN.md`, the invariants (`I` and
//! a number), and the decision records.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Component, Path, PathBuf};

use super::{Finding, Source};

const DESIGN: &str = "docs/DESIGN.md";
const INVARIANTS: &str = "docs/INVARIANTS.md";
const RECORDS: &str = "docs/decisions/";
/// Texts that are not ours.
const THIRD_PARTY: [&str; 2] = ["Cargo.lock", "LICENSE"];
/// Where canaries cite what does not exist.
const CANARIES: &str = "xtask/src/tidy/";
/// Stands for a number in the name of a document that is only described.
const PLACEHOLDER: &str = "NNNN";
/// What a document is called that earlier comments cited and no reader has; in two halves so that
/// this file does not find itself.
const GONE: &str = concat!("SP", "EC");

/// Finds citations that lead nowhere.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let library = Library::of(sources);
    let ours = sources.iter().filter(|source| !THIRD_PARTY.contains(&source.path.as_str()));
    ours.flat_map(|source| {
        let mut findings = library.broken_links(source);
        findings.extend(library.broken_citations(source));
        findings
    })
    .collect()
}

/// What there is to cite.
#[derive(Debug, Default)]
struct Library<'a> {
    paths: BTreeSet<&'a str>,
    /// Numbers of the numbered headings of each document.
    sections: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// `D11`, `I4`.
    numbered: BTreeSet<&'a str>,
    /// `0007`.
    records: BTreeSet<&'a str>,
}

impl<'a> Library<'a> {
    fn of(sources: &'a [Source]) -> Self {
        let mut library = Self::default();
        for source in sources {
            let path = source.path.as_str();
            library.paths.insert(path);
            if let Some(name) = path.strip_prefix(RECORDS) {
                library.records.extend(name.split('-').next());
            }
            if is_document(path) {
                let headings = source.text.lines().filter(|line| line.starts_with("##"));
                let numbers = headings.filter_map(|line| line.split_whitespace().nth(1));
                let numbers = numbers.map(|word| word.trim_end_matches('.'));
                let numbers = numbers.filter(|number| is_section_number(number));
                library.sections.entry(path).or_default().extend(numbers);
            }
            if [DESIGN, INVARIANTS].contains(&path) {
                let defined = source.text.lines().filter_map(|line| {
                    let rest = line.strip_prefix("### ").or_else(|| line.strip_prefix("| "))?;
                    rest.split_whitespace().next()
                });
                library.numbered.extend(defined.filter(|word| is_numbered(word)));
            }
        }
        library
    }

    /// The document that `cited` names in `source`: from the root, beside `source`, or, for texts
    /// from which documents are generated, in `docs`.
    fn document(&self, source: &Source, cited: &str) -> Option<&'a str> {
        let plain = cited.trim_start_matches(['/', '.']);
        let beside = Path::new(&source.path).parent().unwrap_or(Path::new(""));
        let places = [PathBuf::from(plain), beside.join(cited), Path::new("docs").join(plain)];
        places.iter().find_map(|place| self.path(place))
    }

    /// A path of the repository, written with `.` and `..` or without.
    fn path(&self, place: &Path) -> Option<&'a str> {
        let mut plain: Vec<&str> = Vec::new();
        for part in place.components() {
            match part {
                Component::Normal(name) => plain.push(name.to_str()?),
                Component::ParentDir => drop(plain.pop()?),
                _ => {}
            }
        }
        let plain = plain.join("/");
        if let Some(path) = self.paths.get(plain.as_str()) {
            return Some(path);
        }
        // A directory is there if something in it is.
        let inside = format!("{plain}/");
        let from = (Bound::Included(inside.as_str()), Bound::Unbounded);
        let first = self.paths.range::<str, _>(from).next().copied()?;
        first.starts_with(&inside).then_some(first)
    }

    /// Markdown links that lead to no file from where they stand.
    fn broken_links(&self, source: &Source) -> Vec<Finding> {
        if !is_document(&source.path) {
            return Vec::new();
        }
        let beside = Path::new(&source.path).parent().unwrap_or(Path::new(""));
        let mut findings = Vec::new();
        for (index, line) in source.text.lines().enumerate() {
            for link in line.split("](").skip(1) {
                let target = link.split([')', '#']).next().unwrap_or_default();
                let elsewhere = target.is_empty() || target.contains("://");
                if !elsewhere && self.path(&beside.join(target)).is_none() {
                    let what = format!("the link to {target} leads nowhere");
                    findings.push(Finding::new(source, index + 1, what));
                }
            }
        }
        findings
    }

    fn broken_citations(&self, source: &Source) -> Vec<Finding> {
        let words = words(source);
        let mut findings = Vec::new();
        for (at, &(line, word)) in words.iter().enumerate() {
            let next = |ahead: usize| words.get(at + ahead).map_or("", |(_, word)| *word);
            let broken = documents_in(word)
                .find_map(|cited| match self.document(source, cited) {
                    None => Some(format!("the repository has no {cited}")),
                    Some(path) => self.broken_section(path, next(1), next(2)),
                })
                .or_else(|| unnamed(word, next(1)))
                .or_else(|| self.broken_number(word))
                .or_else(|| self.broken_record(word, next(1)));
            findings.extend(broken.map(|what| Finding::new(source, line, what)));
        }
        findings
    }

    /// A document, section 3.1: it has a heading with this number.
    fn broken_section(&self, document: &str, next: &str, number: &str) -> Option<String> {
        let number = number.trim_matches(|c: char| !c.is_ascii_digit());
        let is_cited = ["section", "sections"].contains(&next) && is_section_number(number);
        let has = self.sections.get(document).is_some_and(|numbers| numbers.contains(number));
        (is_cited && !has).then(|| format!("{document} has no section {number}"))
    }

    fn broken_number(&self, word: &str) -> Option<String> {
        let parts = word.split(|c: char| !c.is_alphanumeric() && c != '_');
        let broken = |part: &&str| is_numbered(part) && !self.numbered.contains(part);
        let part = parts.into_iter().find(broken)?;
        Some(format!("{part} is neither in {DESIGN} nor in {INVARIANTS}"))
    }

    fn broken_record(&self, word: &str, next: &str) -> Option<String> {
        let number = next.trim_matches(|c: char| !c.is_alphanumeric());
        let is_record = number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit());
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        let is_cited = ["decision", "decisions"].contains(&word) && is_record;
        let missing = is_cited && !self.records.contains(number);
        missing.then(|| format!("there is no decision {number}"))
    }
}

fn is_document(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == "md")
}

/// `3`, `4.2`.
fn is_section_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// `D11`, `I4`.
fn is_numbered(word: &str) -> bool {
    let digits = word.strip_prefix(['D', 'I']).unwrap_or_default();
    (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

/// A document that is cited by a name that is not a path: in capitals before "section".
fn unnamed(word: &str, next: &str) -> Option<String> {
    let name = word.trim_matches(|c: char| !c.is_alphanumeric());
    let capitals = name.len() >= 3 && name.bytes().all(|b| b.is_ascii_uppercase());
    let cited = name == GONE || capitals && next.starts_with("section");
    cited.then(|| format!("{name} is not a document of the repository: cite a path"))
}

/// Names of documents in a word.
fn documents_in(word: &str) -> impl Iterator<Item = &str> {
    let parts = word.split(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c));
    let parts = parts.map(|part| part.trim_end_matches('.'));
    let elsewhere = word.contains("://");
    parts.filter(move |part| {
        let name = part.strip_suffix(".md").unwrap_or_default();
        !elsewhere && !name.is_empty() && !name.contains(PLACEHOLDER)
    })
}

/// The words of a source with their lines, without the marks of comments, so that a citation may go
/// over the end of a line.
fn words(source: &Source) -> Vec<(usize, &str)> {
    let canaries = source.path.starts_with(CANARIES);
    let ours = |line: &&str| !canaries || !line.starts_with("mod tests");
    let lines = source.text.lines().take_while(ours).enumerate();
    lines
        .flat_map(|(index, line)| {
            let line = line.trim_start().trim_start_matches(['/', '!']);
            line.split_whitespace().map(move |word| (index + 1, word))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALGORITHMS: &str = "# Algorithms\n## 1. Striping\n### 1.1 Uniform stripes\n";

    fn findings(path: &str, text: &str) -> Vec<String> {
        let sources = [
            Source::new("docs/ALGORITHMS.md", ALGORITHMS),
            Source::new(DESIGN, "### D1 FUSE\n"),
            Source::new(INVARIANTS, "| I1 A read returns the newest bytes. | here | test |\n"),
            Source::new("docs/decisions/0001-file-tier.md", "# 0001 Tier\n"),
            Source::new(path, text),
        ];
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_there_may_be_cited() {
        for text in [
            "//! Striping (docs/ALGORITHMS.md, section 1.1).",
            "//! Striping (docs/ALGORITHMS.md,\n//! section 1).",
            "// D1, and I1 for all: `docs/decisions/0001-file-tier.md`, or decision 0001.",
            "const A: &str = include_str!(\"../../../docs/ALGORITHMS.md\");",
            "const A: &str = concat!(env!(\"DIR\"), \"/../../docs/ALGORITHMS.md\");",
            "// see [ALGORITHMS.md](ALGORITHMS.md), https://example.org/OTHER.md, NNNN-what.md",
            "// ID1, D1x, 0xD7, i7_name, the paper's section 7, POSIX",
        ] {
            assert_eq!(findings("crates/a/src/b.rs", text), Vec::<String>::new(), "{text}");
        }
        let link = "[one](ALGORITHMS.md#x), [two](decisions/), [three](#below)";
        assert_eq!(findings("docs/OTHER.md", link), Vec::<String>::new());
    }

    #[test]
    fn documents_that_are_not_there_are_found() {
        for text in [
            "//! As docs/SECRET.md says.",
            "//! As `CLUSTER.md` says.",
            concat!("//! Striping (SP", "EC section 1)."),
            concat!("//! Races (SP", "EC 3.8)."),
            "//! As in DESIGN\n//! section 3.",
            "// decision 0002 says why",
        ] {
            assert_eq!(findings("crates/a/src/b.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn links_are_followed_from_where_they_stand() {
        assert_eq!(findings("docs/OTHER.md", "[x](docs/ALGORITHMS.md)").len(), 1);
        assert_eq!(findings("README.md", "[x](docs/ALGORITHMS.md)").len(), 0);
    }

    #[test]
    fn sections_and_numbers_that_are_not_there_are_found() {
        for text in [
            "//! (docs/ALGORITHMS.md, section 2)",
            "//! (docs/ALGORITHMS.md,\n//! section 1.2).",
            "// Programs go on (D2).",
            "assert!(kept, \"I9: neither version is lost\");",
        ] {
            let found = findings("crates/a/src/b.rs", text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
        }
    }

    #[test]
    fn the_line_is_told() {
        let found = findings("crates/a/src/b.rs", "// one\n// two D9\n");
        assert!(found[0].starts_with("crates/a/src/b.rs:2: D9"), "{found:?}");
    }
}
