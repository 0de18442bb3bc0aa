//! How long a job had requests under way.

use halocline_trace::Request;

/// When requests are under way.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IoTime {
    requests: u64,
    timed: u64,
    begin_ns: u64,
    until_ns: u64,
    busy_ns: u64,
}

impl IoTime {
    /// Takes a request; they come in the order of their start.
    pub(crate) fn push(&mut self, request: &Request) {
        if self.requests == 0 {
            (self.begin_ns, self.until_ns) = (request.start_ns, request.start_ns);
        }
        self.requests += 1;
        let Some(duration_ns) = request.duration_ns else { return };
        self.timed += 1;
        let end_ns = request.start_ns.saturating_add(duration_ns);
        let from_ns = request.start_ns.max(self.until_ns);
        self.busy_ns += end_ns.saturating_sub(from_ns);
        self.until_ns = self.until_ns.max(end_ns);
    }

    /// Seconds in which at least one request was under way; `None` where the trace does not say it of each.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn seconds(&self) -> Option<f64> {
        let is_known = self.timed > 0 && self.timed == self.requests && self.busy_ns > 0;
        is_known.then_some(self.busy_ns as f64 * 1e-9)
    }

    /// The same as a share of the time from the first request's start to the last one's end.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn share(&self) -> Option<f64> {
        let all = (self.until_ns - self.begin_ns) as f64 * 1e-9;
        self.seconds().map(|seconds| seconds / all.max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use halocline_trace::Op;

    use super::*;

    #[test]
    fn time_with_requests_under_way_is_counted_once() {
        let request = |start_ns, duration_ns| Request {
            start_ns,
            duration_ns,
            process: 0,
            file: 7,
            op: Op::Write,
            offset: 0,
            length: 1,
        };
        let mut time = IoTime::default();
        // 1000 to 1150 and 5790 to 5890.
        for start_ns in [1000, 1050, 5790] {
            time.push(&request(start_ns, Some(100)));
        }
        assert!((time.seconds().unwrap() - 250e-9).abs() < 1e-15, "{time:?}");
        assert!((time.share().unwrap() - 250.0 / 4890.0).abs() < 1e-9, "{time:?}");
        time.push(&request(6000, None));
        assert_eq!((time.seconds(), time.share()), (None, None));
    }
}
