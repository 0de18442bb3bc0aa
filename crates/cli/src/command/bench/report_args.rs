//! Options that benchmarks over nodes have in common: how often all is measured, and how the results are told.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::plot::{self, DrawResult};
use crate::command::print_json;
use crate::failure::{Failure, Outcome};
use crate::print;

/// How often all is measured, and how the results are told.
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Measure everything so many times, from 1 to 10000; the medians are compared
    #[arg(long, default_value_t = 1, value_name = "TIMES", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) repeat: u32,
    /// Draw the results: a file that ends in .svg
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
    /// A small run, to see that all works
    #[arg(long)]
    pub(super) quick: bool,
}

impl ReportArgs {
    /// Refuses a plot that cannot be written, before anything is measured.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.plot.as_deref().map_or(Ok(()), plot::check)
    }

    /// Tells people something while it is measured: aside, where the answer is JSON.
    pub(super) fn tell(&self, text: &str) {
        if self.json { print::lines_aside(text) } else { print::lines(text) }
    }

    /// Draws the results, and writes them as JSON or as `told` does for people.
    pub(super) fn report(
        &self,
        results: &impl Serialize,
        draw: impl FnOnce(&mut String) -> DrawResult,
        told: impl FnOnce(),
    ) -> Outcome {
        if let Some(file) = &self.plot {
            plot::save(file, draw)?;
        }
        if self.json {
            return print_json(results);
        }
        told();
        Ok(ExitCode::SUCCESS)
    }
}
