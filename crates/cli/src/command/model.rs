//! `halocline model`: the pure functions as JSON lines (docs/MODEL.md).

use std::io::{BufRead, BufWriter, Read, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::failure::Outcome;

/// Bytes of a query at most.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Answer layout and cost queries: one JSON query a line in, one answer a line out
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {}

/// Answers until the input ends. The status is 1 when a line was bad.
pub(crate) fn execute(_: &ModelArgs) -> Outcome {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut all_good = true;
    let mut input = std::io::stdin().lock();
    loop {
        let mut line = Vec::new();
        if input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.len() as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
            input.skip_until(b'\n')?;
            all_good = false;
            let error = format!("a line has more than {LINE_BYTES_MAX} bytes");
            writeln!(out, "{}", json!({ "error": error }))?;
            out.flush()?;
            continue;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let answer = str::from_utf8(&line)
            .map_err(|error| error.to_string())
            .and_then(halocline_model::query::answer);
        all_good &= answer.is_ok();
        writeln!(out, "{}", answer.unwrap_or_else(|error| json!({ "error": error })))?;
        // Somebody may wait for this answer before the next question.
        out.flush()?;
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
