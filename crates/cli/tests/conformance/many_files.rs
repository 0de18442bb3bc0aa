//! More files than the mount may have open, or should remember.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use halocline_testkit::closes;

use crate::mount::{self, Mount};
use crate::programs;

const FILES: u32 = 3000;

/// Opens files as another user until that is refused, tells how many, and keeps them until its input ends.
const HOARD: &str = "\
import os, resource, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
kept = []
try:
    while len(kept) < 3900:
        kept.append(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY))
except OSError as error:
    print(len(kept), error.errno, flush=True)
sys.stdin.read()
";

/// One user took all descriptors of the mount process: nobody else could open a file, and no command
/// reached the mount.
#[test]
fn one_user_leaves_others_files_to_open() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if let Some(missing) = ["python3", "prlimit"].iter().find(|it| !programs::is_installed(it)) {
        return programs::skip(format!("{missing} is not installed"));
    }
    let mount = Mount::with_open_files(1000, &["--size", "64M", "--allow-other=true"]);
    fs::create_dir(mount.path().join("dir")).unwrap();
    let hoard = |user: u32| {
        let mut child = Command::new("python3")
            .args(["-c", HOARD])
            .arg(mount.path())
            .arg(user.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let words: Vec<i64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!(words[1], i64::from(libc::ENFILE), "{line}");
        (child, words[0])
    };
    let (mut first, of_first) = hoard(60_001);
    let (mut second, of_second) = hoard(60_002);
    assert!(of_first > 200 && of_second > 100, "{of_first}, {of_second}");
    fs::write(mount.path().join("file"), "of root").unwrap();
    assert_eq!(mount.status()["health"]["state"], "ok");
    for child in [&mut first, &mut second] {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    closes::all_are_told(&mount.path());
    let (mut third, of_third) = hoard(60_003);
    assert!(of_third > of_second, "what was closed can be opened: {of_third}");
    drop(third.stdin.take());
    third.wait().unwrap();
}

fn content(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(1024)
}

/// Each file with dirty bytes kept one of the origin's files open: programs got EMFILE.
#[test]
fn programs_can_open_files_however_many_are_dirty() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let options = ["--policy", "always", "--size", "256M", "--max-dirty-age", "1h"];
    let mut mount = Mount::with_open_files(1000, &options);
    let path = |number: u32| mount.path().join(number.to_string());
    for number in 0..FILES {
        fs::write(path(number), content(number)).unwrap();
    }
    for number in 0..FILES {
        assert!(fs::read(path(number)).unwrap() == content(number), "{number}");
    }
    let status = mount.status();
    assert_eq!(status["health"]["state"], "ok", "{status}");
    assert!(status["report"]["admitted"]["requests"].as_u64() > Some(50), "{status}");
    mount.unmount();
    for number in 0..FILES {
        let path = mount.origin().join(number.to_string());
        assert!(fs::read(path).unwrap() == content(number), "{number} on the origin");
    }
}
