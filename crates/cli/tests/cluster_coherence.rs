//! Two mounts over one origin see each other's changes as two programs on one directory do (I11).

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use halocline_testkit::nodes::{self, NODES, Nodes};
use halocline_testkit::program;

fn two_nodes() -> Option<Nodes> {
    Nodes::new(program!(), &[])
}

#[test]
fn i11_mounts_of_a_cluster_see_each_others_changes_at_once() {
    let Some(nodes) = two_nodes() else { return };
    let files = nodes.open("file");
    let model = nodes::see_each_others_changes(&files, 3);
    drop(files);
    // One removes what the other has dirty, and both what is not there any more.
    fs::write(nodes.scratch.path("other").join("gone"), vec![7; 100_000]).unwrap();
    fs::remove_file(nodes.scratch.path("one").join("gone")).unwrap();
    assert!(fs::read(nodes.scratch.path("other").join("gone")).is_err());
    for node in ["one", "other"] {
        nodes.scratch.succeed(&["umount", node]);
    }
    assert!(fs::read(nodes.scratch.path("origin/file")).unwrap() == model);
    let sessions = nodes.scratch.path("origin/.halocline-cluster");
    assert_eq!(nodes.listed(), [""; 0], "both have left");
    assert_eq!(fs::metadata(sessions).unwrap().mode() & 0o777, 0o700);
}

/// What lies between two dirty blocks was written again, as it had been read: it undid what the other node, to which it
/// belonged, brought to the origin in between. A slow disk makes the time in between long.
#[test]
fn i11_a_flush_does_not_touch_what_another_node_has_between_its_blocks() {
    const BLOCK: usize = 8192;
    const BLOCKS: usize = 32;
    let Some(nodes) = Nodes::new(program!(), &["--emulate", "1xhdd+1xssd"]) else { return };
    let [one, other] = nodes.open("file");
    for round in 1..=8_u8 {
        let write = |file: &File, first: usize| {
            for block in (first..BLOCKS).step_by(2) {
                file.write_all_at(&[round; BLOCK], (block * BLOCK) as u64).unwrap();
            }
        };
        // From the second round on each has the tokens of its blocks.
        write(&one, 0);
        write(&other, 1);
        thread::scope(|scope| {
            for node in NODES {
                scope.spawn(|| nodes.succeed(&["flush", node]));
            }
        });
        let origin = fs::read(nodes.path("origin/file")).unwrap();
        let lost = |block: &usize| origin[block * BLOCK] != round;
        let lost: Vec<_> = (0..BLOCKS).filter(lost).collect();
        assert!(lost.is_empty(), "round {round}: blocks {lost:?}");
    }
}

/// Ranks of both nodes write every eighth block each, all at once, and the file grows meanwhile.
#[test]
fn i11_nodes_that_write_between_each_others_blocks_lose_none() {
    const RANKS: usize = 8;
    const BLOCK: usize = 8192;
    const ROUNDS: usize = 30;
    let Some(nodes) = two_nodes() else { return };
    let content = |round: usize, block: usize| {
        vec![u8::try_from((round * 7 + block) % 255 + 1).unwrap(); BLOCK]
    };
    for round in 0..ROUNDS {
        let name = format!("strided-{round}");
        let files = nodes.open(&name);
        let start = Barrier::new(RANKS);
        thread::scope(|scope| {
            for rank in 0..RANKS {
                let (file, start) = (&files[rank * 2 / RANKS], &start);
                scope.spawn(move || {
                    start.wait();
                    for block in (rank..3 * RANKS).step_by(RANKS) {
                        file.write_all_at(&content(round, block), (block * BLOCK) as u64).unwrap();
                    }
                });
            }
        });
        for (file, block) in
            files.iter().flat_map(|file| (0..3 * RANKS).map(move |block| (file, block)))
        {
            let mut found = vec![0; BLOCK];
            file.read_exact_at(&mut found, (block * BLOCK) as u64).unwrap();
            assert!(found == content(round, block), "round {round}: block {block} is {}", found[0]);
        }
    }
}

/// Regression: what a node gave up was looked for by the name that it knew. Another one had renamed the directory: nothing
/// was flushed or dropped, it read old bytes, and its own were overwritten later.
#[test]
fn i11_a_file_below_a_directory_that_another_node_renamed_has_its_newest_bytes() {
    const LENGTH: usize = 1 << 20;
    let Some(nodes) = two_nodes() else { return };
    let at = |node: &str, dir: &str| nodes.path(node).join(dir).join("file");
    // Closed after each, so that the node finds the file by what it has recorded.
    let write = |path: &Path, byte: u8| {
        let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all_at(&vec![byte; LENGTH], 0).unwrap();
    };
    let has = |path: &Path, byte: u8| {
        let file = File::open(path).unwrap();
        let mut found = vec![0; LENGTH];
        let (first, rest) = found.split_at_mut(4096);
        file.read_exact_at(first, 0).unwrap();
        file.read_exact_at(rest, 4096).unwrap();
        found.dedup();
        assert_eq!(found, [byte], "{}", path.display());
    };
    fs::create_dir(nodes.path("one/a")).unwrap();
    write(&at("one", "a"), 1);
    nodes.succeed(&["flush", "one"]);
    for (round, (old, new)) in [("a", "b"), ("b", "c"), ("c", "d")].into_iter().enumerate() {
        let byte = 10 * u8::try_from(round).unwrap();
        // Over clean bytes, which become dirty.
        write(&at("one", old), byte + 2);
        fs::rename(nodes.path("other").join(old), nodes.path("other").join(new)).unwrap();
        has(&at("other", new), byte + 2);
        write(&at("other", new), byte + 3);
        for node in NODES {
            nodes.succeed(&["flush", node]);
        }
        has(&nodes.path("origin").join(new).join("file"), byte + 3);
        has(&at("one", new), byte + 3);
        // Clean on one node.
        write(&at("one", new), byte + 4);
        nodes.succeed(&["flush", "one"]);
        has(&at("one", new), byte + 4);
        fs::rename(nodes.path("other").join(new), nodes.path("other/moved")).unwrap();
        write(&at("other", "moved"), byte + 5);
        has(&at("one", "moved"), byte + 5);
        nodes.succeed(&["flush", "one"]);
        fs::rename(nodes.path("one/moved"), nodes.path("one").join(new)).unwrap();
        has(&at("other", new), byte + 5);
    }
}

/// The kernel's pages of a shared mapping would outlive what the other node does.
#[test]
fn shared_mappings_are_refused_and_private_ones_are_not() {
    let Some(nodes) = two_nodes() else { return };
    let [file, _] = nodes.open("file");
    file.write_all_at(&[7; 4096], 0).unwrap();
    let map = |flags| {
        let protection = libc::PROT_READ;
        let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: nothing is mapped over, and nobody reads through the mapping.
        unsafe { libc::mmap(none, 4096, protection, flags, fd, 0) }
    };
    assert_eq!(map(libc::MAP_SHARED), libc::MAP_FAILED);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENODEV));
    let private = map(libc::MAP_PRIVATE);
    assert_ne!(private, libc::MAP_FAILED);
    // SAFETY: it was mapped above, and is used by nobody.
    assert_eq!(unsafe { libc::munmap(private, 4096) }, 0);
}

/// Regression: the kernel kept pages that it had read for `sendfile` as long as the file was open, and sent them again after
/// another node had written.
#[test]
fn i11_what_the_kernel_copies_by_itself_is_the_newest() {
    const LENGTH: usize = 64 << 10;
    let Some(nodes) = two_nodes() else { return };
    let files = nodes.open("file");
    files[0].write_all_at(&vec![1; LENGTH], 0).unwrap();
    let sent = |file: &File| {
        let to = tempfile::tempfile().unwrap();
        let mut at = 0;
        while at < LENGTH as u64 {
            assert_ne!(rustix::fs::sendfile(&to, file, Some(&mut at), LENGTH).unwrap(), 0);
        }
        let mut found = vec![0; LENGTH];
        to.read_exact_at(&mut found, 0).unwrap();
        found.dedup();
        found
    };
    // Until the range is contended, and further.
    for round in 1..80_u8 {
        files[usize::from(round % 2)].write_all_at(&vec![round; LENGTH], 0).unwrap();
        for file in &files {
            assert_eq!(sent(file), [round]);
        }
    }
}
