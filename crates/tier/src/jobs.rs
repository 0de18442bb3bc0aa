//! The announced jobs: which files will be used, in which order (`docs/JOBS.md`).
//!
//! The position of a [`Job`] in its sequence is followed by watching opens; an announcement and the position outlive
//! the mount.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::job::{Ahead, Job, Passed};
use super::job_file::{self, REFERENCES_MAX};
use super::opener::Opener;
use halocline_api::control::JobInfo;
use halocline_api::control::tier::JobUse;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// Jobs announced at the same time, and references of all of them.
const JOBS_MAX: usize = 64;
const ALL_REFERENCES_MAX: usize = 4 * REFERENCES_MAX;
/// A job's position is recorded each time it has advanced this far: after a kill it resumes within what a job may skip.
const NOTED_EVERY: u32 = 32;
/// The most bytes of a recorded position.
const PLACE_BYTES_MAX: u64 = 32;

/// All announced jobs.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    all: Vec<Announced>,
    dir: PathBuf,
}

#[derive(Debug)]
struct Announced {
    job: Job,
    /// The position that is recorded on disk.
    noted: u32,
}

impl Jobs {
    /// The jobs announced at earlier mounts, kept in `private`; they continue at their positions.
    pub(super) fn load(private: &Path) -> Result<Self> {
        let dir = PrivateDir::open(private)?.sub("jobs")?;
        let mut jobs = Self { dir: dir.path().to_owned(), ..Self::default() };
        for name in dir.names()? {
            let path = dir.path().join(&name);
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Some(text) = dir.read(&name, job_file::BYTES_MAX)? else { continue };
            let text = String::from_utf8_lossy(&text);
            match Job::parse(&text, &host_name()) {
                Ok(mut job) if jobs.has_room_for(&job) => {
                    let noted = read_place(&dir, &file_name(&job.name, "at"));
                    job.resume(noted);
                    jobs.all.push(Announced { job, noted });
                }
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
        self.forget_place(&job.name)?;
        PrivateDir::open(&self.dir)?.replace(&file_name(&job.name, "json"), text.as_bytes())?;
        self.all.retain(|other| other.job.name != job.name);
        self.all.push(Announced { job, noted: 0 });
        Ok(())
    }

    /// A new run of a job begins, by processes that claim it.
    pub(super) fn begin(&mut self, name: &str) -> Result<()> {
        self.forget_place(name)?;
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
        count < JOBS_MAX && references + job.len() as usize <= ALL_REFERENCES_MAX
    }

    /// Withdraws a job.
    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        let before = self.all.len();
        self.all.retain(|announced| announced.job.name != name);
        if self.all.len() == before {
            return Err(unknown(name));
        }
        self.forget_place(name)?;
        PrivateDir::open(&self.dir)?.remove(file_name(name, "json"))
    }

    fn forget_place(&self, name: &str) -> Result<()> {
        match PrivateDir::open(&self.dir) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            dir => dir?.remove(file_name(name, "at")),
        }
    }

    /// Records how far all jobs are.
    pub(super) fn note_places(&mut self) {
        for at in 0..self.all.len() {
            self.note_place(at);
        }
    }

    fn note_place(&mut self, at: usize) {
        let job = &self.all[at].job;
        let (now, name) = (job.position(), file_name(&job.name, "at"));
        if now != self.all[at].noted {
            let dir = PrivateDir::open(&self.dir);
            let noted = dir.and_then(|dir| dir.overwrite(&name, now.to_string().as_bytes()));
            if let Err(error) = noted {
                tracing::warn!("{error}: a job's place is not noted");
            }
            self.all[at].noted = now;
        }
    }

    /// Whether any job is announced.
    pub(super) const fn any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Called when a process opens or creates a file. Returns what that changes, and the file's references to come if a
    /// job itself uses it.
    pub(super) fn opened(&mut self, path: &Path, opener: &Opener) -> (Passed, Option<Ahead>) {
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
    pub(super) fn ahead(&self, path: &Path) -> Option<Ahead> {
        Ahead::of(self.all.iter().filter_map(|announced| announced.job.ahead(path)).collect())
    }

    /// The jobs that name a file and are believed, with its references to come.
    pub(super) fn that_want(&self, path: &Path) -> Vec<JobUse> {
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
    pub(super) fn list(&self) -> Vec<JobInfo> {
        let info = |job: &Job| JobInfo {
            name: job.name.clone(),
            references: job.len().into(),
            position: job.position().into(),
            files: job.files(),
            state: job.state().to_owned(),
        };
        self.all.iter().map(|announced| info(&announced.job)).collect()
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
mod tests {
    use std::fs;

    use super::*;

    fn job(text: &str) -> Result<Job> {
        Job::parse(text, "here")
    }

    fn jobs(text: &str) -> Jobs {
        let all = vec![Announced { job: job(text).unwrap(), noted: 0 }];
        Jobs { all, ..Jobs::default() }
    }

    impl Jobs {
        /// A file is opened by a process of the group.
        fn opened_in(&mut self, group: u32, path: &str) -> Passed {
            self.opened(path.as_ref(), &Opener { job: None, group }).0
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
        jobs.opened_in(1, "other");
        jobs.opened_in(1, "x");
        assert_eq!(distances(&jobs, "x"), Some(vec![2, 4]));
        let passed = jobs.opened_in(1, "z");
        assert_eq!(passed.skipped, [Path::new("y").into(), Path::new("x").into()]);
        assert_eq!(jobs.list()[0].position, 4, "skipped references are behind");
        assert_eq!(distances(&jobs, "y"), Some(vec![]));
        jobs.opened_in(1, "x");
        assert_eq!(jobs.list()[0].state, "done");
        assert_eq!(distances(&jobs, "x"), Some(vec![]), "known not to come again");
        assert!(jobs.opened_in(1, "x").untrusted);
        assert_eq!(distances(&jobs, "x"), None, "what comes after the job is not its business");
    }

    #[test]
    fn a_job_in_another_order_is_not_believed_for_long() {
        let names: Vec<String> = (0..200).map(|file| format!("\"f{file}\"")).collect();
        let mut jobs = jobs(&format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(",")));
        jobs.opened_in(1, "f0");
        for file in (100..200).rev() {
            jobs.opened_in(1, &format!("f{file}"));
        }
        assert_eq!(jobs.list()[0].state, "deviated");
        assert_eq!(distances(&jobs, "f150"), None);
    }

    /// Regression: a program that opened the file in work once more lost the references up to the file's next one.
    #[test]
    fn a_file_in_work_may_be_opened_again() {
        let mut jobs =
            jobs(r#"{"job": "a", "references": ["x", "y", {"file": "x", "repeat": 2}, "z", "y"]}"#);
        for (path, position) in [
            ("x", 1),
            ("x", 1),
            ("y", 2),
            ("y", 2),
            ("x", 3),
            ("x", 4),
            ("x", 4),
            ("y", 4),
            ("z", 5),
        ] {
            assert_eq!(jobs.opened_in(1, path), Passed::default(), "{path}");
            assert_eq!(jobs.list()[0].position, position, "{path}");
        }
        jobs.opened_in(1, "y");
        assert_eq!(jobs.list()[0].state, "done");
    }

    fn numbered(count: usize) -> String {
        let names: Vec<String> = (0..count).map(|file| format!("\"f{file}\"")).collect();
        format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(","))
    }

    /// An archiver that reads the same files before the job or while it is running.
    #[test]
    fn what_others_open_does_not_move_a_job() {
        let mut jobs = jobs(&numbered(300));
        for file in (0..300).step_by(50) {
            jobs.opened_in(2, &format!("f{file}"));
        }
        for file in 0..200 {
            let (_, ahead) =
                jobs.opened(Path::new(&format!("f{file}")), &Opener { job: None, group: 1 });
            assert!(ahead.is_some(), "the job's own open of f{file}");
            assert_eq!(jobs.list()[0].position, file + 1);
            // Group 2 opens in an order of its own, group 3 in the job's, some way ahead.
            jobs.opened_in(2, &format!("f{}", (file * 37) % 300));
            jobs.opened_in(3, &format!("f{}", (file + 40).min(299)));
            let theirs = Opener { job: Some("another".into()), group: 4 };
            let (_, ahead) = jobs.opened(Path::new(&format!("f{}", file + 1)), &theirs);
            assert!(ahead.is_none(), "another job's use");
        }
        assert_eq!(jobs.list()[0].state, "running");
    }

    #[test]
    fn processes_with_a_jobs_variable_are_its_own_and_no_others() {
        let mut jobs = jobs(&numbered(300));
        let own = |group| Opener { job: Some("a".into()), group };
        for file in 0..20 {
            jobs.opened_in(1, &format!("f{file}"));
        }
        jobs.opened(Path::new("f20"), &own(2));
        assert_eq!(jobs.list()[0].position, 21, "it goes on, whatever its group");
        jobs.opened_in(1, "f21");
        assert_eq!(jobs.list()[0].position, 21, "not a process of its own");
        for file in 21..30 {
            jobs.opened(Path::new(&format!("f{file}")), &own(file));
        }
        assert_eq!(jobs.list()[0].position, 30);
        jobs.all[0].job.begin();
        assert_eq!(jobs.list()[0].state, "waiting");
        jobs.opened(Path::new("f0"), &own(9));
        assert_eq!(jobs.list()[0].position, 1, "another run");
    }

    #[test]
    fn a_job_goes_on_in_another_group_once_its_first_is_gone() {
        use std::os::unix::process::CommandExt;
        let mut child = std::process::Command::new("true").process_group(0).spawn().unwrap();
        let group = child.id();
        let mut jobs = jobs(&numbered(300));
        for file in 0..100 {
            jobs.opened_in(group, &format!("f{file}"));
        }
        child.wait().unwrap();
        jobs.opened_in(1, "f100");
        assert_eq!(jobs.list()[0].position, 101);
    }

    #[test]
    fn a_job_that_nobody_goes_on_with_tells_nothing_until_somebody_does() {
        let mut jobs = jobs(&numbered(300));
        jobs.opened_in(1, "f0");
        let mut untrusted = 0;
        for _ in 0..1000 {
            untrusted += u32::from(jobs.opened_in(1, "other").untrusted);
        }
        assert_eq!(untrusted, 1, "told once");
        assert_eq!((distances(&jobs, "f1"), jobs.list()[0].state.as_str()), (None, "stopped"));
        let again = (1..30).find(|file| jobs.opened_in(1, &format!("f{file}")).untrusted);
        assert!(again.is_some(), "somebody goes on with it");
        let next = format!("f{}", again.unwrap() + 1);
        assert_eq!(distances(&jobs, &next), Some(vec![1]));
        assert_eq!(jobs.list()[0].state, "running");
    }

    /// A list of files that are opened seldom and in any order does not count as an order.
    #[test]
    fn an_order_that_fits_by_skipping_is_not_believed() {
        let names: Vec<String> = (0..300).map(|at| format!("\"f{}\"", at % 6)).collect();
        let mut jobs = jobs(&format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(",")));
        for open in 0..100 {
            jobs.opened_in(1, &format!("f{}", open * 5 % 6));
        }
        assert_eq!(jobs.list()[0].state, "deviated");
    }

    #[test]
    fn a_remount_keeps_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = Jobs::load(dir.path()).unwrap();
        jobs.add(&numbered(300)).unwrap();
        let follow = |jobs: &mut Jobs, files: std::ops::Range<u64>| {
            files.for_each(|file| drop(jobs.opened_in(1, &format!("f{file}"))));
        };
        follow(&mut jobs, 0..101);
        jobs.note_places();
        let mut jobs = Jobs::load(dir.path()).unwrap();
        assert_eq!((jobs.list()[0].position, jobs.list()[0].state.as_str()), (101, "running"));
        follow(&mut jobs, 101..150);
        assert_eq!(jobs.list()[0].position, 150);
        // The mount is killed.
        let mut jobs = Jobs::load(dir.path()).unwrap();
        assert!((118..=150).contains(&jobs.list()[0].position), "{:?}", jobs.list());
        follow(&mut jobs, 150..151);
        assert_eq!(jobs.list()[0].position, 151);
        // A position that is impossible.
        let place = dir.path().join("jobs").join(file_name("a", "at"));
        for (wrong, position) in [("99999", 300), ("-1", 0), ("", 0), ("1\u{0}", 0)] {
            fs::write(&place, wrong).unwrap();
            assert_eq!(Jobs::load(dir.path()).unwrap().list()[0].position, position, "{wrong:?}");
        }
        let mut jobs = Jobs::load(dir.path()).unwrap();
        jobs.add(&numbered(10)).unwrap();
        assert_eq!(Jobs::load(dir.path()).unwrap().list()[0].position, 0, "announced anew");
        jobs.remove("a").unwrap();
        assert_eq!(fs::read_dir(dir.path().join("jobs")).unwrap().count(), 0);
    }

    proptest::proptest! {
        /// Whichever opens come, a job stays within its sequence.
        #[test]
        fn any_opens_leave_a_job_in_its_sequence(
            opens in proptest::collection::vec((0..12u32, 0..20usize, 0..3u8), 0..200),
            sequence in proptest::collection::vec(0..20usize, 1..40),
        ) {
            let names: Vec<String> = sequence.iter().map(|file| format!("\"f{file}\"")).collect();
            let mut jobs = jobs(&format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(",")));
            jobs.all[0].noted = u32::MAX / 2;
            jobs.dir = "/nonexistent".into();
            for (group, file, job) in opens {
                let job = [None, Some("a".into()), Some("b".into())][usize::from(job)].clone();
                let path = format!("f{file}");
                let (_, ahead) = jobs.opened(Path::new(&path), &Opener { job, group });
                proptest::prop_assert!(jobs.list()[0].position <= sequence.len() as u64);
                if let Some(ahead) = ahead {
                    proptest::prop_assert!(ahead.next().is_none_or(|next| next >= 1));
                }
            }
        }
    }
}
