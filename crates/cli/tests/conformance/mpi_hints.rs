//! What the MPI shim tells a mount, seen by a server that stands in for the mount.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use halocline_api::control::Request;
use halocline_testkit::waiting::WAIT_LIMIT;
use serde_json::Value;
use tempfile::TempDir;

use crate::programs::{self, Mpi};

/// Answers each line with `answer`, or never when it is `None`; hands on what arrived.
fn listen(socket: &Path, answer: Option<&'static str>) -> Receiver<String> {
    answer_on(UnixListener::bind(socket).expect("bind"), answer)
}

fn answer_on(listener: UnixListener, answer: Option<&'static str>) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept");
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).expect("a line");
            if sender.send(line).is_err() {
                return;
            }
            match answer {
                // Who told nothing is gone.
                Some(answer) => drop(stream.write_all(answer.as_bytes())),
                None => silent.push(stream),
            }
        }
    });
    lines
}

/// Runs two processes of the example with the shim on `file`, relative to the mount's root.
fn run(mpi: Mpi, root: &Path, socket: &Path, file: &str, hints: &[&str]) -> bool {
    let hints = hints.iter().flat_map(|hint| ["--hint", hint]);
    let arguments: Vec<&str> = ["--size", "65536"].into_iter().chain(hints).collect();
    run_example((mpi, "independent"), (root, socket), file, &arguments)
}

/// The same with any example and what comes after the file's name.
fn run_example(
    (mpi, program): (Mpi, &str),
    (root, socket): (&Path, &Path),
    file: &str,
    arguments: &[&str],
) -> bool {
    let Some(shim) = programs::shim() else { return false };
    let Some(mut command) = mpi.start(2, program) else { return false };
    command.arg(root.join(file)).args(arguments);
    let output = programs::run(
        command
            .env("LD_PRELOAD", shim)
            .env("HALOCLINE_SOCKET", socket)
            .env("HALOCLINE_MOUNT", root)
            .current_dir(root),
    );
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

/// The two ranks' lines, rank 0 first. Each must be a request that the mount understands.
fn hints(lines: &Receiver<String>) -> Vec<Value> {
    let mut all: Vec<Value> = (0..2)
        .map(|_| {
            let line = lines.recv_timeout(WAIT_LIMIT).expect("a hint");
            let request: Request = serde_json::from_str(&line).expect("a control request");
            assert!(matches!(request, Request::Hint(_)), "{line}");
            serde_json::from_str::<Value>(&line).expect("JSON")["hint"].take()
        })
        .collect();
    all.sort_by_key(|hint| hint["rank"].as_u64());
    all
}

fn tells_size_rank_and_hints(mpi: Mpi) {
    let root = TempDir::new().expect("scratch");
    let aside = TempDir::new().expect("scratch");
    let socket = aside.path().join("control.sock");
    let lines = listen(&socket, Some("{\"ok\":null}\n"));
    let given = ["halocline_cache=disable", "halocline_policy=sla"];
    if !run(mpi, root.path(), &socket, "data.bin", &given) {
        return programs::skip("this MPI is not installed");
    }
    let told = hints(&lines);
    for (rank, hint) in told.iter().enumerate() {
        assert_eq!(hint["rank"], rank);
        assert_eq!(hint["size"], 2);
        assert_eq!(hint["path"], "data.bin");
        assert_eq!(hint["cache"], false);
        assert_eq!(hint["policy"], "sla");
        assert_eq!(hint["direct"], true);
        assert!(hint["pid"].as_u64() > Some(1));
    }
    assert_ne!(told[0]["pid"], told[1]["pid"]);

    std::fs::create_dir(root.path().join("a \"ü\"")).expect("directory");
    run(mpi, root.path(), &socket, "a \"ü\"/data.bin", &[]);
    let told = hints(&lines);
    assert_eq!(told[0]["cache"], Value::Null);
    assert_eq!(told[0]["policy"], Value::Null);
    let path: Vec<u8> = serde_json::from_value(told[0]["path"].clone()).expect("bytes");
    assert_eq!(String::from_utf8(path).expect("UTF-8"), "a \"ü\"/data.bin");
}

#[test]
fn mpich_tells_size_rank_and_hints() {
    tells_size_rank_and_hints(Mpi::Mpich);
}

#[test]
fn open_mpi_tells_size_rank_and_hints() {
    tells_size_rank_and_hints(Mpi::OpenMpi);
}

/// Fortran's calls go to `PMPI_File_open` in all of these but the first, and nobody was told of them.
#[test]
fn fortran_programs_tell_it_too() {
    let root = TempDir::new().expect("scratch");
    let aside = TempDir::new().expect("scratch");
    let socket = aside.path().join("control.sock");
    let lines = listen(&socket, Some("{\"ok\":null}\n"));
    for mpi in [Mpi::Mpich, Mpi::OpenMpi] {
        for program in ["fortran", "fortran_f08"] {
            let hint = ["halocline_policy=sla"];
            if !run_example((mpi, program), (root.path(), &socket), "data.bin", &hint) {
                return programs::skip("this MPI or its Fortran is not installed");
            }
            for (rank, told) in hints(&lines).iter().enumerate() {
                let context = format!("{mpi:?} {program}: {told}");
                assert!(told["rank"] == rank && told["size"] == 2, "{context}");
                assert!(told["path"] == "data.bin" && told["policy"] == "sla", "{context}");
            }
            assert!(lines.try_recv().is_err(), "{mpi:?} {program}: told once a process");
        }
    }
}

#[test]
fn a_silent_dead_or_absent_mount_does_no_harm() {
    let root = TempDir::new().expect("scratch");
    let aside = TempDir::new().expect("scratch");
    let silent = aside.path().join("silent.sock");
    let lines = listen(&silent, None);
    let start = Instant::now();
    if !run(Mpi::Mpich, root.path(), &silent, "silent", &[]) {
        return programs::skip("no MPICH");
    }
    // 0.2 s an open; the rest is for starting MPI on a machine that has other work.
    assert!(start.elapsed() < WAIT_LIMIT, "the shim does not wait for ever");
    assert_eq!(hints(&lines).len(), 2);

    let dead = aside.path().join("dead.sock");
    drop(UnixListener::bind(&dead).expect("bind"));
    assert!(run(Mpi::Mpich, root.path(), &dead, "dead", &[]));
    assert!(run(Mpi::Mpich, root.path(), &aside.path().join("absent.sock"), "absent", &[]));
    // Without any word about a mount, and in a process without MPI.
    let shim = programs::shim().expect("built above");
    let mut plain = Mpi::Mpich.start(2, "independent").expect("started above");
    programs::run(plain.arg(root.path().join("plain")).env("LD_PRELOAD", &shim));
    let output = programs::run(std::process::Command::new("ls").env("LD_PRELOAD", &shim));
    assert!(output.stderr.is_empty());
}

/// Whoever serves the file system that a program opens a file on names the socket: not any that a user reaches.
#[test]
fn a_socket_of_another_user_is_told_nothing() {
    if !rustix::process::geteuid().is_root() {
        return programs::skip("only root can listen as another user");
    }
    let root = TempDir::new().expect("scratch");
    let aside = TempDir::new().expect("scratch");
    let socket = aside.path().join("control.sock");
    let listener = UnixListener::bind(&socket).expect("bind");
    let lines = thread::spawn(move || {
        // Of this thread alone; the socket is of whom last listened.
        let other = rustix::process::Uid::from_raw(54_321);
        let own = rustix::process::Uid::ROOT;
        rustix::thread::set_thread_res_uid(own, other, own).expect("become another");
        rustix::net::listen(&listener, 16).expect("listen");
        rustix::thread::set_thread_res_uid(own, own, own).expect("become root again");
        answer_on(listener, Some("{\"ok\":null}\n"))
    });
    let lines = lines.join().expect("listening");
    if !run(Mpi::Mpich, root.path(), &socket, "data.bin", &[]) {
        return programs::skip("no MPICH");
    }
    for _ in 0..2 {
        let line = lines.recv_timeout(WAIT_LIMIT).expect("a connection");
        assert_eq!(line, "", "told to a process of another user");
    }
}

#[test]
fn files_outside_the_mount_are_not_told() {
    let root = TempDir::new().expect("scratch");
    let outside = TempDir::new().expect("scratch");
    let aside = TempDir::new().expect("scratch");
    let socket = aside.path().join("control.sock");
    let lines = listen(&socket, Some("{\"ok\":null}\n"));
    let Some(mut command) = Mpi::Mpich.start(2, "independent") else {
        return programs::skip("no MPICH");
    };
    let shim = programs::shim().expect("MPICH is there");
    programs::run(
        command
            .arg(outside.path().join("data.bin"))
            .env("LD_PRELOAD", shim)
            .env("HALOCLINE_SOCKET", &socket)
            .env("HALOCLINE_MOUNT", root.path()),
    );
    assert!(lines.try_recv().is_err());
}
