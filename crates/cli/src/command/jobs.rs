//! `halocline jobs`: which files will be used, told before they are.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Subcommand};
use halocline_core::bounded;
use halocline_core::control::{JobChange, JobInfo, Request};
use halocline_core::counted::counted;
use halocline_core::error::Error;
use halocline_core::tier::JOB_VARIABLE;
use serde_json::json;

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::places;

/// Bytes of a job file at most, as the mount takes it.
const FILE_BYTES_MAX: u64 = 60 << 20;
/// Bytes of a list of paths, or of a trace, at most.
const LIST_BYTES_MAX: u64 = 4 << 30;

/// Announce the files that jobs will use to a file tier's policy
#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
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
    /// Write a job file from a list of paths, or from what `strace -f -e trace=open,openat` wrote
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
        What::Add { file, on } => {
            let text = bounded::read_to_string(file, FILE_BYTES_MAX);
            let text = text.map_err(Error::at(file, "read the job file"))?;
            ask(on, JobChange::Add(text))
        }
        What::List { on } => ask(on, JobChange::List),
        What::Remove { name, on } => ask(on, JobChange::Remove(name.clone())),
        What::Run { name, on, command } => run(name, on, command),
        What::Make { name, list, mountpoint } => make(name, list, mountpoint.as_deref()),
    }
}

fn ask(on: &On, change: JobChange) -> Outcome {
    let place = places::find(&on.path)?;
    let jobs: Vec<JobInfo> = place.connect()?.call(&Request::Jobs(change), |_| {})?;
    if on.json {
        return print_json(&jobs);
    }
    if jobs.is_empty() {
        println!("no jobs are announced");
    }
    for job in jobs {
        println!("{}", line(&job));
    }
    Ok(ExitCode::SUCCESS)
}

/// A new run of the job begins with the command, which takes the place of this process.
fn run(name: &str, on: &On, command: &[OsString]) -> Outcome {
    let begin = Request::Jobs(JobChange::Begin(name.to_owned()));
    let _: Vec<JobInfo> = places::find(&on.path)?.connect()?.call(&begin, |_| {})?;
    let error = Command::new(&command[0]).args(&command[1..]).env(JOB_VARIABLE, name).exec();
    let status = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
    let program = command[0].to_string_lossy();
    Err(Failure::with_status(status, format!("{program}: cannot be started: {error}")))
}

/// One job for people.
pub(super) fn line(job: &JobInfo) -> String {
    let JobInfo { name, references, position, files, state } = job;
    let references = counted(*references, "reference");
    let files = counted(*files, "file");
    format!("{name}: {state}, at {position} of {references} to {files}")
}

fn make(name: &str, list: &Path, mountpoint: Option<&Path>) -> Outcome {
    let text = bounded::read_to_string(list, LIST_BYTES_MAX);
    let text = text.map_err(Error::at(list, "read the list"))?;
    let references: Vec<PathBuf> =
        text.lines().filter_map(path_in).filter_map(|path| relative(&path, mountpoint)).collect();
    if references.is_empty() {
        return Err(Failure::refused(format!(
            "{} names no file below the mount; give its mount point with --mountpoint",
            list.display()
        )));
    }
    let files: BTreeSet<&PathBuf> = references.iter().collect();
    let files = counted(files.len(), "file");
    eprintln!("{} to {files}", counted(references.len(), "reference"));
    let job = json!({ "job": name, "references": references });
    print_json(&job)
}

/// The path of a line: the line itself, or what a successful open of strace's names.
fn path_in(line: &str) -> Option<Cow<'_, str>> {
    let call = ["openat(", "open("].iter().find_map(|call| line.find(call));
    let Some(at) = call else { return (!line.is_empty()).then_some(line.into()) };
    let (_, rest) = line[at..].split_once('"')?;
    let (path, after) = quoted(rest)?;
    let failed = after.rsplit_once("= ").is_some_and(|(_, result)| result.starts_with('-'));
    (!failed && !after.contains("O_DIRECTORY")).then_some(path.into())
}

/// What stands before the closing quotation mark, as strace escapes it, and what stands after. Job
/// files have no names that are not UTF-8.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut name = Vec::new();
    let mut rest = text.as_bytes();
    loop {
        match rest {
            [b'"', ..] => {
                let after = &text[text.len() - rest.len() + 1..];
                return Some((String::from_utf8(name).ok()?, after));
            }
            [b'\\', b'0'..=b'7', ..] => {
                let digits =
                    rest[1..].iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte));
                let (count, code) = digits.fold((1, 0), |(count, code), byte| {
                    (count + 1, code * 8 + u32::from(byte - b'0'))
                });
                name.push(u8::try_from(code).ok()?);
                rest = &rest[count..];
            }
            [b'\\', escaped, ..] => {
                name.push(match escaped {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    other => *other,
                });
                rest = &rest[2..];
            }
            [byte, ..] => {
                name.push(*byte);
                rest = &rest[1..];
            }
            [] => return None,
        }
    }
}

fn relative(path: &str, mountpoint: Option<&Path>) -> Option<PathBuf> {
    let path = Path::new(path);
    match mountpoint {
        Some(mountpoint) => path.strip_prefix(mountpoint).ok().map(Path::to_owned),
        None => path.is_relative().then(|| path.to_owned()),
    }
    .filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_are_found_in_lists_and_traces() {
        assert_eq!(path_in("a/b c").as_deref(), Some("a/b c"));
        let trace = "12 openat(AT_FDCWD, \"/mnt/x\", O_RDONLY|O_CLOEXEC) = 3";
        assert_eq!(path_in(trace).as_deref(), Some("/mnt/x"));
        // Names were taken as strace escapes them, which are no names of files.
        let trace = r#"open("/mnt/gr\303\266\303\237e \"x\"\1\\", O_RDONLY) = 3"#;
        assert_eq!(path_in(trace).as_deref(), Some("/mnt/größe \"x\"\u{1}\\"));
        assert_eq!(path_in(r#"open("/mnt/\377", O_RDONLY) = 3"#), None);
        assert_eq!(path_in("openat(AT_FDCWD, \"/mnt/x\", O_RDONLY) = -1 ENOENT (No such)"), None);
        assert_eq!(path_in("openat(AT_FDCWD, \"/mnt\", O_RDONLY|O_DIRECTORY) = 4"), None);
        assert_eq!(relative("/mnt/x", Some(Path::new("/mnt"))), Some("x".into()));
        assert_eq!(relative("/etc/x", Some(Path::new("/mnt"))), None);
    }
}
