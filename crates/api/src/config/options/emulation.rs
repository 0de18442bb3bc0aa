//! Options of emulated devices.

use super::{OptionSpec, option};
use crate::config::scope::Scope;
use crate::config::units::Kind;
use crate::config::values::emulate;

/// In the order of the documentation.
pub(super) const ROWS: &[OptionSpec] = &[option!(
    "emulate",
    Emulation,
    Kind::Emulation,
    |c| c.emulate.as_ref().map_or_else(|| "none".into(), ToString::to_string),
    |c, v| emulate(c, v),
    "Put emulated devices under origin and cache. `hdd+ssd`: one of each over plain files; \
         `8xhdd+4xssd`: striped servers in sub-directories; names other than hdd and ssd come from \
         [profile.NAME] tables of the configuration file. `none`: real devices."
)];
