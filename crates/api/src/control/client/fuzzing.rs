//! Answers of a mount process: body of a fuzz target (`crate::fuzzing`).

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Answer;
use crate::control::tier::{AnyStatus, FileExplanation, FileInfo, JobInfo};
use crate::control::{CachedTree, Explanation, ExtentInfo, MoveReport, Report, Rules};

/// A line from any process that listens on the socket, as the answer to each request: if it is understood, it can be
/// printed, and read again.
pub fn answer(line: &[u8]) {
    read::<AnyStatus>(line);
    read::<Report>(line);
    read::<Vec<ExtentInfo>>(line);
    read::<CachedTree>(line);
    read::<Explanation>(line);
    read::<MoveReport>(line);
    read::<Rules>(line);
    read::<Vec<FileInfo>>(line);
    read::<FileExplanation>(line);
    read::<Vec<JobInfo>>(line);
    read::<bool>(line);
}

fn read<T: DeserializeOwned + Serialize>(line: &[u8]) {
    let Ok(Answer::Ok(value)) = serde_json::from_slice::<Answer<T>>(line) else { return };
    let again = serde_json::to_vec(&value).expect("an answer is plain data");
    serde_json::from_slice::<T>(&again).map(drop).expect("our own");
}
