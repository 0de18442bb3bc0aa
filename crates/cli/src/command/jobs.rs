//! `halocline jobs`: which files will be used, told before they are.

#[cfg(test)]
mod fuzzing;
mod trace;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Subcommand};
use halocline_api::control::{JobChange, JobInfo, MountedPath, Request};
use halocline_api::jobs::JOB_VARIABLE;
use halocline_os::bounded;
use halocline_os::counted::counted;
use serde_json::json;

use super::bulk::only_on_a_tier;
use super::print_json;
use super::run::find_program;
use crate::failure::{Failure, Outcome};
use crate::inherited;
use crate::mount_lookup;
use crate::print::{say, tell};

/// Bytes of a job file at most, as the mount takes it.
const FILE_BYTES_MAX: u64 = 60 << 20;
/// Bytes of a list of paths, or of a trace, at most.
const LIST_BYTES_MAX: u64 = 4 << 30;

/// Announce the files that jobs will use to a file tier's policy
#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    what: JobsCommand,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// Announce the job that a JSON file describes (docs/JOBS.md)
    Add {
        /// The job file
        file: PathBuf,
        #[command(flatten)]
        on: On,
    },
    /// List announced jobs and how far they are
    List {
        #[command(flatten)]
        on: On,
    },
    /// Take a job back
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        on: On,
    },
    /// Run a command whose opens, and those of what it starts, are the job's own
    Run {
        /// Name of the announced job
        name: String,
        #[command(flatten)]
        on: On,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Write a job file from a list of paths, or from what `strace -f -e trace=open,openat -o LIST` wrote
    Make {
        /// Name of the job
        name: String,
        /// One path a line, or strace's lines
        #[arg(short = 'f', long = "files-from", value_name = "LIST")]
        list: PathBuf,
        /// Mount point that the paths lie on; others are left out
        #[arg(long, value_name = "DIR")]
        mountpoint: Option<PathBuf>,
    },
}

/// Which mount.
#[derive(Debug, Args)]
struct On {
    /// A path on the mount
    #[arg(long = "on", value_name = "PATH", default_value = ".")]
    path: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Does it.
pub(crate) fn execute(args: &JobsArgs) -> Outcome {
    match &args.what {
        JobsCommand::Add { file, on } => ask(on, JobChange::Add(read(file)?), Some(file)),
        JobsCommand::List { on } => ask(on, JobChange::List, None),
        JobsCommand::Remove { name, on } => ask(on, JobChange::Remove(name.clone()), None),
        JobsCommand::Run { name, on, command } => run(name, on, command),
        JobsCommand::Make { name, list, mountpoint } => make(name, list, mountpoint.as_deref()),
    }
}

/// The text of a job file.
pub(super) fn read(file: &Path) -> Result<String, Failure> {
    let text = bounded::read_to_string(file, FILE_BYTES_MAX);
    text.map_err(|error| Failure::unreadable(file, &error))
}

/// Changes or lists the jobs of a mount; a change may be what a `file` holds.
fn ask(on: &On, change: JobChange, file: Option<&Path>) -> Outcome {
    let mounted = tier_at(on)?;
    let answer = mount_lookup::connect(&mounted)?.call(&Request::Jobs(change), |_| {});
    let jobs: Vec<JobInfo> = answer.map_err(|error| Failure::answered(error).about(file))?;
    if on.json {
        return print_json(&jobs);
    }
    if jobs.is_empty() {
        say!("no jobs are announced");
    }
    for job in jobs {
        say!("{}", super::tier_text::job(&job));
    }
    Ok(ExitCode::SUCCESS)
}

/// The mount, which only a file tier can be.
fn tier_at(on: &On) -> Result<MountedPath, Failure> {
    let mounted = mount_lookup::named(&on.path)?;
    only_on_a_tier(
        true,
        [&mounted],
        "jobs are announced to one, see `halocline mount --tier ROOT`",
    )?;
    Ok(mounted)
}

/// A new run of the job begins with the command, which takes the place of this process.
fn run(name: &str, on: &On, command: &[OsString]) -> Outcome {
    find_program(&command[0], "the job stays where it is")?;
    let begin = Request::Jobs(JobChange::Begin(name.to_owned()));
    let answer = mount_lookup::connect(&tier_at(on)?)?.call(&begin, |_| {});
    let _: Vec<JobInfo> = answer.map_err(Failure::answered)?;
    inherited::restore();
    let error = Command::new(&command[0]).args(&command[1..]).env(JOB_VARIABLE, name).exec();
    let status = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
    let program = command[0].to_string_lossy();
    Err(Failure::with_status(status, format!("{program}: cannot be started: {error}")))
}

fn make(name: &str, list: &Path, mountpoint: Option<&Path>) -> Outcome {
    let text = bounded::read_to_string(list, LIST_BYTES_MAX);
    let text = text.map_err(|error| Failure::unreadable(list, &error))?;
    let names = names(&text, list)?;
    let references: Vec<PathBuf> =
        names.iter().filter_map(|path| relative(path, mountpoint)).collect();
    if references.is_empty() {
        return Err(Failure::refused(format!(
            "{} names no file below the mount; give its mount point with --mountpoint as the trace spells it, or trace with strace -y",
            list.display()
        )));
    }
    let files: BTreeSet<&PathBuf> = references.iter().collect();
    let files = counted(files.len(), "file");
    tell!("{} to {files}", counted(references.len(), "reference"));
    let job = json!({ "job": name, "references": references });
    print_json(&job)
}

/// The files of a list, one a line, or those that a trace says were opened.
fn names(text: &str, list: &Path) -> Result<Vec<String>, Failure> {
    let mut lines = text.lines().filter(|line| !line.is_empty());
    if lines.next().is_some_and(trace::is_a_line) {
        let opened = trace::opened(text);
        if opened.unknown > 0 {
            let count = opened.unknown;
            tell!(
                "halocline: left out {count} of the trace's opens, whose names are relative to a \
                 directory that it does not name (strace -y does) or not UTF-8"
            );
        }
        return Ok(opened.names);
    }
    if let Some(line) = lines.find(|line| trace::is_a_line(line)) {
        return Err(Failure::refused(format!(
            "{}: begins as a list of paths, but {line:?} is a line of strace's; give a list, or \
             what strace wrote with -o",
            list.display()
        )));
    }
    Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// A name below the mount point, without `.` and `..`; `None` for what is not below it.
fn relative(path: &str, mountpoint: Option<&Path>) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if plain.pop() => {}
            Component::ParentDir => return None,
            _ => plain.push(part),
        }
    }
    match mountpoint {
        Some(mountpoint) => plain.strip_prefix(mountpoint).ok().map(Path::to_owned),
        None => plain.is_relative().then_some(plain),
    }
    .filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_one_of_paths_or_a_trace() {
        let names =
            |text: &str| names(text, Path::new("list")).map_err(|error| format!("{error:?}"));
        assert_eq!(names("a/b c\n\nmy open(1).txt\n").unwrap(), ["a/b c", "my open(1).txt"]);
        let trace = "1 openat(AT_FDCWD, \"a\", O_RDONLY) = 3\n1 +++ exited with 0 +++\n";
        assert_eq!(names(trace).unwrap(), ["a"]);
        let mixed = names(&format!("b\n{trace}")).unwrap_err();
        assert!(mixed.contains("begins as a list"), "{mixed}");
        assert_eq!(relative("/mnt/x", Some(Path::new("/mnt"))), Some("x".into()));
        assert_eq!(relative("/etc/x", Some(Path::new("/mnt"))), None);
        assert_eq!(relative("/mnt/d/../x", Some(Path::new("/mnt"))), Some("x".into()));
        assert_eq!(relative("./d//x", None), Some("d/x".into()));
        assert_eq!(relative("../x", None), None);
    }
}
