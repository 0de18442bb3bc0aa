//! MPI programs whose ranks are on different mounts of one origin.

use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;

use crate::mount::{self, IO_URING};
use crate::programs::{self, Mpi};

/// ROMIO reads a stretch, puts pieces in and writes all of it back, under a lock: no rank's pieces are lost.
#[test]
fn i11_data_sieving_over_two_nodes_loses_nothing() {
    let without_ring = "--io-uring=false";
    let ring = mount::ring_obstacle().is_none().then_some(IO_URING);
    for transport in [Some(without_ring), ring].into_iter().flatten() {
        let Some(nodes) = Nodes::new(program!(), &[transport]) else { return };
        let Some(mut command) = Mpi::Mpich.start(4, "sieved") else {
            return programs::skip("this MPI is not installed");
        };
        command.arg("8").args([nodes.path("one/file"), nodes.path("other/file")]);
        programs::run(&mut command);
    }
}
