//! Bodies of this crate's fuzz targets (`fuzz/`). They are called by cargo-fuzz, and by the tests below over the same
//! seeds (docs/TESTING.md, fuzz targets).

pub use crate::transport::uring::fuzzing::ring_request;

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;

    #[test]
    fn hostile_requests_of_a_ring() {
        let seeds = crate::transport::uring::fuzzing::seeds();
        run("fuse_ring_request", &seeds, 10_000, ring_request);
    }
}
