//! `halocline doctor`: what this machine offers, and what stands in the way.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::config::Config;
use halocline_cluster::glusterfs::{Client, UNSEEN};
use halocline_os::birth_time::born_ns;
use halocline_storage::volume::Origin;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::print_json;
use crate::failure::Outcome;
use crate::options::ConfigArgs;
use crate::print::say;
use crate::{inherited, mpi, open_engine, preflight, text};

/// First kernel with FUSE passthrough.
const PASSTHROUGH_KERNEL: (u32, u32) = (6, 9);
/// First kernel on which FUSE works inside user namespaces.
const NAMESPACE_KERNEL: (u32, u32) = (4, 18);
/// Open files that a mount should be allowed: one or two for each file that a program opens.
const OPEN_FILES_WANTED: u64 = 8192;

/// Check kernel, privileges, devices and directories
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The origin to be used
    #[arg(long, value_name = "DIR", requires = "cache")]
    origin: Option<PathBuf>,
    /// The cache to be used
    #[arg(long, value_name = "DIR", requires = "origin")]
    cache: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Works, with a loss that is named.
    Note,
    /// Will not work.
    Fail,
}

/// One thing that was checked.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    detail: String,
}

fn finding(what: &'static str, verdict: Verdict, detail: impl Into<String>) -> Finding {
    Finding { what, verdict, detail: detail.into() }
}

/// Checks everything. The status is 1 if something will not work, and 2 if a mount would refuse the options, the
/// configuration or the directories, too.
pub(crate) fn execute(args: &DoctorArgs) -> Outcome {
    let mut findings = vec![
        fuse_device(),
        kernel(),
        passthrough(),
        io_uring(),
        namespaces(),
        helper(),
        allow_other(),
        shim(),
        open_files(),
        limits(),
    ];
    let this_machine = findings.len();
    match args.config.load() {
        Ok(config) => {
            findings.push(finding("configuration", Verdict::Ok, source(&config)));
            if let (Some(origin), Some(cache)) = (&args.origin, &args.cache) {
                findings.extend(directories(origin, cache, &config));
            }
        }
        Err(error) => {
            findings.push(finding("configuration", Verdict::Fail, error.to_string()));
        }
    }
    if args.json {
        print_json(&findings)?;
    } else {
        for finding in &findings {
            let mark = match finding.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Note => "note",
                Verdict::Fail => "FAIL",
            };
            say!("{mark}  {:<20} {}", finding.what, finding.detail);
        }
    }
    let fails = |some: &[Finding]| some.iter().any(|finding| finding.verdict == Verdict::Fail);
    let (machine, given) = findings.split_at(this_machine);
    Ok(match (fails(given), fails(machine)) {
        (true, _) => ExitCode::from(2),
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::SUCCESS,
    })
}

fn source(config: &Config) -> String {
    config
        .source
        .as_ref()
        .map_or_else(|| "defaults, no file".into(), |file| file.display().to_string())
}

fn fuse_device() -> Finding {
    match preflight::fuse_device() {
        Ok(()) => finding("FUSE device", Verdict::Ok, "/dev/fuse can be opened"),
        Err(error) => finding("FUSE device", Verdict::Fail, error.to_string()),
    }
}

fn release() -> (String, (u32, u32)) {
    let name = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = name.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    (name, version)
}

fn kernel() -> Finding {
    let (name, version) = release();
    if version >= NAMESPACE_KERNEL {
        return finding("kernel", Verdict::Ok, name);
    }
    finding("kernel", Verdict::Fail, format!("{name}: `run` needs Linux 4.18 or later"))
}

/// Whether the kernel and the privileges allow FUSE passthrough, which the file tier uses.
fn passthrough() -> Finding {
    let (_, version) = release();
    let what = "FUSE passthrough";
    if version < PASSTHROUGH_KERNEL {
        return finding(
            what,
            Verdict::Note,
            "needs Linux 6.9; file data goes through the mount process",
        );
    }
    if rustix::process::geteuid().is_root() {
        return finding(what, Verdict::Ok, "the kernel and the privileges allow it");
    }
    finding(what, Verdict::Note, "needs CAP_SYS_ADMIN; file data goes through the mount process")
}

/// Whether the kernel offers requests through `io_uring`, and this process may have rings.
fn io_uring() -> Finding {
    let what = "FUSE over io_uring";
    match halocline_fuse::transport::uring::obstacle() {
        None => finding(what, Verdict::Ok, "requests come through io_uring"),
        Some(obstacle) => {
            finding(what, Verdict::Note, format!("requests come through /dev/fuse: {obstacle}"))
        }
    }
}

/// Whether an ordinary user can make the private mount of `run`.
fn namespaces() -> Finding {
    let value =
        |file: &str| fs::read_to_string(file).ok().and_then(|v| v.trim().parse::<u64>().ok());
    let what = "user namespaces";
    let closed = [
        ("/proc/sys/user/max_user_namespaces", 0, "user.max_user_namespaces=10000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", 0, "kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            1,
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ]
    .into_iter()
    .find(|(file, bad, _)| value(file) == Some(*bad));
    match closed {
        None => finding(what, Verdict::Ok, "ordinary users can use `run`"),
        Some((file, _, setting)) => {
            let verdict =
                if rustix::process::geteuid().is_root() { Verdict::Note } else { Verdict::Fail };
            let detail = format!("{file} forbids them: as root, sysctl {setting}");
            finding(what, verdict, detail)
        }
    }
}

fn helper() -> Finding {
    let what = "fusermount3";
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&dirs).map(|dir| dir.join(what)).find(|path| path.is_file());
    match found {
        Some(path) => finding(what, Verdict::Ok, path.display().to_string()),
        None => finding(
            what,
            Verdict::Note,
            "not installed (package fuse3): ordinary users cannot use `mount`, and in `run` they \
             write their own files only, not what a group or an ACL permits",
        ),
    }
}

fn allow_other() -> Finding {
    let what = "allow_other";
    if preflight::others_may_enter() {
        return finding(what, Verdict::Ok, "mounts can be for all users");
    }
    finding(
        what,
        Verdict::Note,
        "for mounts of ordinary users add user_allow_other to /etc/fuse.conf",
    )
}

fn shim() -> Finding {
    match mpi::shim() {
        Some(path) => finding("MPI shim", Verdict::Ok, path.display().to_string()),
        None => finding(
            "MPI shim",
            Verdict::Note,
            "libhalocline_mpi.so is not beside the program nor in $HALOCLINE_LIB_DIR: ranks and \
             hints of MPI programs stay unknown",
        ),
    }
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let what = "open files";
    if limit >= OPEN_FILES_WANTED {
        return finding(what, Verdict::Ok, format!("limit {limit}"));
    }
    finding(what, Verdict::Note, format!("the hard limit is {limit}: raise it (ulimit -Hn)"))
}

fn limits() -> Finding {
    let what = "limits";
    match (inherited::check_limits(), inherited::file_bytes_max()) {
        (Err(error), _) => finding(what, Verdict::Fail, error.to_string()),
        (Ok(()), None) => finding(what, Verdict::Ok, "files and memory of any size"),
        (Ok(()), Some(bytes)) => {
            let bytes = text::bytes(bytes);
            let told = format!("files of {bytes} at most: raise the hard limit (ulimit -Hf)");
            finding(what, Verdict::Note, told)
        }
    }
}

fn directories(origin: &Path, cache: &Path, config: &Config) -> Vec<Finding> {
    let sides = match preflight::sides(origin, cache, config) {
        Ok(sides) => sides,
        Err(error) => return vec![finding("directories", Verdict::Fail, error.to_string())],
    };
    let mut findings = vec![finding("directories", Verdict::Ok, "both can be used")];
    if let Some(common) = open_engine::one_device(&sides.origin, &sides.cache, config) {
        findings.push(finding("devices", Verdict::Note, common.of_a_cache()));
    }
    for (what, path, wanted) in
        [("origin device", &sides.origin, true), ("cache device", &sides.cache, false)]
    {
        findings.push(rotation(what, path, wanted));
        findings.push(calibration(path, config));
    }
    findings.extend(client(&sides.origin));
    findings.extend(birth_times(&sides.origin));
    let space =
        rustix::fs::statvfs(&sides.cache).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize));
    findings.push(finding("cache space", Verdict::Ok, format!("{} free", text::bytes(space))));
    findings
}

/// Whether the origin's client has caches that other nodes' changes do not reach; `None` if it is not known for any.
fn client(origin: &Path) -> Option<Finding> {
    let what = "origin client";
    let of = |path: &Path| path.display().to_string();
    match Client::of(origin) {
        Ok(Client::Other) => None,
        Ok(Client::Plain) => {
            let detail = format!("{}: GlusterFS, without caches of its own", of(origin));
            Some(finding(what, Verdict::Ok, detail))
        }
        Ok(Client::Unseen) => {
            Some(finding(what, Verdict::Note, format!("{}: {UNSEEN}", of(origin))))
        }
        Ok(client) => {
            let refused = client.check(origin).err()?;
            let detail = format!("with --cluster it would be refused: {refused}");
            Some(finding(what, Verdict::Note, detail))
        }
        Err(error) => Some(finding(what, Verdict::Note, error.to_string())),
    }
}

/// Whether the tree of a striped origin is on a file system that does not tell when files were made; `None` if it does, or the
/// origin is plain.
fn birth_times(origin: &Path) -> Option<Finding> {
    let tree = Origin::tree_in(origin).ok().filter(|tree| tree != origin)?;
    if born_ns(&fs::metadata(&tree).ok()?) > 0 {
        return None;
    }
    let detail = format!(
        "{}: its file system does not tell when files were made: a file that gets the inode number of one that was removed past \
         the mount could reach that one's data; put it on ext4 (inodes of 256 bytes), XFS or Btrfs, or remove files through \
         the mount alone",
        tree.display()
    );
    Some(finding("birth times", Verdict::Note, detail))
}

/// Whether the device rotates, according to the kernel; `None` if it does not know.
fn is_rotational(path: &Path) -> Option<bool> {
    let device = fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition has no queue of its own; the disk above it has one.
    let queue = [node.join("queue"), node.parent()?.join("queue")];
    let text = queue.iter().find_map(|dir| fs::read_to_string(dir.join("rotational")).ok())?;
    Some(text.trim() == "1")
}

fn rotation(what: &'static str, path: &Path, wanted: bool) -> Finding {
    match is_rotational(path) {
        Some(rotates) => {
            let verdict = if rotates == wanted { Verdict::Ok } else { Verdict::Note };
            let kind = if rotates { "a rotating disk" } else { "a solid-state device" };
            finding(what, verdict, format!("{}: {kind}", path.display()))
        }
        None => finding(what, Verdict::Note, format!("{}: of unknown kind", path.display())),
    }
}

fn calibration(path: &Path, config: &Config) -> Finding {
    let what = "calibration";
    if config.emulate.is_some() {
        return finding(what, Verdict::Ok, format!("{}: emulated", path.display()));
    }
    if config.device(path).is_some() {
        return finding(what, Verdict::Ok, format!("{}: measured", path.display()));
    }
    let path = path.display();
    finding(what, Verdict::Note, format!("{path}: run `halocline calibrate {path}`"))
}
