//! Unmodified MPI programs on a caching mount: independent and collective, contiguous and with
//! file views, MPICH and Open MPI, and a parallel HDF5 program against a plain directory.

use std::process::Command;

use crate::mount::{self, IO_URING, Mount};
use crate::programs::{self, Mpi};

const OPTIONS: [&str; 6] = ["--policy", "always", "--size", "8M", "--max-dirty-age", "200ms"];

/// Each example checks its own bytes; twice, so that the second run reads what the first left.
fn run_examples(mpi: Mpi, options: &[&str]) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::new(options);
    let root = mount.path();
    let shim = programs::shim();
    for _ in 0..2 {
        let cases: [(&str, &str, &[&str]); 3] = [
            ("independent", "shared", &["--size", "4000000", "--request", "10000", "--random"]),
            ("independent", "stream", &["--size", "16777216", "--request", "1048576"]),
            ("collective", "matrix", &["100", "40"]),
        ];
        for (program, file, arguments) in cases {
            let Some(mut command) = mpi.start(4, program) else {
                return programs::skip("this MPI is not installed");
            };
            command.arg(root.join(file)).args(arguments);
            if let Some(shim) = &shim {
                command.env("LD_PRELOAD", shim);
            }
            programs::run(&mut command);
        }
    }
    let status = mount.status();
    assert!(status["report"]["admitted"]["bytes"].as_u64() > Some(0), "not cached: {status}");
    mount.unmount();
    let mut again = mpi.start(3, "independent").expect("started above");
    again.arg(mount.origin().join("shared"));
    again.args(["--size", "4000000", "--request", "10000", "--no-write"]);
    programs::run(&mut again);
}

#[test]
fn mpich_programs_find_their_bytes() {
    run_examples(Mpi::Mpich, &OPTIONS);
}

#[test]
fn mpich_programs_find_their_bytes_through_io_uring() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    run_examples(Mpi::Mpich, &[&OPTIONS[..], &[IO_URING]].concat());
}

#[test]
fn open_mpi_programs_find_their_bytes() {
    run_examples(Mpi::OpenMpi, &OPTIONS);
}

#[test]
fn parallel_hdf5_files_compare_equal() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let plain = tempfile::tempdir().expect("scratch");
    let mount = Mount::new(&OPTIONS);
    for (name, arguments) in [
        ("contiguous.h5", ["400", "300", "--independent"]),
        ("chunked.h5", ["400", "300", "--chunked"]),
    ] {
        for root in [plain.path(), &mount.path()] {
            let Some(mut command) = Mpi::Mpich.start(4, "parallel_hdf5") else {
                return programs::skip("parallel HDF5 for MPICH is not installed");
            };
            programs::run(command.arg(root.join(name)).args(arguments));
        }
        let [left, right] = [plain.path(), &mount.path()].map(|root| root.join(name));
        programs::run(Command::new("h5diff").args([left, right]));
    }
}
