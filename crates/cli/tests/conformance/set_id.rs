//! Set-id bits and file capabilities: a write takes them away, and no program of a mount gets rights
//! by them unless root wants that.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::XattrFlags;

use crate::mount::{self, IO_URING, Mount};
use crate::programs;
use crate::shared_tier_suites::nodes;

const NOBODY: u32 = 65_534;
const GROUP: u32 = 4_242;
const SIZE: usize = 1 << 20;
const CAPABILITY: &str = "security.capability";
/// `cap_setuid+ep` as the kernel stores it: revision 2, effective.
const SET_UID: [u8; 20] = [1, 0, 0, 2, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Somebody without rights who has a file open and changes it by the commands that come.
struct Intruder(Child);

impl Intruder {
    fn with_open(file: &Path) -> Self {
        let script = "import mmap, os, sys\n\
                      os.setgroups([int(sys.argv[3])])\n\
                      os.setgid(int(sys.argv[2]))\n\
                      os.setuid(int(sys.argv[2]))\n\
                      fd = os.open(sys.argv[1], os.O_RDWR)\n\
                      print('open', flush=True)\n\
                      for line in sys.stdin:\n\
                      \x20   exec(line)\n\
                      \x20   print('done', flush=True)\n";
        let child = Command::new("python3")
            .args(["-c", script])
            .arg(file)
            .args([NOBODY, GROUP].map(|id| id.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut intruder = Self(child);
        intruder.hears("open");
        intruder
    }

    fn hears(&mut self, what: &str) {
        let output = self.0.stdout.as_mut().expect("a pipe");
        let mut line = String::new();
        BufReader::with_capacity(1, output).read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), what);
    }

    fn does(&mut self, what: &str) {
        writeln!(self.0.stdin.as_mut().expect("a pipe"), "{what}").expect("told");
        self.hears("done");
    }
}

impl Drop for Intruder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

fn obstacle() -> Option<String> {
    if let Some(reason) = mount::obstacle() {
        return Some(reason.to_owned());
    }
    let missing = |program: &&&str| !programs::is_installed(program);
    let missing = ["setpriv", "python3"].iter().find(missing);
    missing.map(|program| format!("{program} is not installed"))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

fn has_capability(path: &Path) -> bool {
    rustix::fs::getxattr(path, CAPABILITY, &mut [0; 64][..]).is_ok()
}

/// Gives a file that `intruder` has open rights, lets it change the file so, and looks at once.
fn attack(mount: &Path, below: &[PathBuf], how: &str) {
    let file = mount.join("tool");
    let mut intruder = Intruder::with_open(&file);
    fs::metadata(&file).expect("kept by the kernel");
    fs::set_permissions(&file, Permissions::from_mode(0o6775)).expect("chmod");
    rustix::fs::setxattr(&file, CAPABILITY, &SET_UID, XattrFlags::empty()).expect("setxattr");
    assert_eq!((mode(&file), has_capability(&file)), (0o6775, true), "root gave it rights");
    intruder.does(how);
    assert_eq!((mode(&file), has_capability(&file)), (0o775, false), "after {how}");
    for below in below {
        assert_eq!((mode(below), has_capability(below)), (0o775, false), "below after {how}");
    }
}

const WAYS: [&str; 10] = [
    "os.pwrite(fd, b'mine', 100)",
    "os.pwrite(fd, b'at the end', 1 << 20)",
    "os.ftruncate(fd, 1000000)",
    "os.posix_fallocate(fd, 0, 1 << 20)",
    "os.copy_file_range(fd, fd, 4096, 0, 65536)",
    "os.close(os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC))",
    "os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND), b'more')",
    "r, w = os.pipe(); os.write(w, b'mine'); os.splice(r, os.open(sys.argv[1], os.O_WRONLY), 4, None, 100)",
    "os.sendfile(os.open(sys.argv[1], os.O_WRONLY), os.open('/proc/self/exe', os.O_RDONLY), 0, 4096)",
    "os.pwritev(os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT), [mmap.mmap(-1, 4096)], 8192)",
];

fn attack_in_all_ways(mount: &Mount, origin: &Path) {
    for how in WAYS {
        let file = mount.path().join("tool");
        let _old = fs::remove_file(&file);
        fs::write(&file, vec![b'#'; SIZE]).expect("write");
        chown(&file, Some(0), Some(GROUP)).expect("chown");
        fs::set_permissions(&file, Permissions::from_mode(0o775)).expect("chmod");
        attack(&mount.path(), &[origin.join("tool")], how);
    }
}

/// A file that was open when root gave it rights kept them, whatever was written then: the kernel
/// wrote it with the mount process's rights.
#[test]
fn a_write_takes_set_id_bits_away_where_the_kernel_serves_it() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    for options in [&["--passthrough-writes=true"][..], &["--passthrough=false"]] {
        for transport in transports() {
            let options = [options, transport, &["--allow-other=true"]].concat();
            let mount = Mount::tier(&options);
            attack_in_all_ways(&mount, &mount.root().join("ssd"));
        }
    }
}

#[test]
fn a_write_takes_set_id_bits_away_on_a_cache() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let striped = ["--policy=always", "--origin-volume=striped", "--origin-servers=2"];
    let kinds: [(&[&str], &str); 4] = [
        (&["--policy=always"], ""),
        (&["--policy=never"], ""),
        (&["--policy=always", "--warm-passthrough=true"], ""),
        (&striped, "namespace"),
    ];
    for (kind, below) in kinds {
        for transport in transports() {
            let options = [kind, transport, &["--size=64M", "--allow-other=true"]].concat();
            let mount = Mount::new(&options);
            attack_in_all_ways(&mount, &mount.origin().join(below));
        }
    }
}

/// Mounts take requests from the device unless they are told otherwise.
fn transports() -> Vec<&'static [&'static str]> {
    let ring = mount::ring_obstacle().is_none().then_some(&[IO_URING][..]);
    ring.into_iter().chain([&[][..]]).collect()
}

#[test]
fn programs_of_a_mount_get_no_rights_unless_root_wants_that() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let source =
        String::from_utf8(programs::run(Command::new("sh").args(["-c", "command -v id"])).stdout);
    let source = PathBuf::from(source.expect("a path").trim_end());
    let cases: [(&[&str], bool); 3] = [
        (&[], false),
        (&["--allow-suid=false"], false),
        (&["--allow-suid=true", "--allow-dev=true"], true),
    ];
    for (options, allowed) in cases {
        let mount = Mount::new(&[options, &["--size=64M", "--allow-other=true"]].concat());
        let (tool, device) = (mount.path().join("id"), mount.path().join("null"));
        fs::copy(&source, &tool).expect("copy");
        fs::set_permissions(&tool, Permissions::from_mode(0o4755)).expect("chmod");
        let user = format!("--reuid={NOBODY}");
        let said = programs::run(
            Command::new("setpriv").args([&user, "--clear-groups"]).arg(&tool).arg("-u"),
        );
        let expected = if allowed { 0 } else { NOBODY };
        assert_eq!(
            String::from_utf8_lossy(&said.stdout).trim_end(),
            expected.to_string(),
            "{options:?}"
        );
        programs::run(Command::new("mknod").arg(&device).args(["c", "1", "3"]));
        assert_eq!(fs::File::open(&device).is_ok(), allowed, "{options:?}");
    }
}

/// The owner of a file or directory who is not in its group takes the set-group-id bit off by giving it
/// an ACL or a mode; who is, keeps it.
#[test]
fn an_acl_takes_the_set_group_id_bit_away_from_who_is_not_in_the_group() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    if !programs::is_installed("setfacl") {
        return programs::skip("setfacl is not installed");
    }
    for mount in
        [Mount::new(&["--size=64M", "--allow-other=true"]), Mount::tier(&["--allow-other=true"])]
    {
        let path = |name: &str| mount.path().join(name);
        fs::write(path("own"), "").expect("write");
        chown(path("own"), Some(NOBODY), Some(GROUP)).expect("chown");
        fs::write(path("file"), "").expect("write");
        fs::create_dir(path("dir")).expect("mkdir");
        let mut user = Intruder::with_open(&path("own"));
        for (name, group, keeps) in
            [("file", 0, false), ("file", GROUP, true), ("dir", 0, false), ("dir", GROUP, true)]
        {
            for how in ["setfacl -m u::rwx,g::rwx,o::rwx", "chmod 2777"] {
                let path = path(name);
                chown(&path, Some(NOBODY), Some(group)).expect("chown");
                fs::set_permissions(&path, Permissions::from_mode(0o2755)).expect("chmod");
                user.does(&format!("assert os.system('{how} {}') == 0", path.display()));
                let expected = if keeps { 0o2777 } else { 0o777 };
                assert_eq!(mode(&path), expected, "{how} {name}, group {group}");
            }
        }
    }
}

/// Changes of the owner and group of files with all kinds of set-id bits, by root, by owners in and outside of the file's
/// group, and by a stranger; `chown(path, -1, -1)` among them. Prints what each has afterwards.
const GIVEN_AWAY: &str = "
import os, stat, sys
os.chdir(sys.argv[1])
os.umask(0)
CAPABILITY = bytes.fromhex('0100000280' + '00' * 15)
def has(name):
    return 'security.capability' in os.listxattr(name)
def tried(kind, mode, owner, group, who, groups, call):
    if kind == 'fifo': os.mkfifo('it')
    elif kind == 'dir': os.mkdir('it')
    else: os.close(os.open('it', os.O_CREAT | os.O_WRONLY))
    os.chown('it', owner, group)
    if kind == 'capable': os.setxattr('it', 'security.capability', CAPABILITY)
    os.chmod('it', mode)
    child = os.fork()
    if child == 0:
        if who:
            os.setgroups(groups)
            os.setresgid(groups[0], groups[0], groups[0])
            os.setresuid(who, who, who)
        try: call('it')
        except OSError as error: os._exit(error.errno)
        os._exit(0)
    status = os.waitpid(child, 0)[1] >> 8
    now = os.lstat('it')
    after = (status, oct(now.st_mode), now.st_uid, now.st_gid, kind == 'capable' and has('it'))
    (os.rmdir if kind == 'dir' else os.unlink)('it')
    return after
def write(name):
    at = os.open(name, os.O_WRONLY | os.O_NONBLOCK)
    os.write(at, b'mine')
CALLS = {
    'nothing': lambda it: os.chown(it, -1, -1),
    'nothing, open': lambda it: os.chown(os.open(it, os.O_RDONLY | os.O_NONBLOCK), -1, -1),
    'group': lambda it: os.chown(it, -1, 1001),
    'same': lambda it: os.chown(it, 1001, 1001),
}
for kind in ['file', 'capable', 'fifo', 'dir']:
    for mode in [0o4755, 0o6755, 0o2745, 0o6747, 0o4644, 0o755]:
        for who, groups, group in [(0, [], 1001), (1001, [1001], 1001), (1001, [1001], 1002), (1001, [1001, 1002], 1002)]:
            for name, call in CALLS.items():
                print(kind, oct(mode), who, groups, group, name, tried(kind, mode, 1001, group, who, groups, call))
    if kind == 'file':
        for mode in [0o4777, 0o2757, 0o2777, 0o2767]:
            for who, groups in [(0, []), (1001, [1001]), (1003, [1002]), (1003, [1003])]:
                print('write', oct(mode), who, groups, tried(kind, mode, 1001, 1002, who, groups, write))
        # Without bits there is nothing to refuse.
        print('stranger', tried(kind, 0o777, 1001, 1001, 1003, [1003], CALLS['nothing']))
";

fn given_away(directory: &Path) -> String {
    let said = programs::run(Command::new("python3").args(["-c", GIVEN_AWAY]).arg(directory));
    String::from_utf8(said.stdout).expect("text")
}

/// Regression: `chown(path, -1, -1)` left them, and a set-group-id bit without group execution was left by owners and
/// writers outside of the group.
#[test]
fn who_changes_owner_or_group_takes_set_id_bits_away_as_on_the_origin() {
    if let Some(reason) = obstacle() {
        return programs::skip(&reason);
    }
    let beside = tempfile::tempdir().expect("scratch");
    fs::set_permissions(beside.path(), Permissions::from_mode(0o755)).expect("chmod");
    let expected = given_away(beside.path());
    let compare = |kind: &str, mount: &Mount| {
        let found = given_away(&mount.path());
        let pairs = found.lines().zip(expected.lines());
        let differ: Vec<_> = pairs.filter(|(found, expected)| found != expected).collect();
        assert!(differ.is_empty(), "{kind} ({}): {differ:#?}", differ.len());
        assert_eq!(found.lines().count(), expected.lines().count());
    };
    let options = ["--size=64M", "--allow-other=true"];
    let striped = ["--origin-volume=striped", "--origin-servers=2"];
    for transport in transports() {
        compare("cache", &Mount::new(&[&options, transport].concat()));
        compare("striped", &Mount::new(&[&options[..], &striped, transport].concat()));
        compare("tier", &Mount::tier(&[&options[1..], transport].concat()));
    }
    let Some(nodes) = nodes(&["one"], &[]) else { return };
    compare("shared tier", &nodes.mounts[0]);
}
