//! When the SSDs are full: when the last of the bytes that a layout has on them came there, in the time of a replay.

use halocline_model::file_layout::stored_bytes;
use halocline_trace::Request;
use rustc_hash::FxHashMap;

use crate::judge::Layouts;
use crate::servers::Servers;
use crate::workload::Workload;

/// Least bytes of a unit that is either touched or not.
const UNIT_BYTES_MIN: u64 = 4096;
/// Limit of the units of a file.
const UNITS_MAX: u64 = 1 << 20;
/// Limit of those of all files: 32 MiB.
const UNITS_OF_ALL: u64 = 1 << 28;

/// Whether `layouts` fill the SSDs with the files of `workload`: they have no room for another stripe as wide as the widest
/// there, and a part of a file lies beside them. What has no layout of its own does not count.
pub(crate) fn fills(servers: &Servers, workload: &Workload, layouts: &Layouts) -> bool {
    let fast: Vec<usize> = servers.fast().collect();
    let mut is_beside = false;
    let mut widest = vec![0; servers.count()];
    for file in &workload.files {
        for (_, part) in layouts.of(file.number).parts_in(0, file.bytes) {
            is_beside |= fast.iter().all(|server| part.widths[*server] == 0);
            for server in &fast {
                widest[*server] = part.widths[*server].max(widest[*server]);
            }
        }
    }
    if !is_beside {
        return false;
    }
    let mut held = vec![0_u64; servers.count()];
    for file in &workload.files {
        for (held, bytes) in held.iter_mut().zip(layouts.of(file.number).bytes(file.bytes)) {
            *held = held.saturating_add(stored_bytes(bytes));
        }
    }
    let mut used = fast.into_iter().filter(|server| widest[*server] > 0).peekable();
    let is_full = |server: usize| {
        let room = servers.all()[server].capacity.unwrap_or(u64::MAX).saturating_sub(held[server]);
        room < widest[server]
    };
    used.peek().is_some() && used.all(is_full)
}

/// Which parts of files were read or written so far.
#[derive(Debug)]
pub(crate) struct Filling<'a> {
    layouts: &'a Layouts,
    is_fast: Vec<bool>,
    files: FxHashMap<u32, Touched>,
    last_seconds: Option<f64>,
}

/// The parts of a file.
#[derive(Debug)]
struct Touched {
    unit_bytes: u64,
    bits: Vec<u64>,
}

impl<'a> Filling<'a> {
    /// Nothing was touched yet.
    pub(crate) fn new(servers: &Servers, workload: &Workload, layouts: &'a Layouts) -> Self {
        let mut is_fast = vec![false; servers.count()];
        servers.fast().for_each(|server| is_fast[server] = true);
        let most = (UNITS_OF_ALL / workload.files.len().max(1) as u64).min(UNITS_MAX);
        let touched = |bytes: u64| {
            let unit_bytes = bytes.div_ceil(most).next_power_of_two().max(UNIT_BYTES_MIN);
            let words = bytes.div_ceil(unit_bytes).div_ceil(64);
            Touched { unit_bytes, bits: vec![0; usize::try_from(words).unwrap_or(0)] }
        };
        let files = workload.files.iter().map(|file| (file.number, touched(file.bytes)));
        Self { layouts, is_fast, files: files.collect(), last_seconds: None }
    }

    /// When the last byte came to the SSDs for the first time.
    pub(crate) const fn last_seconds(&self) -> Option<f64> {
        self.last_seconds
    }

    /// A request completed, `seconds` after the first was issued.
    pub(crate) fn note(&mut self, request: &Request, seconds: f64) {
        let Some(file) = self.files.get_mut(&request.file) else { return };
        let layout = self.layouts.of(request.file);
        let mut is_new_there = false;
        let mut at = request.offset;
        while at < request.end() {
            let unit = at / file.unit_bytes;
            let unit_end = (unit + 1).saturating_mul(file.unit_bytes).min(request.end());
            let (word, bit) = (usize::try_from(unit / 64).unwrap_or(usize::MAX), 1 << (unit % 64));
            let Some(bits) = file.bits.get_mut(word) else { break };
            if *bits & bit == 0 {
                *bits |= bit;
                let is_fast = &self.is_fast;
                layout.pieces(at, unit_end, |piece| is_new_there |= is_fast[piece.server]);
            }
            at = unit_end;
        }
        if is_new_there && self.last_seconds.is_none_or(|last| last < seconds) {
            self.last_seconds = Some(seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use halocline_trace::Op;

    use super::*;
    use crate::layout::{Layout, Part};
    use crate::servers::disk_and_ssd;

    const K: u64 = 1024;

    fn request(start_ns: u64, file: u32, offset: u64, length: u64) -> Request {
        let (duration_ns, process, op) = (None, 0, Op::Write);
        Request { start_ns, duration_ns, process, file, op, offset, length }
    }

    /// A disk and an SSD of so many bytes.
    fn with_ssd(capacity: u64) -> Servers {
        let mut all = disk_and_ssd().all().to_vec();
        all[1].capacity = Some(capacity);
        Servers::new(all).expect("servers")
    }

    fn part(begin: u64, end: Option<u64>, widths: [u64; 2]) -> Part {
        Part { begin, end, widths: widths.to_vec() }
    }

    /// Regression: bytes that were read or written again counted, so that full SSDs were full too early.
    #[test]
    fn the_last_byte_there_counts_when_it_comes_for_the_first_time() {
        let servers = with_ssd(1024 * K);
        let parts = vec![part(0, Some(1024 * K), [0, 64 * K]), part(1024 * K, None, [64 * K, 0])];
        let layout = Layout::new(parts, 2).expect("a layout");
        let layouts = Layouts {
            files: [(0, layout)].into_iter().collect(),
            default: Layout::simple(vec![1; 2]),
        };
        let mut requests: Vec<_> = (0..16).map(|n| request(n, 0, n * 64 * K, 64 * K)).collect();
        (requests[3].offset, requests[15].offset) = (requests[15].offset, requests[3].offset);
        requests.extend((0..100).map(|n| request(20 + n, 0, n * 37 % 64 * 64 * K, 64 * K)));
        let workload = Workload::of(&requests, 1);
        assert!(fills(&servers, &workload, &layouts));
        let mut filling = Filling::new(&servers, &workload, &layouts);
        for (at, request) in (0_u32..).zip(&requests) {
            filling.note(request, f64::from(at));
        }
        assert_eq!(filling.last_seconds(), Some(15.0));
        let mut filling = Filling::new(&servers, &workload, &layouts);
        let again = requests[0];
        for (request, seconds) in [(again, 1.0), (again, 2.0), (requests[40], 3.0)] {
            filling.note(&request, seconds);
        }
        assert_eq!(filling.last_seconds(), Some(1.0));
        // With twice the room nothing was turned away.
        assert!(!fills(&with_ssd(2048 * K), &workload, &layouts));
    }

    /// Regression: a file that was turned away as a whole was none, because each file was looked at alone.
    #[test]
    fn a_file_beside_full_ssds_was_turned_away() {
        let servers = with_ssd(1024 * K);
        let requests = [request(0, 0, 0, 2048 * K), request(1, 1, 0, 2048 * K)];
        let workload = Workload::of(&requests, 1);
        let both = |b: [u64; 2]| {
            let files = [(0, vec![64 * K; 2]), (1, b.to_vec())];
            let files = files.into_iter().map(|(n, widths)| (n, Layout::simple(widths)));
            Layouts { files: files.collect(), default: Layout::simple(vec![1; 2]) }
        };
        assert!(fills(&servers, &workload, &both([64 * K, 0])));
        // Everything is as it was asked for.
        assert!(!fills(&with_ssd(2048 * K), &workload, &both([64 * K; 2])));
        assert!(!fills(&with_ssd(1 << 30), &workload, &both([64 * K, 0])));
        assert!(!fills(
            &servers,
            &workload,
            &Layouts { files: FxHashMap::default(), default: Layout::simple(vec![64 * K, 0]) }
        ));
    }
}
