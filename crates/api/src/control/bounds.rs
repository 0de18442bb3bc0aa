//! Limits of what a client of the control socket may request, and of sensible numbers.

use super::{Drain, ProcessHint, Question, Request};
use halocline_os::bounded;
use halocline_os::error::{Error, Result};

/// Longest request line in bytes; a `warm` list of half a million paths fits. Few lines may exceed [`SHORT_LINE_BYTES`]
/// at a time, so this limits all clients together.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Bytes of a request line that any client may send at any time.
pub(super) const SHORT_LINE_BYTES: usize = 64 << 10;
/// Largest size of a file, as on Linux.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Largest number of ranks and processes of one job.
const PROCESSES_MAX: u64 = 1 << 20;

/// Checks that a request's numbers and texts are plausible for files, processes and rules.
pub(super) fn check(request: &Request) -> Result<()> {
    let within = |what: &str, value: u64, most: u64| {
        if value <= most {
            return Ok(());
        }
        let what = format!("{what} is {value}, more than {most}");
        Err(Error::invalid(what, "correct the number"))
    };
    match request {
        Request::Locate { range: Some((offset, length)), .. } => {
            within("offset", *offset, FILE_BYTES_MAX)
                .and_then(|()| within("length", *length, FILE_BYTES_MAX))
        }
        Request::Explain(Question { offset, length, processes, .. }) => {
            within("offset", *offset, FILE_BYTES_MAX)?;
            within("length", *length, FILE_BYTES_MAX)?;
            within("processes", processes.unwrap_or(0).into(), PROCESSES_MAX)
        }
        Request::Hint(ProcessHint { rank, size, policy, .. }) => {
            within("rank", rank.unwrap_or(0).into(), PROCESSES_MAX)?;
            within("size", size.unwrap_or(0).into(), PROCESSES_MAX)?;
            let name = policy.as_ref().map_or(0, String::len) as u64;
            within("bytes of a policy's name", name, bounded::TEXT_BYTES_MAX as u64)
        }
        Request::Drain(Drain { node, .. }) => {
            within("bytes of a node's name", node.len() as u64, bounded::TEXT_BYTES_MAX as u64)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::control::server::parse;
    use crate::control::wire::PATHS_MAX;

    fn refused(line: &str, part: &str) {
        let error = parse(line.as_bytes()).expect_err(line).to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn numbers_and_lists_that_no_mount_has_are_refused() {
        refused(r#"{"locate":{"path":"a","range":[18446744073709551615,1]}}"#, "offset");
        refused(r#"{"locate":{"path":"a","range":[0,18446744073709551615]}}"#, "length");
        refused(
            r#"{"explain":{"path":"a","offset":0,"length":1,"direction":"read","processes":4294967295}}"#,
            "processes",
        );
        refused(r#"{"hint":{"size":4294967295}}"#, "size");
        refused(r#"{"hint":{"rank":4294967295}}"#, "rank");
        refused(r#"{"hint":{"size":-1}}"#, "-1");
        // A path may be longer than a system call accepts, because trees may be deeper.
        parse(format!(r#"{{"files":{{"path":"{}"}}}}"#, "d/".repeat(4000)).as_bytes()).unwrap();
        let path = "d/".repeat(1 << 20);
        refused(&format!(r#"{{"files":{{"path":"{path}"}}}}"#), "1048576");
        let bytes = "1,".repeat(1 << 20);
        refused(&format!(r#"{{"files":{{"path":[{bytes}1]}}}}"#), "1048576");
        let paths = "\"\",".repeat(PATHS_MAX);
        refused(&format!(r#"{{"warm":{{"paths":[{paths}"a"]}}}}"#), "more than");
        let deep = "[".repeat(100_000);
        refused(&format!(r#"{{"files":{{"path":{deep}"#), "not understood");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_refused(bytes: Vec<u8>, request in 0..8usize, cut in 0..60usize) {
            let requests = [
                r#"{"locate":{"path":"a","range":[1,2]}}"#,
                r#"{"explain":{"path":[97],"offset":1,"length":1,"direction":"read","processes":1}}"#,
                r#"{"warm":{"paths":["a",[98]],"dry_run":true}}"#,
                r#"{"rules":{"change":"pin","glob":"x"}}"#,
                r#"{"hint":{"pid":1,"rank":2,"size":3,"path":"a","policy":"lru"}}"#,
                r#"{"jobs":{"add":"{}"}}"#,
                r#"{"unmount":{"force":true}}"#,
                r#"{"files":{"path":""}}"#,
            ];
            let line = requests[request].as_bytes();
            let line = [&line[..cut.min(line.len())], &bytes, &line[cut.min(line.len())..]].concat();
            let _ = parse(&bytes);
            let _ = parse(&line);
        }

        #[test]
        fn every_number_of_a_request_that_is_taken_can_be_counted_with(offset: u64, length: u64) {
            let path = PathBuf::from("a");
            let request = Request::Locate { path, range: Some((offset, length)) };
            let line = serde_json::to_vec(&request).unwrap();
            prop_assert!(parse(&line).is_err() || offset.checked_add(length).is_some());
        }
    }
}
