//! Runs over one origin and cache share one engine (I8), which ends with its last user (I7).

use std::fs;
use std::ops::Deref;
use std::process::{Child, Command, Output, Stdio};

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;

/// A place for several runs. Commands that wait for [`Joining::go`] end when it is dropped.
struct Joining(Scratch);

impl Deref for Joining {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        let _ = fs::write(self.path("go"), "");
    }
}

impl Joining {
    /// `None`, with the reason, where no mount can be made.
    fn new() -> Option<Self> {
        Scratch::new(program!()).map(Self)
    }

    /// Starts a shell script on the origin; dirty data stays on the cache until somebody flushes.
    fn start(&self, flags: &[&str], script: &str) -> Child {
        let head = ["run", "--origin", "origin", "--cache", "cache"];
        let mut command = self.command(&[&head[..], flags, &["--", "sh", "-c", script]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts the first run, whose command waits until `go` is there.
    fn first(&self) -> Child {
        let flags = ["--policy", "always", "--rebuild=false"];
        let child = self.start(&flags, &format!("echo first > origin/a; touch up1; {WAIT}"));
        self.wait_for("up1");
        child
    }

    fn wait_for(&self, name: &str) {
        eventually(name, || self.path(name).exists());
    }

    fn go(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    fn mount(&self) {
        let mount = ["mount", "origin", "mnt", "--cache", "cache", "--policy", "always"];
        let output = self.halocline(&[&mount[..], &["--rebuild=false"]].concat());
        assert!(output.status.success(), "{}", said(&output));
    }

    fn on_origin(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("origin").join(name)).ok()
    }
}

const WAIT: &str = "while [ ! -e go ]; do sleep 0.02; done";

#[track_caller]
fn end_of(mut child: Child) -> Output {
    eventually("the end of the run", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap()
}

/// The second was refused: two jobs on one directory could not use the cache together.
#[test]
fn i7_a_second_run_joins_and_the_engine_ends_with_its_last_user() {
    let Some(scratch) = Joining::new() else { return };
    let script = "echo first > origin/a; touch up1; while [ ! -e up2 ]; do sleep 0.02; done; \
                  cat origin/b";
    let first = scratch.start(&["--policy", "always", "--rebuild=false"], script);
    scratch.wait_for("up1");
    let script =
        format!("cat origin/a; echo second > origin/b; touch up2; {WAIT}; cat origin/b; exit 5");
    let report = ["--policy", "always", "--report", "r.json"];
    let mut second = scratch.start(&report, &script);
    scratch.wait_for("up2");
    let mut first = first;
    let mut told = std::io::BufReader::new(first.stderr.take().unwrap());
    let lines = std::io::BufRead::lines(&mut told).map(Result::unwrap);
    // Origin and cache lie on one file system.
    let line = lines.into_iter().find(|line| !line.contains("note:")).unwrap();
    assert!(line.contains("waiting for them"), "{line}");
    assert!(first.try_wait().unwrap().is_none(), "it serves the second");
    assert!(second.try_wait().unwrap().is_none());
    scratch.go();
    let second = end_of(second);
    assert_eq!(second.status.code(), Some(5), "{}", said(&second));
    assert_eq!(written(&second), "first\nsecond\n");
    assert!(said(&second).contains("joined the engine of process"), "{}", said(&second));
    assert_eq!(scratch.on_origin("b").as_deref(), Some("second\n"), "it flushed what it wrote");
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(scratch.path("r.json")).unwrap()).unwrap();
    assert_eq!((&report["exit_status"], &report["dirty_bytes_left"]), (&5.into(), &0.into()));
    assert_eq!(report["write"]["bytes"], 7, "what it wrote, and not what was before");
    let first = end_of(first);
    assert_eq!(first.status.code(), Some(0));
    assert_eq!(written(&first), "second\n");
    assert_eq!(scratch.on_origin("a").as_deref(), Some("first\n"));
    assert!(scratch.halocline(&["fsck", "cache"]).status.success());
}

#[test]
fn i8_runs_that_begin_at_the_same_moment_share_an_engine() {
    let Some(scratch) = Joining::new() else { return };
    for round in 0..4 {
        let start = |name: &str| {
            let script = format!("echo {name} > origin/{name}; cat origin/{name}");
            scratch.start(&["--policy", "always"], &script)
        };
        let names = ["a", "b", "c"].map(|name| format!("{name}{round}"));
        let runs = names.each_ref().map(|name| start(name));
        for (run, name) in runs.into_iter().zip(&names) {
            let output = end_of(run);
            assert!(output.status.success(), "{}", said(&output));
            assert_eq!(written(&output), format!("{name}\n"));
            assert_eq!(scratch.on_origin(name), Some(format!("{name}\n")));
        }
    }
}

#[test]
fn i4_a_killed_engine_is_told_by_those_who_joined_and_loses_nothing() {
    let Some(scratch) = Joining::new() else { return };
    let mut first = scratch.first();
    let script = format!("echo second > origin/b && touch up2; {WAIT}; cat origin/b");
    let second = scratch.start(&[], &script);
    scratch.wait_for("up2");
    first.kill().unwrap();
    first.wait().unwrap();
    scratch.go();
    let second = end_of(second);
    assert_ne!(second.status.code(), Some(0), "{}", said(&second));
    assert!(said(&second).contains("the next mount recovers it"), "{}", said(&second));
    let output = end_of(scratch.start(&["-q"], "cat origin/a origin/b"));
    assert_eq!(written(&output), "first\nsecond\n", "{}", said(&output));
}

#[test]
fn i7_the_command_of_a_killed_member_is_served_to_its_end() {
    let Some(scratch) = Joining::new() else { return };
    let flags = ["--policy", "always", "--rebuild=false"];
    let first = scratch.start(&flags, "touch up1; while [ ! -e end ]; do sleep 0.02; done");
    scratch.wait_for("up1");
    let script = format!("touch up2; {WAIT}; echo late > origin/late");
    let mut second = scratch.start(&[], &script);
    scratch.wait_for("up2");
    second.kill().unwrap();
    second.wait().unwrap();
    fs::write(scratch.path("end"), "").unwrap();
    scratch.go();
    assert!(end_of(first).status.success());
    assert_eq!(scratch.on_origin("late").as_deref(), Some("late\n"));
}

#[test]
fn a_run_that_wants_other_options_is_refused() {
    let Some(scratch) = Joining::new() else { return };
    let first = scratch.first();
    let second = end_of(scratch.start(&["--policy", "never"], "true"));
    assert_eq!(second.status.code(), Some(2), "{}", said(&second));
    assert!(said(&second).contains("leave --policy out"), "{}", said(&second));
    fs::create_dir(scratch.path("other")).unwrap();
    let other = ["run", "--origin", "other", "--cache", "cache", "--", "true"];
    let other = scratch.halocline(&other);
    assert_eq!(other.status.code(), Some(2), "{}", said(&other));
    assert!(said(&other).contains("for another origin"), "{}", said(&other));
    scratch.go();
    assert!(end_of(first).status.success());
}

/// A step of a job that brings the job's own origin and cache.
#[test]
fn a_run_within_a_run_joins_it() {
    let Some(scratch) = Joining::new() else { return };
    let halocline = scratch.program().display().to_string();
    let script = format!(
        "echo outer > origin/a; '{halocline}' run -q --origin origin --cache cache -- \
         sh -c 'cat origin/a; echo inner > origin/b'; cat origin/b"
    );
    let output = end_of(scratch.start(&["-q", "--policy", "always"], &script));
    assert_eq!(written(&output), "outer\ninner\n", "{}", said(&output));
}

#[test]
fn a_run_joins_a_mount_and_keeps_it() {
    let Some(scratch) = Joining::new() else { return };
    scratch.mount();
    fs::write(scratch.path("mnt/a"), "mounted\n").unwrap();
    let script = format!("cat origin/a; echo joined > origin/b; cat mnt/b; touch up2; {WAIT}");
    let run = scratch.start(&["-q"], &script);
    scratch.wait_for("up2");
    let refused = scratch.halocline(&["umount", "mnt"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("runs have joined"), "{}", said(&refused));
    scratch.go();
    let run = end_of(run);
    assert_eq!(written(&run), "mounted\njoined\n", "{}", said(&run));
    assert_eq!(scratch.on_origin("b").as_deref(), Some("joined\n"));
    assert_eq!(fs::read(scratch.path("mnt/a")).unwrap(), b"mounted\n", "it goes on");
    let done = scratch.halocline(&["umount", "mnt"]);
    assert!(done.status.success(), "{}", said(&done));
}

/// It was refused as in use while the old process flushed.
#[test]
fn a_mount_after_the_systems_umount_waits_for_the_old_one() {
    let Some(scratch) = Joining::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can unmount with umount");
    }
    for round in 0..3 {
        scratch.mount();
        let name = format!("file{round}");
        fs::write(scratch.path("mnt").join(&name), vec![7; 4 << 20]).unwrap();
        let umount = || Command::new("umount").arg(scratch.path("mnt")).output().unwrap();
        eventually("the umount", || umount().status.success());
        scratch.mount();
        assert_eq!(fs::read(scratch.path("mnt").join(&name)).unwrap(), vec![7; 4 << 20]);
        assert!(scratch.halocline(&["umount", "mnt"]).status.success());
    }
}

/// Root ran the program of whoever had prepared the cache and listened there.
#[test]
fn an_engine_of_another_user_is_not_joined() {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    fs::create_dir_all(scratch.path("cache")).unwrap();
    for dir in [scratch.path(""), scratch.path("cache")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let socket = scratch.path("cache").join("control.sock");
    let (ready, is_ready) = std::sync::mpsc::channel();
    let listening = std::thread::spawn(move || {
        const OTHER_USER: u32 = 54_321;
        // The system call itself changes this thread only, the function of the C library all.
        // SAFETY: three numbers; it touches no memory of ours.
        let done =
            unsafe { libc::syscall(libc::SYS_setresuid, OTHER_USER, OTHER_USER, OTHER_USER) };
        assert_eq!(done, 0);
        let listener = UnixListener::bind(socket).unwrap();
        ready.send(()).unwrap();
        let mut asked = String::new();
        listener.accept().unwrap().0.read_to_string(&mut asked).unwrap();
        asked
    });
    is_ready.recv().unwrap();
    let run = scratch.halocline(&["run", "--origin", "origin", "--cache", "cache", "--", "true"]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success() && !said.contains("joined"), "{said}");
    assert_eq!(listening.join().unwrap(), "", "nothing was told to it");
}
