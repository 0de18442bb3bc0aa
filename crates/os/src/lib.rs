//! What Halocline needs of the operating system; outside input is not trusted.
//!
//! The layers above open, read, wait and fail through these modules: the [`error`] of all layers with its one
//! conversion to an errno, the injected [`clock`], [`private`] files and directories that others may have prepared, and
//! bounded reading of outside input ([`bounded`]).

pub mod beneath;
pub mod birth_time;
pub mod boot_id;
pub mod bound_process;
pub mod bounded;
pub mod catch_panic;
pub mod client_pages;
pub mod clock;
pub mod counted;
pub mod error;
pub mod kernel_passthrough;
pub mod one_device;
pub mod open_files;
pub mod private;
pub mod rename_new;
pub mod root_reserve;
pub mod timed_calls;
pub mod write_lease;
