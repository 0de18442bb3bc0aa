//! Why a file is where it is, in the sentences that both file tiers use.

use halocline_os::counted::counted;

use crate::control::tier::JobUse;

/// What each job that names a file says of it.
#[must_use]
pub fn why_jobs(jobs: &[JobUse]) -> Vec<String> {
    let why = |job: &JobUse| match job.next {
        Some(next) => format!(
            "job {} wants it: {}, {} from now",
            job.name,
            counted(job.coming, "more time"),
            counted(next, "reference")
        ),
        None => format!("job {} does not open it again", job.name),
    };
    jobs.iter().map(why).collect()
}
