//! Where bytes lie, what a policy decides about a request, and why something is not cached now.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;
use halocline_model::admit;
use halocline_model::request::{ByteRange, Direction};

use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::fetch::Fetcher;
use crate::fill::Fills;
use crate::health::{Health, HealthState};
use crate::identify::Identifier;
use crate::known_files::KnownFiles;
use crate::origin_access::OriginAccess;
use crate::permits::Permits;
use crate::settings::Settings;
use crate::status_notes::Notes;
use halocline_api::config::Mode;
use halocline_api::control::{CostTerms, Explanation, ExtentInfo, Question, Side};
use halocline_meta::Segment;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::Namespace;

/// Answers questions about single files.
#[derive(Debug, Builder)]
pub(crate) struct Explainer {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    health: Arc<Health>,
    notes: Arc<Notes>,
    settings: Arc<Settings>,
    clock: Clock,
    identifier: Arc<Identifier>,
    known: Arc<KnownFiles>,
    fetcher: Arc<Fetcher>,
    fills: Arc<Fills>,
    permits: Arc<Permits>,
}

impl Explainer {
    /// Where the bytes of a file, or of `range` of it, lie, in offset order.
    pub(crate) fn locate(&self, path: &Path, range: Option<ByteRange>) -> Result<Vec<ExtentInfo>> {
        let file = self.regular(path)?;
        let all = ByteRange::new(0, file.size());
        let id = file.id();
        self.known.forget_idle(&file);
        let Some(range) = range.map_or(Some(all), |range| range.intersect(all)) else {
            return Ok(Vec::new());
        };
        let mut segments = Vec::new();
        match id {
            Some(id) => self.store.dmt.index().lookup(id, range, &mut segments),
            None if range.is_empty() => {}
            None => segments.push(Segment { range, extent: None }),
        }
        Ok(segments.iter().map(extent_info).collect())
    }

    /// What happens to a request, and why.
    pub(crate) fn explain(&self, question: &Question) -> Result<Explanation> {
        let file = self.regular(&question.path)?;
        let range = ByteRange::at(question.offset, question.length);
        let terms =
            self.identifier.explain(Some(&file), question.direction, range, question.processes);
        let mut segments = Vec::new();
        if let Some(id) = file.id() {
            self.store.dmt.index().lookup(id, range, &mut segments);
        }
        let cached_bytes =
            segments.iter().filter(|s| s.extent.is_some()).map(|s| s.range.len()).sum();
        let mut explanation = explanation(&terms, cached_bytes);
        explanation.note = self.notes.of_sides();
        explanation.nodes = self.permits.explain(&file, question.direction, range);
        if question.direction == Direction::Read
            && let Some(peers) = file.peer_copies.explain(range)
        {
            let waits = explanation.nodes.map(|nodes| format!("; {nodes}")).unwrap_or_default();
            explanation.nodes = Some(peers + &waits);
        }
        let critical = terms.critical;
        if cached_bytes < range.len() {
            explanation.now = self.why_not_now(&file, range, question.direction, critical);
        }
        if file.excluded.load(Ordering::Relaxed) {
            explanation.decision = Side::Origin;
            "an exclude glob keeps the file off the cache".clone_into(&mut explanation.reason);
        }
        self.known.forget_idle(&file);
        Ok(explanation)
    }

    /// The regular file at a path below the origin.
    fn regular(&self, path: &Path) -> Result<Arc<CachedFile>> {
        let vnode = self.origin.vnode_at(path)?.ok_or_else(|| {
            Error::invalid(
                format!("{} is not on this mount", path.display()),
                "name a file below the mount point",
            )
        })?;
        let stat = self.namespace.stat(&vnode)?;
        if stat.kind() != libc::S_IFREG {
            return Err(Error::invalid(
                format!("{} is not a regular file", path.display()),
                "name a regular file",
            ));
        }
        self.known.file_of(&vnode)
    }

    /// Why bytes of `range` that are on the origin are not on the cache now, and what would bring them. `critical` is
    /// the policy's verdict on the request.
    fn why_not_now(
        &self,
        file: &CachedFile,
        range: ByteRange,
        direction: Direction,
        critical: bool,
    ) -> Option<String> {
        if file.excluded.load(Ordering::Relaxed) {
            return Some("an exclude glob keeps the file off the cache".to_owned());
        }
        if file.hint.get().is_some_and(|hint| hint.cache == Some(false)) {
            return Some("a program's hint keeps the file off the cache".to_owned());
        }
        if file.read_below.load(Ordering::Acquire) {
            let why = "the kernel serves the file from memory by itself (`warm_passthrough`)";
            return Some(why.to_owned());
        }
        if !critical {
            return None;
        }
        if !self.health.admits(self.clock.now_ms()) {
            let health = self.health.report();
            let reason = health.reason.unwrap_or_default();
            return Some(match health.state {
                HealthState::Full => format!("nothing is admitted: {reason}"),
                _ => format!("a device of the cache failed and rests: {reason}"),
            });
        }
        match direction {
            Direction::Write if self.settings.config.mode == Mode::ReadOnly => {
                Some("in mode read-only writes go to the origin".to_owned())
            }
            Direction::Write => None,
            Direction::Read => Some(self.why_not_fetched(file, range)),
        }
    }

    /// Why a critical range is not on the cache: what the rebuilder and the filler wait for.
    fn why_not_fetched(&self, file: &CachedFile, range: ByteRange) -> String {
        self.fetcher.note_wants();
        let id = file.id();
        let mut wanted = self.store.dmt.critical().wanted(usize::MAX);
        wanted.retain(|wanted| Some(wanted.file) == id && wanted.range.overlaps(range));
        if wanted.is_empty() {
            return "it has not been read since it was last off the cache: a first read that \
                    misses makes it wanted"
                .to_owned();
        }
        let config = &self.settings.config;
        if self.fetcher.lacks_room() || self.fills.lack_room() {
            return "it is wanted, but there is no room: what is on the cache is dirty, pinned or \
                    was used more; it is looked for again when programs want more, or after `evict`"
                .to_owned();
        }
        let filled = if config.fill {
            "when it is read again it is filled from what the program gets"
        } else {
            "nothing is filled from what programs read (`fill` is off)"
        };
        let fetched = match (config.rebuild, self.origin.is_idle()) {
            (false, _) => "nothing is fetched in the background (`rebuild` is off)",
            (true, true) => "it is about to be fetched",
            (true, false) => {
                "it waits for an idle origin, and until then gets its turn in a small share of the \
                 origin's time"
            }
        };
        format!("it is wanted since a read missed it: {fetched}; {filled}")
    }
}

/// Picoseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn seconds(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1e12
}

/// The answer to a question whose request has `cached_bytes` on the cache already.
fn explanation(terms: &admit::Explanation, cached_bytes: u64) -> Explanation {
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    let benefit_s = terms.benefit_ps as f64 / 1e12;
    Explanation {
        policy: terms.policy.clone(),
        processes: terms.processes,
        cached_bytes,
        decision: if terms.critical { Side::Cache } else { Side::Origin },
        reason: terms.reason.clone(),
        now: None,
        note: None,
        nodes: None,
        layout: terms.layout,
        costs: terms.costs.iter().map(cost).collect(),
        benefit_s,
    }
}

fn cost(terms: &admit::CostTerms) -> CostTerms {
    CostTerms {
        side: if terms.on_cache { Side::Cache } else { Side::Origin },
        layout: terms.layout,
        servers: terms.servers,
        largest_part_bytes: terms.largest_part_bytes,
        startup_s: seconds(terms.startup_ps),
        transfer_s: seconds(terms.transfer_ps),
        total_s: seconds(terms.total_ps),
    }
}

fn extent_info(segment: &Segment) -> ExtentInfo {
    let extent = segment.extent;
    ExtentInfo {
        offset: segment.range.start,
        length: segment.range.len(),
        side: if extent.is_some() { Side::Cache } else { Side::Origin },
        layout: extent.map(|extent| extent.placement.layout),
        group: extent.map_or(0, |extent| extent.placement.group),
        dirty: extent.is_some_and(|extent| extent.dirty),
        last_use_ms: extent.map(|extent| extent.last_use_ms),
        dirty_since_ms: extent.filter(|e| e.dirty).map(|extent| extent.dirty_since_ms),
    }
}
