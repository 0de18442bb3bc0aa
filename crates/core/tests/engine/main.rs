//! The extent engine as a whole, over real directories and devices that fail or wait on demand.

mod age;
mod behind;
mod binding;
mod canary;
mod conflicts;
mod faults;
mod fills;
mod fixture;
mod flips;
mod full_origin;
mod holes;
mod hollow;
mod idle;
mod kills;
mod limits;
mod lost;
mod power;
mod reach;
mod reference;
mod requests;
mod schedules;
mod small;
mod store_failure;
mod times;
mod truth;
mod volatile;
