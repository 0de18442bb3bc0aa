//! The announced jobs: which files will be used, in which order (`docs/JOBS.md`).
//!
//! The position of a [`Job`] in its sequence is followed by watching opens; an announcement and the position outlive
//! the mount.

mod job;
pub(crate) mod job_file;
pub(crate) mod opener;
mod outlook;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use job::Job;
use job_file::{JobFile, REFERENCES_MAX};

use crate::control::JobInfo;
use crate::control::tier::JobUse;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

pub use job::{Ahead, Passed};
pub use opener::{JOB_VARIABLE, Opener, Openers};
pub use outlook::FileFacts;

/// The directory of job files, and of positions.
const DIR: &str = "jobs";
/// Jobs announced at the same time, and references of all of them.
const JOBS_MAX: usize = 64;
const ALL_REFERENCES_MAX: usize = 4 * REFERENCES_MAX;
/// A job's position is recorded each time it has advanced this far: after a kill it resumes within what a job may skip.
const NOTED_EVERY: u32 = 32;
/// The most bytes of a recorded position.
const PLACE_BYTES_MAX: u64 = 32;

/// All announced jobs.
#[derive(Debug, Default)]
pub struct Jobs {
    all: Vec<Announced>,
    /// Names of those that have references for other nodes only.
    elsewhere: Vec<String>,
    /// Where job files are kept.
    dir: PathBuf,
    /// Where positions are kept; other nodes have theirs elsewhere.
    places: PathBuf,
    node: String,
    /// The job files as they were read, where other nodes announce jobs in the same directory.
    seen: Option<BTreeMap<OsString, Stamp>>,
}

#[derive(Debug)]
struct Announced {
    job: Job,
    /// The position that is recorded on disk.
    noted: u32,
}

/// What changes when a job file is replaced: its inode number, modification time in nanoseconds, and size.
type Stamp = (u64, i64, u64);

impl Jobs {
    /// The jobs announced at earlier mounts, kept in `private`; they continue at their positions.
    pub fn load(private: &Path) -> Result<Self> {
        let dir = PrivateDir::open(private)?.sub(DIR)?;
        let (dir, places) = (dir.path().to_owned(), dir.path().to_owned());
        let mut jobs = Self { dir, places, node: host_name(), ..Self::default() };
        jobs.read_all()?;
        Ok(jobs)
    }

    /// The jobs that any of several nodes announced, kept in `common`; this node's positions are kept in `own`.
    pub fn load_shared(common: &Path, own: &Path, node: &str) -> Result<Self> {
        let dir = PrivateDir::open(common)?.sub(DIR)?.path().to_owned();
        let places = PrivateDir::open(own)?.sub(DIR)?.path().to_owned();
        let (node, seen) = (node.to_owned(), Some(BTreeMap::new()));
        let mut jobs = Self { dir, places, node, seen, ..Self::default() };
        jobs.read_all()?;
        Ok(jobs)
    }

    /// The job files that there are.
    fn names(&self) -> Result<Vec<OsString>> {
        job_files(&PrivateDir::open(&self.dir)?)
    }

    fn stamp(&self, name: &OsStr) -> Option<Stamp> {
        let found = std::fs::symlink_metadata(self.dir.join(name)).ok()?;
        let at = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
        Some((found.ino(), at, found.len()))
    }

    fn read_all(&mut self) -> Result<()> {
        let places = PrivateDir::open(&self.places)?;
        for name in self.names()? {
            if let Some(job) = self.read(&name) {
                let noted = read_place(&places, &file_name(&job, "at"));
                let announced = self.all.iter_mut().filter(|announced| announced.job.name == job);
                for announced in announced {
                    announced.job.resume(noted);
                    announced.noted = noted;
                }
            }
        }
        Ok(())
    }

    /// Announces the job of a file that is there. One that is not understood is logged.
    fn read(&mut self, name: &OsStr) -> Option<String> {
        // Before the file: one that is replaced meanwhile is read again.
        let stamp = self.stamp(name);
        if let (Some(seen), Some(stamp)) = (&mut self.seen, stamp) {
            seen.insert(name.to_owned(), stamp);
        }
        let path = self.dir.join(name);
        let text = PrivateDir::open(&self.dir).and_then(|dir| dir.read(name, job_file::BYTES_MAX));
        let announced = text.and_then(|text| match text {
            Some(text) => self.announce(&String::from_utf8_lossy(&text), |_| Ok(())).map(Some),
            None => Ok(None),
        });
        announced.unwrap_or_else(|error| {
            tracing::warn!("{}: {error}", path.display());
            None
        })
    }

    /// Takes a job in, in place of one of the same name, once it is kept.
    fn announce(&mut self, text: &str, keep: impl FnOnce(&str) -> Result<()>) -> Result<String> {
        let file = JobFile::parse(text, Some(&self.node))?;
        let (name, is_for_others) = (file.name.clone(), file.is_for_others);
        if is_for_others && self.seen.is_none() {
            return Err(Error::invalid(
                format!("job {name:?} has no references for the node {:?}", self.node),
                "docs/JOBS.md shows what a job file holds",
            ));
        }
        let job = Job::new(file);
        if !self.has_room_for(&job) {
            return Err(Error::invalid(
                format!(
                    "more than {JOBS_MAX} jobs, or {ALL_REFERENCES_MAX} references of all of them"
                ),
                "take back those that are done with `halocline jobs remove`",
            ));
        }
        keep(&name)?;
        self.withdraw(&name);
        if is_for_others {
            self.elsewhere.push(name.clone());
        } else {
            self.all.push(Announced { job, noted: 0 });
        }
        assert!(self.all.len() + self.elsewhere.len() <= JOBS_MAX, "there was room for the job");
        Ok(name)
    }

    /// Announces a job; one of the same name is replaced.
    pub fn add(&mut self, text: &str) -> Result<()> {
        let (dir, places) = (self.dir.clone(), self.places.clone());
        let name = self.announce(text, |name| {
            forget_place(&places, name)?;
            PrivateDir::open(&dir)?.replace(&file_name(name, "json"), text.as_bytes())
        })?;
        let file = OsString::from(file_name(&name, "json"));
        let stamp = self.stamp(&file);
        if let (Some(seen), Some(stamp)) = (&mut self.seen, stamp) {
            seen.insert(file, stamp);
        }
        Ok(())
    }

    /// Takes in what other nodes announced and withdrew since; whether that was anything.
    pub fn refresh(&mut self) -> Result<bool> {
        let Some(seen) = &self.seen else { return Ok(false) };
        let names = self.names()?;
        let changed: Vec<&OsString> =
            names.iter().filter(|name| self.stamp(name) != seen.get(*name).copied()).collect();
        let gone: Vec<OsString> =
            seen.keys().filter(|name| !names.contains(name)).cloned().collect();
        let is_changed = !changed.is_empty() || !gone.is_empty();
        for name in changed {
            if let Some(job) = self.read(name) {
                forget_place(&self.places, &job)?;
            }
        }
        for file in gone {
            if let Some(seen) = &mut self.seen {
                seen.remove(&file);
            }
            let is_it = |name: &str| *file == *file_name(name, "json");
            let all = self.all.iter().map(|announced| &announced.job.name);
            if let Some(name) = all.chain(&self.elsewhere).find(|name| is_it(name)).cloned() {
                self.withdraw(&name);
                forget_place(&self.places, &name)?;
            }
        }
        Ok(is_changed)
    }

    /// Forgets a job in memory; whether it was announced.
    fn withdraw(&mut self, name: &str) -> bool {
        let before = self.all.len() + self.elsewhere.len();
        self.all.retain(|announced| announced.job.name != name);
        self.elsewhere.retain(|other| other != name);
        self.all.len() + self.elsewhere.len() < before
    }

    /// A new run of a job begins, by processes that claim it.
    pub fn begin(&mut self, name: &str) -> Result<()> {
        forget_place(&self.places, name)?;
        let announced = self.all.iter_mut().find(|announced| announced.job.name == name);
        let announced = announced.ok_or_else(|| unknown(name))?;
        announced.job.begin();
        announced.noted = 0;
        Ok(())
    }

    /// Whether a job fits beside those of other names.
    fn has_room_for(&self, job: &Job) -> bool {
        let others = self.all.iter().map(|other| &other.job);
        let others = others.filter(|other| other.name != job.name);
        let (count, references) = others.fold((0, 0), |(count, references), other| {
            (count + 1, references + other.len() as usize)
        });
        let elsewhere = self.elsewhere.iter().filter(|other| **other != job.name).count();
        count + elsewhere < JOBS_MAX && references + job.len() as usize <= ALL_REFERENCES_MAX
    }

    /// Withdraws a job.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        if !self.withdraw(name) {
            return Err(unknown(name));
        }
        forget_place(&self.places, name)?;
        let file = file_name(name, "json");
        if let Some(seen) = &mut self.seen {
            seen.remove(OsStr::new(&file));
        }
        PrivateDir::open(&self.dir)?.remove(file)
    }

    /// Records how far all jobs are.
    pub fn note_places(&mut self) {
        for at in 0..self.all.len() {
            self.note_place(at);
        }
    }

    fn note_place(&mut self, at: usize) {
        let job = &self.all[at].job;
        let (now, name) = (job.position(), file_name(&job.name, "at"));
        if now != self.all[at].noted {
            let dir = PrivateDir::open(&self.places);
            let noted = dir.and_then(|dir| dir.overwrite(&name, now.to_string().as_bytes()));
            if let Err(error) = noted {
                tracing::warn!("{error}: a job's place is not noted");
            }
            self.all[at].noted = now;
        }
    }

    /// Whether any job is announced.
    pub const fn any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Called when a process opens or creates a file. Returns what that changes, and the file's references to come if a
    /// job itself uses it.
    pub fn opened(&mut self, path: &Path, opener: &Opener) -> (Passed, Option<Ahead>) {
        let mut passed = Passed::default();
        let mut is_own = false;
        for at in 0..self.all.len() {
            let Announced { job, noted } = &mut self.all[at];
            is_own |= job.opened(path, opener, &mut passed);
            if job.position().abs_diff(*noted) >= NOTED_EVERY {
                self.note_place(at);
            }
        }
        let ahead = if is_own { self.ahead(path) } else { None };
        (passed, ahead)
    }

    /// A file's announced references to come; `None` if no job names it.
    pub fn ahead(&self, path: &Path) -> Option<Ahead> {
        Ahead::of(self.all.iter().filter_map(|announced| announced.job.ahead(path)).collect())
    }

    /// The jobs that name a file and are believed, with its references to come.
    pub fn that_want(&self, path: &Path) -> Vec<JobUse> {
        let wants = |job: &Job| {
            let ahead = Ahead::of(vec![job.ahead(path)?])?;
            Some(JobUse {
                name: job.name.clone(),
                coming: ahead.later(u64::MAX),
                next: ahead.next(),
            })
        };
        self.all.iter().filter_map(|announced| wants(&announced.job)).collect()
    }

    /// For people to read.
    pub fn list(&self) -> Vec<JobInfo> {
        let info = |job: &Job| JobInfo {
            name: job.name.clone(),
            references: job.len().into(),
            position: job.position().into(),
            files: job.files(),
            state: job.state().to_owned(),
        };
        let elsewhere = self.elsewhere.iter().map(|name| JobInfo {
            name: name.clone(),
            references: 0,
            position: 0,
            files: 0,
            state: "elsewhere".to_owned(),
        });
        self.all.iter().map(|announced| info(&announced.job)).chain(elsewhere).collect()
    }
}

/// The names of the job files in a directory.
fn job_files(dir: &PrivateDir) -> Result<Vec<OsString>> {
    let mut names = dir.names()?;
    names.retain(|name| Path::new(name).extension().is_some_and(|end| end == "json"));
    Ok(names)
}

/// The files of the jobs that are kept in `private`, each with its name and its text.
///
/// # Errors
/// If they cannot be read.
pub fn announced_in(private: &Path) -> Result<Vec<(OsString, Vec<u8>)>> {
    let dir = match PrivateDir::look(&private.join(DIR)) {
        Err(error) if error.errno() == libc::ENOENT => return Ok(Vec::new()),
        dir => dir?,
    };
    let read = |name: OsString| Ok(dir.read(&name, job_file::BYTES_MAX)?.map(|text| (name, text)));
    job_files(&dir)?.into_iter().filter_map(|name| read(name).transpose()).collect()
}

/// Keeps the file of a job of another directory in `private`, durably, unless a job of this name is announced there.
///
/// # Errors
/// If it cannot be written.
pub fn keep_in(private: &Path, (name, text): (&OsStr, &[u8])) -> Result<()> {
    let dir = PrivateDir::open(private)?.sub(DIR)?;
    if dir.path().join(name).symlink_metadata().is_ok() {
        return Ok(());
    }
    dir.replace(&name.to_string_lossy(), text)
}

/// Removes the file of a job from `private`; the place of the job stays.
///
/// # Errors
/// If the directory does not take the change.
pub fn forget_in(private: &Path, name: &OsStr) -> Result<()> {
    PrivateDir::open(private)?.sub(DIR)?.remove(name)
}

/// The files that a job will use on any node, each once, in order.
///
/// # Errors
/// If the text is no job file.
pub fn files_on_all_nodes(text: &str) -> Result<Vec<PathBuf>> {
    let references = JobFile::parse(text, None)?.references;
    let mut files: Vec<PathBuf> = references.into_iter().map(|(path, _)| path).collect();
    files.sort_unstable();
    files.dedup();
    Ok(files)
}

fn forget_place(places: &Path, name: &str) -> Result<()> {
    match PrivateDir::open(places) {
        Err(error) if error.errno() == libc::ENOENT => Ok(()),
        dir => dir?.remove(file_name(name, "at")),
    }
}

fn unknown(name: &str) -> Error {
    Error::invalid(format!("no job {name:?} is announced"), "`halocline jobs list` lists them")
}

/// The recorded position; the beginning if it cannot be read.
fn read_place(dir: &PrivateDir, name: &str) -> u32 {
    let text = dir.read(name, PLACE_BYTES_MAX).ok().flatten();
    let text = text.and_then(|text| String::from_utf8(text).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The file of a job: a job's name may have any characters, a file's may not.
fn file_name(job: &str, extension: &str) -> String {
    let mut safe = job.bytes().fold(String::new(), |mut safe, byte| {
        let _ = write!(safe, "{byte:02x}");
        safe
    });
    safe.push('.');
    safe + extension
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
