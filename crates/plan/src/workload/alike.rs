//! Files that are alike: where each of thousands of processes has a file of its own, one of them stands for all. They are
//! analysed once, and get the same widths as far as there is room.

use halocline_trace::analysis::{FileSummary, Summary};
use rustc_hash::FxHashMap;

/// How many files that differ get layouts: those with the most bytes.
pub const KINDS_MAX: usize = 256;
/// Limit of the files that get layouts, with those that are like others.
const FILES_MAX: usize = 4096;
/// Limit of the widths of all their regions: with thousands of servers there are fewer files, but [`KINDS_MAX`].
const WIDTHS_MAX: usize = 1 << 21;

/// The files that get layouts, those with the most bytes first, and of each the number of the one that stands for it: the
/// first of those that are alike.
pub(super) fn with_layouts(summary: &Summary, servers: usize) -> Vec<(&FileSummary, u32)> {
    let mut regions_left = WIDTHS_MAX / servers.max(1);
    let mut firsts: FxHashMap<[u64; 3], Vec<&FileSummary>> = FxHashMap::default();
    let (mut files, mut kinds) = (Vec::new(), 0);
    for file in &summary.files {
        let regions = file.regions.len().max(1);
        if files.len() == FILES_MAX || files.len() >= KINDS_MAX && regions > regions_left {
            break;
        }
        let before = files.len();
        let similar = firsts.entry([file.end, file.processes, file.mix.bytes()]).or_default();
        if let Some(first) = similar.iter().find(|first| are_alike(first, file)) {
            files.push((file, first.file));
        } else if kinds < KINDS_MAX {
            similar.push(file);
            files.push((file, file.file));
            kinds += 1;
        }
        regions_left = regions_left.saturating_sub(regions * (files.len() - before));
    }
    files
}

/// Whether they have the same length, and the same requests in all of it, by as many processes.
fn are_alike(one: &FileSummary, other: &FileSummary) -> bool {
    let of = |file: &FileSummary| (file.end, file.processes, file.mix, file.pattern, file.streams);
    of(one) == of(other) && one.regions == other.regions
}

#[cfg(test)]
mod tests {
    use halocline_trace::analysis::Analysis;
    use halocline_trace::{Op, Request};

    use super::*;

    /// So many files, of which `kind` says how many requests each has.
    fn summary(files: u32, kind: impl Fn(u32) -> u64) -> Summary {
        let mut analysis = Analysis::default();
        for file in 0..files {
            for number in 0..kind(file) {
                let (start_ns, duration_ns, op) = (number, None, Op::Write);
                let (offset, length) = (number * 4096, 4096);
                analysis.push(&Request {
                    start_ns,
                    duration_ns,
                    process: file,
                    file,
                    op,
                    offset,
                    length,
                });
            }
        }
        analysis.finish()
    }

    #[test]
    fn files_that_are_alike_get_layouts_beyond_those_that_differ() {
        let alike = summary(1000, |_| 3);
        assert!(with_layouts(&alike, 8).iter().all(|(_, first)| *first == 0));
        assert_eq!(with_layouts(&alike, 8).len(), 1000);
        // On thousands of servers fewer.
        assert_eq!(with_layouts(&alike, 4096).len(), 512);
        assert_eq!(with_layouts(&alike, 1 << 20).len(), KINDS_MAX);
        // Three kinds.
        let mixed = summary(600, |file| u64::from(3 + file % 3));
        let found = with_layouts(&mixed, 8);
        let firsts: std::collections::BTreeSet<u32> = found.iter().map(|it| it.1).collect();
        assert_eq!((found.len(), firsts.into_iter().collect::<Vec<_>>()), (600, vec![0, 1, 2]));
        // Of those that differ, the ones with the most bytes.
        let found = summary(300, |file| 1 + u64::from(file));
        let found = with_layouts(&found, 8);
        assert_eq!(found.len(), KINDS_MAX);
        assert_eq!((found[0].0.file, found[255].0.file), (299, 44));
    }
}
