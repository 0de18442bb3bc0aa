//! Requests on the control socket: body of a fuzz target (`crate::fuzzing`).

use super::parse;

/// A line of a client: if it is understood, it means the same when it is sent again.
pub fn request(line: &[u8]) {
    let Ok(request) = parse(line) else { return };
    let again = serde_json::to_vec(&request).expect("texts and numbers");
    let again = parse(&again).expect("our own");
    // Fractional numbers may differ in their last digit.
    assert_eq!(std::mem::discriminant(&again), std::mem::discriminant(&request));
}
