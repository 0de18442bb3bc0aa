//! Files of a shared tier that the kernel of their node serves by itself, while other nodes write, move and remove them (I15).

use std::fs::{self, File};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt};

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::shared_tiers::SharedTiers;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde_json::Value;

const NODES: [&str; 2] = ["one", "two"];
const BYTES: usize = 256 << 10;

struct Nodes(SharedTiers);

impl Deref for Nodes {
    type Target = SharedTiers;

    fn deref(&self) -> &SharedTiers {
        &self.0
    }
}

impl Nodes {
    /// Two mounts, with a file of `one` that its kernel would serve; `None`, with the reason, where it takes none.
    fn new() -> Option<Self> {
        let nodes = Self::mounted(&[])?;
        fs::write(nodes.at("one", "file"), vec![b'a'; BYTES]).unwrap();
        // While its writer is not closed the kernel gets none of it.
        nodes.until_closed("one", "file");
        drop(File::open(nodes.at("one", "file")).unwrap());
        let passthrough = nodes.passthrough("one");
        if passthrough["works"] != true {
            skip(format!("the kernel serves no files: {passthrough}"));
            return None;
        }
        Some(nodes)
    }

    fn mounted(options: &[&str]) -> Option<Self> {
        Some(Self(SharedTiers::started(program!(), &NODES, options)?))
    }

    fn open(&self, node: &str, writes: bool) -> File {
        File::options().read(true).write(writes).open(self.at(node, "file")).unwrap()
    }

    fn passthrough(&self, node: &str) -> Value {
        self.scratch.status(node)["tier"]["passthrough"].clone()
    }

    fn is_served(&self) -> bool {
        let passthrough = self.passthrough("one");
        passthrough["files"].as_array().unwrap().iter().any(|file| file == "file")
    }

    /// Moves the file to the shared disk, as a node is asked to; whether that was done.
    fn is_demoted(&self, node: &str) -> bool {
        let done = self.scratch.halocline(&["demote", &format!("{node}/file")]);
        let is_there = fs::exists(self.scratch.path("disk/file")).unwrap();
        assert_eq!(done.status.success(), is_there, "{}", said(&done));
        is_there
    }
}

/// A mapping of a file's first bytes.
struct Mapping(*mut u8);

impl Mapping {
    fn new(file: &File) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ, MapFlags::SHARED, file, 0)
        };
        Self(at.unwrap().cast())
    }

    fn first(&self) -> u8 {
        // SAFETY: inside the mapping, of a file that is not made shorter.
        unsafe { self.0.read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and not used any more.
        unsafe { munmap(self.0.cast(), BYTES).unwrap() };
    }
}

fn byte_at(file: &File, offset: u64) -> Option<u8> {
    let mut byte = [0];
    (file.read_at(&mut byte, offset).unwrap() == 1).then_some(byte[0])
}

#[test]
fn i15_what_another_node_does_to_a_file_that_the_kernel_serves_is_seen() {
    let Some(nodes) = Nodes::new() else { return };
    let reader = nodes.open("one", false);
    assert!(nodes.is_served(), "{}", nodes.passthrough("one"));
    assert_eq!(byte_at(&reader, 0), Some(b'a'));
    // A writer elsewhere, and one here, which comes to the mount process.
    nodes.open("two", true).write_all_at(b"b", 0).unwrap();
    assert_eq!(byte_at(&reader, 0), Some(b'b'));
    let writer = nodes.open("one", true);
    writer.write_all_at(b"c", 1).unwrap();
    assert_eq!(byte_at(&reader, 1), Some(b'c'));
    assert_eq!(byte_at(&nodes.open("two", false), 1), Some(b'c'));
    // The size is that of the file, for whoever writes it.
    let end = BYTES as u64;
    nodes.open("two", true).write_all_at(b"d", end).unwrap();
    assert_eq!(byte_at(&reader, end), Some(b'd'));
    assert_eq!(reader.metadata().unwrap().len(), end + 1);
    nodes.open("two", true).set_len(10).unwrap();
    assert_eq!(byte_at(&reader, 10), None);
    assert_eq!((reader.metadata().unwrap().len(), byte_at(&reader, 9)), (10, Some(b'a')));
    drop(writer);
    // Its name goes: it lives on where it is open.
    fs::rename(nodes.at("two", "file"), nodes.at("two", "other")).unwrap();
    assert_eq!(byte_at(&reader, 0), Some(b'b'));
    fs::remove_file(nodes.at("two", "other")).unwrap();
    assert_eq!(byte_at(&reader, 0), Some(b'b'));
    assert_eq!(reader.metadata().unwrap().nlink(), 0);
    drop(reader);
    eventually("its bytes are gone", || {
        !fs::exists(nodes.scratch.path("one-tiers/ssd/file")).unwrap()
    });
}

#[test]
fn i15_a_file_that_the_kernel_serves_or_maps_is_not_moved() {
    let Some(nodes) = Nodes::new() else { return };
    let reader = nodes.open("one", false);
    assert!(nodes.is_served());
    assert!(!nodes.is_demoted("two") && !nodes.is_demoted("one"));
    // A mapping is left, which the mount process does not see.
    let mapping = Mapping::new(&reader);
    drop(reader);
    assert!(!nodes.is_demoted("two") && !nodes.is_demoted("one"));
    nodes.open("two", true).write_all_at(b"z", 0).unwrap();
    assert_eq!(mapping.first(), b'z');
    drop(mapping);
    eventually("it is moved", || nodes.is_demoted("two"));
    assert_eq!(fs::read(nodes.at("one", "file")).unwrap()[..2], *b"za");
    assert!(!nodes.is_served());
}

#[test]
fn i15_what_the_kernel_of_a_killed_mount_serves_is_not_moved() {
    let Some(nodes) = Nodes::new() else { return };
    let reader = nodes.open("one", false);
    assert!(nodes.is_served());
    nodes.scratch.kill("one");
    let mounted = nodes.mount("one", &[]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    // The session that opened it is over, and the program reads on.
    assert!(!nodes.is_demoted("two") && !nodes.is_demoted("one"));
    assert_eq!(byte_at(&reader, 0), Some(b'a'));
    drop(reader);
    // Only its own node can tell.
    assert!(!nodes.is_demoted("two"));
    eventually("it is moved", || nodes.is_demoted("one"));
}

#[test]
fn passthrough_is_switched_off_and_tells_so() {
    let Some(nodes) = Nodes::mounted(&["--passthrough=false"]) else { return };
    fs::write(nodes.at("one", "file"), vec![b'a'; BYTES]).unwrap();
    let _reader = nodes.open("one", false);
    assert!(!nodes.is_served());
    let passthrough = nodes.passthrough("one");
    assert_eq!(passthrough["works"], false);
    assert!(passthrough["reason"].as_str().unwrap().contains("--passthrough"), "{passthrough}");
}
