//! What users have without a plan: every file in the default stripes, as far as the servers have room for these.
//!
//! Where the faster servers are full, the rest lies otherwise. The paper has it on the disks in stripes of S/m, which cuts
//! each request into a piece for every disk; those who leave stripes alone have the default ones there, too. Gains are told
//! against the faster of both, because otherwise a plan gains what nobody lacks
//! (docs/decisions/0084-the-faster-default.md).

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::judge::Layouts;
use crate::layout::{Layout, PARTS_MAX, Placer, assemble};
use crate::paper;
use crate::servers::Servers;
use crate::shared::SharedLayouts;
use crate::workload::File;

/// How the rest of the files lies for which not all servers have room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rest {
    /// As in the paper: on the servers of the slowest class, in stripes of S/m.
    Paper,
    /// In the same stripes, on the servers that have room for some.
    Default,
}

impl Rest {
    /// For people: where the rest lies.
    pub const fn told(self) -> &'static str {
        match self {
            Self::Paper => {
                "on the slowest servers, in stripes of a request's length over their number (as in the paper)"
            }
            Self::Default => "in default stripes on the servers that have room",
        }
    }

    /// The other way.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Paper => Self::Default,
            Self::Default => Self::Paper,
        }
    }
}

/// The files in the default stripes `widths`, in the order in which the trace names them, within the room of `placer`: once,
/// or, where the rest of them lies otherwise, in both ways. `told` is called with how many files are done.
///
/// # Errors
/// They do not fit.
pub fn both(
    servers: &Servers,
    files: &[&File],
    widths: &[u64],
    placer: &Placer,
    mut told: impl FnMut(usize),
) -> Result<Vec<(Rest, Layouts)>, Error> {
    let first = lay_out(servers, files, widths, Rest::Paper, placer.clone(), &mut told)?;
    let mut both = vec![(Rest::Paper, first)];
    let simple = Layout::simple(widths.to_vec());
    if both[0].1.files.values().all(|layout| *layout == simple) {
        return Ok(both);
    }
    let other = lay_out(servers, files, widths, Rest::Default, placer.clone(), &mut told)?;
    let is_possible = other.files.values().all(|layout| layout.parts().len() <= PARTS_MAX);
    if is_possible && other != both[0].1 {
        both.push((Rest::Default, other));
    }
    Ok(both)
}

/// The files in the default stripes `widths`, in the order in which the trace names them, the rest of them as `rest` says.
///
/// # Errors
/// They do not fit.
pub fn lay_out(
    servers: &Servers,
    files: &[&File],
    widths: &[u64],
    rest: Rest,
    mut placer: Placer,
    mut told: impl FnMut(usize),
) -> Result<Layouts, Error> {
    let mut files = files.to_vec();
    files.sort_by_key(|file| file.number);
    let mut shared = SharedLayouts::default();
    let mut layouts = FxHashMap::default();
    for (done, file) in files.into_iter().enumerate() {
        told(done);
        let layout = place(servers, file, widths, rest, &mut placer)?;
        layouts.insert(file.number, shared.share(layout));
    }
    Ok(Layouts { files: layouts, default: Layout::simple(widths.to_vec()) })
}

/// Places one file so.
pub(crate) fn place(
    servers: &Servers,
    file: &File,
    widths: &[u64],
    rest: Rest,
    placer: &mut Placer,
) -> Result<Layout, Error> {
    match rest {
        Rest::Paper => paper::place(servers, file, widths, placer),
        Rest::Default => {
            let parts = placer.place_where_room(0, file.bytes, widths);
            parts.map(assemble).map_err(|missing| Error::NoSpace {
                file: file.number.to_string(),
                bytes: file.bytes,
                missing,
            })
        }
    }
}
