//! A job file (`docs/JOBS.md`): the files that a job will open, in order, as its author wrote it.
//!
//! The author of a file does not determine how much memory it takes: names, references and what repeats stand for are
//! limited while they are read, lists of other nodes are not kept, and unknown keys are errors.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use halocline_os::bounded::{self, PATH_BYTES_MAX};
use halocline_os::error::{Error, Result};

/// The most bytes of a job file.
pub(crate) const BYTES_MAX: u64 = 64 << 20;
/// The most references of one job, counting each repeat.
pub(crate) const REFERENCES_MAX: usize = 1 << 20;
/// The most bytes of a job's name: in hexadecimal it is a file's name.
pub(super) const NAME_BYTES_MAX: usize = 120;

/// What a job file says for one node, or for all of them together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JobFile {
    pub(crate) name: String,
    /// It has references, and none for the node.
    pub(crate) is_for_others: bool,
    /// Plain paths below the mount's root, each with its number of openings in a row, 1 or more.
    pub(crate) references: Vec<(PathBuf, u32)>,
}

impl JobFile {
    /// Reads the text of a job file, as it is for a node, or without one for all nodes, in no particular order.
    pub(crate) fn parse(text: &str, node: Option<&str>) -> Result<Self> {
        let wrong = |what: String| Error::invalid(what, "docs/JOBS.md shows what a job file holds");
        if text.len() as u64 > BYTES_MAX {
            return Err(wrong(format!("it has more than {BYTES_MAX} bytes")));
        }
        let mut from = serde_json::Deserializer::from_str(text);
        let read = JobSeed { node }.deserialize(&mut from).and_then(|job| from.end().map(|()| job));
        let job = read.map_err(|error| wrong(format!("it is no job file: {error}")))?;
        let total = job.references.iter().map(|(_, times)| u64::from(*times)).sum::<u64>();
        match total {
            0 if !job.is_for_others => Err(wrong(format!("job {:?} has no references", job.name))),
            total if total > REFERENCES_MAX as u64 => Err(wrong(format!(
                "job {:?} has {total} references, more than {REFERENCES_MAX}",
                job.name
            ))),
            _ => Ok(job),
        }
    }
}

/// Reads a job file for one node, or all.
struct JobSeed<'n> {
    node: Option<&'n str>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Job,
    References,
    Nodes,
}

impl<'de> DeserializeSeed<'de> for JobSeed<'_> {
    type Value = JobFile;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<JobFile, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for JobSeed<'_> {
    type Value = JobFile;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with \"job\" and \"references\" or \"nodes\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<JobFile, A::Error> {
        let (mut name, mut everywhere, mut here) = (None::<String>, None, None);
        while let Some(key) = map.next_key()? {
            match key {
                Key::Job if name.is_none() => name = Some(map.next_value()?),
                Key::References if everywhere.is_none() => {
                    everywhere = Some(map.next_value::<References>()?.0);
                }
                Key::Nodes if here.is_none() => {
                    here = Some(map.next_value_seed(Nodes { node: self.node })?);
                }
                _ => return Err(A::Error::custom("a key stands there twice")),
            }
        }
        let name = name.ok_or_else(|| A::Error::missing_field("job"))?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let wrong =
                format!("the job's name has {} bytes, not 1 to {NAME_BYTES_MAX}", name.len());
            return Err(A::Error::custom(wrong));
        }
        let (references, is_for_others) = match (everywhere, here) {
            (Some(_), Some(_)) => {
                return Err(A::Error::custom("give \"references\" or \"nodes\", not both"));
            }
            (everywhere, None) => (everywhere.unwrap_or_default(), false),
            (None, Some(Some(here))) => (here, false),
            (None, Some(None)) => (Vec::new(), true),
        };
        Ok(JobFile { name, is_for_others, references })
    }
}

/// References by the names of nodes; only those of one node, or else of `*`, are kept, or those of all.
struct Nodes<'n> {
    node: Option<&'n str>,
}

impl<'de> DeserializeSeed<'de> for Nodes<'_> {
    type Value = Option<Vec<(PathBuf, u32)>>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        from: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Nodes<'_> {
    type Value = Option<Vec<(PathBuf, u32)>>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with a list of references for each node")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let (mut own, mut others) = (None::<Vec<_>>, None);
        while let Some(node) = map.next_key::<String>()? {
            match self.node {
                None => {
                    let all = own.get_or_insert_default();
                    all.extend(map.next_value::<References>()?.0);
                    if all.len() > REFERENCES_MAX {
                        let wrong = format!("the nodes have more than {REFERENCES_MAX} references");
                        return Err(A::Error::custom(wrong));
                    }
                }
                Some(this) if this == node => {
                    own = Some(map.next_value::<References>()?.0);
                    others = None;
                }
                Some(_) if node == "*" && own.is_none() => {
                    others = Some(map.next_value::<References>()?.0);
                }
                Some(_) => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(own.or(others))
    }
}

/// A list of references.
struct References(Vec<(PathBuf, u32)>);

impl<'de> Deserialize<'de> for References {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let list = bounded::list::<_, Reference, REFERENCES_MAX>(from)?;
        Ok(Self(list.into_iter().map(|Reference(path, times)| (path, times)).collect()))
    }
}

/// One reference, or several to one file in a row.
struct Reference(PathBuf, u32);

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_any(ReferenceVisitor)
    }
}

struct ReferenceVisitor;

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum ReferenceKey {
    File,
    Repeat,
}

impl<'de> Visitor<'de> for ReferenceVisitor {
    type Value = Reference;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a path, or {\"file\": PATH, \"repeat\": NUMBER}")
    }

    fn visit_str<E: serde::de::Error>(self, path: &str) -> std::result::Result<Reference, E> {
        Ok(Reference(plain(path).map_err(E::custom)?, 1))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Reference, A::Error> {
        let (mut file, mut repeat) = (None, None);
        while let Some(key) = map.next_key()? {
            match key {
                ReferenceKey::File if file.is_none() => {
                    let path = map.next_value::<std::borrow::Cow<'_, str>>()?;
                    file = Some(plain(&path).map_err(A::Error::custom)?);
                }
                ReferenceKey::Repeat if repeat.is_none() => repeat = Some(map.next_value::<u64>()?),
                _ => return Err(A::Error::custom("a key stands there twice")),
            }
        }
        let file = file.ok_or_else(|| A::Error::missing_field("file"))?;
        let times = repeat.unwrap_or(1);
        match u32::try_from(times) {
            Ok(times @ 1..) if times as usize <= REFERENCES_MAX => Ok(Reference(file, times)),
            _ => {
                let wrong = format!("\"repeat\" is {times}, not from 1 to {REFERENCES_MAX}");
                Err(A::Error::custom(wrong))
            }
        }
    }
}

/// A path without detours, relative to the mount's root.
fn plain(path: &str) -> std::result::Result<PathBuf, String> {
    if path.len() > PATH_BYTES_MAX {
        return Err(format!("a path has more than {PATH_BYTES_MAX} bytes"));
    }
    let parts = Path::new(path).components();
    let plain: PathBuf = parts.filter(|part| *part != Component::CurDir).collect();
    if plain.as_os_str().is_empty()
        || !plain.components().all(|part| matches!(part, Component::Normal(_)))
    {
        return Err(format!("{path} is not a path relative to the mount's root"));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<JobFile> {
        JobFile::parse(text, Some("here"))
    }

    #[test]
    fn a_job_file_gives_the_references_of_this_node_or_of_all() {
        let both =
            r#"{"job": "a", "nodes": {"here": ["x", {"file": "./y", "repeat": 2}], "*": ["z"]}}"#;
        assert_eq!(parse(both).unwrap().references, [("x".into(), 1), ("y".into(), 2)]);
        assert_eq!(JobFile::parse(both, Some("there")).unwrap().references, [("z".into(), 1)]);
        let all = JobFile::parse(both, None).unwrap();
        assert_eq!(all.references, [("x".into(), 1), ("y".into(), 2), ("z".into(), 1)]);
        let other = parse(r#"{"job": "a", "nodes": {"other": ["x"]}}"#).unwrap();
        assert_eq!((other.is_for_others, other.references), (true, vec![]));
        let none = JobFile::parse(r#"{"job": "a", "nodes": {"here": []}}"#, None).unwrap_err();
        assert!(none.to_string().contains("no references"), "{none}");
    }

    /// Regression: a repeat of 2^64 - 1 made a sum wrap around, passed the bound and took 23 GB.
    #[test]
    fn counts_that_no_job_has_are_refused() {
        let many = format!(r#"{{"job": "a", "references": [{}"x"]}}"#, "\"x\",".repeat(1 << 20));
        for (wrong, part) in [
            (
                r#"{"job": "a", "references": ["x", {"file": "x", "repeat": 18446744073709551615}]}"#,
                "repeat",
            ),
            (r#"{"job": "a", "references": [{"file": "x", "repeat": 4294967296}]}"#, "repeat"),
            (r#"{"job": "a", "references": [{"file": "x", "repeat": 1048576}, "x"]}"#, "more than"),
            (r#"{"job": "a", "references": [{"file": "x", "repeat": 0}]}"#, "repeat"),
            (r#"{"job": "a", "references": [{"file": "x", "repeat": -1}]}"#, "-1"),
            (many.as_str(), "more than 1048576"),
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn job_files_with_unknown_or_double_keys_and_bad_paths_are_refused() {
        let long = format!(r#"{{"job": "{}", "references": ["x"]}}"#, "j".repeat(200));
        let deep = format!(r#"{{"job": "a", "references": ["{}"]}}"#, "d/".repeat(4000));
        for (wrong, part) in [
            (r#"{"job": "a", "references": [{"file": "x", "repaet": 3}]}"#, "repaet"),
            (r#"{"job": "a", "refs": ["x"]}"#, "refs"),
            (r#"{"job": "a", "references": ["x"], "references": ["y"]}"#, "twice"),
            (r#"{"job": "a", "references": ["x"], "nodes": {"*": ["y"]}}"#, "not both"),
            (r#"{"job": "a", "references": [{"repeat": 3}]}"#, "file"),
            (r#"{"job": "a", "references": ["/x"]}"#, "relative"),
            (r#"{"job": "a", "references": ["x/../y"]}"#, "relative"),
            (r#"{"job": "a", "references": []}"#, "no references"),
            (r#"{"job": "", "references": ["x"]}"#, "name"),
            (r#"{"references": ["x"]}"#, "job"),
            (long.as_str(), "120"),
            (deep.as_str(), "4096"),
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_job_or_an_error(text in any::<String>(), cut in 0..80usize) {
            let _ = parse(&text);
            let job = r#"{"job": "a", "nodes": {"here": ["x", {"file": "./y", "repeat": 2}], "*": [1e99]}}"#;
            let _ = parse(&format!("{}{text}", &job[..cut]));
        }

        #[test]
        fn any_repeat_is_counted_or_refused(repeats in prop::collection::vec(any::<u64>(), 1..5)) {
            let list = repeats.iter().map(|n| format!(r#"{{"file": "x", "repeat": {n}}}"#));
            let text = format!(r#"{{"job": "a", "references": [{}]}}"#, list.collect::<Vec<_>>().join(","));
            if let Ok(job) = parse(&text) {
                let total: u64 = job.references.iter().map(|(_, times)| u64::from(*times)).sum();
                prop_assert!(total <= REFERENCES_MAX as u64);
            }
        }
    }
}
