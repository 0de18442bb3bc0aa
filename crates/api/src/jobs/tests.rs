//! Jobs that are followed, kept, and announced by several nodes.

use std::fs;

use super::*;

fn job(text: &str) -> Result<Job> {
    JobFile::parse(text, Some("here")).map(Job::new)
}

fn jobs(text: &str) -> Jobs {
    let all = vec![Announced { job: job(text).unwrap(), noted: 0 }];
    Jobs { all, ..Jobs::default() }
}

/// A file is opened by a process of the group.
fn opened_in(jobs: &mut Jobs, group: u32, path: &str) -> Passed {
    jobs.opened(path.as_ref(), &Opener { job: None, group }).0
}

/// How far away a file's announced references are.
fn distances(jobs: &Jobs, path: &str) -> Option<Vec<u64>> {
    let ahead = jobs.ahead(Path::new(path))?;
    let all = (1..=100).filter(|at| ahead.later(*at) > ahead.later(at - 1)).collect::<Vec<_>>();
    assert_eq!(ahead.next(), all.first().copied());
    assert_eq!(ahead.later(u64::MAX), all.len() as u64);
    Some(all)
}

#[test]
fn the_position_follows_opens() {
    let mut jobs = jobs(r#"{"job": "a", "references": ["x", "y", "x", "z", "x"]}"#);
    assert_eq!(distances(&jobs, "x"), Some(vec![1, 3, 5]));
    assert_eq!(distances(&jobs, "other"), None);
    opened_in(&mut jobs, 1, "other");
    opened_in(&mut jobs, 1, "x");
    assert_eq!(distances(&jobs, "x"), Some(vec![2, 4]));
    let passed = opened_in(&mut jobs, 1, "z");
    assert_eq!(passed.skipped, [Path::new("y").into(), Path::new("x").into()]);
    assert_eq!(jobs.list()[0].position, 4, "skipped references are behind");
    assert_eq!(distances(&jobs, "y"), Some(vec![]));
    opened_in(&mut jobs, 1, "x");
    assert_eq!(jobs.list()[0].state, "done");
    assert_eq!(distances(&jobs, "x"), Some(vec![]), "known not to come again");
    assert!(opened_in(&mut jobs, 1, "x").untrusted);
    assert_eq!(distances(&jobs, "x"), None, "what comes after the job is not its business");
}

#[test]
fn a_job_in_another_order_is_not_believed_for_long() {
    let names: Vec<String> = (0..200).map(|file| format!("\"f{file}\"")).collect();
    let mut jobs = jobs(&format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(",")));
    opened_in(&mut jobs, 1, "f0");
    for file in (100..200).rev() {
        opened_in(&mut jobs, 1, &format!("f{file}"));
    }
    assert_eq!(jobs.list()[0].state, "deviated");
    assert_eq!(distances(&jobs, "f150"), None);
}

/// Regression: a program that opened the file in work once more lost the references up to the file's next one.
#[test]
fn a_file_in_work_may_be_opened_again() {
    let mut jobs =
        jobs(r#"{"job": "a", "references": ["x", "y", {"file": "x", "repeat": 2}, "z", "y"]}"#);
    for (path, position) in
        [("x", 1), ("x", 1), ("y", 2), ("y", 2), ("x", 3), ("x", 4), ("x", 4), ("y", 4), ("z", 5)]
    {
        assert_eq!(opened_in(&mut jobs, 1, path), Passed::default(), "{path}");
        assert_eq!(jobs.list()[0].position, position, "{path}");
    }
    opened_in(&mut jobs, 1, "y");
    assert_eq!(jobs.list()[0].state, "done");
}

fn numbered(count: usize) -> String {
    let names: Vec<String> = (0..count).map(|file| format!("\"f{file}\"")).collect();
    format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(","))
}

/// An archiver that reads the same files before the job or while it is running.
#[test]
fn what_others_open_does_not_move_a_job() {
    let mut jobs = jobs(&numbered(300));
    for file in (0..300).step_by(50) {
        opened_in(&mut jobs, 2, &format!("f{file}"));
    }
    for file in 0..200 {
        let (_, ahead) =
            jobs.opened(Path::new(&format!("f{file}")), &Opener { job: None, group: 1 });
        assert!(ahead.is_some(), "the job's own open of f{file}");
        assert_eq!(jobs.list()[0].position, file + 1);
        // Group 2 opens in an order of its own, group 3 in the job's, some way ahead.
        opened_in(&mut jobs, 2, &format!("f{}", (file * 37) % 300));
        opened_in(&mut jobs, 3, &format!("f{}", (file + 40).min(299)));
        let theirs = Opener { job: Some("another".into()), group: 4 };
        let (_, ahead) = jobs.opened(Path::new(&format!("f{}", file + 1)), &theirs);
        assert!(ahead.is_none(), "another job's use");
    }
    assert_eq!(jobs.list()[0].state, "running");
}

#[test]
fn processes_with_a_jobs_variable_are_its_own_and_no_others() {
    let mut jobs = jobs(&numbered(300));
    let own = |group| Opener { job: Some("a".into()), group };
    for file in 0..20 {
        opened_in(&mut jobs, 1, &format!("f{file}"));
    }
    jobs.opened(Path::new("f20"), &own(2));
    assert_eq!(jobs.list()[0].position, 21, "it goes on, whatever its group");
    opened_in(&mut jobs, 1, "f21");
    assert_eq!(jobs.list()[0].position, 21, "not a process of its own");
    for file in 21..30 {
        jobs.opened(Path::new(&format!("f{file}")), &own(file));
    }
    assert_eq!(jobs.list()[0].position, 30);
    jobs.all[0].job.begin();
    assert_eq!(jobs.list()[0].state, "waiting");
    jobs.opened(Path::new("f0"), &own(9));
    assert_eq!(jobs.list()[0].position, 1, "another run");
}

#[test]
fn a_job_goes_on_in_another_group_once_its_first_is_gone() {
    use std::os::unix::process::CommandExt;
    let mut child = std::process::Command::new("true").process_group(0).spawn().unwrap();
    let group = child.id();
    let mut jobs = jobs(&numbered(300));
    for file in 0..100 {
        opened_in(&mut jobs, group, &format!("f{file}"));
    }
    child.wait().unwrap();
    opened_in(&mut jobs, 1, "f100");
    assert_eq!(jobs.list()[0].position, 101);
}

#[test]
fn a_job_that_nobody_goes_on_with_tells_nothing_until_somebody_does() {
    let mut jobs = jobs(&numbered(300));
    opened_in(&mut jobs, 1, "f0");
    let mut untrusted = 0;
    for _ in 0..1000 {
        untrusted += u32::from(opened_in(&mut jobs, 1, "other").untrusted);
    }
    assert_eq!(untrusted, 1, "told once");
    assert_eq!((distances(&jobs, "f1"), jobs.list()[0].state.as_str()), (None, "stopped"));
    let again = (1..30).find(|file| opened_in(&mut jobs, 1, &format!("f{file}")).untrusted);
    assert!(again.is_some(), "somebody goes on with it");
    let next = format!("f{}", again.unwrap() + 1);
    assert_eq!(distances(&jobs, &next), Some(vec![1]));
    assert_eq!(jobs.list()[0].state, "running");
}

/// A list of files that are opened seldom and in any order does not count as an order.
#[test]
fn an_order_that_fits_by_skipping_is_not_believed() {
    let names: Vec<String> = (0..300).map(|at| format!("\"f{}\"", at % 6)).collect();
    let mut jobs = jobs(&format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(",")));
    for open in 0..100 {
        opened_in(&mut jobs, 1, &format!("f{}", open * 5 % 6));
    }
    assert_eq!(jobs.list()[0].state, "deviated");
}

#[test]
fn a_remount_keeps_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = Jobs::load(dir.path()).unwrap();
    jobs.add(&numbered(300)).unwrap();
    let follow = |jobs: &mut Jobs, files: std::ops::Range<u64>| {
        files.for_each(|file| drop(opened_in(jobs, 1, &format!("f{file}"))));
    };
    follow(&mut jobs, 0..101);
    jobs.note_places();
    let mut jobs = Jobs::load(dir.path()).unwrap();
    assert_eq!((jobs.list()[0].position, jobs.list()[0].state.as_str()), (101, "running"));
    follow(&mut jobs, 101..150);
    assert_eq!(jobs.list()[0].position, 150);
    // The mount is killed.
    let mut jobs = Jobs::load(dir.path()).unwrap();
    assert!((118..=150).contains(&jobs.list()[0].position), "{:?}", jobs.list());
    follow(&mut jobs, 150..151);
    assert_eq!(jobs.list()[0].position, 151);
    // A position that is impossible.
    let place = dir.path().join("jobs").join(file_name("a", "at"));
    for (wrong, position) in [("99999", 300), ("-1", 0), ("", 0), ("1\u{0}", 0)] {
        fs::write(&place, wrong).unwrap();
        assert_eq!(Jobs::load(dir.path()).unwrap().list()[0].position, position, "{wrong:?}");
    }
    let mut jobs = Jobs::load(dir.path()).unwrap();
    jobs.add(&numbered(10)).unwrap();
    assert_eq!(Jobs::load(dir.path()).unwrap().list()[0].position, 0, "announced anew");
    jobs.remove("a").unwrap();
    assert_eq!(fs::read_dir(dir.path().join("jobs")).unwrap().count(), 0);
}

proptest::proptest! {
    /// Whichever opens come, a job stays within its sequence.
    #[test]
    fn any_opens_leave_a_job_in_its_sequence(
        opens in proptest::collection::vec((0..12u32, 0..20usize, 0..3u8), 0..200),
        sequence in proptest::collection::vec(0..20usize, 1..40),
    ) {
        let names: Vec<String> = sequence.iter().map(|file| format!("\"f{file}\"")).collect();
        let mut jobs = jobs(&format!(r#"{{"job": "a", "references": [{}]}}"#, names.join(",")));
        jobs.all[0].noted = u32::MAX / 2;
        jobs.places = "/nonexistent".into();
        for (group, file, job) in opens {
            let job = [None, Some("a".into()), Some("b".into())][usize::from(job)].clone();
            let path = format!("f{file}");
            let (_, ahead) = jobs.opened(Path::new(&path), &Opener { job, group });
            proptest::prop_assert!(jobs.list()[0].position <= sequence.len() as u64);
            if let Some(ahead) = ahead {
                proptest::prop_assert!(ahead.next().is_none_or(|next| next >= 1));
            }
        }
    }
}

#[test]
fn what_one_node_announces_the_others_take_in_and_each_has_its_own_place() {
    let dir = tempfile::tempdir().unwrap();
    let private = |name: &str| PrivateDir::make(&dir.path().join(name)).unwrap().path().to_owned();
    let (common, one, two) = (private("common"), private("one"), private("two"));
    let load = |own: &PathBuf, node: &str| Jobs::load_shared(&common, own, node).unwrap();
    let (mut first, mut second) = (load(&one, "n1"), load(&two, "n2"));
    first.add(r#"{"job": "a", "nodes": {"n1": ["x", "y"], "n2": ["z"]}}"#).unwrap();
    first.add(r#"{"job": "b", "nodes": {"n1": ["x"]}}"#).unwrap();
    assert!(second.refresh().unwrap() && !second.refresh().unwrap() && !first.refresh().unwrap());
    let states = |jobs: &Jobs| {
        let mut states: Vec<_> =
            jobs.list().into_iter().map(|job| (job.name, job.references, job.state)).collect();
        states.sort();
        states
    };
    let of = |name: &str, references, state: &str| (name.to_owned(), references, state.to_owned());
    assert_eq!(states(&first), [of("a", 2, "waiting"), of("b", 1, "waiting")]);
    assert_eq!(states(&second), [of("a", 1, "waiting"), of("b", 0, "elsewhere")]);
    opened_in(&mut first, 1, "x");
    first.note_places();
    assert_eq!(load(&one, "n1").list()[0].position, 1);
    assert_eq!(load(&two, "n2").list()[0].position, 0);
    // Announced anew by the other one: a new run.
    second.add(r#"{"job": "a", "references": ["x", "y", "z"]}"#).unwrap();
    assert!(first.refresh().unwrap());
    assert_eq!(states(&first)[0], of("a", 3, "waiting"));
    assert!(first.list().iter().all(|job| job.name == "b" || job.position == 0));
    second.remove("b").unwrap();
    assert!(first.refresh().unwrap());
    assert_eq!((first.list().len(), load(&two, "n2").list().len()), (1, 1));
    // What somebody else wrote there announces nothing.
    fs::write(common.join("jobs/00.json"), "{}").unwrap();
    assert!(first.refresh().unwrap() && !first.refresh().unwrap());
    assert_eq!(first.list().len(), 1);
}
