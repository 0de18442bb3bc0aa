//! The application of the `HyCache` paper: HDFS with a `DataNode` on each node of a shared tier, and `MapReduce` over both.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use halocline_testkit::hadoop::Hadoop;
use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::SharedTiers;
use serde_json::Value;

/// The nodes; each has the blocks of its `DataNode` in the directory `blocks-NODE` of the tier.
const NODES: [&str; 2] = ["one", "two"];

const TERASORT: &str = "org.apache.hadoop.examples.terasort";

/// Records of 100 bytes.
const RECORDS: &str = "60000";

/// Every regular file below a directory: its path there, and its bytes.
fn files(below: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![below.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                files.insert(path.strip_prefix(below).unwrap().to_owned(), bytes);
            }
        }
    }
    files
}

fn is_block(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    name.starts_with("blk_") && path.extension().is_none()
}

/// The node and the tier of each block of a node's `DataNode`, as the first node tells it.
fn tiers_of_blocks(tiers: &SharedTiers, node: &str) -> Vec<String> {
    let told = tiers.scratch.succeed(&["where", &format!("one/blocks-{node}/**/blk_*"), "--json"]);
    let told: Vec<Value> = serde_json::from_str(&told).unwrap();
    let blocks = told.iter().filter(|file| is_block(Path::new(file["path"].as_str().unwrap())));
    blocks.map(|file| file["tier_name"].as_str().unwrap().to_owned()).collect()
}

/// What is in the only file with results below a directory of HDFS.
fn result(hadoop: &Hadoop, directory: &str) -> String {
    hadoop.succeed("org.apache.hadoop.fs.FsShell", &["-cat", &format!("{directory}/part*")])
}

/// Compares the order and the sum of all records with what they should be.
fn validate(hadoop: &Hadoop, sorted: &str, report: &str, sum: &str) {
    hadoop.succeed(&format!("{TERASORT}.TeraValidate"), &[sorted, report]);
    // Records out of order would be told as lines of errors.
    assert_eq!(result(hadoop, report).trim(), format!("checksum\t{sum}"));
}

#[test]
fn i15_mapreduce_sorts_over_a_datanode_on_each_node() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &NODES) else { return };
    let Some(tiers) = SharedTiers::new(scratch, &NODES) else { return };
    let tiers = tiers.mounted(&NODES, &[]);
    // Made after the mounts, so that it ends before them: an unmount waits for programs that have files open there.
    let Some(mut hadoop) = Hadoop::start(Path::new(env!("CARGO_TARGET_TMPDIR"))) else { return };
    for (number, node) in NODES.into_iter().enumerate() {
        let blocks = tiers.at(node, &format!("blocks-{node}"));
        hadoop.start_data_node(node, &blocks, number + 1);
    }
    hadoop.succeed(&format!("{TERASORT}.TeraGen"), &[RECORDS, "/in"]);
    hadoop.succeed(&format!("{TERASORT}.TeraChecksum"), &["/in", "/sum"]);
    let sum = result(&hadoop, "/sum").trim().to_owned();
    hadoop.succeed(&format!("{TERASORT}.TeraSort"), &["/in", "/sorted"]);
    validate(&hadoop, "/sorted", "/report", &sum);
    for node in NODES {
        let on = tiers_of_blocks(&tiers, node);
        assert!(on.len() > 10 && on.iter().all(|tier| *tier == format!("ssd of {node}")), "{on:?}");
    }
    // Both nodes show the same bytes of all blocks.
    for node in NODES {
        let [one, two] = NODES.map(|at| files(&tiers.at(at, &format!("blocks-{node}"))));
        let blocks = |all: BTreeMap<PathBuf, Vec<u8>>| {
            all.into_iter().filter(|(path, _)| is_block(path)).collect::<BTreeMap<_, _>>()
        };
        assert!(blocks(one) == blocks(two), "the blocks of {node}");
    }

    // A node is lost with its DataNode. HDFS goes on with the other copies.
    tiers.scratch.kill("two");
    hadoop.kill_data_node("two");
    hadoop.succeed(&format!("{TERASORT}.TeraSort"), &["/in", "/sorted-by-one"]);
    validate(&hadoop, "/sorted-by-one", "/report-by-one", &sum);

    // It comes back with its blocks, and gets copies of those that it missed.
    let mounted = tiers.mount("two", &[]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    hadoop.start_data_node("two", &tiers.at("two", "blocks-two"), 2);
    hadoop.wait_for_copies();

    // The blocks move to the shared disk while the DataNodes run, which do not notice.
    for node in NODES {
        tiers.moves(&["demote", &format!("{node}/blocks-{node}/**/blk_*")]);
        let on = tiers_of_blocks(&tiers, node);
        assert!(on.iter().all(|tier| tier == "hdd"), "{on:?}");
    }
    validate(&hadoop, "/sorted", "/report-from-the-disk", &sum);
}
