//! `warm`, `demote` and `cluster drain`: moves files that a person names.

mod selected_files;
mod why_files_stay;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use halocline_api::control::{MoveReport, Progress, ProgressSink};
use halocline_cluster::names::attributes::{Attributes, Open};
use halocline_cluster::names::namespace::{Failure, StoredInode};
use halocline_model::namespace::EntryName;
use halocline_os::error::{Error, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::base::Base;
use crate::closes::note_all;
use crate::errors::of_names;
use crate::lookup::mended;
use crate::moves::Moved;
use crate::places::{SHARED, SSD};
use crate::ssd::executor::{COPY_SLACK, Executor};
use crate::ssd::moves_at_once::{MovesAtOnce, PARALLEL_MAX};
use crate::ssd::paths::Paths;
use crate::tree_walk::{shortened, walk_named};
use selected_files::{SelectedFile, skip, sum_of};
use why_files_stay::{IS_OPEN, NO_ROOM, Now, Room, SHARED_DISK_FULL, TOO_LARGE, of_error};

/// The most files of one command.
const FILES_MAX: usize = 1 << 20;
/// How often an open file is tried.
const TRIES: usize = 5;
/// The pause before each retry.
const PAUSE: Duration = Duration::from_millis(200);

/// How often it is told where the search for files is.
const SEARCH_TOLD_EVERY: Duration = Duration::from_secs(1);

/// Progress of a command, and who is told of it.
struct CommandProgress<'a> {
    report: MoveReport,
    progress: ProgressSink<'a>,
    done_bytes: u64,
    total_bytes: u64,
    /// Whether the caller has asked to stop.
    stops: bool,
}

/// One pass over the files of a command.
struct Pass<'a, 'b> {
    /// All files of the command.
    asked: &'a FxHashSet<u64>,
    told: &'a Mutex<CommandProgress<'b>>,
    /// The last pass: a file that is still open is given up.
    is_last: bool,
}

impl Pass<'_, '_> {
    /// Reports that so many more bytes were copied; says whether to go on.
    fn tell(&self, path: &Path, copied: u64) -> ControlFlow<()> {
        let mut told = self.told.lock();
        told.done_bytes = told.done_bytes.saturating_add(copied);
        let (done_bytes, total_bytes) = (told.done_bytes, told.total_bytes);
        let path = path.to_owned();
        told.stops |= (told.progress)(Progress { done_bytes, total_bytes, path }).is_break();
        if told.stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn skip(&self, file: SelectedFile, reason: String) {
        skip(file, reason, &mut self.told.lock().report);
    }
}

/// Moves the files that commands name to one tier: the own SSD, or the shared disk.
pub(crate) struct MoveCommands<'a> {
    pub(crate) base: &'a Base,
    pub(crate) executor: &'a Executor,
    pub(crate) tier: u8,
}

impl MoveCommands<'_> {
    /// Why a file stays in spite of the command.
    fn why_it_stays(&self, file: &SelectedFile) -> Option<&'static str> {
        let rules = &self.executor.planner.rules;
        match self.tier {
            SSD if rules.has_excludes() && rules.excludes(&file.path) => {
                Some("an exclude glob keeps it off SSDs: halocline exclude --remove GLOB")
            }
            SHARED if rules.has_pins() && rules.pins(&file.path) => {
                Some("a pin glob keeps it on the SSD on which it is: unpin it first")
            }
            _ => None,
        }
    }

    /// Makes room on the own SSD for a file; files that the same command names do not make room for each other.
    fn make_room(&self, file: &SelectedFile, asked: &FxHashSet<u64>) -> Room {
        let room = self.executor.room_for_copy((file.inode, file.size, &file.place));
        if room.is_some_and(|room| room.missing == 0) {
            return Room::Made;
        }
        match self.now(file) {
            Ok(Now::Here) => {}
            Ok(now) => return Room::NotNeeded(now),
            Err(error) => return Room::None(error.to_string()),
        }
        let Some(room) = room else { return Room::None(TOO_LARGE.to_owned()) };
        match self.executor.free_up(room.missing, &|number| asked.contains(&number)) {
            Ok(()) => Room::Made,
            Err(None) => Room::None(NO_ROOM.to_owned()),
            Err(Some(why)) => {
                Room::None(format!("there is no room, and no other file could leave for it: {why}"))
            }
        }
    }

    /// What has become of a file.
    ///
    /// # Errors
    /// If the store does not answer.
    fn now(&self, file: &SelectedFile) -> Result<Now> {
        match self.base.names.lookup(&file.name) {
            Ok(found) if found.inode == file.inode => {
                Ok(if self.is_open(&found.attributes) { Now::Open } else { Now::Here })
            }
            Ok(_) | Err(Failure::Refused(_)) => Ok(Now::Gone),
            Err(failure) => Err(of_names(failure)),
        }
    }

    /// Whether a program on some node has a file open.
    fn is_open(&self, of: &Attributes) -> bool {
        let is_over = |open: &Open| self.base.sessions.is_over(open.session);
        of.many_opens || !of.opens.iter().all(is_over)
    }

    /// Whether the own SSD has room for all of these files without any other one leaving.
    fn fit_as_it_is(&self, files: &VecDeque<SelectedFile>) -> bool {
        let need = |sum: u64, file: &SelectedFile| {
            sum.saturating_add(file.size).saturating_add(COPY_SLACK)
        };
        let room = self.executor.room_for(files.iter().fold(0, need));
        room.is_some_and(|room| room.missing == 0)
    }

    /// Which of the files would stay for lack of room or because of a rule: for a dry run.
    fn would_stay(
        &self,
        files: &[SelectedFile],
        asked: &FxHashSet<u64>,
    ) -> Vec<(usize, &'static str)> {
        let may_leave = || {
            let all = self.executor.residents.all();
            let paths = Paths::new(&self.base.paths);
            let order = self.executor.planner.plan_room(
                &self.executor.residents,
                &|number| asked.contains(&number),
                &paths,
            );
            let order: FxHashSet<u64> = order.into_iter().collect();
            let leave = all.iter().filter(|(number, _)| order.contains(number));
            leave.map(|(_, resident)| resident.bytes).sum::<u64>()
        };
        let mut left = match self.tier {
            SSD => {
                self.executor.room_for(0).map_or(0, |room| room.free).saturating_add(may_leave())
            }
            _ => self.base.places.free_bytes(SHARED).unwrap_or(u64::MAX),
        };
        let mut stay = Vec::new();
        for (at, file) in files.iter().enumerate() {
            let bytes = self.executor.bytes_within(left, (file.inode, file.size, &file.place));
            if let Some(why) = self.why_it_stays(file) {
                stay.push((at, why));
            } else if file.is_open {
                stay.push((at, IS_OPEN));
            } else if self.tier == SSD && self.executor.room_for(bytes).is_none() {
                stay.push((at, TOO_LARGE));
            } else if bytes > left {
                stay.push((at, if self.tier == SSD { NO_ROOM } else { SHARED_DISK_FULL }));
            } else {
                left -= bytes;
            }
        }
        stay
    }

    /// Moves files, and all files below directories.
    ///
    /// # Errors
    /// If a path leads nowhere. Files that cannot be moved are listed, and hold up nothing else.
    pub(crate) fn execute(
        &self,
        paths: &[PathBuf],
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        self.base.sessions.check()?;
        note_all(self.base);
        let mut files = Vec::new();
        for path in paths {
            self.named(path, &mut *progress, &mut files)?;
        }
        Ok(self.move_all(files, dry_run, progress))
    }

    /// Moves what lies at and below a path on the SSD of a node.
    ///
    /// # Errors
    /// As [`execute`](Self::execute); if there is no such node.
    pub(crate) fn drain(
        &self,
        node: &str,
        path: &Path,
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        self.base.sessions.check()?;
        note_all(self.base);
        let nodes = self.base.places.nodes()?;
        if !nodes.iter().any(|known| known == node) {
            return Err(Error::invalid(
                format!("no node of this tier has the name {node:?}"),
                format!("its nodes are {}", nodes.join(", ")),
            ));
        }
        let mut report =
            self.move_all(self.on_ssd_of(node, path, &mut *progress)?, dry_run, &mut *progress);
        // Files that were renamed meanwhile are still there, and so are new ones.
        for _ in 1..TRIES {
            let files =
                if dry_run { Vec::new() } else { self.on_ssd_of(node, path, &mut *progress)? };
            let now = Progress { done_bytes: 0, total_bytes: 0, path: path.to_owned() };
            if files.len() <= report.skipped.len() || progress(now).is_break() {
                break;
            }
            let more = self.move_all(files, dry_run, &mut *progress);
            report = MoveReport {
                bytes: report.bytes.saturating_add(more.bytes),
                files: report.files + more.files,
                already_files: report.already_files + more.already_files,
                seconds: report.seconds + more.seconds,
                ..more
            };
        }
        Ok(report)
    }

    /// The files at and below a path that are on the SSD of a node.
    fn on_ssd_of(
        &self,
        node: &str,
        path: &Path,
        progress: ProgressSink<'_>,
    ) -> Result<Vec<SelectedFile>> {
        let mut files = Vec::new();
        self.named(path, progress, &mut files)?;
        files.retain(|file| file.place.tier == SSD && file.place.node.as_deref() == Some(node));
        Ok(files)
    }

    fn move_all(
        &self,
        mut files: Vec<SelectedFile>,
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> MoveReport {
        let clock = &self.base.clock;
        let begun = clock.instant();
        let asked: Vec<u64> = files.iter().map(|file| file.inode.0).collect();
        let there = files.iter().filter(|file| file.is_there).count();
        let mut report = MoveReport { already_files: there as u64, ..MoveReport::default() };
        files.retain(|file| !file.is_there);
        let asked: FxHashSet<u64> = asked.into_iter().collect();
        // A file with several names is moved once.
        let mut seen = FxHashSet::default();
        files.retain(|file| seen.insert(file.inode.0));
        if dry_run {
            for (at, why) in self.would_stay(&files, &asked).into_iter().rev() {
                skip(files.remove(at), why.to_owned(), &mut report);
            }
            report.skipped.reverse();
            report.files = files.len() as u64;
            report.bytes = sum_of(&files);
            return report;
        }
        let told = Mutex::new(CommandProgress {
            report,
            progress,
            done_bytes: 0,
            total_bytes: sum_of(&files),
            stops: false,
        });
        let mut left = VecDeque::from(files);
        for again in (0..TRIES).rev() {
            let pass = Pass { asked: &asked, told: &told, is_last: again == 0 };
            left = self.one_pass(left, &pass);
            if left.is_empty() || told.lock().stops {
                break;
            }
            // The kernel reports a close a little after the program's call returns.
            clock.sleep(PAUSE);
        }
        let mut report = told.into_inner().report;
        report.left_bytes = report.left_bytes.saturating_add(sum_of(&left));
        report.seconds = clock.elapsed(begun).as_secs_f64();
        report
    }

    /// Moves files, small ones several at a time; returns those that are busy, or were left because of a stop.
    fn one_pass(
        &self,
        left: VecDeque<SelectedFile>,
        pass: &Pass<'_, '_>,
    ) -> VecDeque<SelectedFile> {
        // To an SSD without room for all, one by one: the next file must see the room that was made for this one.
        let one_by_one = self.tier == SSD && !self.fit_as_it_is(&left);
        let at_once = if one_by_one { 1 } else { left.len().min(PARALLEL_MAX) };
        let moves = MovesAtOnce::default();
        let (left, busy) = (Mutex::new(left), Mutex::new(VecDeque::new()));
        let work = || {
            loop {
                let Some(file) = left.lock().pop_front() else { break };
                if pass.tell(&file.path, 0).is_break() {
                    left.lock().push_front(file);
                    break;
                }
                let moving = moves.begin(file.size);
                let busy_file = self.one(file, pass);
                drop(moving);
                if let Some(file) = busy_file {
                    busy.lock().push_back(file);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..at_once {
                // If no thread can be started, fewer will do.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let (mut left, mut busy) = (left.into_inner(), busy.into_inner());
        busy.append(&mut left);
        busy
    }

    /// Moves one file. A busy file is returned for a retry, unless this is the last pass.
    fn one(&self, file: SelectedFile, pass: &Pass<'_, '_>) -> Option<SelectedFile> {
        if let Some(why) = self.why_it_stays(&file) {
            pass.skip(file, why.to_owned());
            return None;
        }
        let room = if self.tier == SSD { self.make_room(&file, pass.asked) } else { Room::Made };
        match room {
            Room::Made => {}
            Room::NotNeeded(Now::Open) => return self.busy(file, pass, IS_OPEN),
            Room::NotNeeded(_) => return None,
            Room::None(why) => {
                self.executor.history.not_moved(file.inode.0, &why);
                pass.skip(file, why);
                return None;
            }
        }
        let (what, ends) = ((file.inode, file.size), (&file.place, self.tier));
        let goes_on = &mut |copied| pass.tell(&file.path, copied);
        let moved = self.executor.move_file(&file.name, what, ends, goes_on);
        let error = match moved {
            Ok(Moved::Done(_)) => {
                let report = &mut pass.told.lock().report;
                report.files += 1;
                report.bytes = report.bytes.saturating_add(file.size);
                return None;
            }
            Ok(Moved::Already) => {
                pass.told.lock().report.already_files += 1;
                return None;
            }
            Ok(Moved::Gone) => return None,
            Ok(Moved::Busy) => return self.busy(file, pass, IS_OPEN),
            Err(error) if error.is_leased() => return self.busy(file, pass, &error.to_string()),
            Err(error) => error,
        };
        // Whoever has removed or renamed it took its bytes away from where they were sought.
        if matches!(self.now(&file), Ok(Now::Gone)) {
            return None;
        }
        pass.skip(file, of_error(&error, self.tier));
        None
    }

    /// A file that is open, or of which a program holds a lease, is tried again, unless this is the last pass.
    fn busy(&self, file: SelectedFile, pass: &Pass<'_, '_>, why: &str) -> Option<SelectedFile> {
        if pass.is_last {
            pass.skip(file, why.to_owned());
            return None;
        }
        self.mend(&file);
        Some(file)
    }

    /// A session that is over may have left a note that its kernel serves the file. If the file is on this node's
    /// SSD, only this node can tell whether it still does.
    fn mend(&self, file: &SelectedFile) {
        let vnode = self.base.table.intern(file.inode, false, Some(file.name.clone()));
        if let Ok(found) = self.base.names.lookup(&file.name)
            && found.inode == file.inode
        {
            drop(mended(self.base, &vnode.0, &file.name, found));
        }
    }

    /// The files that a path or a glob names. Of a large tree it is told from time to time where the search is; if the caller
    /// has asked to stop, those that were found so far.
    fn named(
        &self,
        path: &Path,
        progress: ProgressSink<'_>,
        files: &mut Vec<SelectedFile>,
    ) -> Result<()> {
        let clock = &self.base.clock;
        let mut told = clock.instant();
        let listing = &mut |directory: &[u8]| {
            if clock.elapsed(told) < SEARCH_TOLD_EVERY {
                return ControlFlow::Continue(());
            }
            told = clock.instant();
            let path = shortened(Path::new(OsStr::from_bytes(directory)).to_owned());
            progress(Progress { done_bytes: 0, total_bytes: 0, path })
        };
        let each = &mut |path, name, stored: StoredInode| self.keep(path, name, &stored, files);
        walk_named(self.base, path, listing, each)
    }

    fn keep(
        &self,
        path: PathBuf,
        name: EntryName,
        stored: &StoredInode,
        files: &mut Vec<SelectedFile>,
    ) -> Result<()> {
        let Some(place) = &stored.attributes.location else { return Ok(()) };
        if files.len() >= FILES_MAX {
            return Err(Error::invalid(
                format!("there are more than {FILES_MAX} files"),
                "ask for one directory below at a time",
            ));
        }
        let is_there = self.executor.is_on(place, self.tier);
        let mut size = stored.attributes.size;
        if stored.attributes.is_written() {
            // The store still has the size from before the open; if the bytes are not reached, that size stands.
            let found = self.base.places.stat(place, stored.inode.0);
            size = found.map_or(size, |found| found.raw.st_size.unsigned_abs());
        }
        let place = place.clone();
        let is_open = self.is_open(&stored.attributes);
        files.push(SelectedFile {
            path: shortened(path),
            name,
            inode: stored.inode,
            size,
            place,
            is_there,
            is_open,
        });
        Ok(())
    }
}
