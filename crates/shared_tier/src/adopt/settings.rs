//! What commands set on a tier of one node: its pins and excludes, and the jobs that are announced. A tier that nodes share keeps
//! them on the shared disk, for all nodes; where a job is stays on the SSD.
//!
//! What must hold: nothing leaves the SSD before it is kept on the shared disk, durably; what is set there already stays.

use std::ffi::OsString;

use halocline_api::globs::Globs;
use halocline_api::jobs;
use halocline_os::error::Result;

use super::Adopted;
use crate::places::tree::Tree;

/// What is still on the SSD.
#[derive(Debug)]
pub(super) struct Settings {
    /// Of the SSD alone.
    globs: Globs,
    /// Those of the shared disk, with these.
    all_globs: Globs,
    /// Names and texts of job files.
    jobs: Vec<(OsString, Vec<u8>)>,
}

impl Settings {
    /// # Errors
    /// If something there cannot be read, or there are more globs than a tier may have.
    pub(super) fn read(ssd: &Tree, shared: &Tree) -> Result<Self> {
        let [globs, mut all_globs] =
            [ssd, shared].map(|disk| Globs::load(disk.private.path(), &[], &[]));
        let globs = globs?;
        all_globs.as_mut().map_or(Ok(()), |all| all.add_all_of(&globs))?;
        let jobs = jobs::announced_in(ssd.private.path())?;
        Ok(Self { globs, all_globs: all_globs?, jobs })
    }

    pub(super) fn count(&self, adopted: &mut Adopted) {
        let globs = self.globs.pin_sources().len() + self.globs.exclude_sources().len();
        (adopted.globs, adopted.jobs) = (globs as u64, self.jobs.len() as u64);
    }

    /// Moves them to the shared disk.
    pub(super) fn carry_over(&self, ssd: &Tree, shared: &Tree) -> Result<()> {
        let [from, to] = [ssd, shared].map(|disk| disk.private.path());
        if !self.globs.is_empty() {
            shared.step("keeping pins and excludes", || self.all_globs.save(to))?;
        }
        for (name, text) in &self.jobs {
            shared.step("keeping a job", || jobs::keep_in(to, (name, text)))?;
        }
        ssd.step("removing what is kept on the shared disk", || {
            Globs::forget(from)?;
            self.jobs.iter().try_for_each(|(name, _)| jobs::forget_in(from, name))
        })
    }
}
