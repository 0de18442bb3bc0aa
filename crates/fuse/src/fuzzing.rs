//! Bodies of this crate's fuzz targets (`fuzz/`). They are called by cargo-fuzz, and by the tests below over the same
//! seeds (docs/TESTING.md, fuzz targets).

pub use crate::transport::uring::fuzzing::ring_request;

/// What the kernel says of descriptors and processors.
pub fn kernel_lists(bytes: &[u8]) {
    crate::session::hostile_descriptor(bytes);
    crate::transport::uring::hostile_processors(bytes);
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;

    #[test]
    fn hostile_lists_of_the_kernel() {
        let descriptor = "pos:\t0\nflags:\t0100002\nmnt_id:\t31\nino:\t7\n";
        let seeds = [("descriptor", descriptor), ("processors", "0-3,8,10-65535")];
        run(
            "fuse_kernel_lists",
            &seeds.map(|(name, text)| (name, text.into())),
            10_000,
            kernel_lists,
        );
    }

    #[test]
    fn hostile_requests_of_a_ring() {
        let seeds = crate::transport::uring::fuzzing::seeds();
        run("fuse_ring_request", &seeds, 10_000, ring_request);
    }
}
