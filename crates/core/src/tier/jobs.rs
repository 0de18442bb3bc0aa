//! Announced jobs: which files will be used, in which order (`docs/JOBS.md`).
//!
//! A job's place in its sequence is followed by watching opens. A job that opens its files in
//! another order than announced for too long has deviated: nothing is concluded from it any more.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::control::JobInfo;
use crate::error::{Error, Result};

/// References that may be skipped at once; a jump farther ahead is a deviation.
const SKIP_MAX: usize = 64;
/// Deviations that are worth more than so many references in order end the trust in a job.
const DEVIATION_MAX: u32 = 16;
/// What one deviation counts, against 1 for a reference in order.
const DEVIATION: u32 = 4;
/// Most references of one job.
const REFERENCES_MAX: usize = 10_000_000;

/// A job file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobFile {
    job: String,
    /// References of a job on one node.
    #[serde(default)]
    references: Vec<Reference>,
    /// References by host name; `*` is any other host.
    #[serde(default)]
    nodes: HashMap<String, Vec<Reference>>,
}

/// One reference, or several to one file in a row.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Reference {
    Once(PathBuf),
    Repeated {
        file: PathBuf,
        #[serde(default = "once")]
        repeat: usize,
    },
}

const fn once() -> usize {
    1
}

/// A job on this node.
#[derive(Debug)]
struct Job {
    name: String,
    sequence: Vec<usize>,
    /// Path of each file, by its index.
    paths: Vec<Arc<Path>>,
    /// Positions of each file, ascending, by its index.
    positions: Vec<Arc<[usize]>>,
    files: HashMap<Arc<Path>, usize>,
    /// References that have been: the next one expected.
    next: usize,
    deviation: u32,
    deviated: bool,
    /// Its last reference was, and files of it were opened since.
    over: bool,
}

/// Announced references of one file that are to come; as cheap for many as for few.
#[derive(Debug, Default)]
pub(super) struct Ahead(Vec<Part>);

/// Those of one job.
#[derive(Debug)]
struct Part {
    positions: Arc<[usize]>,
    /// The first of `positions` that is to come.
    from: usize,
    /// The position that the job is at.
    now: usize,
}

impl Ahead {
    /// How many references from now the next one is; 1 is the very next.
    pub(super) fn next(&self) -> Option<u64> {
        self.0.iter().filter_map(|part| Some(part.away(*part.coming().first()?))).min()
    }

    /// How many there are among the next `horizon` references of each job.
    pub(super) fn later(&self, horizon: u64) -> u64 {
        let within = |part: &Part| {
            part.coming().partition_point(|position| part.away(*position) <= horizon) as u64
        };
        self.0.iter().map(within).sum()
    }
}

impl Part {
    fn coming(&self) -> &[usize] {
        &self.positions[self.from..]
    }

    fn away(&self, position: usize) -> u64 {
        (position - self.now) as u64 + 1
    }
}

/// What an open changed in what is announced of other files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// References to them will not come any more.
    pub(super) skipped: Vec<Arc<Path>>,
    /// A job is not believed any more: it tells nothing of its files.
    pub(super) untrusted: bool,
}

/// All announced jobs.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: Vec<Job>,
    dir: PathBuf,
}

impl Jobs {
    /// The jobs announced at earlier mounts, kept in `private`; they begin anew.
    pub(super) fn load(private: &Path) -> Result<Self> {
        let dir = private.join("jobs");
        fs::create_dir_all(&dir).map_err(Error::at(&dir, "create the directory"))?;
        let mut jobs = Self { jobs: Vec::new(), dir: dir.clone() };
        for entry in fs::read_dir(&dir).map_err(Error::at(&dir, "list"))? {
            let path = entry.map_err(Error::at(&dir, "list"))?.path();
            let text = fs::read_to_string(&path).map_err(Error::at(&path, "read"))?;
            match Job::parse(&text, &host_name()) {
                Ok(job) => jobs.jobs.push(job),
                Err(error) => tracing::warn!("{}: {error}", path.display()),
            }
        }
        Ok(jobs)
    }

    /// Announces a job; one of the same name is replaced.
    pub(super) fn add(&mut self, text: &str) -> Result<()> {
        let job = Job::parse(text, &host_name())?;
        let path = self.path_of(&job.name);
        fs::write(&path, text).map_err(Error::at(&path, "write"))?;
        self.jobs.retain(|other| other.name != job.name);
        self.jobs.push(job);
        Ok(())
    }

    /// Takes a job back.
    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        let before = self.jobs.len();
        self.jobs.retain(|job| job.name != name);
        if self.jobs.len() == before {
            return Err(Error::invalid(
                format!("no job {name:?} is announced"),
                "`halocline jobs list` lists them",
            ));
        }
        let path = self.path_of(name);
        fs::remove_file(&path).map_err(Error::at(&path, "remove"))
    }

    fn path_of(&self, name: &str) -> PathBuf {
        // A name may have any characters; a file name may not.
        let safe = name.bytes().fold(String::new(), |mut safe, byte| {
            let _ = write!(safe, "{byte:02x}");
            safe
        });
        self.dir.join(format!("{safe}.json"))
    }

    /// Whether any job is worth asking.
    pub(super) fn any(&self) -> bool {
        self.jobs.iter().any(Job::is_trusted)
    }

    /// A file is opened.
    pub(super) fn opened(&mut self, path: &Path) -> Passed {
        let mut passed = Passed::default();
        for job in self.jobs.iter_mut().filter(|job| job.is_trusted()) {
            job.opened(path, &mut passed);
        }
        passed
    }

    /// A file's announced references from now on; `None` where no job names it.
    pub(super) fn ahead(&self, path: &Path) -> Option<Ahead> {
        let parts: Vec<Part> = self.jobs.iter().filter_map(|job| job.ahead(path)).collect();
        (!parts.is_empty()).then_some(Ahead(parts))
    }

    /// For people.
    pub(super) fn list(&self) -> Vec<JobInfo> {
        self.jobs
            .iter()
            .map(|job| JobInfo {
                name: job.name.clone(),
                references: job.sequence.len() as u64,
                position: job.next as u64,
                files: job.files.len() as u64,
                state: match job {
                    Job { deviated: true, .. } => "deviated",
                    Job { next: 0, .. } => "waiting",
                    job if job.next == job.sequence.len() => "done",
                    _ => "running",
                }
                .to_owned(),
            })
            .collect()
    }
}

impl Job {
    fn parse(text: &str, host: &str) -> Result<Self> {
        let wrong = |what: String| Error::invalid(what, "docs/JOBS.md shows what a job file holds");
        let file: JobFile =
            serde_json::from_str(text).map_err(|error| wrong(format!("job file: {error}")))?;
        let JobFile { job: name, references, mut nodes } = file;
        let references = match nodes.remove(host).or_else(|| nodes.remove("*")) {
            Some(own) => own,
            None if nodes.is_empty() => references,
            None => {
                return Err(wrong(format!("job {name:?} has no references for the node {host:?}")));
            }
        };
        let mut job = Self {
            name,
            sequence: Vec::new(),
            paths: Vec::new(),
            positions: Vec::new(),
            files: HashMap::new(),
            next: 0,
            deviation: 0,
            deviated: false,
            over: false,
        };
        let mut positions = Vec::new();
        for reference in references {
            let (path, times) = match reference {
                Reference::Once(path) => (path, 1),
                Reference::Repeated { file, repeat } => (file, repeat),
            };
            if job.sequence.len() + times > REFERENCES_MAX {
                return Err(wrong(format!("job {:?} has too many references", job.name)));
            }
            job.push(&path, times, &mut positions).map_err(wrong)?;
        }
        job.positions = positions.into_iter().map(Arc::from).collect();
        if job.sequence.is_empty() {
            return Err(wrong(format!("job {:?} has no references", job.name)));
        }
        Ok(job)
    }

    fn push(
        &mut self,
        path: &Path,
        times: usize,
        positions: &mut Vec<Vec<usize>>,
    ) -> Result<(), String> {
        let plain: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
        if plain.as_os_str().is_empty()
            || !plain.components().all(|part| matches!(part, Component::Normal(_)))
        {
            let path = path.display();
            return Err(format!("{path} is not a path relative to the mount's root"));
        }
        let (new, plain) = (self.paths.len(), Arc::from(plain));
        let file = *self.files.entry(Arc::clone(&plain)).or_insert(new);
        if file == new {
            self.paths.push(plain);
            positions.push(Vec::new());
        }
        for _ in 0..times {
            positions[file].push(self.sequence.len());
            self.sequence.push(file);
        }
        Ok(())
    }

    fn is_trusted(&self) -> bool {
        !self.deviated && !self.over
    }

    fn ahead(&self, path: &Path) -> Option<Part> {
        let file = *self.files.get(path).filter(|_| self.is_trusted())?;
        let positions = self.positions[file].clone();
        let from = positions.partition_point(|position| *position < self.next);
        Some(Part { positions, from, now: self.next })
    }

    fn opened(&mut self, path: &Path, passed: &mut Passed) {
        let Some(&file) = self.files.get(path) else { return };
        if self.next == self.sequence.len() {
            self.over = true;
        } else {
            let positions = &self.positions[file];
            let at = positions.partition_point(|position| *position < self.next);
            match positions.get(at) {
                Some(&position) if position - self.next <= SKIP_MAX => {
                    let skipped = &self.sequence[self.next..position];
                    passed.skipped.extend(skipped.iter().map(|file| self.paths[*file].clone()));
                    self.next = position + 1;
                    self.deviation = self.deviation.saturating_sub(1);
                }
                // The file in work, opened once more.
                _ if self.next > 0 && self.sequence[self.next - 1] == file => {}
                _ => {
                    self.deviation += DEVIATION;
                    self.deviated = self.deviation > DEVIATION_MAX;
                }
            }
        }
        passed.untrusted |= !self.is_trusted();
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> Result<Job> {
        Job::parse(text, "here")
    }

    fn jobs(text: &str) -> Jobs {
        Jobs { jobs: vec![job(text).unwrap()], dir: PathBuf::new() }
    }

    #[test]
    fn references_are_taken_for_this_node() {
        let both =
            r#"{"job": "a", "nodes": {"here": ["x", {"file": "./y", "repeat": 2}], "*": ["z"]}}"#;
        assert_eq!(job(both).unwrap().sequence, [0, 1, 1]);
        assert_eq!(Job::parse(both, "there").unwrap().sequence, [0]);
        for (wrong, part) in [
            (r#"{"job": "a", "nodes": {"other": ["x"]}}"#, "\"here\""),
            (r#"{"job": "a", "references": ["/x"]}"#, "relative"),
            (r#"{"job": "a", "references": ["x/../y"]}"#, "relative"),
            (r#"{"job": "a", "references": []}"#, "no references"),
            (r#"{"references": ["x"]}"#, "job"),
        ] {
            let error = job(wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    /// How far away a file's announced references are.
    fn distances(jobs: &Jobs, path: &str) -> Option<Vec<u64>> {
        let ahead = jobs.ahead(Path::new(path))?;
        let all = (1..=100).filter(|at| ahead.later(*at) > ahead.later(at - 1)).collect::<Vec<_>>();
        assert_eq!(ahead.next(), all.first().copied());
        assert_eq!(ahead.later(u64::MAX), all.len() as u64);
        Some(all)
    }

    #[test]
    fn the_position_follows_opens() {
        let mut jobs = jobs(r#"{"job": "a", "references": ["x", "y", "x", "z", "x"]}"#);
        assert_eq!(distances(&jobs, "x"), Some(vec![1, 3, 5]));
        assert_eq!(distances(&jobs, "other"), None);
        jobs.opened(Path::new("other"));
        jobs.opened(Path::new("x"));
        assert_eq!(distances(&jobs, "x"), Some(vec![2, 4]));
        let passed = jobs.opened(Path::new("z"));
        assert_eq!(passed.skipped, [Path::new("y").into(), Path::new("x").into()]);
        assert_eq!(jobs.list()[0].position, 4, "skipped references are behind");
        assert_eq!(distances(&jobs, "y"), Some(vec![]));
        jobs.opened(Path::new("x"));
        assert_eq!(jobs.list()[0].state, "done");
        assert_eq!(distances(&jobs, "x"), Some(vec![]), "known not to come again");
        assert!(jobs.opened(Path::new("x")).untrusted);
        assert!(!jobs.any(), "what comes after the job is not its business");
    }

    #[test]
    fn a_job_in_another_order_is_not_believed_for_long() {
        let names: Vec<String> = (0..200).map(|file| format!("\"f{file}\"")).collect();
        let mut jobs = jobs(&format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(",")));
        jobs.opened(Path::new("f0"));
        for file in (100..200).rev() {
            jobs.opened(Path::new(&format!("f{file}")));
        }
        assert_eq!(jobs.list()[0].state, "deviated");
        assert_eq!(distances(&jobs, "f150"), None);
    }
}
