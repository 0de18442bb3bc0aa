//! Rights that files give to those who run them, on a tier that nodes share as on a local file system: set-group-id bits by all groups
//! of a caller, and capabilities.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::SharedTiers;
use halocline_testkit::skipping::skip;

/// Does all in the working directory, and prints what became of it.
const SCRIPT: &str = "
import os, stat, time

def by(groups, act, *args):
    child = os.fork()
    if child == 0:
        os.setgroups(groups); os.setgid(6002); os.setuid(6002); os.umask(0o22)
        try: act(*args)
        except OSError as error: os._exit(error.errno)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def make(name, mode): os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))

def tell(what, name, *more):
    found = os.lstat(name)
    print(what, oct(found.st_mode), found.st_uid, found.st_gid, *more)

os.chmod('.', 0o777)
os.mkdir('g'); os.chown('g', 6001, 7000); os.chmod('g', 0o3777)
for who, groups in ('member', [6, 7000]), ('stranger', [6]):
    makers = [
        ('suid', lambda name: make(name, 0o6777)),
        ('sgid', lambda name: make(name, 0o2777)),
        ('masked', lambda name: make(name, 0o2720)),
        ('locked', lambda name: make(name, 0o2766)),
        ('mkdir', lambda name: os.mkdir(name, 0o2770)),
        ('mknod', lambda name: os.mknod(name, stat.S_IFREG | 0o2777)),
        ('mkfifo', lambda name: os.mknod(name, stat.S_IFIFO | 0o2777)),
        ('symlink', lambda name: os.symlink('nowhere', name)),
    ]
    for what, maker in makers:
        name = f'g/{who}-{what}'
        print(by(groups, maker, name))
        tell(f'{who} {what}', name)
    for given in 6002, 7000:
        name = f'{who}-{given}'
        make(name, 0o755); os.chown(name, 6002, given)
        print(by(groups, os.chmod, name, 0o2755)); tell(f'{who} chmod {given}', name)
        os.chmod(name, 0o6755)
        print(by(groups, os.chown, name, -1, 7000)); tell(f'{who} chown {given}', name)
        os.mkdir(f'{name}-d'); os.chown(f'{name}-d', 6002, given)
        print(by(groups, os.chmod, f'{name}-d', 0o2755)); tell(f'{who} chmod {given} d', f'{name}-d')

RIGHTS = bytes([1, 0, 0, 2, 128] + 15 * [0])
def capable(what, act):
    make(what, 0o755)
    with open(what, 'w') as file: file.write('program')
    os.setxattr(what, 'security.capability', RIGHTS)
    act(what)
    time.sleep(0.1)
    try: left = os.getxattr(what, 'security.capability') == RIGHTS
    except OSError as error: left = error.errno
    tell(what, what, left, os.listxattr(what))

def opened(flags, act=lambda fd: None):
    def use(name):
        fd = os.open(name, flags)
        act(fd)
        os.close(fd)
    return use

capable('cap-read', opened(os.O_RDONLY))
capable('cap-rdwr', opened(os.O_RDWR))
capable('cap-append', opened(os.O_WRONLY | os.O_APPEND))
capable('cap-twice', lambda name: (opened(os.O_RDWR)(name), opened(os.O_WRONLY)(name)))
capable('cap-trunc', opened(os.O_WRONLY | os.O_TRUNC))
capable('cap-write', opened(os.O_RDWR, lambda fd: os.write(fd, b'x')))
capable('cap-ftruncate', opened(os.O_RDWR, lambda fd: os.ftruncate(fd, 3)))
capable('cap-chmod', lambda name: os.chmod(name, 0o700))
capable('cap-chown', lambda name: os.chown(name, 6002, -1))
capable('cap-utime', lambda name: os.utime(name, (1, 1)))
";

#[track_caller]
fn what_is_seen(directory: &Path) -> String {
    fs::create_dir(directory).unwrap();
    let done =
        Command::new("python3").args(["-c", SCRIPT]).current_dir(directory).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Regressions: whoever is in the group of a set-group-id directory by a supplementary group made files there without the bit that
/// was asked for, and a file that was opened to write lost its capability with the close.
#[test]
fn set_group_id_bits_and_capabilities_are_those_of_a_local_file_system() {
    let nodes = ["one", "two"];
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["one", "two", "alone"]) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("mounting for all users needs root");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("python3 is not installed");
    }
    let Some(tiers) = SharedTiers::new(scratch, &nodes) else { return };
    for disk in ["tiers/ssd", "tiers/hdd"] {
        fs::create_dir_all(tiers.scratch.path(disk)).unwrap();
    }
    // Others reach the mounts by the working directory only.
    fs::set_permissions(tiers.scratch.path(""), Permissions::from_mode(0o700)).unwrap();
    let tiers = tiers.mounted(&nodes, &["--allow-other"]);
    let scratch = &tiers.scratch;
    scratch.succeed(&["mount", "--tier", "tiers", "alone", "--allow-other"]);
    let local = what_is_seen(&scratch.path("local"));
    assert!(local.contains("member sgid 0o102755 6002 7000"), "{local}");
    assert!(local.contains("cap-rdwr 0o100755 0 0 True"), "{local}");
    for mount in ["alone", "one", "two"] {
        let there = what_is_seen(&scratch.path(mount).join(format!("of {mount}")));
        let differs = local.lines().zip(there.lines()).filter(|(local, there)| local != there);
        let differs: Vec<_> = differs.collect();
        assert!(differs.is_empty() && local.len() == there.len(), "{mount}: {differs:#?}");
    }
    scratch.succeed(&["umount", "alone"]);
}
