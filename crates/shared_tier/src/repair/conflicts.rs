//! What a check says of files and directories whose names something else has.

use halocline_model::namespace::Name;
use halocline_os::shown_name::shown_name;

use super::numbers;
use crate::places::tree::candidates;

/// Tells of something that gets another name than it should have: that with its number. A dry run does not know the number.
pub(super) fn conflict(path: &str, wanted: &Name, number: u64) -> String {
    let escaped = |name: &Name| shown_name(name.as_bytes());
    let wanted_name = escaped(wanted);
    let name = if numbers::is_given_by_store(number) {
        escaped(&candidates(wanted, number)[1])
    } else {
        format!("{wanted_name}~NUMBER")
    };
    format!("{path}: something else has its name {wanted_name}, so it is named {name}")
}
