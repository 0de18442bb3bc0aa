//! Whether the store of names has memory for more of them.

use halocline_cluster::names::{Memory, NamesError};
use halocline_os::error::{Error, Result};

use crate::errors::of_store;

/// From this share of the memory on, `status` warns.
const WARNED_PERCENT: u64 = 80;

/// Notes that the memory is nearly used up.
///
/// # Errors
/// If it is used up.
pub(crate) fn room(
    memory: std::result::Result<Option<Memory>, NamesError>,
    notes: &mut Vec<String>,
) -> Result<()> {
    let Some(memory) = memory.map_err(|error| of_store(&error))? else { return Ok(()) };
    let limit = memory.limit;
    if memory.used >= memory.limit {
        return Err(Error::Cluster {
            what: format!(
                "the store of names is full: its {limit} bytes of memory (maxmemory) are used up, and nothing new can be made"
            ),
            remedy: "remove files, or give it more memory".to_owned(),
        });
    }
    if memory.percent() >= WARNED_PERCENT {
        notes.push(format!(
            "the store of names is nearly full: {} % of its {limit} bytes of memory (maxmemory) are used, and nothing new \
             can be made once all are; remove files, or give it more",
            memory.percent()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fills_is_noted_and_a_full_one_is_an_error() {
        let told = |used| {
            let mut notes = Vec::new();
            let room = room(Ok(Some(Memory { used, limit: 1000 })), &mut notes);
            (room.map_err(|error| error.to_string()), notes)
        };
        assert_eq!(told(799), (Ok(()), Vec::new()));
        let (room, notes) = told(800);
        assert!(room.is_ok() && notes[0].contains("80 %"), "{room:?} {notes:?}");
        let (room, notes) = told(1000);
        assert!(room.unwrap_err().contains("remove files") && notes.is_empty());
        let mut notes = Vec::new();
        assert!(super::room(Ok(None), &mut notes).is_ok() && notes.is_empty());
        let silent = Err(NamesError::NoAnswer("silent".to_owned()));
        assert!(super::room(silent, &mut notes).is_err());
    }
}
