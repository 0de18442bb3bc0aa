//! `kill -9` before and after each record of a story in which programs remove files of which only the cache has some
//! bytes, some of them still open: what they removed is no conflict (I9), and what they did not remove has its bytes.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_api::config::Config;
use halocline_api::control::Controlled;
use halocline_cache::{Decorations, ExtentEngine};
use halocline_meta::records::{Batch, Opening, RecordStore, StoreKind, Visit};
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;
use halocline_vfs::Engine;
use rustix::process::{Signal, getpid, kill_process};

use crate::fixture::{BY, Fixture, ME, still};
use crate::plain_records;

/// Tells the child where to work and when to die.
const ORDERS: &str = "HALOCLINE_TEST_KILL_AT_RECORD";
/// The record at which the child dies, and whether after it; counted from the first one of the story.
static NTH: AtomicU64 = AtomicU64::new(u64::MAX);
static AFTER: AtomicU64 = AtomicU64::new(0);

/// The store of [`plain_records`], which kills the process before or after a record.
static KILLING: [StoreKind; 1] = [StoreKind { open: open_killing, ..plain_records::ROW[0] }];

#[derive(Debug)]
struct KillingStore(Arc<dyn RecordStore>);

fn open_killing(dir: PrivateDir, how: Opening) -> Result<Arc<dyn RecordStore>> {
    Ok(Arc::new(KillingStore((plain_records::ROW[0].open)(dir, how)?)))
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("nobody lives on")
}

impl RecordStore for KillingStore {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.0.scan(each)
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        let due = NTH.load(Ordering::Relaxed) == 0;
        if NTH.load(Ordering::Relaxed) != u64::MAX {
            NTH.fetch_sub(1, Ordering::Relaxed);
        }
        if due && AFTER.load(Ordering::Relaxed) == 0 {
            die();
        }
        self.0.commit(batch)?;
        if due {
            die();
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn close(&self, last: &Batch) -> Result<()> {
        self.0.close(last)
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn usable(&self) -> Result<()> {
        self.0.usable()
    }
}

fn config() -> Config {
    Config { record_store: plain_records::ROW[0].name.to_owned(), ..still(1 << 20, "always") }
}

type Handle = <ExtentEngine as Engine>::Handle;

fn made(engine: &ExtentEngine, name: &str, byte: u8) -> Handle {
    let flags = libc::O_RDWR | libc::O_CREAT;
    let handle = engine.create((&engine.root(), OsStr::new(name)), 0o644, flags, BY).unwrap().2;
    if byte > 0 {
        engine.write(&handle, 0, &[byte; 4096], ME).unwrap();
    }
    handle
}

/// What programs do. Each file that is not removed has one byte, 4096 times, or another one if it was replaced.
fn story(engine: &ExtentEngine) {
    let root = engine.root();
    let unlink = |name: &str| engine.unlink(&root, OsStr::new(name), ME).unwrap();
    let rename = |from: &str, to: &str| {
        engine.rename((&root, OsStr::new(from)), (&root, OsStr::new(to)), 0, ME).unwrap();
    };
    drop(made(engine, "closed", 1));
    unlink("closed");
    // The last close is on its way, as the kernel may have it, while the name is removed.
    let open = made(engine, "open", 2);
    unlink("open");
    engine.write(&open, 8192, &[2; 4096], ME).unwrap();
    // Another file gets its name.
    drop(made(engine, "open", 3));
    drop(open);
    // The cache knows nothing of it until it has no name.
    let unknown = made(engine, "unknown", 0);
    unlink("unknown");
    engine.write(&unknown, 0, &[4; 4096], ME).unwrap();
    drop(unknown);
    drop((made(engine, "old", 5), made(engine, "new", 6)));
    rename("new", "old");
    let replaced = made(engine, "replaced", 7);
    drop(made(engine, "mover", 8));
    rename("mover", "replaced");
    engine.write(&replaced, 8192, &[7; 4096], ME).unwrap();
    drop(replaced);
    // Removals that fail, and what becomes of their files then.
    let kept = made(engine, "kept", 9);
    let exclusive = libc::RENAME_NOREPLACE;
    engine
        .rename((&root, OsStr::new("old")), (&root, OsStr::new("kept")), exclusive, ME)
        .unwrap_err();
    drop(kept);
    rename("kept", "kept");
    engine.unlink(&root, OsStr::new("nothing"), ME).unwrap_err();
}

#[test]
#[ignore = "run by i9_what_programs_removed_before_a_kill_is_no_conflict"]
fn child() {
    let orders = std::env::var(ORDERS).expect("the parent gives orders");
    let [origin, cache, nth, after] = orders.split(':').collect::<Vec<_>>().try_into().unwrap();
    let around =
        Decorations { record_stores: &KILLING, data_bytes: Some(1 << 20), ..Decorations::NONE };
    let engine =
        ExtentEngine::open_decorated(Path::new(origin), Path::new(cache), &config(), around)
            .unwrap();
    AFTER.store(u64::from(after == "after"), Ordering::Relaxed);
    NTH.store(nth.parse().unwrap(), Ordering::Relaxed);
    story(&engine);
    // Nobody ends it in order.
    if NTH.load(Ordering::Relaxed) < u64::MAX / 2 {
        std::process::exit(0);
    }
    die();
}

/// Runs the story until it is killed; `false` when it ended first.
fn attack(nth: u64, when: &str) -> bool {
    let mut fixture = Fixture::in_memory(config());
    fixture.close();
    let (origin, cache) = (fixture.origin.path().display(), fixture.cache.path().display());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "removals::child", "--ignored"])
        .env(ORDERS, format!("{origin}:{cache}:{nth}:{when}"))
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(libc::SIGKILL);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(killed || output.status.success(), "{when} record {nth}: {said}");
    fixture.open();
    let status = fixture.engine().status();
    assert_eq!(status.notes, Vec::<String>::new(), "killed {when} record {nth}");
    assert_eq!(status.report.conflicts, 0, "killed {when} record {nth}");
    let bytes: &[(&str, &[u8])] = &[
        ("open", &[2, 3]),
        ("old", &[5, 6]),
        ("replaced", &[7, 8]),
        ("mover", &[8]),
        ("kept", &[9]),
    ];
    for (name, bytes) in bytes.iter().filter(|(name, _)| fixture.exists(name)) {
        let found = fixture.read(name, 0, 4096);
        // Zeros are of a write that was under way.
        let of_one = bytes.iter().chain(&[0]).any(|byte| found == [*byte; 4096]);
        assert!(of_one || found.is_empty(), "{name} has others' bytes, killed {when} record {nth}");
    }
    fixture.close();
    killed
}

/// Regression: a kill between a program's removal of a file and the last close, of which the kernel tells later, left
/// the file's dirty bytes, and the next mount told of a conflict.
#[test]
fn i9_what_programs_removed_before_a_kill_is_no_conflict() {
    for when in ["before", "after"] {
        let records = (0..500).take_while(|&nth| attack(nth, when)).count();
        assert!((30..500).contains(&records), "the story makes {records} records");
    }
}

/// What others did is told nevertheless.
#[test]
fn i9_what_others_replaced_before_a_program_removed_the_name_is_told() {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    fixture.others = true;
    let open = fixture.handle("file");
    fixture.engine().write(&open, 0, &[1; 4096], ME).unwrap();
    let path = fixture.origin.path().join("file");
    fs::File::create(path.with_extension("new")).unwrap().write_all(&[2; 500]).unwrap();
    fs::rename(path.with_extension("new"), &path).unwrap();
    fixture.engine().unlink(&fixture.engine().root(), OsStr::new("file"), ME).unwrap();
    drop(open);
    fixture.crash();
    fixture.open();
    let status = fixture.engine().status();
    assert_eq!(status.report.conflicts, 1, "{:?}", status.notes);
    assert!(status.notes.iter().any(|note| note.contains("saved in")), "{:?}", status.notes);
}
