//! Announcing is never worse than saying nothing: the same opens, with and without jobs.

use halocline_api::control::{Controlled, JobChange};
use halocline_tier::TierOptions;

use crate::fixture::{Fixture, limited};

/// Room that a copy needs besides its data.
const COPY_SLACK: u64 = 16 << 10;
const FILES: usize = 12;
const OPENS: usize = 600;

/// Opens by number: a few files often, the others seldom, and a scan now and then.
fn opens() -> Vec<usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut any = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below).unwrap()
    };
    (0..OPENS).map(|open| if open % 5 < 4 { any(4) } else { any(FILES as u64) }).collect()
}

/// Hits of all opens with `job` announced, on an SSD for five files.
fn hits(job: Option<&str>) -> u64 {
    let options = TierOptions { policy: "foresight".into(), ..limited(5 * (4 << 10) + COPY_SLACK) };
    let fixture = Fixture::new(options);
    for file in 0..FILES {
        fixture.write(&format!("f{file}"), &[7; 4096]);
        fixture.demote(&format!("f{file}"));
    }
    if let Some(job) = job {
        fixture.tier().change_jobs(&JobChange::Add(job.into())).unwrap();
    }
    for file in opens() {
        drop(fixture.open_file(&format!("f{file}"), libc::O_RDONLY));
    }
    fixture.tier().tier_status().unwrap().opens.hits
}

fn announcing(references: impl Iterator<Item = usize>) -> String {
    let references: Vec<String> = references.map(|file| format!("f{file}")).collect();
    serde_json::json!({ "job": "job", "references": references }).to_string()
}

#[test]
fn wrong_and_stale_announcements_cost_next_to_nothing() {
    let silent = hits(None);
    let right = hits(Some(&announcing(opens().into_iter())));
    assert!(right >= silent, "a right announcement: {right} hits, {silent} without");
    // What is allowed is the time that it takes to find out.
    let least = silent - silent / 20 - 10;
    let wrong = [
        ("backwards", announcing(opens().into_iter().rev())),
        ("of what is seldom opened", announcing((0..200).map(|open| 6 + open % 6))),
        ("of a job that never begins", announcing((0..400).map(|open| FILES + open))),
        (
            "of a job that ends early",
            announcing(opens().into_iter().take(20).chain((0..500).map(|open| 4 + open % 8))),
        ),
    ];
    for (what, job) in wrong {
        let hits = hits(Some(&job));
        assert!(hits >= least, "an announcement {what}: {hits} hits, {silent} without");
    }
}

/// `jobs make` writes what a trace has: also files that a job makes.
#[test]
fn files_that_a_job_makes_are_references() {
    let fixture = Fixture::new(limited(64 << 20));
    fixture.write("in", b"x");
    fixture.write("last", b"x");
    let job = r#"{"job": "job", "references": ["in", "out", "in", "last"]}"#;
    fixture.tier().change_jobs(&JobChange::Add(job.into())).unwrap();
    drop(fixture.open_file("in", libc::O_RDONLY));
    fixture.write("out", b"x");
    drop(fixture.open_file("in", libc::O_RDONLY));
    let jobs = fixture.tier().change_jobs(&JobChange::List).unwrap();
    assert_eq!((jobs[0].position, jobs[0].state.as_str()), (3, "running"));
}
