//! Options for the space on a node's SSD.

use std::time::Duration;

use halocline_api::config::CacheSize;

/// The options of a mount that concern its SSD, as on a file tier of one node.
#[derive(Debug, Clone)]
pub struct SpaceOptions {
    /// The most bytes of files on the SSD.
    pub limit: CacheSize,
    /// Share of the limit, in percent, above which files are demoted in the background.
    pub high: f64,
    /// Share of the limit, in percent, down to which they are demoted.
    pub low: f64,
    /// Which files are kept: a row of the model's table of tier policies.
    pub policy: String,
    /// Globs of files that stay on the SSD on which they are.
    pub pin: Vec<String>,
    /// Globs of files that are kept off SSDs.
    pub exclude: Vec<String>,
    /// How long writers must have left a file on the SSD alone until the shared disk gets a copy of it; `None` for no
    /// copies.
    pub archive_after: Option<Duration>,
}
