//! The file tier in one process: two directories, no mount.

mod announced;
mod batch;
mod clean_copies;
mod copy_record;
mod copying;
mod crashes;
mod dir_times;
mod faults;
mod fixture;
mod hard_links;
mod hostile;
mod hostile_metadata;
mod lost_files;
mod moves;
mod ordinary_user;
mod passthrough;
mod permissions;
mod power;
mod scenarios;
mod schedules;
mod ssd_room;
mod status;
mod tier_sets;
