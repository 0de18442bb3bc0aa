//! What Halocline asks of the operating system, with nothing taken on trust.
//!
//! Everything below the engines that opens, reads, waits or fails does it by these: the [`error`] of all layers and its one
//! road to errno, the [`clock`] that is handed in, [`private`] files and directories that others may have prepared, and what comes
//! from outside read only so far ([`bounded`]).

pub mod beneath;
pub mod birth_time;
pub mod boot_id;
pub mod bound_process;
pub mod bounded;
pub mod catch_panic;
pub mod clock;
pub mod counted;
pub mod error;
pub mod looks;
pub mod one_device;
pub mod open_files;
pub mod private;
pub mod rename_new;
pub mod root_reserve;
