//! What waits, for people: who reads that something did not come true wants to know what every process was waiting for.
//! Nothing here waits for what may be stuck itself: it only reads what the kernel tells of it.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, id};

/// How long a command may take that is asked what it knows, in seconds.
const LIMIT_SECONDS: &str = "20";

/// The threads of this process, and those of each whose command line has this text: states, and the functions of the
/// kernel in which they wait, as far as this user may know them.
pub fn threads(text: &str) -> String {
    let mut all = threads_of("this process", id());
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(number) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if number != id() && command.contains(text) {
            all += &threads_of(&command, number);
        }
    }
    all
}

fn threads_of(what: &str, process: u32) -> String {
    let mut told = format!("{process} ({what}):\n");
    for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        // The state follows the name, which stands in brackets and may contain some.
        let stat = read("stat");
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        let stack: Vec<String> = read("stack").lines().take(6).map(ToOwned::to_owned).collect();
        let in_call = read("syscall");
        let call = in_call.split(' ').next().unwrap_or_default().trim();
        let (name, waits) = (read("comm"), read("wchan"));
        let (number, state) = (thread.file_name(), state.unwrap_or('?'));
        let _ = writeln!(
            told,
            "  {} {}: {state}, in {waits}, system call {call}; {}",
            number.display(),
            name.trim_end(),
            stack.join(" ")
        );
    }
    told
}

/// How many requests of the kernel the servers of the FUSE mounts below a directory have not answered.
pub fn unanswered_requests(root: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut told = String::new();
    for mount in mounts.lines() {
        let mut words = mount.split(' ').skip(2);
        let (device, at) = (words.next(), words.nth(1));
        let minor = device.and_then(|device| device.split_once(':')).map(|(_, minor)| minor);
        let (Some(minor), Some(at)) = (minor, at.filter(|at| Path::new(at).starts_with(root)))
        else {
            continue;
        };
        let waiting = fs::read_to_string(format!("/sys/fs/fuse/connections/{minor}/waiting"));
        let waiting = waiting.map_or_else(|error| error.to_string(), |it| it.trim().to_owned());
        let _ = writeln!(told, "{at}: requests that are not answered: {waiting}");
    }
    told
}

/// What a command says, if it ends in time.
pub fn said_in_time(command: &Command) -> io::Result<String> {
    let mut limited = Command::new("timeout");
    limited.args(["-k", "1", LIMIT_SECONDS]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    let output = limited.output()?;
    let all = [output.stdout, output.stderr].concat();
    Ok(format!("{}: {}", output.status, String::from_utf8_lossy(&all)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::waiting::eventually;

    #[test]
    fn a_thread_that_waits_and_another_process_are_told() {
        let ((end, is_over), (started, has_started)) =
            (mpsc::channel::<()>(), mpsc::channel::<()>());
        let waiting = thread::Builder::new().name("it-waits".to_owned());
        let waits = move || {
            drop(started);
            is_over.recv()
        };
        let waiting = waiting.spawn(waits).unwrap();
        has_started.recv().unwrap_err();
        let mut other = Command::new("sleep").arg("98.7654").spawn().unwrap();
        let (this, mut all) = (format!("{} (sleep 98.7654", other.id()), String::new());
        // Its arguments are known a moment after it was started.
        eventually("the other process", || {
            all = threads("sleep 98.7654");
            all.contains(&this)
        });
        other.kill().unwrap();
        other.wait().unwrap();
        drop(end);
        waiting.join().unwrap().unwrap_err();
        let told: Vec<&str> = all.lines().filter(|line| line.contains("it-waits: ")).collect();
        assert_eq!(told.len(), 1, "{all}");
        assert!(told[0].contains("it-waits: S,") || told[0].contains("it-waits: R,"), "{all}");
    }

    #[test]
    fn what_a_command_says_is_told_also_if_it_fails() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $WORD; echo error >&2; exit 3"]).env("WORD", "word");
        let said = said_in_time(&command).unwrap();
        assert!(said.contains("3: word\nerror"), "{said}");
    }
}
