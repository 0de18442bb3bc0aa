//! The origin's files without devices, mount or cache: what is stored when everything is over.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use halocline_api::config::Config;
use halocline_os::error::Error;
use halocline_storage::volume::origin::{Origin, OriginFile};

use super::content::Content;
use super::worker::Wrong;
use super::worker_processes::Watch;
use super::workload::{Instance, Workload};
use crate::failure::Failure;

/// Bytes that are compared at once.
const CHUNK: usize = 4 << 20;

/// An origin that is not mounted, or whose mount is idle.
#[derive(Debug)]
pub(super) struct BareOrigin(Origin);

impl BareOrigin {
    /// Opens the origin in `dir`.
    pub(super) fn open(dir: &Path, striped: bool) -> Result<Self, Failure> {
        let opened = if striped {
            Origin::open_volume(dir)
        } else {
            Origin::open_or_create(dir, Config::default().origin, &|_, device| device)
        };
        Ok(Self(opened?))
    }

    /// Compares every byte of all files with what was written; returns how many bytes there were.
    pub(super) fn compare(
        &self,
        workload: &Workload,
        generation: u64,
        watch: &mut impl Watch,
    ) -> Result<u64, Failure> {
        for instance in &workload.instances {
            let content = Content::new(workload.shape.seed, u64::from(instance.number), generation);
            self.compare_file(instance, content, watch)?;
        }
        Ok(workload.bytes())
    }

    fn compare_file(
        &self,
        instance: &Instance,
        content: Content,
        watch: &mut impl Watch,
    ) -> Result<(), Failure> {
        let (path, file) = self.file(instance, libc::O_RDONLY)?;
        let (mut found, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut offset = 0;
        while offset < instance.bytes {
            watch.go_on()?;
            let want = usize::try_from(instance.bytes - offset).unwrap_or(CHUNK).min(CHUNK);
            let count =
                file.read_at(offset, &mut found[..want]).map_err(Error::at(&path, "read"))?;
            if count == 0 {
                let (path, all) = (path.display(), instance.bytes);
                return Err(Failure::failed(format!("{path} ends at {offset} of {all} bytes")));
            }
            if let Some(mismatch) = content.check(offset, &found[..count], &mut expected[..count]) {
                return Err(Wrong::new(path, mismatch).failure("on the origin"));
            }
            offset += count as u64;
        }
        Ok(())
    }

    /// Flips one byte in the middle of the first file.
    pub(super) fn flip(&self, workload: &Workload) -> Result<(), Failure> {
        let instance = &workload.instances[0];
        let (path, file) = self.file(instance, libc::O_RDWR)?;
        let (mut byte, at) = ([0], instance.bytes / 2);
        file.read_at(at, &mut byte).map_err(Error::at(&path, "read"))?;
        file.write_at(at, &[!byte[0]]).map_err(Error::at(&path, "write"))?;
        Ok(())
    }

    fn file(&self, instance: &Instance, flags: i32) -> Result<(PathBuf, OriginFile), Failure> {
        let path = self.0.namespace_dir().join(instance.file_name());
        let node = File::open(&path).map_err(Error::at(&path, "open"))?;
        let file = self.0.open_data(node.as_fd(), flags).map_err(Error::at(&path, "open"))?;
        Ok((path, file))
    }
}
