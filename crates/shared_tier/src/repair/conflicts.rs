//! What a check says of files whose names something else has.

use halocline_model::namespace::Name;

/// Tells of a file that gets another name than it should have.
pub(super) fn conflict(path: &str, wanted: &Name, name: &Name) -> String {
    let [wanted, name] = [wanted, name].map(|name| name.as_bytes().escape_ascii().to_string());
    format!("{path}: something else has its name {wanted}, so it is named {name}")
}
