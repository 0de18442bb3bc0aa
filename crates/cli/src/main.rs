//! The `halocline` command.
fn main() {}
