//! Who opens a file: this distinguishes the processes of one job from all others.
//!
//! Processes state it themselves, by an environment variable that their children inherit (`halocline jobs run` sets
//! it); otherwise it is determined by their process group: a command that a shell starts is one.
//!
//! What must hold: nobody but the process itself waits for a read of its memory, which contains its environment. Its
//! owner can make that read block indefinitely.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

use super::job_file::NAME_BYTES_MAX;
use halocline_os::bounded;
use halocline_os::timed_calls::TimedCalls;

/// The environment variable that names the job of a process.
pub const JOB_VARIABLE: &str = "HALOCLINE_JOB";
/// How long what is known of a process is believed: after that, its number may belong to another process.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// The same for a process that names no job, which may be about to execute a program that does.
const WITHOUT_JOB_FOR: Duration = Duration::from_millis(100);
/// How long an open may wait for a look at its process: far longer than a busy machine needs. After that, and while
/// many other looks block, a process is identified by its group alone.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// The most processes that are known.
const KNOWN_MAX: usize = 4096;
/// The most bytes of an environment that are read; Linux allows more only by an option.
const ENVIRONMENT_BYTES_MAX: u64 = 2 << 20;
/// The most bytes of `/proc/PID/stat`.
const STAT_BYTES_MAX: u64 = 4096;

/// A process from the point of view of jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opener {
    /// The job that it says it belongs to.
    pub job: Option<Arc<str>>,
    /// Its process group; 0 if that cannot be determined.
    pub group: u32,
}

/// The processes that opened files recently.
#[derive(Debug, Default)]
pub struct Openers {
    known: Mutex<HashMap<u32, (Instant, Opener)>>,
    calls: TimedCalls,
}

impl Openers {
    /// The process of thread `tid`. Waits for a look at it, without holding a lock.
    pub fn of_thread(&self, tid: u32, now: Instant) -> Opener {
        if let Some((since, opener)) = self.known.lock().get(&tid)
            && now.saturating_duration_since(*since)
                < if opener.job.is_some() { KNOWN_FOR } else { WITHOUT_JOB_FOR }
        {
            return opener.clone();
        }
        let job = self.calls.within(LOOK_TIMEOUT, move || job_of(tid)).flatten();
        let opener = Opener { job, group: group_of(tid).unwrap_or(0) };
        let mut known = self.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(tid, (now, opener.clone()));
        opener
    }
}

/// The job that the environment of a thread names.
fn job_of(tid: u32) -> Option<Arc<str>> {
    let path = format!("/proc/{tid}/environ");
    job_in(&bounded::read(path.as_ref(), ENVIRONMENT_BYTES_MAX).ok()?)
}

/// The same of an environment, of which its process may have made anything: a name that no job can have names none.
fn job_in(environment: &[u8]) -> Option<Arc<str>> {
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(JOB_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    let is_name = |name: &&str| (1..=NAME_BYTES_MAX).contains(&name.len());
    str::from_utf8(value).ok().filter(is_name).map(Arc::from)
}

/// The process group of a thread.
fn group_of(tid: u32) -> Option<u32> {
    group_in(&bounded::read(format!("/proc/{tid}/stat").as_ref(), STAT_BYTES_MAX).ok()?)
}

/// The third word after the name, which may hold anything.
fn group_in(stat: &[u8]) -> Option<u32> {
    let behind = stat.iter().rposition(|byte| *byte == b')')?;
    let words = str::from_utf8(&stat[behind + 1..]).ok()?;
    words.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Whether no process of a group is left.
pub(super) fn is_gone(group: u32) -> bool {
    let group = i32::try_from(group).ok().filter(|group| *group > 1).and_then(Pid::from_raw);
    group.is_some_and(|group| test_kill_process_group(group) == Err(Errno::SRCH))
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::{NAME_BYTES_MAX, group_in, job_in};

    /// What `/proc` tells of a process, the environment behind the first NUL: a job is one that a job file can name, and a group is
    /// told behind the last parenthesis.
    pub fn opener(bytes: &[u8]) {
        let cut = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let (stat, environment) = bytes.split_at(cut);
        if let Some(group) = group_in(stat) {
            let text = String::from_utf8_lossy(stat);
            let behind = text.rsplit(')').next().unwrap_or_default();
            assert!(behind.split_ascii_whitespace().any(|word| word.parse() == Ok(group)));
        }
        if let Some(job) = job_in(environment) {
            assert!((1..=NAME_BYTES_MAX).contains(&job.len()) && !job.contains('\0'), "{job:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_by_its_variable_and_its_group() {
        let mut program = Command::new("sleep");
        program.arg("60").env(JOB_VARIABLE, "align 2").process_group(0);
        let mut child = program.spawn().unwrap();
        // For a moment, it is still what it was before it executed the program.
        let opener = loop {
            let opener = Openers::default().of_thread(child.id(), Instant::now());
            if opener.job.is_some() {
                break opener;
            }
            std::thread::yield_now();
        };
        assert_eq!(opener, Opener { job: Some("align 2".into()), group: child.id() });
        assert!(!is_gone(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(child.id()));
        assert!(!is_gone(0) && !is_gone(1) && !is_gone(u32::MAX), "not known is not gone");
    }

    /// As many names as are known, each as long as an environment, would take gigabytes.
    #[test]
    fn a_name_that_is_too_long_for_a_job_names_none() {
        let environment = |length| format!("A=b\0{JOB_VARIABLE}={}\0", "n".repeat(length));
        let job_of = |length| job_in(environment(length).as_bytes()).map(|job| job.len());
        assert_eq!(job_of(NAME_BYTES_MAX), Some(NAME_BYTES_MAX));
        assert_eq!((job_of(NAME_BYTES_MAX + 1), job_of(0)), (None, None));
        assert_eq!(group_in(b"12 (a) b) S 1 34 5"), Some(34));
        assert_eq!(group_in(b"12 (sleep"), None);
    }

    #[test]
    fn what_is_known_is_believed_for_a_while() {
        let (openers, now) = (Openers::default(), Instant::now());
        let me = std::process::id();
        let opener = openers.of_thread(me, now);
        assert_ne!(opener.group, 0);
        openers.known.lock().get_mut(&me).unwrap().1.group = 7;
        assert_eq!(openers.of_thread(me, now + Duration::from_millis(50)).group, 7);
        assert_eq!(openers.of_thread(me, now + Duration::from_secs(3)), opener);
        assert_eq!(openers.of_thread(u32::MAX, now), Opener::default());
    }
}
