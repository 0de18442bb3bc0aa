//! Reads the tiers when they are mounted or checked: recovery, adoption and accounting.
//!
//! What must hold: only data that an intent but no link names is removed, and copies that never got a place; everything
//! else that does not fit is listed and left alone.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::symlinkat;

use super::adopt;
use super::adopt::Adopted;
use super::archive_queue::ArchiveQueue;
use super::copy_records::CopyRecords;
use super::copy_verifier::CopyVerifier;
use super::dir_times::DirTimes;
use super::foundation::Foundation;
use super::hard_links::HardLinks;
use super::inode::{Away, Table};
use super::inode_numbers::kept_number;
use super::leftover_intents::{LeftoverIntent, LeftoverIntents};
use super::link_owner;
use super::link_owner::ParsedLink;
use super::listed_names;
use super::of_shared_tiers;
use super::planner::Planner;
use super::residents::Residents;
use super::survey::{Numbered, OwnLink, Recorded, Survey};
use super::tier_links::number_in;
use super::tiers::{Entry, Tiers};
use halocline_api::control::tier::PRIVATE;
use halocline_api::control::tier::Problem;
use halocline_api::control::tier::ScanFindings;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::statx::stat_at;
use halocline_vfs::namespace::{Namespace, Vnode, stat_descriptor};

/// Reads the tiers, and puts them in order.
#[derive(Debug)]
pub(super) struct Scan {
    tiers: Arc<Tiers>,
    table: Arc<Table>,
    residents: Arc<Residents>,
    intents: Arc<LeftoverIntents>,
    copy_records: Arc<CopyRecords>,
    dir_times: Arc<DirTimes>,
    planner: Arc<Planner>,
    is_new: bool,
    archive_queue: Arc<ArchiveQueue>,
    hard_links: Arc<HardLinks>,
    copy_verifier: Arc<CopyVerifier>,
}

impl Scan {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        archive_queue: &Arc<ArchiveQueue>,
        hard_links: &Arc<HardLinks>,
        copy_verifier: &Arc<CopyVerifier>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            table: base.table.clone(),
            residents: base.residents.clone(),
            intents: base.intents.clone(),
            copy_records: base.copy_records.clone(),
            dir_times: base.dir_times.clone(),
            planner: base.planner.clone(),
            is_new: base.is_new,
            archive_queue: archive_queue.clone(),
            hard_links: hard_links.clone(),
            copy_verifier: copy_verifier.clone(),
        }
    }

    /// Puts the tiers in order after whatever happened, and counts what is on the SSD.
    pub(super) fn recover(&self) -> Result<ScanFindings> {
        self.survey(true)
    }

    /// Examines the tiers; with `mend`, removes leftovers, adopts files and counts those on the SSD.
    pub(super) fn survey(&self, mend: bool) -> Result<ScanFindings> {
        let mut survey = Survey::default();
        survey.found.files = vec![0; self.tiers.dirs().len()];
        let mut intents = self.intents.list(self.tiers.links())?;
        let torn = self.hard_links.finish_torn(mend)?.into_iter();
        let torn = torn.filter(|_| !mend).map(|path| Problem::NotCutOver { path });
        survey.found.problems.extend(torn);
        let records = self.copy_records.list()?;
        survey.recorded = records.iter().map(|record| (record.file.inode, None)).collect();
        if mend && !intents.is_empty() {
            // The last name changes of a killed mount may be in memory only: a file that they made a leftover must be
            // one after a power loss, too.
            self.tiers.ssd().sync_all()?;
        }
        if mend {
            for tier_dir in self.tiers.dirs() {
                match tier_dir.drop_temporaries() {
                    Ok(count) => survey.found.removed += count as u64,
                    Err(error) => tracing::warn!(%error, "copies stay until the next mount"),
                }
            }
        }
        self.read_ssd(&mut survey, mend)?;
        self.settle_links(&mut survey, mend)?;
        let stale = self.copy_verifier.verify(records, &intents, &mut survey, mend)?;
        intents.extend(stale);
        let mut leftovers: HashSet<(usize, PathBuf)> =
            intents.iter().map(|intent| (intent.tier, intent.place.clone())).collect();
        // Places that any link names are left alone.
        leftovers.retain(|place| {
            !survey.named.contains_key(place)
                && !survey.doubted.contains(place)
                && !survey.copies.contains(place)
        });
        for tier in 1..self.tiers.dirs().len() {
            self.read_lower(tier, &leftovers, &mut survey, mend)?;
        }
        for ((tier, place), names) in std::mem::take(&mut survey.named) {
            let place = self.tiers.dirs()[tier].path.join(place);
            for OwnLink { path, .. } in names {
                survey.found.problems.push(Problem::Lost { path, place: place.clone() });
            }
        }
        if mend {
            self.clear_intents(&intents, &survey);
        }
        if let Some((names, other)) = survey.linked {
            survey.found.problems.push(Problem::ManyNames { names, other });
        }
        survey.found.problems.sort();
        survey.found.adopted.sort();
        Ok(survey.found)
    }

    /// Clears the intents whose work is durably done.
    fn clear_intents(&self, intents: &[LeftoverIntent], survey: &Survey) {
        let is_done = |intent: &&LeftoverIntent| {
            let synced = self.tiers.dirs().get(intent.tier).map_or(Ok(()), |tier_dir| {
                tier_dir.sync_parent("syncing what is removed", &intent.place)
            });
            if let Err(error) = &synced {
                tracing::warn!(%error, "an intent stays until the next mount");
            }
            synced.is_ok() && !survey.stay.contains(&(intent.tier, intent.place.clone()))
        };
        // All syncs come before the first intent is cleared.
        let done: Vec<&LeftoverIntent> = intents.iter().filter(is_done).collect();
        for intent in done {
            self.intents.clear(intent);
        }
    }

    /// Counts the SSD's files and collects our links.
    fn read_ssd(&self, survey: &mut Survey, mend: bool) -> Result<()> {
        let mut dirs = vec![self.tiers.tree().root()];
        while let Some(dir) = dirs.pop() {
            let fd = self.tiers.tree().descriptor(&dir)?;
            if kept_number(&*fd).is_none() {
                survey.own_numbers.insert(dir.key().1);
            }
            for (name, kind) in names_in(self.tiers.tree(), &dir)? {
                if self.tiers.is_private(&dir, &name) {
                    continue;
                }
                // A link that cannot be read may name a file below: then that is no leftover.
                let Some(stat) = listed_names::stat_of(fd.as_fd(), &name)? else { continue };
                match stat.kind() {
                    libc::S_IFDIR => dirs.push(self.tiers.tree().lookup(&dir, &name)?.0),
                    libc::S_IFLNK => {
                        if let Some(link) = link_owner::parsed(&self.tiers, &dir, &name)? {
                            self.collect(survey, (&dir, name), link, mend);
                        }
                    }
                    libc::S_IFREG => {
                        let key = stat.key();
                        if let Some(found) = survey.recorded.get_mut(&key.1) {
                            let path = self.tiers.tree().path_of(&dir).join(&name);
                            *found = Some(Recorded { path, stat, has_copy: false });
                        }
                        survey.found.files[0] += 1;
                        if stat.raw.st_nlink <= 1 || survey.counted.insert(key) {
                            survey.found.ssd_bytes += stat.disk_bytes();
                        }
                        if mend {
                            self.hard_links.learn_name(&dir, &name, &stat);
                            self.count(survey, (&dir, name), key, &stat);
                        }
                    }
                    _ => debug_assert!(kind != libc::DT_REG),
                }
            }
        }
        self.count_numbered(survey);
        Ok(())
    }

    /// Notes a link that has the form of ours.
    fn collect(
        &self,
        survey: &mut Survey,
        (dir, name): (&Vnode, OsString),
        link: ParsedLink,
        mend: bool,
    ) {
        let ParsedLink { away: Away { tier, path: place, shared }, stat, ours, former } = link;
        let path = self.tiers.tree().path_of(dir).join(&name);
        if !ours {
            let whole = self.tiers.dirs()[tier].path.join(&place);
            survey.found.problems.push(Problem::UnownedLink { path, place: whole });
            survey.doubted.insert((tier, place));
            return;
        }
        if let Some(number) = number_in(&stat).filter(|_| mend) {
            self.table.set_number(stat.key(), number);
        }
        let (parent, entry) = (dir.clone(), stat.key());
        let named = OwnLink { path, parent, name, entry, shared, former };
        survey.named.entry((tier, place)).or_default().push(named);
    }

    /// Counts a file on the SSD; one that states which number it keeps is left to [`Self::count_numbered`].
    fn count(
        &self,
        survey: &mut Survey,
        (dir, name): (&Vnode, OsString),
        entry: Entry,
        stat: &Stat,
    ) {
        let path = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
        let fd =
            self.tiers.tree().descriptor(dir).ok().and_then(|dir| {
                rustix::fs::openat(&*dir, &name, path, rustix::fs::Mode::empty()).ok()
            });
        let (dir, disk_bytes) = (dir.clone(), stat.disk_bytes());
        if let Some(number) = fd.and_then(|fd| kept_number(&fd)) {
            survey.numbered.push(Numbered { dir, name, entry, disk_bytes, number });
        } else {
            survey.own_numbers.insert(entry.1);
            self.add_resident(Numbered { dir, name, entry, disk_bytes, number: entry.1 });
        }
    }

    /// Counts the files on the SSD that state which number they keep, after everything else there is known: the owner
    /// of a file may have made it claim another's number before it came to the tier.
    fn count_numbered(&self, survey: &mut Survey) {
        for mut file in std::mem::take(&mut survey.numbered) {
            let is_anothers =
                file.number != file.entry.1 && survey.own_numbers.contains(&file.number);
            if is_anothers || !self.table.claim_number(file.entry, file.number) {
                file.number = self.table.number(file.entry).unwrap_or(file.entry.1);
            }
            self.add_resident(file);
        }
    }

    fn add_resident(&self, file: Numbered) {
        let Numbered { dir, name, entry, disk_bytes, number } = file;
        let resident = self.residents.add(entry, number, (dir, name), disk_bytes);
        self.archive_queue.add(entry, &resident);
        self.planner.moved(number, true);
    }

    /// Makes links that name a former root name the present one, so that they lead to their files even without us. If
    /// two links name one file, the one at the file's own path keeps it; the others become users' links, which lead to
    /// the same file. Links that may have several names are names of one file.
    fn settle_links(&self, survey: &mut Survey, mend: bool) -> Result<()> {
        for ((tier, place), names) in &mut survey.named {
            if names.len() < 2 && !names.iter().any(|one| one.former || one.shared) {
                continue;
            }
            names.sort_by(|one, other| {
                let order = |one: &OwnLink| (!one.shared, one.path != *place);
                (order(one), &one.path).cmp(&(order(other), &other.path))
            });
            let count = names.iter().take_while(|name| name.shared).count().max(1);
            if mend {
                self.settle_names(*tier, place, &names[..count])?;
            }
            for OwnLink { path, parent, name, .. } in names.drain(count..) {
                let whole = self.tiers.dirs()[*tier].path.join(place.as_path());
                survey.found.problems.push(Problem::SecondLink { path, place: whole });
                if mend {
                    let target = self.tiers.links().stored(&self.tiers.links().to(*tier, place));
                    self.replace_link(&parent, &name, &target)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the names of one file hard links of one link, which names a present root.
    fn settle_names(&self, tier: usize, place: &Path, names: &[OwnLink]) -> Result<()> {
        let former = names.iter().any(|name| name.former);
        if !names[0].shared {
            if former {
                let (one, target) = (&names[0], self.tiers.links().to(tier, place));
                self.replace_link(&one.parent, &one.name, &target)?;
            }
            return Ok(());
        }
        let target = former.then(|| self.tiers.links().to_shared(tier, place));
        if former || names.iter().any(|name| name.entry != names[0].entry) {
            let names: Vec<_> = names
                .iter()
                .map(|name| ((name.parent.clone(), name.name.clone()), name.entry))
                .collect();
            self.hard_links.join(&names, target.as_deref())?;
        }
        for OwnLink { parent, name, .. } in names {
            let dir = self.tiers.tree().descriptor(parent)?;
            self.hard_links.learn_name(parent, name, &stat_at(dir.as_fd(), name)?);
        }
        Ok(())
    }

    fn replace_link(&self, parent: &Vnode, name: &OsStr, target: &OsStr) -> Result<()> {
        let temporary = self.tiers.fresh_name();
        let tier_dir = &self.tiers.ssd();
        let (entry, stat) = self.tiers.tree().lookup(parent, name)?;
        self.tiers.make_link(&temporary, target, number_in(&stat))?;
        let from = (tier_dir.tmp().as_fd(), OsStr::new(&temporary));
        let to = (parent, name);
        let (new, _) = self.dir_times.replace_unseen(
            &self.tiers,
            "replacing a link",
            from,
            to,
            entry.key(),
        )?;
        self.hard_links.renumber(entry.key(), new.key());
        Ok(())
    }

    /// Compares the files of a lower tier with the links.
    fn read_lower(
        &self,
        tier: usize,
        leftovers: &HashSet<(usize, PathBuf)>,
        survey: &mut Survey,
        mend: bool,
    ) -> Result<()> {
        let tier_dir = &self.tiers.dirs()[tier];
        let tree = tier_dir.tree()?;
        let mut dirs = vec![tree.root()];
        while let Some(dir) = dirs.pop() {
            let below = tree.path_of(&dir);
            for (name, kind) in names_in(&tree, &dir)? {
                let path = below.join(&name);
                if path == Path::new(PRIVATE).join("tmp")
                    || path == Path::new(PRIVATE).join("tier.json")
                    || of_shared_tiers::has(&tree, (&dir, &name), (tier, &path), survey)
                {
                    continue;
                }
                let kind =
                    if kind == libc::DT_UNKNOWN { kind_of(&tree, &dir, &name) } else { kind };
                if kind == libc::DT_DIR && self.is_new && mend && !path.starts_with(PRIVATE) {
                    let taken = adopt::parents(&self.tiers, &tree, &path)?.is_none();
                    let (path, other) = (path.clone(), tier_dir.path.join(&path));
                    survey
                        .found
                        .problems
                        .extend(taken.then_some(Problem::Conflict { path, other }));
                }
                let place = (tier, path);
                if kind == libc::DT_DIR {
                    dirs.push(tree.lookup(&dir, &name)?.0);
                } else if survey.named.remove(&place).is_some() {
                    survey.found.files[tier] += 1;
                } else if survey.copies.contains(&place) {
                    survey.found.copies += 1;
                } else if leftovers.contains(&place) {
                    let other = tier_dir.path.join(&place.1);
                    match mend.then(|| tier_dir.remove(&place.1)) {
                        Some(Ok(())) => survey.found.removed += 1,
                        Some(Err(error)) => {
                            // This happens with a read-only tier, for example; its intent stays.
                            tracing::warn!(%error, "a leftover stays until the next mount");
                            survey.stay.insert(place);
                            survey.found.problems.push(Problem::Leftover { other });
                        }
                        None => survey.found.problems.push(Problem::Leftover { other }),
                    }
                } else if kind != libc::DT_REG {
                    let (path, from) = (place.1, tree.descriptor(&dir)?);
                    let other = tier_dir.path.join(&path);
                    let adopted = adopt::special(&self.tiers, &tree, (tier, &path), &from, mend)?;
                    match adopted {
                        Adopted::Now => survey.found.adopted.push(path),
                        Adopted::Before => survey.found.removed += 1,
                        Adopted::Later => survey.found.problems.push(Problem::Unlinked { other }),
                        Adopted::Taken => {
                            survey.found.problems.push(Problem::Conflict { path, other });
                        }
                        Adopted::Refused => survey.found.problems.push(Problem::NotAFile { other }),
                    }
                } else {
                    self.adopt(&tree, place, survey, mend)?;
                }
            }
        }
        Ok(())
    }

    /// Gives a file that somebody put on a lower tier its name.
    fn adopt(
        &self,
        tree: &Namespace,
        (tier, path): (usize, PathBuf),
        survey: &mut Survey,
        mend: bool,
    ) -> Result<()> {
        let other = self.tiers.dirs()[tier].path.join(&path);
        if path.starts_with(PRIVATE) {
            survey.found.problems.push(Problem::Unlinked { other });
            return Ok(());
        }
        survey.found.files[tier] += 1;
        let linked = stat_descriptor(self.tiers.dirs()[tier].look(&path)?)?.raw.st_nlink > 1;
        if linked {
            survey.linked.get_or_insert_with(|| (0, other.clone())).0 += 1;
        }
        if self.tiers.walk(&path).is_some() {
            survey.found.problems.push(Problem::Conflict { path, other });
            return Ok(());
        }
        if !mend {
            survey.found.problems.push(Problem::Unlinked { other });
            return Ok(());
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        let Some(dir) = adopt::parents(&self.tiers, tree, parent)? else {
            survey.found.problems.push(Problem::Conflict { path, other });
            return Ok(());
        };
        let name = path.file_name().unwrap_or_default();
        let (target, dir) =
            (self.tiers.links().to(tier, &path), self.tiers.tree().descriptor(&dir)?);
        self.tiers.ssd().steps.step("adopting a file", || Ok(symlinkat(target, &*dir, name)?))?;
        survey.found.adopted.push(path);
        Ok(())
    }
}

/// Names in a directory with their `DT_*` types, in order.
fn names_in(tree: &Namespace, dir: &Vnode) -> Result<BTreeSet<(OsString, u8)>> {
    Ok(tree.entries(dir)?.into_iter().map(|entry| (entry.name, entry.kind)).collect())
}

fn kind_of(tree: &Namespace, dir: &Vnode, name: &OsStr) -> u8 {
    let stat = tree.descriptor(dir).and_then(|dir| stat_at(dir.as_fd(), name));
    match stat.map(|stat| stat.kind()) {
        Ok(libc::S_IFREG) => libc::DT_REG,
        Ok(libc::S_IFDIR) => libc::DT_DIR,
        _ => libc::DT_LNK,
    }
}
