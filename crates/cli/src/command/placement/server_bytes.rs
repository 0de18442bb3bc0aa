//! What each server has of the files of a plan.

use halocline_plan::plan_file::Plan;
use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::relayout::LayoutChange;
use serde::Serialize;

use crate::print::say;
use crate::text;

/// The share of one server in the files of a plan.
#[derive(Debug, Serialize)]
pub(crate) struct ServerBytes {
    /// Its name in the plan.
    pub(crate) name: String,
    /// Its directory in the volume.
    pub(crate) directory: String,
    /// Bytes of the files in the planned layout, by their sizes.
    pub(crate) planned_bytes: u64,
    /// Of these, bytes of holes.
    pub(crate) hole_bytes: u64,
    /// Bytes of blocks in use.
    pub(crate) used_bytes: u64,
    /// Bytes that it has by the layouts of files that have nothing on it: holes, unless that is lost.
    pub(crate) absent_bytes: u64,
}

impl ServerBytes {
    /// What is planned, for people; `of` says of what.
    pub(crate) fn planned(&self, of: &str) -> String {
        let planned = text::bytes(self.planned_bytes);
        match self.hole_bytes {
            0 => format!("{planned} {of}"),
            holes => format!("{planned} {of} ({} of it holes)", text::bytes(holes)),
        }
    }
}

/// Tells people of `files` that have nothing on a server that has some of them by their layouts: nobody knows by that
/// whether it was lost.
pub(crate) fn say_absent<'f>(
    plan: &Plan,
    origin: &Origin,
    files: impl IntoIterator<Item = &'f LayoutChange>,
) {
    for file in files {
        let servers = plan.server.iter().zip(origin.servers()).zip(&file.absent);
        for ((planned, server), bytes) in servers.filter(|(_, bytes)| **bytes > 0) {
            say!(
                "{}: none of its data is on {} ({}), which has {} of it by its layout: these are holes, unless the data is lost",
                text::path(&file.path),
                planned.name,
                text::path(server.dir()),
                text::bytes(*bytes)
            );
        }
    }
}

/// The same for each server.
pub(crate) fn by_server(plan: &Plan, origin: &Origin, files: &[LayoutChange]) -> Vec<ServerBytes> {
    // Sizes are set by users, also of files with holes.
    let sum = |of: &dyn Fn(&LayoutChange) -> u64| files.iter().map(of).fold(0, u64::saturating_add);
    let servers = plan.server.iter().zip(origin.servers()).enumerate();
    servers
        .map(|(index, (planned, server))| ServerBytes {
            name: planned.name.clone(),
            directory: server.dir().to_string_lossy().into_owned(),
            planned_bytes: sum(&|file| file.sized[index]),
            hole_bytes: sum(&|file| file.sized[index].saturating_sub(file.planned[index])),
            used_bytes: sum(&|file| file.used[index]),
            absent_bytes: sum(&|file| file.absent[index]),
        })
        .collect()
}
