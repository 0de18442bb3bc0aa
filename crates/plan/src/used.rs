//! What of a layout requests use: the gaps between them take space on servers, too, and with some stripes nothing but gaps
//! lies on the SSDs.

use halocline_model::file_layout::stored_bytes;
use rustc_hash::FxHashMap;

use halocline_trace::Request;

use crate::judge::Layouts;
use crate::layout::{Layout, Part};
use crate::servers::Servers;
use crate::workload::Workload;

/// The share of the bytes of `requests` that is on servers of all classes but the slowest.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn share_of_fast(servers: &Servers, requests: &[Request], layouts: &Layouts) -> f64 {
    let mut is_fast = vec![false; servers.count()];
    servers.fast().for_each(|server| is_fast[server] = true);
    let (mut on_fast, mut all) = (0.0, 0.0);
    for request in requests {
        layouts.of(request.file).pieces(request.offset, request.end(), |piece| {
            let bytes = piece.length as f64;
            all += bytes;
            on_fast += if is_fast[piece.server] { bytes } else { 0.0 };
        });
    }
    if all > 0.0 { on_fast / all } else { 0.0 }
}

/// The same without the faster servers of each part of a file on which none of these requests reads or writes; `None` if
/// there are none such, or the others have no room for what is there.
pub(crate) fn without_idle_servers(
    servers: &Servers,
    workload: &Workload,
    requests: &[Request],
    layouts: &Layouts,
) -> Option<Layouts> {
    let used = used(servers, requests, layouts);
    let mut changed: FxHashMap<u32, Vec<Part>> = FxHashMap::default();
    for ((file, index), used) in used {
        let part = &layouts.of(file).parts()[index];
        let mut widths = part.widths.clone();
        servers.fast().filter(|server| !used[*server]).for_each(|server| widths[server] = 0);
        if widths != part.widths && widths.iter().any(|width| *width > 0) {
            let parts = || layouts.of(file).parts().to_vec();
            changed.entry(file).or_insert_with(parts)[index].widths = widths;
        }
    }
    if changed.is_empty() {
        return None;
    }
    let mut spared = layouts.clone();
    for (file, parts) in changed {
        spared.files.insert(file, Layout::new(parts, servers.count()).ok()?);
    }
    let mut room = servers.room();
    for file in &workload.files {
        for (room, taken) in room.iter_mut().zip(spared.of(file.number).bytes(file.bytes)) {
            *room = room.checked_sub(stored_bytes(taken))?;
        }
    }
    Some(spared)
}

/// Which servers the requests use, by file and part.
fn used(
    servers: &Servers,
    requests: &[Request],
    layouts: &Layouts,
) -> FxHashMap<(u32, usize), Vec<bool>> {
    let mut used: FxHashMap<(u32, usize), Vec<bool>> = FxHashMap::default();
    for request in requests {
        let layout = layouts.of(request.file);
        for (index, part) in layout.parts_in(request.offset, request.end()) {
            let (begin, end) = (request.offset.max(part.begin), part.end.unwrap_or(u64::MAX));
            let end = end.min(request.end());
            let of = used.entry((request.file, index));
            let of = of.or_insert_with(|| vec![false; servers.count()]);
            layout.pieces(begin, end, |piece| of[piece.server] = true);
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::disk_and_ssd;
    use halocline_trace::Op;

    /// 56 KiB of every 64 KiB.
    fn with_gaps() -> Vec<Request> {
        let request = |n: u64| Request {
            start_ns: n,
            duration_ns: None,
            process: 0,
            file: 0,
            op: Op::Write,
            offset: n << 16,
            length: 56 << 10,
        };
        (0..64).map(request).collect()
    }

    /// The page said that as many bytes were put on the SSDs as lay there, all of them gaps.
    #[test]
    fn gaps_on_an_ssd_are_no_traffic_and_are_spared() {
        let (servers, requests) = (disk_and_ssd(), with_gaps());
        let workload = Workload::of(&requests, 1);
        let layouts = |widths: [u64; 2]| {
            let layout = Layout::simple(widths.to_vec());
            Layouts { files: [(0, layout.clone())].into_iter().collect(), default: layout }
        };
        let gaps = layouts([56 << 10, 8 << 10]);
        assert!(share_of_fast(&servers, &requests, &gaps).abs() < 1e-9);
        let spared = without_idle_servers(&servers, &workload, &requests, &gaps).expect("spared");
        assert_eq!(spared.of(0).bytes(1 << 20), [1 << 20, 0]);
        let half = layouts([28 << 10, 28 << 10]);
        assert!((share_of_fast(&servers, &requests, &half) - 0.5).abs() < 0.01);
        assert!(without_idle_servers(&servers, &workload, &requests, &half).is_none());
    }
}
