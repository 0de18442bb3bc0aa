//! Uses of files by processes: a trace has no opens.

use halocline_trace::Request;
use rustc_hash::FxHashMap;

/// Where the use of each file by each process began.
#[derive(Debug, Default)]
pub struct Uses(FxHashMap<(u32, u32), u64>);

impl Uses {
    /// Whether this request begins a new use of the file by the process: its first request, or one from where its last
    /// use began.
    pub fn begins(&mut self, request: &Request) -> bool {
        let mut first = false;
        let at = *self.0.entry((request.process, request.file)).or_insert_with(|| {
            first = true;
            request.offset
        });
        first || at == request.offset
    }
}
