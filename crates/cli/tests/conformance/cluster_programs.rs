//! MPI programs whose ranks are on different mounts of one origin.

use std::process::Command;

use halocline_testkit::nodes::{NODES, Nodes};
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

/// A command whose ranks use one file, half of them on each node; `None` where it is missing.
fn over_both(
    nodes: &Nodes,
    mpi: Mpi,
    program: &str,
    file: &str,
    arguments: &[&str],
) -> Option<Command> {
    let mut command = mpi.start(2, program)?;
    command.arg(nodes.path(NODES[0]).join(file)).args(arguments);
    let first: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let options = first.iter().position(|word| word == "-n").expect("how many");
    command.arg(":").args(&first[options..options + 3]);
    command.arg(nodes.path(NODES[1]).join(file)).args(arguments);
    Some(command)
}

/// Each example checks its own bytes: independent and collective, random, strided and in a row; each twice, so that the
/// second run finds what both nodes cached in the first.
fn run_examples(mpi: Mpi, transport: &str) {
    let Some(nodes) = Nodes::new(program!(), &[transport, "--size", "16M"]) else { return };
    let random = ["--size", "4000000", "--request", "10000", "--random"];
    let stream = ["--size", "16777216", "--request", "1048576"];
    let segments = ["--size", "4194304", "--request", "65536", "--segmented"];
    let cases: [(&str, &str, &[&str]); 4] = [
        ("independent", "shared", &random),
        ("independent", "stream", &stream),
        ("independent", "segments", &segments),
        ("collective", "matrix", &["100", "40"]),
    ];
    for (program, file, arguments) in cases.into_iter().chain(cases) {
        let Some(mut command) = over_both(&nodes, mpi, program, file, arguments) else {
            return programs::skip("this MPI is not installed");
        };
        programs::run(&mut command);
    }
    for node in NODES {
        let report = nodes.status(node)["report"].clone();
        assert!(report["cluster"]["handovers"].as_u64() > Some(0), "{report}");
    }
    for node in NODES {
        nodes.succeed(&["umount", node]);
    }
    let mut again = mpi.start(3, "independent").expect("started above");
    again.arg(nodes.path("origin/shared"));
    programs::run(again.args(["--size", "4000000", "--request", "10000", "--no-write"]));
}

#[test]
fn i11_mpich_programs_on_two_nodes_find_their_bytes() {
    run_examples(Mpi::Mpich, "--io-uring=false");
    if mount::ring_obstacle().is_none() {
        run_examples(Mpi::Mpich, IO_URING);
    }
}

#[test]
fn i11_open_mpi_programs_on_two_nodes_find_their_bytes() {
    run_examples(Mpi::OpenMpi, "--io-uring=false");
}

#[test]
fn i11_parallel_hdf5_files_of_two_nodes_compare_equal() {
    let Some(nodes) = Nodes::new(program!(), &["--size", "16M"]) else { return };
    let plain = tempfile::tempdir().expect("scratch");
    for (name, arguments) in [
        ("contiguous.h5", ["400", "300", "--independent"]),
        ("chunked.h5", ["400", "300", "--chunked"]),
    ] {
        let alone = Mpi::Mpich.start(4, "parallel_hdf5");
        let (Some(mut alone), Some(mut both)) =
            (alone, over_both(&nodes, Mpi::Mpich, "parallel_hdf5", name, &arguments))
        else {
            return programs::skip("parallel HDF5 for MPICH is not installed");
        };
        programs::run(alone.arg(plain.path().join(name)).args(arguments));
        programs::run(&mut both);
        for node in NODES {
            let files = [plain.path(), &nodes.path(node)].map(|root| root.join(name));
            programs::run(Command::new("h5diff").args(files));
        }
    }
}
