//! Names of a tier whose files lie on real directories: these have what the store of names has, whatever forgets, refuses or
//! comes between.

mod attributes;
mod built_again;
mod contested;
mod crossing;
mod directory_times;
mod disks;
mod forgotten;
mod full;
mod grouped;
mod late;
mod left_behind;
mod long_lists;
mod mounted;
mod older;
mod own_numbers;
mod released;
mod unnumbered;
mod unreached;
mod unreached_by_one;
