//! Why a file is where it is, and what would change that: `halocline explain FILE`.

use halocline_api::control::{FileExplanation, FileInfo};
use halocline_api::file_tier::why_jobs_and_moves;
use halocline_cluster::names::attributes::{Attributes, Location, Open};
use halocline_os::counted::counted;

use crate::base::Base;
use crate::lookup::FoundInode;
use crate::places::SSD;
use crate::places::copies::Copies;
use crate::remedies::CHECK;
use crate::ssd::executor::{COPY_SLACK, Executor};
use crate::ssd::paths::Paths;

/// Says why files are where they are. Read-only.
pub(crate) struct Explainer<'a> {
    pub(crate) base: &'a Base,
    pub(crate) executor: &'a Executor,
    pub(crate) policy: &'a str,
}

/// Where a file lies, as this node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder<'a> {
    Own,
    /// On the SSD of another node.
    Other(&'a str),
    Shared,
}

/// What the sentences are made from, beside the answer itself.
struct Facts<'a> {
    side: Holder<'a>,
    /// Other nodes that have it open.
    open_elsewhere: u64,
    /// What prevents its bytes from being reached here.
    not_reached: Option<String>,
    /// Whether the shared disk has a copy of it.
    has_copy: bool,
}

impl Explainer<'_> {
    /// Explains why the file that was found is where it is.
    pub(crate) fn explain(
        &self,
        file: FileInfo,
        found: &FoundInode,
        place: &Location,
    ) -> FileExplanation {
        let (number, of) = (found.stored.inode, &found.stored.attributes);
        let side = match &place.node {
            _ if self.executor.is_on(place, SSD) => Holder::Own,
            Some(node) if place.tier == SSD => Holder::Other(node),
            _ => Holder::Shared,
        };
        let data = self.base.places.stat(place, number.0);
        let copy = Copies::of(&self.base.places).standing_for(of, number.0);
        let seen = Facts {
            side,
            open_elsewhere: self.opens_elsewhere(of),
            not_reached: data.err().map(|error| match error.errno() {
                libc::ENOENT => NOT_ON_DISK.to_owned(),
                _ => error.to_string(),
            }),
            has_copy: copy.is_ok_and(|copy| copy.is_some()),
        };
        let mut told = self.facts(file, found, side);
        told.reasons = why(&told, &seen);
        told.remedies = how(&told, &seen);
        told
    }

    fn opens_elsewhere(&self, of: &Attributes) -> u64 {
        let sessions = &self.base.sessions;
        let is_others = |open: &&Open| {
            open.session != sessions.own() && (open.by_kernel || !sessions.is_over(open.session))
        };
        of.opens.iter().filter(is_others).count() as u64
    }

    /// The known facts about a file.
    fn facts(&self, file: FileInfo, found: &FoundInode, side: Holder<'_>) -> FileExplanation {
        let number = found.stored.inode.0;
        let executor = self.executor;
        let history = &executor.history;
        let (opened, stayed) = (history.of(number), history.last_not_moved(number));
        let rank = if side == Holder::Own { self.rank(number) } else { None };
        let inode = self.base.table.find(found.stored.inode);
        let (handles, is_passed) = inode.map_or((0, false), |vnode| {
            let handles = vnode.0.noting.lock().handles as u64;
            (handles, vnode.0.is_served_by_kernel())
        });
        let room = executor.room_for(0).map_or(0, |room| room.free);
        // Others may fill its file system, too.
        let on_disk = self.base.places.free_bytes(SSD).unwrap_or(u64::MAX);
        FileExplanation {
            policy: self.policy.to_owned(),
            ssd_limit_bytes: executor.watermarks.limit(),
            ssd_free_bytes: room.min(on_disk),
            opens: opened.opens,
            last_open_ms: (opened.opens > 0).then_some(opened.last_ms),
            leaves_after: rank.map(|(before, _)| before),
            may_leave: rank.map(|(_, all)| all),
            jobs: executor.planner.jobs().that_want(&file.path),
            handles,
            // The kernel serves all handles of a file or none.
            passed_handles: if is_passed { handles } else { 0 },
            hard_links: found.stored.links.into(),
            // All its names lead to one place.
            known_names: found.stored.links.into(),
            too_large: executor.room_for(file.size_bytes).is_none(),
            stayed_ms: stayed.as_ref().map(|(when, _)| *when),
            stayed: stayed.map(|(_, why)| why.to_string()),
            reasons: Vec::new(),
            remedies: Vec::new(),
            file,
        }
    }

    /// How many files the policy would demote before this one, and of how many; `None` if the policy would not choose
    /// it.
    fn rank(&self, number: u64) -> Option<(u64, u64)> {
        let paths = Paths::new(&self.base.paths);
        let residents = &self.executor.residents;
        let order = self.executor.planner.plan_room(residents, &|_| false, &paths);
        let at = order.iter().position(|other| *other == number)?;
        Some((at as u64, order.len() as u64))
    }
}

/// What is said if the disk is there, and the file is not on it.
const NOT_ON_DISK: &str = "they are not on the disk that is there; was it replaced by another?";

fn why(told: &FileExplanation, seen: &Facts<'_>) -> Vec<String> {
    let mut why = match seen.side {
        Holder::Own => why_here(told),
        Holder::Other(node) => why_elsewhere(told, node),
        Holder::Shared => why_below(told),
    };
    if let Some(error) = &seen.not_reached {
        why.push(format!("its bytes are not reached from this node: {error}"));
    }
    if seen.has_copy {
        why.push("the shared disk has a copy of it: it is demoted without copying a byte".into());
    }
    if told.handles > 0 {
        why.push("a program on this node has it open: it does not move until it is closed".into());
    }
    if seen.open_elsewhere > 0 {
        let nodes = counted(seen.open_elsewhere, "other node");
        why.push(format!("open on {nodes}: it does not move until it is closed"));
    }
    why.extend(why_jobs_and_moves(told));
    why
}

fn why_here(told: &FileExplanation) -> Vec<String> {
    let mut why = Vec::new();
    if told.file.pinned {
        why.push("a pin glob keeps it on the SSD on which it is".to_owned());
    }
    if told.file.passed_through {
        why.push("the kernel serves it by itself: it does not move until it is closed".to_owned());
    }
    if let (Some(before), Some(all)) = (told.leaves_after, told.may_leave) {
        why.push(format!(
            "policy {}: {before} of {} on this SSD would leave before it",
            told.policy,
            counted(all, "file")
        ));
    }
    if told.file.excluded && !told.file.pinned {
        why.push("an exclude glob should keep it off: it has not moved yet".to_owned());
    }
    if told.file.size_bytes == 0 {
        why.push("it has no data to move".to_owned());
    }
    why
}

fn why_elsewhere(told: &FileExplanation, node: &str) -> Vec<String> {
    let mut why = vec![format!(
        "it was made on node {node} or brought there, and is read in place from there"
    )];
    if told.file.pinned {
        why.push("a pin glob keeps it on the SSD on which it is".to_owned());
    }
    why.extend(why_not_here(told));
    if told.opens == 1 && told.jobs.is_empty() {
        why.push("another node's file comes with its second use here".to_owned());
    }
    why
}

fn why_below(told: &FileExplanation) -> Vec<String> {
    let mut why = vec!["it is on the disk that all nodes share".to_owned()];
    why.extend(why_not_here(told));
    why
}

/// Why a file is not on this node's SSD.
fn why_not_here(told: &FileExplanation) -> Vec<String> {
    let mut why = Vec::new();
    if told.file.excluded {
        why.push("an exclude glob keeps it off SSDs".to_owned());
    }
    if told.too_large {
        why.push("it is larger than this node's SSD takes".to_owned());
    }
    match told.opens {
        0 => why.push("no program on this node was seen to open it since the mount began".into()),
        1 => why.push("it was opened once only on this node since the mount began".into()),
        _ => {}
    }
    if !told.too_large && told.file.disk_bytes + COPY_SLACK > told.ssd_free_bytes {
        why.push("this node's SSD has no room for it: others would have to leave".to_owned());
    }
    why
}

fn how(told: &FileExplanation, seen: &Facts<'_>) -> Vec<String> {
    match (seen.side, &seen.not_reached) {
        (Holder::Other(node), Some(_)) if seen.has_copy => vec![format!(
            "see that the SSD of {node} is where --peers says, and that {node} is mounted; if that SSD is lost, `halocline demote \
             FILE` makes the copy the file, and `halocline cluster drain {node}` all of them"
        )],
        (Holder::Other(node), Some(_)) => vec![format!(
            "see that the SSD of {node} is where --peers says, and that {node} is mounted; then it is there again"
        )],
        (_, Some(_)) => {
            vec![format!("unmount all nodes, and have the names compared with the disks: {CHECK}")]
        }
        (Holder::Own, None) => how_off(told),
        (Holder::Other(_), None) => [how_here(told), how_off(told)].concat(),
        (Holder::Shared, None) => how_here(told),
    }
}

fn how_off(told: &FileExplanation) -> Vec<String> {
    if told.file.pinned {
        return vec!["`halocline unpin GLOB --on MOUNT` lets it leave its SSD".to_owned()];
    }
    vec![
        "`halocline pin GLOB --on MOUNT` keeps it on that SSD".to_owned(),
        "`halocline demote FILE` moves it to the shared disk, when it is open nowhere".to_owned(),
    ]
}

fn how_here(told: &FileExplanation) -> Vec<String> {
    if told.file.excluded {
        return vec![
            "`halocline exclude --remove GLOB --on MOUNT`, then `halocline warm FILE`, brings it to this node's SSD"
                .to_owned(),
        ];
    }
    if told.too_large {
        return vec![
            "a larger `--ssd-limit` at the next mount, then `halocline warm FILE`".to_owned(),
        ];
    }
    let mut how = vec![
        "`halocline warm FILE` brings it to this node's SSD, when it is open nowhere, and others leave for it where there is no room"
            .to_owned(),
    ];
    if !(told.file.pinned && told.file.tier == usize::from(SSD)) {
        how.push(
            "opening it again on this node may bring it; a job that names it tells the policy that it is wanted"
                .to_owned(),
        );
    }
    how
}
