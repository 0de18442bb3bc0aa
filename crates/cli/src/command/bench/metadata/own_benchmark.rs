//! What the server's own benchmark reaches with the script of a create.

use std::process::{Command, Stdio};

use super::super::store_server::Server;
use crate::failure::Failure;

/// Programs that measure; the first one that is installed is used.
const PROGRAMS: [&str; 2] = ["redis-benchmark", "valkey-benchmark"];
/// Names are numbers below this: few come twice.
const RANGE: &str = "100000000000";

/// The program, and where the server is.
#[derive(Debug)]
pub(super) struct OwnBenchmark {
    program: &'static str,
    server: [String; 2],
}

/// Finds the program for a server; or why there is none for it.
pub(super) fn find(server: &Server) -> Result<OwnBenchmark, &'static str> {
    let server = server.for_its_own_benchmark()?;
    let is_there = |program: &&str| {
        let mut version = Command::new(program);
        version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok()
    };
    let program = PROGRAMS.into_iter().find(is_there);
    let program = program.ok_or("there is no redis-benchmark and no valkey-benchmark in PATH")?;
    Ok(OwnBenchmark { program, server })
}

impl OwnBenchmark {
    /// Commands a second.
    pub(super) fn run(
        &self,
        clients: usize,
        requests: u64,
        command: &[String],
    ) -> Result<f64, Failure> {
        let mut process = Command::new(self.program);
        process.args(&self.server).args(["-c", &clients.to_string()]);
        process.args(["-n", &requests.to_string(), "-r", RANGE, "--csv"]).args(command);
        process.stdin(Stdio::null());
        let program = self.program;
        let done =
            process.output().map_err(|error| Failure::failed(format!("{program}: {error}")))?;
        let said = String::from_utf8_lossy(&done.stdout);
        let rate = rate(&said).filter(|_| done.status.success());
        rate.ok_or_else(|| {
            let error = String::from_utf8_lossy(&done.stderr);
            let last = error.lines().chain(said.lines()).last().unwrap_or_default();
            Failure::failed(format!("{program} measured nothing: {last}"))
        })
    }
}

/// The second field of the last line.
fn rate(said: &str) -> Option<f64> {
    let rate = said.lines().last()?.split("\",\"").nth(1)?.parse().ok();
    rate.filter(|rate: &f64| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn the_rate_of_a_table_is_read() {
        let table =
            "\"test\",\"rps\",\"avg_latency_ms\"\n\"EVALSHA x 7 k,k\",\"24154.59\",\"0.32\"";
        assert_eq!(rate(table), Some(24154.59));
        for wrong in ["", "x", "\"test\",\"rps\",\"x\"", "\"x\",\"0.00\",\"1\""] {
            assert_eq!(rate(wrong), None, "{wrong}");
        }
    }
}
