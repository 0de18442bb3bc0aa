//! Real programs and conformance suites on real mounts; docs/TESTING.md says how to run one.

mod mpi_hints;
mod programs;
