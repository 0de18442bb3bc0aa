//! A mount of an ordinary user, whom permissions stop.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use tempfile::TempDir;

use halocline_api::control::{Controlled, RuleChange};
use halocline_tier::{Chore, Handle, TierOptions};
use halocline_vfs::{Engine, Make, SetAttr};

use crate::copying::noting;
use crate::fixture::{BY, CALLER, Fixture, limited};

const NOBODY: u32 = 65_534;

/// Does something as an ordinary user with a directory of that user.
fn as_ordinary_user(act: impl FnOnce(TempDir) + Send) {
    let dir = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        return act(dir);
    }
    chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // The ids by which the kernel judges are a thread's own, and so are the capabilities they take.
    let user = || {
        // SAFETY: plain numbers that concern the calling thread only.
        unsafe {
            libc::setfsgid(NOBODY);
            libc::setfsuid(NOBODY);
        }
        assert!(fs::read("/proc/1/environ").is_err(), "permissions stop this thread");
        act(dir);
    };
    std::thread::scope(|scope| scope.spawn(user).join().unwrap());
}

fn in_dir(dir: TempDir, options: TierOptions) -> Fixture {
    Fixture::within(dir, &["ssd", "hdd"], options)
}

/// `git` and `tar` make files that nobody may open for writing, and write them.
fn create_read_only(fixture: &Fixture, path: &str) -> Handle {
    let (dir, name) = fixture.at(path);
    fixture.tier().create((&dir, name), 0o444, libc::O_RDWR, BY).unwrap().2
}

/// What was written to such a file after it had moved failed with EACCES.
#[test]
fn a_read_only_file_that_is_still_written_moves() {
    as_ordinary_user(|dir| {
        let fixture = in_dir(dir, limited(256 << 10));
        let tier = fixture.tier();
        let moved = create_read_only(&fixture, "moved");
        tier.write(&moved, 0, b"one", CALLER).unwrap();
        for (at, bring) in [(3, false), (6, true), (9, false)] {
            let report = if bring { fixture.warm("moved") } else { fixture.demote("moved") };
            assert_eq!(report.files, 1, "{report:?}");
            tier.write(&moved, at, b"two", CALLER).unwrap();
        }
        assert_eq!(fixture.read(&moved), b"onetwotwotwo");
        // One that outgrows the SSD, and one that is never to be there.
        let big = create_read_only(&fixture, "big");
        for number in 0..8 {
            tier.write(&big, number << 16, &vec![7; 64 << 10], CALLER).unwrap();
        }
        assert_eq!((fixture.where_is("big"), fixture.read(&big).len()), (1, 512 << 10));
        tier.change_rules(&RuleChange::Exclude("*.pack".into())).unwrap();
        let excluded = create_read_only(&fixture, "x.pack");
        tier.write(&excluded, 0, b"packed", CALLER).unwrap();
        assert_eq!(fixture.where_is("x.pack"), 1);
        assert_eq!(fixture.content("x.pack").unwrap(), b"packed");
        fixture.check_places();
    });
}

/// Files in directories that their owner has closed (as Go's module cache) cannot move. They were
/// copied for nothing, each second, and eight of them kept all others from leaving a full SSD.
#[test]
fn closed_directories_keep_their_files_and_nobody_elses() {
    as_ordinary_user(|dir| {
        // Room for half a file more than the twelve that cannot leave.
        let share = 100.0 * (12.5 * 32.0) / 1024.0;
        let watermarks = TierOptions { high: share, low: share, ..limited(1 << 20) };
        let fixture = in_dir(dir, TierOptions { policy: "lru".into(), ..watermarks });
        let (root, name) = fixture.at("closed");
        let (closed, _) = fixture.tier().make((&root, name), Make::Directory(0o755), BY).unwrap();
        for number in 0..12 {
            fixture.write(&format!("closed/{number}"), &vec![1; 32 << 10]);
        }
        fixture.write("open", &vec![1; 32 << 10]);
        let set_mode = |mode| {
            let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
            fixture.tier().set_attr(&closed, None, &change, CALLER).unwrap();
        };
        set_mode(0o555);
        let steps = noting(&fixture, &[], || assert!(fixture.work(Chore::Demote)));
        let copied = steps.iter().filter(|step| **step == "creating a copy").count();
        assert_eq!((copied, fixture.where_is("open")), (1, 1));
        assert!(fixture.demote("closed/0").skipped[0].reason.contains("directory"));
        set_mode(0o755);
        assert_eq!(fixture.demote("closed/0").files, 1);
        // Its mirror below follows, so that more can go there, and come back.
        set_mode(0o555);
        assert_eq!(
            fs::metadata(fixture.hdd("closed")).unwrap().permissions().mode() & 0o777,
            0o555
        );
        set_mode(0o700);
        assert_eq!(
            fs::metadata(fixture.hdd("closed")).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert_eq!((fixture.demote("closed/1").files, fixture.warm("closed/0").files), (1, 1));
        fixture.check_places();
    });
}
