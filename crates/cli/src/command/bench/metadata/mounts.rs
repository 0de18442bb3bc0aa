//! The same operations as programs make them, through mounts: of a tier that nodes share, each node a mount of this
//! machine, beside a tier of one node and the shared directory itself.

mod large_directory;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::control::mount;
use halocline_os::bounded::{self, SMALL_FILE_BYTES_MAX};
use halocline_os::error::Error;
use rustix::process::geteuid;

use super::super::mount_processes::MountProcess;
use super::super::scratch_dir::{ScratchDir, clear_away_in};
use super::super::store_server::Server;
use super::record::{Large, MountResults, MountRow};
use super::{MetadataArgs, cpus, files, setup, text};
use crate::child::Signals;
use crate::command::bench::interrupted;
use crate::command::umount::detach;
use crate::failure::{Failure, Outcome};
use crate::print;
use crate::{mount_lookup, self_exec, store_password};

/// How long a mount may take to appear, and how often it is looked.
const WAIT_LIMIT: Duration = Duration::from_mins(1);
const TICK: Duration = Duration::from_millis(5);

/// What is done with a file, or its name.
type Act = fn(&Path) -> io::Result<()>;

/// Operations in their order, in own directories and in one for all.
const PHASES: [(&str, bool, Act); 9] = [
    ("create", false, create),
    ("stat", false, look),
    ("open", false, open),
    ("rename", false, rename),
    ("unlink", false, unlink_renamed),
    ("create", true, create),
    ("stat", true, look),
    ("open", true, open),
    ("unlink", true, unlink),
];

fn create(path: &Path) -> io::Result<()> {
    File::create_new(path).map(drop)
}

fn look(path: &Path) -> io::Result<()> {
    fs::symlink_metadata(path).map(drop)
}

fn open(path: &Path) -> io::Result<()> {
    File::open(path).map(drop)
}

fn rename(path: &Path) -> io::Result<()> {
    fs::rename(path, path.with_extension("new"))
}

fn unlink_renamed(path: &Path) -> io::Result<()> {
    fs::remove_file(path.with_extension("new"))
}

fn unlink(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

/// Measures and reports.
pub(super) fn execute(args: &MetadataArgs) -> Outcome {
    args.report.check()?;
    mount_lookup::check_answers(&args.dir).map_err(Failure::refused)?;
    let dir = fs::canonicalize(&args.dir).map_err(|error| Failure::unusable(&args.dir, &error))?;
    let mut signals = Signals::catch()?;
    if geteuid().is_root() {
        // Mounts that nobody else sees end with us, however we end.
        halocline_fuse::private_namespace().map_err(Failure::refused)?;
    }
    clear_away_in(&dir)?;
    let scratch = ScratchDir::make_in(&dir)?;
    let measured = measure(args, scratch.path(), &mut signals);
    let removed = scratch.remove();
    let (mounts, large) = measured?;
    removed?;
    let setup = setup(args, true, cpus());
    let results = MountResults { setup, mounts: compared(mounts), large };
    args.report.report(
        &results,
        |out| text::draw_mounts(&results, out),
        || {
            print::lines(&text::mounts(&results));
        },
    )
}

fn measure(
    args: &MetadataArgs,
    root: &Path,
    signals: &mut Signals,
) -> Result<(Vec<MountRow>, Option<Large>), Failure> {
    let server = Server::open(None)?;
    let mut mounts = Mounts { root: root.to_owned(), processes: Vec::new() };
    let most = args.nodes.iter().copied().max().unwrap_or(1);
    mounts.make(most, server.address().0, signals)?;
    let node = |number: u32| root.join(format!("mnt{number}"));
    let mut rows = Vec::new();
    for _ in 0..args.report.repeat {
        for &nodes in &args.nodes {
            let systems = [
                ("nodes", (0..nodes).map(node).collect::<Vec<_>>()),
                ("tier", (0..nodes).map(|_| root.join("tier-mnt")).collect()),
                ("disk", (0..nodes).map(|_| root.join("bare")).collect()),
            ];
            for (system, places) in systems {
                case(system, &places, files(args), signals, &mut rows)?;
            }
        }
    }
    let large = match args.entries {
        Some(entries) => {
            let places: Vec<PathBuf> = (0..most).map(node).collect();
            let ids: Vec<u32> = mounts.processes.iter().map(MountProcess::id).collect();
            let tell = |text: &str| args.report.tell(text);
            Some(large_directory::measure(&places, &ids, entries, &tell, signals)?)
        }
        None => None,
    };
    drop(mounts);
    server.end()?;
    Ok((rows, large))
}

/// All operations on one system, by a thread for each place.
fn case(
    system: &'static str,
    places: &[PathBuf],
    files: u32,
    signals: &mut Signals,
    rows: &mut Vec<MountRow>,
) -> Result<(), Failure> {
    let work = places[0].join("work");
    let at = |path: &Path| Error::at(path.to_owned(), "make the directory");
    let directory = |node: usize, shared: bool| {
        let name = if shared { "all".to_owned() } else { format!("own{node}") };
        places[node].join("work").join(name)
    };
    fs::create_dir(&work).map_err(at(&work))?;
    for node in 0..places.len() {
        fs::create_dir(directory(node, false)).map_err(at(&work))?;
    }
    fs::create_dir(directory(0, true)).map_err(at(&work))?;
    for (operation, shared, act) in PHASES {
        if let Some(signal) = signals.stop_signal() {
            return Err(interrupted(signal));
        }
        let paths = |node: usize| -> Vec<PathBuf> {
            let dir = directory(node, shared);
            (0..files).map(|number| dir.join(format!("f{node}-{number}"))).collect()
        };
        let seconds = at_once(places.len(), &paths, act)
            .map_err(Error::at(work.clone(), operation))?
            .as_secs_f64();
        let nodes = u32::try_from(places.len()).unwrap_or(u32::MAX);
        let operations = u64::from(files) * u64::from(nodes);
        let directories = if shared { "shared" } else { "own" };
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let per_second = operations as f64 / seconds.max(1e-9);
        let of_tier = None;
        rows.push(MountRow {
            system,
            nodes,
            operation,
            directories,
            operations,
            seconds,
            per_second,
            of_tier,
        });
    }
    fs::remove_dir_all(&work).map_err(Error::at(work, "remove the directory"))?;
    Ok(())
}

/// Does something with each path, in as many threads as there are lists; from the first to the last.
fn at_once(
    count: usize,
    paths: &(dyn Fn(usize) -> Vec<PathBuf> + Sync),
    act: Act,
) -> io::Result<Duration> {
    let ready = Barrier::new(count);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|node| {
                let ready = &ready;
                scope.spawn(move || {
                    let paths = paths(node);
                    ready.wait();
                    let begun = Instant::now();
                    paths.iter().try_for_each(|path| act(path))?;
                    Ok((begun, Instant::now()))
                })
            })
            .collect();
        let times = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let times: Vec<(Instant, Instant)> = times.collect::<io::Result<_>>()?;
        // This thread may be woken later than those.
        let begun = times.iter().map(|(begun, _)| *begun).min();
        let ended = times.iter().map(|(_, ended)| *ended).max();
        Ok(begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun))
    })
}

/// Each case once, the run of the median rate, beside the tier of one node.
fn compared(mut rows: Vec<MountRow>) -> Vec<MountRow> {
    let key = |row: &MountRow| (row.nodes, row.operation, row.directories);
    let mut medians: Vec<MountRow> = Vec::new();
    while let Some(first) = rows.first().cloned() {
        let is_same = |row: &MountRow| key(row) == key(&first) && row.system == first.system;
        let (mut same, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_same);
        rows = others;
        same.sort_by(|one, other| one.per_second.total_cmp(&other.per_second));
        medians.push(same.swap_remove(same.len() / 2));
    }
    let tiers: Vec<MountRow> = medians.iter().filter(|row| row.system == "tier").cloned().collect();
    for row in medians.iter_mut().filter(|row| row.system != "tier") {
        let tier = tiers.iter().find(|tier| key(tier) == key(row));
        row.of_tier = tier.map(|tier| row.per_second / tier.per_second);
    }
    medians
}

/// What is mounted in a directory; unmounted when this is dropped.
#[derive(Debug)]
struct Mounts {
    root: PathBuf,
    processes: Vec<MountProcess>,
}

impl Mounts {
    /// Mounts so many nodes, and a tier of one.
    fn make(&mut self, nodes: u32, url: &str, signals: &mut Signals) -> Result<(), Failure> {
        let root = self.root.clone();
        let at = |name: &str| root.join(name);
        let make = |name: &str| {
            fs::create_dir_all(at(name)).map_err(Error::at(at(name), "create the directory"))
        };
        for name in ["disk", "bare", "tier/ssd", "tier/hdd", "tier-mnt"] {
            make(name)?;
        }
        let peers = at("{node}").join("ssd");
        for node in 0..nodes {
            let (tiers, mountpoint, name) =
                (format!("n{node}"), format!("mnt{node}"), format!("n{node}"));
            make(&format!("{tiers}/ssd"))?;
            make(&mountpoint)?;
            let link = at(&tiers).join("hdd");
            symlink("../disk", &link).map_err(Error::at(&link, "link the shared disk at"))?;
            let mut mount = self_exec::command();
            mount.args(["mount", "--foreground", "--tier"]).args([at(&tiers), at(&mountpoint)]);
            mount.args(["--cluster", url, "--node", &name, "--peers"]).arg(&peers);
            store_password::clear(&mut mount);
            self.start(mount, &mountpoint, signals)?;
        }
        let mut mount = self_exec::command();
        mount.args(["mount", "--foreground", "--tier"]).args([at("tier"), at("tier-mnt")]);
        self.start(mount, "tier-mnt", signals)
    }

    /// Starts a mount, and waits until it is there.
    fn start(
        &mut self,
        mut command: std::process::Command,
        name: &str,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let log = self.root.join(format!("{name}.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut process = MountProcess::start(&mut command)?;
        let begun = Instant::now();
        while !mount::is_mountpoint(&self.root.join(name))? {
            if let Some(signal) = signals.stop_signal() {
                return Err(interrupted(signal));
            }
            if begun.elapsed() > WAIT_LIMIT || process.has_ended()? {
                let said = bounded::read_to_string(&log, SMALL_FILE_BYTES_MAX).unwrap_or_default();
                return Err(Failure::from(Error::invalid(
                    format!("the mount {name} did not appear: {}", said.trim()),
                    "`halocline doctor` tells what is missing",
                )));
            }
            thread::sleep(TICK);
        }
        self.processes.push(process);
        Ok(())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.processes.clear();
        // The processes unmounted before they ended, or had to be killed.
        for left in mount::below(&self.root).unwrap_or_default().iter().rev() {
            let _ = detach(left);
        }
    }
}
