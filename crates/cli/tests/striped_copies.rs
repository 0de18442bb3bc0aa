//! Copies of striped volumes, as people make them and go on with: what each command says of a copy that was not mounted yet, and
//! how files get their data whose copy has lost what proves that it is theirs.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use halocline_testkit::program;
use halocline_testkit::sandbox::{ended, said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::striped_volume;
use rustix::fs::removexattr;

const ATTESTED: &str = "trusted.halocline.object";
const FILES: [&str; 5] = ["a", "b", "d/a", "d/b", "c"];

/// Of each file.
const BYTES: usize = 200_000;

fn content(file: &str) -> Vec<u8> {
    striped_volume::content(file, BYTES)
}

fn run<'a>(cache: &'a str, program: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--origin", "volume", "--cache", cache, "--"][..], program].concat()
}

/// A cache, and a copy of its origin in the place of that.
fn copied() -> Option<Scratch> {
    let scratch = Scratch::new(program!())?;
    if !rustix::process::geteuid().is_root() {
        skip("only root can set trusted attributes");
        return None;
    }
    striped_volume::make(&scratch, &FILES, BYTES);
    fs::create_dir(scratch.path("cache2")).unwrap();
    fs::rename(scratch.path("volume"), scratch.path("first")).unwrap();
    let mut copy = Command::new("cp");
    let done = copy.args(["-a", "first", "volume"]).current_dir(scratch.root()).status().unwrap();
    assert!(done.success());
    Some(scratch)
}

#[track_caller]
fn have_their_data(scratch: &Scratch, cache: &str) {
    scratch.succeed(&run(cache, &["diff", "-r", "data", "volume"]));
}

/// A check advised to give each file its data by hand, and `--give` found no object; a mount does all at once.
#[test]
fn of_a_copy_that_was_not_mounted_yet_a_check_says_so() {
    let Some(scratch) = copied() else { return };
    let label = || fs::read(scratch.path("volume/halocline-volume.toml")).unwrap();
    let before = label();
    for args in [&["fsck", "cache"][..], &["fsck", "cache", "--repair"]] {
        let told = scratch.halocline(args);
        ended(&told, 1, &["not checked: ", "not all was: see above", "mount it once"]);
        assert!(!written(&told).contains("--give"), "{}", written(&told));
    }
    let give = ["fsck", "cache", "--repair", "--give", "nothing=a"];
    ended(&scratch.halocline(&give), 1, &["nothing was given to any file: ", "mount it once"]);
    // A dry run gave the objects to the files of the copy.
    let dry = scratch.halocline(&["unstripe", "-n", "volume", "out"]);
    ended(&dry, 0, &["would be copied to out", "is not known: ", "mount it once"]);
    let verify = scratch.halocline(&["mark-servers", "volume"]);
    ended(&verify, 2, &["mount it once"]);
    assert!(label() == before);
    let read_only = "mount --bind volume/server-1 volume/server-1; mount -o remount,bind,ro volume/server-1; exec \"$0\" \"$@\"";
    let unwritable = Command::new("unshare")
        .args(["-m", "sh", "-ec", read_only])
        .arg(scratch.program())
        .args(["unstripe", "volume", "out"])
        .current_dir(scratch.root())
        .output();
    ended(&unwritable.unwrap(), 1, &["volume/server-1", "Read-only file system"]);
    scratch.succeed(&["unstripe", "volume", "out"]);
    for file in FILES {
        assert!(fs::read(scratch.path("out").join(file)).unwrap() == content(file), "{file}");
    }
    have_their_data(&scratch, "cache2");
    scratch.succeed(&["fsck", "cache2"]);
}

/// What the command says if it is given this on standard input.
fn with_input(scratch: &Scratch, args: &[&str], input: &str) -> Output {
    let mut command = scratch.command(args);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// What a check tells of objects that others name, as pairs to be given.
fn pairs(scratch: &Scratch) -> String {
    let told = scratch.halocline(&["fsck", "cache2", "--json"]);
    let told: serde_json::Value =
        serde_json::from_slice(&told.stdout).unwrap_or_else(|_| panic!("{}", said(&told)));
    let mut pairs = String::new();
    for problem in told["problems"].as_array().unwrap() {
        let (object, file) = (&problem["object"], &problem["named_by"][0]["path"]);
        writeln!(pairs, "{}={}", object.as_str().unwrap(), file.as_str().unwrap()).unwrap();
    }
    pairs
}

#[test]
fn files_whose_copies_lost_their_attributes_are_given_their_data_by_a_list() {
    let Some(scratch) = copied() else { return };
    for file in FILES {
        removexattr(scratch.path("volume/namespace").join(file), ATTESTED).unwrap();
    }
    let told = scratch.halocline(&run("cache2", &["cat", "volume/a"]));
    ended(&told, 1, &["Input/output error"]);
    let log = fs::read_to_string(scratch.path("cache2/halocline.log")).unwrap_or_default();
    let told = log + &said(&told);
    assert!(told.contains("5 files name data of this volume") && told.contains("--give"), "{told}");
    assert!(told.contains("run `halocline mark-servers` there, and copy it again"), "{told}");
    let found = scratch.halocline(&["fsck", "cache2"]);
    ended(&found, 1, &["others name it: d/a (of user 0)", "--give-from FILE"]);
    let pairs = pairs(&scratch);
    assert_eq!(pairs.lines().count(), 5, "{pairs}");
    let give = ["fsck", "cache2", "--repair", "--give-from"];
    let give_from = |file: &str| scratch.halocline(&[&give[..], &[file]].concat());
    let whole = |name: &str, pairs: &str| fs::write(scratch.path(name), pairs).unwrap();
    let first = pairs.lines().next().unwrap();
    for (wrong, status, what) in [
        (first.replace('=', " "), 2, "not OBJECT=FILE; give each pair as"),
        (format!("{pairs}=a\n"), 2, "=a: not OBJECT=FILE"),
        (format!("{pairs}{first}\n"), 1, "is given both"),
        (format!("{pairs}nonsense=a\n"), 1, "the origin has no object nonsense"),
    ] {
        whole("pairs", &wrong);
        ended(&give_from("pairs"), status, &[what]);
        let again = self::pairs(&scratch);
        assert_eq!(again, pairs, "nothing is given");
    }
    ended(&give_from("nowhere"), 2, &["nowhere: there is no such file"]);
    let pair = scratch.halocline(&["fsck", "cache2", "--repair", "--give", "a"]);
    ended(&pair, 2, &["a: not OBJECT=FILE"]);
    let (some, others) = pairs.split_at(pairs.match_indices('\n').nth(1).unwrap().0 + 1);
    ended(&with_input(&scratch, &[&give[..], &["-"]].concat(), some), 1, &["others name it"]);
    whole("pairs", others);
    ended(&give_from("pairs"), 0, &["clean"]);
    have_their_data(&scratch, "cache2");
    // Whoever copies that has what proves it.
    assert!(Path::new(&scratch.path("first")).exists());
    let marked = scratch.succeed(&["mark-servers", "volume"]);
    assert!(marked.contains("its files were marked already"), "{marked}");
    // What is nobody's is not marked, and that is told.
    let mut copy = Command::new("cp");
    let past = ["-a", "volume/namespace/a", "volume/namespace/past"];
    assert!(copy.args(past).current_dir(scratch.root()).status().unwrap().success());
    let marked = scratch.succeed(&["mark-servers", "volume"]);
    assert!(marked.contains("past: not marked: it names the data of another file"), "{marked}");
    assert!(
        marked.contains("volume: not marked, because the data is not theirs: 1 file"),
        "{marked}"
    );
}
