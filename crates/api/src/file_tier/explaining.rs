//! Why a file is where it is, in the sentences that both file tiers use.

use std::io;
use std::path::Path;

use halocline_os::counted::counted;
use halocline_os::error::Error;

use crate::control::FileExplanation;
use crate::control::tier::JobUse;

/// What each job that names a file says of it, and why the file stayed when it was to move last.
#[must_use]
pub fn why_jobs_and_moves(told: &FileExplanation) -> Vec<String> {
    let why = |job: &JobUse| match job.next {
        Some(next) => format!(
            "job {} wants it: {}, {} from now",
            job.name,
            counted(job.coming, "more time"),
            counted(next, "reference")
        ),
        None => format!("job {} does not open it again", job.name),
    };
    let stayed = told.stayed.as_ref().map(|stayed| format!("when it was to move last: {stayed}"));
    told.jobs.iter().map(why).chain(stayed).collect()
}

/// The error for a path of the mount that cannot be looked up.
#[must_use]
pub fn not_found(path: &Path, error: &Error) -> Error {
    if let Error::Cluster { what, remedy } = error {
        // No disk is to blame.
        return Error::Cluster { what: what.clone(), remedy: remedy.clone() };
    }
    Error::at(path, "find the file on the mount")(io::Error::from_raw_os_error(error.errno()))
}

/// The error for a path of anything but a regular file.
#[must_use]
pub fn no_file(path: &Path) -> Error {
    let what = format!("{} is not a regular file", path.display());
    Error::invalid(what, "`halocline where DIR` lists the files below a directory")
}
