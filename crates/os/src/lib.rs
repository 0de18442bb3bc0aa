//! What Halocline needs of the operating system; outside input is not trusted. The layers above open, read, wait and fail
//! through these modules:
//!
//! - [`error`] the error of all layers, with its one conversion to an errno
//! - [`catch_panic`] a panic fails one request, not the thread
//! - [`clock`] time and waiting, handed in; [`wakeups`] what background threads wait by
//! - [`timed_calls`] calls that may hang; [`served_program`] whether the program that waits for us was killed
//!
//! Files and directories:
//! - [`private`] those that only this program may use, whoever prepared them
//! - [`beneath`] paths resolved strictly below a directory
//! - [`user_mounts`] file systems that an ordinary user serves there
//! - [`bounded`] reading of what others may have written
//! - [`rename_new`] renames that replace nothing
//! - [`birth_time`] when a file was created, which tells it from a later one with its inode number
//! - [`locked_file`] locks that end with their owner
//! - [`lost_and_found`] what a new file system has in its root
//! - [`write_lease`] whether an open file is the only one of its inode; [`leased_files`] opens that wait for no lease
//! - [`open_files`] the process's descriptors, divided among components
//!
//! The machine:
//! - [`random`] bytes that nobody can guess
//! - [`boot_id`] which boot this is; [`bound_process`] processes that end with the one that started them
//! - [`process_status`] groups, signals and threads of other processes; [`process_user`] as whom this one acts
//! - [`memory`] how much of it is available, or must be written back
//! - [`one_device`] whether two directories are on one device
//! - [`priority`] of threads that work in the background
//! - [`root_reserve`] space and memory that the kernel keeps for root
//! - [`client_pages`] pages that the client of a network file system keeps
//! - [`kernel_passthrough`] what passthrough needs, and when it pays
//! - [`counted`] counted nouns for people

pub mod beneath;
pub mod birth_time;
pub mod boot_id;
pub mod bound_process;
pub mod bounded;
pub mod catch_panic;
pub mod chattr;
pub mod client_pages;
pub mod clock;
pub mod counted;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod kernel_passthrough;
pub mod leased_files;
pub mod locked_file;
pub mod lost_and_found;
pub mod memory;
pub mod one_device;
pub mod open_files;
pub mod posix_acl;
pub mod priority;
pub mod private;
pub mod process_status;
pub mod process_user;
pub mod random;
pub mod rename_new;
pub mod root_reserve;
pub mod served_program;
pub mod shown_name;
pub mod timed_calls;
pub mod user_mounts;
pub mod wakeups;
pub mod write_lease;
