//! Where files lie on the disks is a matter of chance: what a search has found in one placement is judged in others, too.

use super::*;

/// How many times as long a layout takes in a placement.
type Times = fn(usize, &Layouts) -> f64;

/// Replays in three placements.
struct Placements<'a> {
    queues: Queues<'a>,
    times: Times,
    placement: usize,
    /// Replays of all requests in each.
    of_all: [usize; 3],
}

impl<'a> Placements<'a> {
    fn new(servers: &'a Servers, times: Times) -> Self {
        Self { queues: Queues::new(servers), times, placement: 0, of_all: [0; 3] }
    }
}

impl Judge for Placements<'_> {
    fn seconds_noting(&mut self, requests: &[Request], layouts: &Layouts, note: Note<'_>) -> f64 {
        self.queues.seconds_noting(requests, layouts, note) * (self.times)(self.placement, layouts)
    }

    fn seconds_of_all(&mut self, layouts: &Layouts, _note: Note<'_>) -> Option<f64> {
        self.of_all[self.placement] += 1;
        Some(if is_default(layouts) { 10.0 } else { 2.0 })
    }

    fn placements(&self, files: usize) -> usize {
        if files > 1 { 3 } else { 1 }
    }

    fn place(&mut self, placement: usize) {
        self.placement = placement;
    }
}

/// Requests at random to so many files, a process for each.
fn to_files(count: u64, files: u32) -> Vec<Request> {
    let mut all = requests(count, u64::from(files), 64 * K, Op::Read, |n| mixed(n, 9));
    for request in &mut all {
        request.file = request.process;
    }
    all
}

/// Whether a file lies on one server.
fn is_apart(layouts: &Layouts) -> bool {
    let is_one = |layout: &Layout| {
        layout.parts().iter().all(|part| part.widths.iter().filter(|it| **it > 0).count() == 1)
    };
    layouts.files.values().any(is_one)
}

fn is_default(layouts: &Layouts) -> bool {
    let default = |layout: &Layout| layout == &layouts.default;
    layouts.files.values().all(default)
}

fn planned_in(servers: &Servers, files: u32, times: Times) -> Outcome {
    let workload = seen(&to_files(1024, files));
    plan(servers, &workload, &mut Placements::new(servers, times), 1.0).expect("a plan")
}

/// Regression: the gain was that of the placement for which the layout had been found.
#[test]
fn a_layout_that_suits_one_placement_alone_does_not_win() {
    let servers = hybrid(3, 1, 8 << 20);
    let times: Times = |placement, layouts| match (is_apart(layouts), placement) {
        (false, _) => 1.0,
        (true, 0) => 0.01,
        (true, _) => 3.0,
    };
    let outcome = planned_in(&servers, 2, times);
    let choice = outcome.choice();
    assert!(!is_apart(&choice.layouts), "{:?}", choice.layouts);
    assert!(outcome.chosen != Name::Def && outcome.gain_over_def < 20.0, "{outcome:?}");
    let def = outcome.of(Name::Def).expect("def");
    for judged in outcome.layouts.iter().flatten() {
        let by_placement = &judged.seconds_by_placement;
        let mean = by_placement.iter().sum::<f64>() / 3.0;
        assert!(by_placement.len() == 3 && (judged.simulated_seconds - mean).abs() < 1e-9);
    }
    let gains = gain(def.simulated_seconds, choice.simulated_seconds);
    assert!((outcome.gain_over_def - gains).abs() < 1e-9);
    assert!(outcome.gains.least <= gains && gains <= outcome.gains.most);
}

/// A system has one placement: a gain in most of them is none for those who have the other.
#[test]
fn what_loses_in_a_placement_is_not_recommended() {
    // All has room in the default stripes, and on the SSD.
    let servers = hybrid(3, 1, 1 << 40);
    let none: Times = |_, _| 1.0;
    assert_ne!(planned_in(&servers, 2, none).chosen, Name::Def);
    let last: Times = |placement, layouts| match placement {
        2 if is_default(layouts) => 0.001,
        _ => 1.0,
    };
    let outcome = planned_in(&servers, 2, last);
    assert_eq!((outcome.chosen, outcome.gain_over_def), (Name::Def, 0.0), "{outcome:?}");
    assert!(outcome.best_gain > 0.0 && outcome.sure_gain < 0.0, "{outcome:?}");
    assert!((outcome.placements[2].gain() - outcome.sure_gain).abs() < 1e-9);
    assert!((outcome.gains.least - outcome.sure_gain).abs() < 1e-9);
    // Of one file there is one placement.
    let outcome = planned_in(&servers, 1, last);
    assert!(outcome.chosen != Name::Def && outcome.placements.len() == 1, "{outcome:?}");
}

#[test]
fn a_long_trace_is_replayed_whole_in_one_placement_alone() {
    let servers = hybrid(2, 1, 1 << 40);
    for (count, is_long) in [(50_000, false), (700_000, true)] {
        let workload = seen(&to_files(count, 2));
        assert!((workload.sampled() as u64) < count);
        let twice: Times = |placement, _| if placement == 2 { 4.0 } else { 1.0 };
        let mut judge = Placements::new(&servers, twice);
        let outcome = plan(&servers, &workload, &mut judge, 1.0).expect("a plan");
        assert_eq!(judge.of_all[2] == 0, is_long, "{:?}", judge.of_all);
        assert_eq!(judge.placement, 0);
        // As much longer as the sample.
        let seconds = outcome.of(Name::Def).expect("def").simulated_seconds;
        let expected = if is_long { 20.0 } else { 10.0 };
        assert!((seconds - expected).abs() < 1e-6, "{seconds}");
    }
}
