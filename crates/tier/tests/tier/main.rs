//! The file tier in one process: two directories, no mount.

mod announced;
mod batch;
mod clean;
mod copies;
mod copy_record;
mod crashes;
mod dir_times;
mod faults;
mod fixture;
mod hostile;
mod hostile_metadata;
mod lost;
mod many_names;
mod ordinary;
mod passing;
mod permissions;
mod power;
mod room;
mod rules;
mod sets;
mod stories;
mod told;
