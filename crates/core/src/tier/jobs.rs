//! Announced jobs: which files will be used, in which order (`docs/JOBS.md`).
//!
//! A job's place in its sequence is followed by watching opens. A job that opens its files in
//! another order than announced for too long has deviated: nothing is concluded from it any more.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::job_file::{self, JobFile, REFERENCES_MAX};
use crate::bounded;
use crate::control::JobInfo;
use crate::error::{Error, Result};

/// References that may be skipped at once; a jump farther ahead is a deviation.
const SKIP_MAX: u32 = 64;
/// Deviations that are worth more than so many references in order end the trust in a job.
const DEVIATION_MAX: u32 = 16;
/// What one deviation counts, against 1 for a reference in order.
const DEVIATION: u32 = 4;
/// Jobs announced at the same time, and references of all of them.
const JOBS_MAX: usize = 64;
const ALL_REFERENCES_MAX: usize = 4 * REFERENCES_MAX;

/// A job on this node.
#[derive(Debug)]
struct Job {
    name: String,
    sequence: Vec<u32>,
    /// Path of each file, by its index.
    paths: Vec<Arc<Path>>,
    /// Positions of each file, ascending, by its index.
    positions: Vec<Arc<[u32]>>,
    files: HashMap<Arc<Path>, u32>,
    /// References that have been: the next one expected.
    next: u32,
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
    positions: Arc<[u32]>,
    /// The first of `positions` that is to come.
    from: usize,
    /// The position that the job is at.
    now: u32,
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
    fn coming(&self) -> &[u32] {
        &self.positions[self.from..]
    }

    fn away(&self, position: u32) -> u64 {
        u64::from(position - self.now) + 1
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
            let text = bounded::read_to_string(&path, job_file::BYTES_MAX);
            let text = text.map_err(Error::at(&path, "read"))?;
            match Job::parse(&text, &host_name()) {
                Ok(job) if jobs.has_room_for(&job) => jobs.jobs.push(job),
                Ok(_) => tracing::warn!("{}: too many jobs are announced", path.display()),
                Err(error) => tracing::warn!("{}: {error}", path.display()),
            }
        }
        Ok(jobs)
    }

    /// Announces a job; one of the same name is replaced.
    pub(super) fn add(&mut self, text: &str) -> Result<()> {
        let job = Job::parse(text, &host_name())?;
        if !self.has_room_for(&job) {
            return Err(Error::invalid(
                format!(
                    "more than {JOBS_MAX} jobs, or {ALL_REFERENCES_MAX} references of all of them"
                ),
                "take back those that are done with `halocline jobs remove`",
            ));
        }
        let path = self.path_of(&job.name);
        fs::write(&path, text).map_err(Error::at(&path, "write"))?;
        self.jobs.retain(|other| other.name != job.name);
        self.jobs.push(job);
        Ok(())
    }

    /// Whether a job fits beside those of other names.
    fn has_room_for(&self, job: &Job) -> bool {
        let others = self.jobs.iter().filter(|other| other.name != job.name);
        let (count, references) = others.fold((0, 0), |(count, references), other| {
            (count + 1, references + other.sequence.len())
        });
        count < JOBS_MAX && references + job.sequence.len() <= ALL_REFERENCES_MAX
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
                position: job.next.into(),
                files: job.files.len() as u64,
                state: match job {
                    Job { deviated: true, .. } => "deviated",
                    Job { next: 0, .. } => "waiting",
                    job if job.next == job.len() => "done",
                    _ => "running",
                }
                .to_owned(),
            })
            .collect()
    }
}

impl Job {
    fn parse(text: &str, host: &str) -> Result<Self> {
        let JobFile { name, references } = JobFile::parse(text, host)?;
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
        let mut positions: Vec<Vec<u32>> = Vec::new();
        for (path, times) in references {
            let path: Arc<Path> = path.into();
            let new = u32::try_from(job.paths.len()).expect("references are bounded");
            let file = *job.files.entry(Arc::clone(&path)).or_insert(new);
            if file == new {
                job.paths.push(path);
                positions.push(Vec::new());
            }
            let first = u32::try_from(job.sequence.len()).expect("references are bounded");
            positions[file as usize].extend(first..first + times);
            job.sequence.resize((first + times) as usize, file);
        }
        job.positions = positions.into_iter().map(Arc::from).collect();
        Ok(job)
    }

    /// Number of references.
    fn len(&self) -> u32 {
        u32::try_from(self.sequence.len()).expect("references are bounded")
    }

    fn is_trusted(&self) -> bool {
        !self.deviated && !self.over
    }

    fn ahead(&self, path: &Path) -> Option<Part> {
        let file = *self.files.get(path).filter(|_| self.is_trusted())?;
        let positions = self.positions[file as usize].clone();
        let from = positions.partition_point(|position| *position < self.next);
        Some(Part { positions, from, now: self.next })
    }

    fn opened(&mut self, path: &Path, passed: &mut Passed) {
        let Some(&file) = self.files.get(path) else { return };
        if self.next == self.len() {
            self.over = true;
        } else {
            let positions = &self.positions[file as usize];
            let at = positions.partition_point(|position| *position < self.next);
            match positions.get(at) {
                Some(&position) if position - self.next <= SKIP_MAX => {
                    let skipped = &self.sequence[self.next as usize..position as usize];
                    passed
                        .skipped
                        .extend(skipped.iter().map(|file| self.paths[*file as usize].clone()));
                    self.next = position + 1;
                    self.deviation = self.deviation.saturating_sub(1);
                }
                // The file in work, opened once more.
                _ if self.next > 0 && self.sequence[self.next as usize - 1] == file => {}
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
