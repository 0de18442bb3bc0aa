//! What an extent engine was opened with: the configuration and what follows from it.

use std::path::PathBuf;

use halocline_model::admit::Setting;

use halocline_api::config::Config;

/// Settings of an extent engine.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The configuration.
    pub(crate) config: Config,
    /// Both sides' servers, layouts and profiles, for the cost models.
    pub(crate) setting: Setting,
    /// The origin's directory as it was given.
    pub(crate) origin_dir: PathBuf,
    /// The cache's own directory: records, objects, rules, conflicts.
    pub(crate) cache_dir: PathBuf,
}
