//! Files that begin on the disks and end on the SSDs.

use rustc_hash::FxHashMap;

use crate::judge::Layouts;
use crate::layout::{DEFAULT_STRIPE, Layout, Part};
use crate::servers::Servers;
use crate::shared::SharedLayouts;
use crate::workload::Workload;

/// The same stripes on the disks, and of each file's end as much on the SSDs as there is room for; `None` if files are on
/// these already, or in several parts.
pub(crate) fn behind(servers: &Servers, workload: &Workload, layouts: &Layouts) -> Option<Layouts> {
    let is_head = |layout: &Layout| {
        let [part] = layout.parts() else { return false };
        servers.fast().all(|server| part.widths[server] == 0)
    };
    if !workload.files.iter().all(|file| is_head(layouts.of(file.number))) {
        return None;
    }
    let files: Vec<(u32, u64)> =
        workload.files.iter().map(|file| (file.number, file.bytes)).collect();
    on_ssds(servers, &files, |file| layouts.of(file).parts()[0].widths.as_slice())
}

/// Files with their lengths that begin in the stripes of `head` and end on the SSDs, whose space each shares by its length;
/// `None` if these have room for everything, or for nothing, or the disks lack it.
pub(crate) fn on_ssds<'h>(
    servers: &Servers,
    files: &[(u32, u64)],
    head: impl Fn(u32) -> &'h [u64],
) -> Option<Layouts> {
    let mut room = servers.room();
    let count = servers.fast().count() as u64;
    let each = servers.fast().map(|server| room[server]).min()?;
    let all: u128 = files.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
    let there = u128::from(each) * u128::from(count);
    if there >= all {
        return None;
    }
    let mut tail = vec![0; servers.count()];
    servers.fast().for_each(|server| tail[server] = DEFAULT_STRIPE);
    let stripes = DEFAULT_STRIPE * count;
    let mut is_divided = false;
    let (mut layouts, mut shared) = (FxHashMap::default(), SharedLayouts::default());
    for &(file, bytes) in files {
        let head = head(file);
        let share = u64::try_from(u128::from(bytes) * there / all).ok()? / stripes * stripes;
        let round = head.iter().sum::<u64>().max(1);
        let border = bytes.saturating_sub(share).checked_next_multiple_of(round)?;
        let part = |begin, end, widths: &[u64]| Part { begin, end, widths: widths.to_vec() };
        let parts = if border == 0 || border >= bytes {
            vec![part(0, None, head)]
        } else {
            is_divided = true;
            vec![part(0, Some(border), head), part(border, None, &tail)]
        };
        let layout = shared.of(parts, servers.count()).ok()?;
        for (room, taken) in room.iter_mut().zip(layout.bytes(bytes)) {
            *room = room.checked_sub(taken)?;
        }
        layouts.insert(file, layout);
    }
    let default = Layout::simple(vec![DEFAULT_STRIPE; servers.count()]);
    is_divided.then_some(Layouts { files: layouts, default })
}
