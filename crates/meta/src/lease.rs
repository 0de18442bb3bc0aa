//! Until when a session may have changed the origin: distinguishes its own changes from those of others after it was
//! killed (I9).
//!
//! The record of a file that we are changing says so ([`Stamp::Writing`]), because the file's state after a kill in
//! mid-change cannot be known. The time can: before every change the lease says until when we may be making changes,
//! and it is prolonged every second or so. A file changed later than that was changed by others. There are two ends:
//! one as safe as the page cache, for a killed process, and a later one that was synced, for a machine that lost its
//! power.
//!
//! A disk that loses what it was never made to keep (a power loss, an aborted journal, a restarted server) shows files
//! as they were before. Their change times are then earlier than the recorded ones, which is impossible for a change
//! after the record: both are of the origin's one clock. Unless the session that recorded them had the origin synced
//! when it ended, that is a loss, not a change by others.
//!
//! A copied cache directory knows nothing of what the original did since. The lease contains its own file's inode
//! number and birth time, which a copy does not share.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::Stamp;
use super::exit_time::{self, ExitTime};
use halocline_os::boot_id::boot_id;
use halocline_os::clock::coarse_ms;
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};

/// Name of the file in the cache directory.
pub(crate) const LEASE_FILE: &str = "halocline-lease";

/// Bytes of the file: within one sector, so that a power loss leaves the old or the new ones.
const LENGTH: usize = 256;
/// First word of the file.
const MAGIC: &str = "lease-2";
/// First word in versions without an exit time.
const MAGIC_BEFORE: &str = "lease-1";

/// How far ahead of a change the end for a kill is; renewed when half of it has passed. A shorter time detects more
/// changes by others, a longer one tolerates longer pauses of a thread between its check of the lease and its change.
const KILL_MS: u64 = 2_000;
/// The same for the end for a power loss, whose renewal is a sync.
const POWER_MS: u64 = 60_000;

/// What the last session left for recognising its own changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Nothing: it was a session of an older version, or there was none.
    Nothing,
    /// The directory is a copy of another cache: its statements about the origin are from some time in the past.
    Copy,
    /// The process ended, orderly or not. It changed nothing after this time, in nanoseconds since the epoch. The
    /// origin's disk may have lost some of what the records say.
    Ended(i64),
    /// The session was closed after the origin was synced under all dirty bytes. It changed nothing after this time.
    Durable(i64),
    /// As `Ended`, and the records may be older than what the session last knew, because the store refused changes or
    /// the machine lost power; the state of the origin's disk may be older than both.
    Behind(i64),
}

/// A file of the origin compared with its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it was left.
    Same,
    /// Changed, and only by us.
    Ours,
    /// Its owner, mode, names or extended attributes were changed, but not its bytes: size and modification time are
    /// unchanged. Dirty bytes may go to the origin; clean ones are not worth the risk.
    Attributes,
    /// Changed by others.
    Theirs,
}

impl Evidence {
    /// The stamp to record for a file left as `left` that cannot be examined during this session: the evidence of a
    /// later session says nothing about it.
    pub fn kept(self, left: Stamp) -> Stamp {
        let until_ns = match (left, self) {
            (Stamp::Unjudged { .. }, _)
            | (
                Stamp::Closed { .. },
                Self::Ended(_) | Self::Durable(_) | Self::Nothing | Self::Copy,
            ) => {
                return left;
            }
            (_, Self::Behind(until_ns) | Self::Ended(until_ns) | Self::Durable(until_ns)) => {
                until_ns
            }
            (Stamp::Writing, Self::Nothing) => i64::MAX,
            (Stamp::Writing, Self::Copy) => i64::MIN,
        };
        Stamp::Unjudged { until_ns }
    }

    /// Where commands of ours may have given a file a new change time since: the time from which such a change is certainly later
    /// than all that this evidence and a record that says `left` know of, in nanoseconds since the epoch. `None` if the change time
    /// decides nothing.
    pub const fn known_until(self, left: Stamp) -> Option<i64> {
        match (left, self) {
            (Stamp::Unjudged { until_ns }, _)
            | (_, Self::Behind(until_ns))
            | (Stamp::Writing, Self::Ended(until_ns) | Self::Durable(until_ns)) => Some(until_ns),
            (Stamp::Closed { ctime_ns, .. }, Self::Ended(_)) => Some(ctime_ns),
            (Stamp::Closed { .. }, Self::Durable(_) | Self::Nothing | Self::Copy)
            | (Stamp::Writing, Self::Nothing | Self::Copy) => None,
        }
    }

    /// Compares how a file was left with how it is now.
    pub fn judge(self, left: Stamp, found: Stamp) -> Verdict {
        let Stamp::Closed { ctime_ns, .. } = found else { return Verdict::Ours };
        match (left, self) {
            _ if left == found => Verdict::Same,
            _ if left.same_bytes(found) => Verdict::Attributes,
            // The evidence of a later session says nothing about the one that changed the file.
            (Stamp::Unjudged { until_ns }, _) if ctime_ns <= until_ns => Verdict::Ours,
            (Stamp::Unjudged { .. }, _) => Verdict::Theirs,
            (_, Self::Behind(until_ns)) if ctime_ns <= until_ns => Verdict::Ours,
            (Stamp::Writing, Self::Ended(until_ns) | Self::Durable(until_ns))
                if ctime_ns <= until_ns =>
            {
                Verdict::Ours
            }
            // Earlier than the record: the origin lost data that was never synced.
            (Stamp::Closed { ctime_ns: recorded_ns, .. }, Self::Ended(_))
                if ctime_ns < recorded_ns =>
            {
                Verdict::Ours
            }
            (Stamp::Writing, Self::Nothing) => Verdict::Ours,
            _ => Verdict::Theirs,
        }
    }
}

/// Whether and how a session was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// It was not.
    No,
    /// Its records are complete.
    Recorded,
    /// And the origin was synced under all dirty bytes.
    Durable,
}

impl Closed {
    const NAMES: [(&str, Self); 3] =
        [("0", Self::No), ("1", Self::Recorded), ("durable", Self::Durable)];

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|row| row.1 == self).expect("each has a name").0
    }

    /// An unknown name means that the session was not closed.
    fn of_name(name: &str) -> Self {
        Self::NAMES.iter().find(|row| row.0 == name).map_or(Self::No, |row| row.1)
    }
}

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    boot_id: String,
    /// Ends of the lease in milliseconds since the epoch: written, and synced.
    until_ms: u64,
    synced_until_ms: u64,
    closed: Closed,
    /// Whether records are out of date because the store refuses changes.
    behind: bool,
    /// Inode number and birth time in nanoseconds of the file in which this was written.
    identity: (u64, i64),
    /// How far the origin's clock was found to be ahead of our clock.
    ahead_ms: u64,
    /// Identifies the semaphore that records when the process ended.
    exit: Option<exit_time::Name>,
    /// Whether changes were under way, the last of which may have completed when the process ended.
    busy: bool,
}

impl Text {
    fn encode(&self) -> [u8; LENGTH] {
        let Self { boot_id, until_ms, synced_until_ms, identity: (inode, born), ahead_ms, .. } =
            self;
        let (closed, behind) = (self.closed.name(), u8::from(self.behind));
        let (key, id) = self.exit.map_or((0, -1), |exit| (exit.key, exit.id));
        let busy = u8::from(self.busy);
        let text = format!(
            "{MAGIC} boot {boot_id} until {until_ms} synced {synced_until_ms} closed {closed} \
             behind {behind} inode {inode} born {born} ahead {ahead_ms} exit {key} {id} busy {busy} "
        );
        let mut bytes = [b' '; LENGTH];
        let len = text.len().min(LENGTH - 1);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        bytes[LENGTH - 1] = b'\n';
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let words: Vec<_> = std::str::from_utf8(bytes).ok()?.split_whitespace().collect();
        let (words, (ahead_ms, exit, busy)) = match words.split_at_checked(15)? {
            ([MAGIC_BEFORE, ..], []) => (&words[..], (0, None, false)),
            (words @ [MAGIC, ..], ["ahead", ahead_ms, "exit", key, id, "busy", busy]) => {
                let exit = exit_time::Name { key: key.parse().ok()?, id: id.parse().ok()? };
                let exit = Some(exit).filter(|exit| exit.id >= 0);
                (words, (ahead_ms.parse().ok()?, exit, *busy == "1"))
            }
            _ => return None,
        };
        let &[
            _,
            "boot",
            boot_id,
            "until",
            until_ms,
            "synced",
            synced_until_ms,
            "closed",
            closed,
            "behind",
            behind,
            "inode",
            inode,
            "born",
            born,
        ] = words
        else {
            return None;
        };
        Some(Self {
            boot_id: boot_id.to_owned(),
            until_ms: until_ms.parse().ok()?,
            synced_until_ms: synced_until_ms.parse().ok()?,
            closed: Closed::of_name(closed),
            behind: behind == "1",
            identity: (inode.parse().ok()?, born.parse().ok()?),
            ahead_ms,
            exit,
            busy,
        })
    }

    /// The evidence of a text that was found in a file of the user `user`.
    fn evidence(&self, (identity, user): ((u64, i64), u32), boot_id: &str) -> Evidence {
        // The kernel also notes the end of an idle process, which says nothing of its last change.
        let exit = self.exit.filter(|_| self.busy);
        let exit_ms = exit.and_then(|exit| exit.last_ms(user)).unwrap_or(0);
        let until_ms = self.until_ms.max(exit_ms.saturating_add(self.ahead_ms));
        if self.identity != identity {
            Evidence::Copy
        } else if self.boot_id != boot_id && self.closed == Closed::No {
            Evidence::Behind(nanoseconds(self.synced_until_ms))
        } else if self.behind {
            Evidence::Behind(nanoseconds(until_ms))
        } else if self.closed == Closed::Durable {
            Evidence::Durable(nanoseconds(until_ms))
        } else {
            Evidence::Ended(nanoseconds(until_ms))
        }
    }
}

/// The lease of the current session.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    file: File,
    text: Mutex<Text>,
    /// Copies of both ends, to be read without the lock.
    until_ms: AtomicU64,
    synced_until_ms: AtomicU64,
    /// How far the origin's clock is ahead of our clock, as far as its times have shown.
    ahead_ms: AtomicU64,
    warned: AtomicBool,
    /// Records when this process ended, if the system supports that.
    exit: OnceLock<ExitTime>,
    /// The semaphore of the last process, and that process's user.
    exit_before: Option<(exit_time::Name, u32)>,
}

impl Lease {
    /// Opens the lease of the cache in `dir`, which the caller owns, and returns the evidence of the last session. The
    /// file is unchanged until [`Lease::begin`]. `boot` replaces the machine's boot id when a test simulates a reboot.
    pub fn open(dir: &Path, boot: Option<&str>) -> Result<(Self, Evidence)> {
        let path = dir.join(LEASE_FILE);
        let boot_id = boot.map_or_else(boot_id, |id| Ok(id.to_owned()))?;
        let file = PrivateDir::open(dir)?.file(LEASE_FILE, Use::Write)?;
        let whose = location_of(&file).map_err(Error::at(&path, "look at"))?;
        let (evidence, before) = read(&file, whose, &boot_id).map_err(Error::at(&path, "read"))?;
        let text = Text {
            boot_id,
            until_ms: 0,
            synced_until_ms: 0,
            closed: Closed::No,
            behind: false,
            identity: whose.0,
            ahead_ms: 0,
            exit: None,
            busy: false,
        };
        let lease = Self {
            path,
            file,
            text: Mutex::new(text),
            until_ms: AtomicU64::new(0),
            synced_until_ms: AtomicU64::new(0),
            ahead_ms: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            exit: OnceLock::new(),
            exit_before: before.map(|exit| (exit, whose.1)),
        };
        Ok((lease, evidence))
    }

    /// The session begins: every file was judged by what the last session left.
    pub fn begin(&self) -> Result<()> {
        match ExitTime::new() {
            Ok(exit) => self.text.lock().exit = Some(self.exit.get_or_init(|| exit).name()),
            Err(error) => tracing::debug!(%error, "a kill will not tell its time"),
        }
        if let Some((exit, user)) = self.exit_before {
            exit.remove_left(user);
        }
        self.renew(true).map_err(Error::at(&self.path, "write"))
    }

    /// Changes begin, the last of which may complete long after a kill: makes the kernel note when.
    pub fn note_exit(&self) {
        self.change_exit(true, ExitTime::raise);
    }

    /// No changes are in progress any longer.
    pub fn forget_exit(&self) {
        self.change_exit(false, ExitTime::lower);
    }

    fn change_exit(&self, busy: bool, change: impl Fn(&ExitTime) -> io::Result<()>) {
        let Some(exit) = self.exit.get() else { return };
        let mut text = self.text.lock();
        text.busy = busy;
        if let Err(error) = change(exit).and_then(|()| self.write(&text, false)) {
            tracing::debug!(%error, "a kill will not tell its time");
        }
    }

    /// We are about to change the origin, or have just done so.
    pub fn extend(&self) {
        let now_ms = coarse_ms();
        let lasts = |until: &AtomicU64, ms| until.load(Ordering::Acquire) >= now_ms + ms;
        if lasts(&self.until_ms, KILL_MS / 2) && lasts(&self.synced_until_ms, KILL_MS) {
            return;
        }
        self.renew_or_warn(!lasts(&self.synced_until_ms, KILL_MS));
    }

    /// A change is still in progress: called at intervals of less than half of `KILL_MS`.
    pub fn prolong(&self) {
        let synced_until_ms = self.synced_until_ms.load(Ordering::Acquire);
        self.renew_or_warn(synced_until_ms < coarse_ms() + POWER_MS / 2);
    }

    /// Called now and then, in the background: renews the synced end before a program has to wait for that, if the
    /// origin is being changed at all.
    pub fn keep(&self) {
        let now_ms = coarse_ms();
        let is_used = self.until_ms.load(Ordering::Acquire) >= now_ms;
        if is_used && self.synced_until_ms.load(Ordering::Acquire) < now_ms + POWER_MS / 2 {
            self.renew_or_warn(true);
        }
    }

    /// A file that we have just changed has this `stamp`: the clock of the origin's server may be ahead of ours.
    pub fn observe(&self, stamp: Stamp) {
        let Stamp::Closed { ctime_ns, .. } = stamp else { return };
        let at_ms = u64::try_from(ctime_ns / 1_000_000).unwrap_or(0);
        let ahead_ms = at_ms.saturating_sub(coarse_ms() + TICK_MS);
        if ahead_ms > self.ahead_ms.fetch_max(ahead_ms, Ordering::AcqRel) {
            self.renew_or_warn(true);
        }
    }

    /// The store refused to record the state of a file.
    pub fn note_stale_records(&self) {
        let mut text = self.text.lock();
        if !std::mem::replace(&mut text.behind, true)
            && let Err(error) = self.write(&text, true)
        {
            tracing::warn!("{}: {error}", self.path.display());
        }
    }

    /// The session ends: every file is recorded as it was left; `durable` is whether the origin's disk has all bytes of
    /// all files with dirty bytes.
    pub fn close(&self, durable: bool) -> Result<()> {
        let mut text = self.text.lock();
        text.closed = if durable { Closed::Durable } else { Closed::Recorded };
        text.exit = None;
        self.write(&text, true).map_err(Error::at(&self.path, "write"))
    }

    fn renew_or_warn(&self, synced: bool) {
        if let Err(error) = self.renew(synced)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            // Programs continue (D11). If the mount is killed now, dirty bytes of files that it is currently changing
            // are saved as a conflict at the next mount.
            tracing::warn!("{}: {error}", self.path.display());
        }
    }

    fn renew(&self, synced: bool) -> io::Result<()> {
        let mut text = self.text.lock();
        text.ahead_ms = self.ahead_ms.load(Ordering::Acquire);
        let now_ms = coarse_ms() + text.ahead_ms;
        text.until_ms = text.until_ms.max(now_ms + KILL_MS);
        if synced {
            text.synced_until_ms = text.synced_until_ms.max(now_ms + POWER_MS);
        }
        // Set even on failure, so that not each change tries again.
        self.until_ms.store(text.until_ms, Ordering::Release);
        self.synced_until_ms.store(text.synced_until_ms, Ordering::Release);
        self.write(&text, synced)
    }

    fn write(&self, text: &Text, synced: bool) -> io::Result<()> {
        self.file.write_all_at(&text.encode(), 0)?;
        if synced { self.file.sync_data() } else { Ok(()) }
    }
}

/// How late a reading of our clock may be.
const TICK_MS: u64 = 10;

/// The evidence of the last session on the cache in `dir`, for read-only callers.
pub fn evidence(dir: &Path) -> Result<Evidence> {
    let path = dir.join(LEASE_FILE);
    let file = match PrivateDir::open(dir)?.file(LEASE_FILE, Use::Read) {
        Err(error) if error.errno() == libc::ENOENT => return Ok(Evidence::Nothing),
        opened => opened?,
    };
    let whose = location_of(&file).map_err(Error::at(&path, "look at"))?;
    let (evidence, _) = read(&file, whose, &boot_id()?).map_err(Error::at(&path, "read"))?;
    Ok(evidence)
}

/// The contents of the file, and the semaphore it names, which records when the process ended.
fn read(
    file: &File,
    whose: ((u64, i64), u32),
    boot_id: &str,
) -> io::Result<(Evidence, Option<exit_time::Name>)> {
    let mut bytes = [0; LENGTH];
    let mut len = 0;
    while len < LENGTH {
        match file.read_at(&mut bytes[len..], len as u64)? {
            0 => break,
            got => len += got,
        }
    }
    if len == 0 {
        return Ok((Evidence::Nothing, None));
    }
    // An unreadable text reveals as little about the origin as a copy does.
    let text = Text::decode(&bytes[..len]);
    let Some(text) = text else { return Ok((Evidence::Copy, None)) };
    // The original of a copied cache keeps running; its exit time is not the copy's.
    let exit = text.exit.filter(|_| text.identity == whose.0);
    Ok((text.evidence(whose, boot_id), exit))
}

/// What distinguishes a file from its copies, and the file's owner.
fn location_of(file: &File) -> io::Result<((u64, i64), u32)> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::UID;
    let found = statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let born = Duration::new(found.stx_btime.tv_sec.unsigned_abs(), found.stx_btime.tv_nsec);
    let born = i64::try_from(born.as_nanos()).unwrap_or(0);
    Ok(((found.stx_ino, if has_birth { born } else { 0 }), found.stx_uid))
}

fn nanoseconds(ms: u64) -> i64 {
    i64::try_from(ms.saturating_mul(1_000_000)).unwrap_or(i64::MAX)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;
