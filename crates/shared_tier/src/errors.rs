//! Errors that programs and people get when the store or another node fails.

use halocline_cluster::names::NamesError;
use halocline_cluster::names::namespace::Failure;
use halocline_os::error::Error;

use crate::remedies::REPAIR;

/// Converts a failure of the names for the front end: what a file system would answer goes to the program unchanged;
/// a fault of the store is logged with its remedy.
pub(crate) fn of_names(failure: Failure) -> Error {
    match failure {
        Failure::Refused(errno) => errno.into(),
        Failure::Contended => Error::Refused { message: failure.to_string(), errno: libc::EBUSY },
        Failure::Unknown(_) => Error::Cluster {
            what: failure.to_string(),
            remedy:
                "look whether it was made, and see that the store can be reached from this node"
                    .to_owned(),
        },
        Failure::Store(error) => of_store(&error),
    }
}

/// Converts an error of the store itself.
pub(crate) fn of_store(error: &NamesError) -> Error {
    let names_checked;
    let remedy = match error {
        NamesError::NoAnswer(_) => "see that it runs and can be reached from this node",
        NamesError::Unsound(_) => "use a store, or a database of it, that nothing else writes to",
        NamesError::Full(_) => "see what uses its memory: halocline cluster status",
        NamesError::Unusable(_) => "change its settings, or name another one",
        NamesError::Stale => "try again",
        NamesError::Held => {
            names_checked = format!("run it again: {REPAIR}");
            &names_checked
        }
        NamesError::Forgot(_) => {
            names_checked = format!("unmount all nodes, and have the names checked: {REPAIR}");
            &names_checked
        }
    };
    if matches!(error, NamesError::Full(_)) {
        // As from a full disk: programs can handle that.
        return Error::Refused { message: format!("{error}; {remedy}"), errno: libc::ENOSPC };
    }
    Error::Cluster { what: error.to_string(), remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_is_no_failure_of_the_device() {
        let full = of_names(Failure::Store(NamesError::Full("memory".to_owned())));
        assert_eq!(full.errno(), libc::ENOSPC);
        assert!(full.to_string().contains("halocline cluster status"), "{full}");
        let silent = of_names(Failure::Store(NamesError::NoAnswer("gone".to_owned())));
        assert_eq!(silent.errno(), libc::EIO);
    }

    /// Regression: it lacked what the command needs.
    #[test]
    fn the_command_of_a_remedy_is_whole() {
        let held = of_store(&NamesError::Held).to_string();
        let command = "halocline cluster fsck --tier ROOT --cluster URL [--peers PATTERN] --repair";
        assert!(held.ends_with(command), "{held}");
    }
}
