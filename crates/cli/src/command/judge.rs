//! The simulator as the judge of the planner.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use halocline_model::profile::whole;
use halocline_os::counted::counted;
use halocline_plan::judge::{Judge, Layouts, Note, Step};
use halocline_plan::layout::Part;
use halocline_plan::plan_file::Plan;
use halocline_plan::servers::{Network, Server, Servers};
use halocline_sim::placement::{PLACEMENTS, placements};
use halocline_sim::{FileLayout, Options, Outcome as Replayed, ServerSet, replay_noting};
use halocline_trace::Request;

use crate::print::tell;
use crate::progress::Spoken;

/// A profile's "random" requests are within this many bytes.
const SPAN: u64 = 16 << 30;

/// The servers of a set for the planner. What is free on a server is its capacity, and changes none of its times.
pub(crate) fn servers(set: &ServerSet) -> Result<Servers, halocline_plan::Error> {
    let server = |server: &halocline_sim::Server| Server {
        name: server.name.clone(),
        directory: server.directory.clone(),
        capacity: Some(server.capacity),
        channels: server.profile.channels(),
        profile: server.profile.service(SPAN),
        network: Network {
            connect_ps: whole(server.network.connect_us * 1e6),
            per_byte_ps: whole(server.network.ns_per_byte * 1e3),
        },
    };
    let classes = set.classes().into_iter().map(|class| class.servers).collect();
    Servers::in_classes(set.servers().iter().map(server).collect(), classes)
}

/// Refuses a plan for servers other than those of a set, which are `servers`.
pub(crate) fn check_planned(
    plan: &Plan,
    set: &ServerSet,
    servers: &Servers,
) -> Result<(), halocline_plan::Error> {
    let mut there = servers.all().to_vec();
    for ((found, described), planned) in there.iter_mut().zip(set.servers()).zip(&plan.server) {
        // Earlier versions took a capacity below the span for the span of a disk's random requests.
        let before = planned.capacity.map(|bytes| described.profile.service(SPAN.min(bytes)));
        if before == Some(planned.profile) {
            found.profile = planned.profile;
        }
    }
    plan.check_servers(&there)
}

/// A planned layout for the simulator.
pub(crate) fn file_layout(layout: &halocline_plan::layout::Layout) -> Result<FileLayout, String> {
    let parts = layout.parts().iter().map(|part| (part.begin, part.widths.clone()));
    FileLayout::from_parts(parts)
}

/// Layouts for the simulator, of which those that files share are made once: hundreds of files on a thousand servers are
/// replayed hundreds of times.
#[derive(Debug)]
pub(crate) struct SharedLayouts {
    /// Which of `all` a file has.
    of_file: HashMap<u32, usize>,
    all: Vec<FileLayout>,
    default: FileLayout,
}

impl SharedLayouts {
    /// Those of `layouts`.
    pub(crate) fn new(layouts: &Layouts) -> Result<Self, String> {
        let mut known: HashMap<*const Part, usize> = HashMap::new();
        let (mut of_file, mut all) = (HashMap::new(), Vec::new());
        for (number, layout) in &layouts.files {
            // Two layouts at one place are one.
            let index = match known.entry(layout.parts().as_ptr()) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    all.push(file_layout(layout)?);
                    *new.insert(all.len() - 1)
                }
            };
            of_file.insert(*number, index);
        }
        Ok(Self { of_file, all, default: file_layout(&layouts.default)? })
    }

    /// The layout of a file.
    pub(crate) fn of(&self, file: u32) -> &FileLayout {
        self.of_file.get(&file).map_or(&self.default, |index| &self.all[*index])
    }
}

/// Limit of the requests of a trace that is replayed as a whole: a few seconds for each layout.
pub(crate) const REPLAYED_MAX: u64 = 1 << 24;

/// Seconds of a whole trace in the placement of files with a seed, under some layouts, with notes.
type Whole<'a> = &'a dyn Fn(u64, &Layouts, Note<'_>) -> Result<f64, String>;

/// Replays on simulated servers.
pub(crate) struct Replay<'a> {
    set: &'a ServerSet,
    whole: Option<Whole<'a>>,
    failure: Option<String>,
    replays: u64,
    progress: Spoken,
    /// Of the placement of files on the disks.
    seed: u64,
}

impl std::fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("replays", &self.replays).finish_non_exhaustive()
    }
}

impl<'a> Replay<'a> {
    /// On these servers.
    pub(crate) fn new(set: &'a ServerSet) -> Self {
        let (progress, [seed, ..]) = (Spoken::begin(), PLACEMENTS);
        Self { set, whole: None, failure: None, replays: 0, progress, seed }
    }

    /// On these servers; `whole` replays all of the trace's `requests`, unless they are too many.
    pub(crate) fn with_whole(set: &'a ServerSet, whole: Whole<'a>, requests: u64) -> Self {
        let whole = (requests <= REPLAYED_MAX).then_some(whole);
        Self { whole, ..Self::new(set) }
    }

    /// The error of a replay, if there was one.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Layouts for the simulator: those of individual files, and the one of all others.
    pub(crate) fn file_layouts(
        layouts: &Layouts,
    ) -> Result<(HashMap<u32, FileLayout>, FileLayout), String> {
        let files = layouts.files.iter();
        let files = files.map(|(number, layout)| Ok((*number, file_layout(layout)?)));
        Ok((files.collect::<Result<_, String>>()?, file_layout(&layouts.default)?))
    }

    /// The servers' activity for `requests`; each process issues its own without pauses.
    pub(crate) fn outcome(
        &self,
        requests: &[Request],
        layouts: &Layouts,
        note: Note<'_>,
    ) -> Result<Replayed, String> {
        let layouts = SharedLayouts::new(layouts)?;
        let requests = requests.iter().copied();
        let of = |file| layouts.of(file);
        let options = Options { seed: self.seed, ..Options::default() };
        replay_noting(requests, self.set, of, &options, note)
    }
}

impl Replay<'_> {
    /// Keeps the first error; what cannot be replayed takes forever.
    fn or_never(&mut self, seconds: Result<f64, String>) -> f64 {
        seconds.unwrap_or_else(|why| {
            self.failure.get_or_insert(why);
            f64::INFINITY
        })
    }
}

impl Judge for Replay<'_> {
    fn seconds_noting(&mut self, requests: &[Request], layouts: &Layouts, note: Note<'_>) -> f64 {
        self.replays += 1;
        if self.progress.is_due() {
            tell!("planning: {} replayed", counted(self.replays, "layout"));
        }
        let outcome = self.outcome(requests, layouts, note);
        self.or_never(outcome.map(|outcome| outcome.seconds))
    }

    fn seconds_of_all(&mut self, layouts: &Layouts, note: Note<'_>) -> Option<f64> {
        let seconds = self.whole?(self.seed, layouts, note);
        Some(self.or_never(seconds))
    }

    fn placements(&self, files: usize) -> usize {
        placements(self.set, files).len()
    }

    fn place(&mut self, placement: usize) {
        self.seed = PLACEMENTS[placement];
    }

    fn advanced(&mut self, step: Step, done: usize, all: usize) {
        if !self.progress.is_due() {
            return;
        }
        let (what, verb) = match step {
            Step::PaperLayouts => ("file", "laid out as in the paper"),
            Step::Prediction => ("file", "predicted"),
            Step::Candidates => ("region", "predicted"),
        };
        tell!("planning: {done} of {} {verb}", counted(all, what));
    }
}
