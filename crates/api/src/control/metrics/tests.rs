use std::path::PathBuf;

use halocline_model::layout::Layout;
use serde::Serialize;

use super::*;
use crate::config::Mode;
use crate::control::tier::{
    AnyStatus, CopiesStatus, FileExplanation, FileInfo, JobInfo, JobUse, MoveNow, Moved, Opens,
    PassthroughStatus, Problem, Requests, ScanFindings, TierState, TierStatus,
};
use crate::control::{
    CachedFileInfo, CachedTree, CostTerms, Explanation, ExtentInfo, Health, MoveReport, Rebuilder,
    Report, Rules, ServerStatus, Side, Skipped, Status, TokenCounts,
};

/// Says that a section has exactly the keys of an answer that has all of them.
fn check(command: &str, answer: &impl Serialize) {
    let section = Section::find(command).expect(command);
    let answer = serde_json::to_value(answer).unwrap();
    assert_eq!(section.undescribed(&answer), [""; 0], "{command}: keys without a description");
    let printed = keys_of(&answer);
    for key in section.keys() {
        assert!(
            printed.iter().any(|(printed, _)| *printed == key),
            "{command}: {key} is described and never printed"
        );
    }
}

fn rules() -> Rules {
    Rules { pin: vec!["a".into()], exclude: vec!["b".into()] }
}

fn job() -> JobInfo {
    JobInfo { name: "j".into(), references: 1, position: 0, files: 1, state: "waiting".into() }
}

fn tier() -> TierStatus {
    TierStatus {
        tiers: vec![TierState { path: "/t".into(), name: "t".into(), free_bytes: None }],
        ssd_files: 0,
        high_bytes: 0,
        low_bytes: 0,
        waiting_bytes: 0,
        promoted: Moved::default(),
        demoted: Moved::default(),
        copies: CopiesStatus::default(),
        opens: Opens::default(),
        moving: vec![MoveNow {
            path: "f".into(),
            from: 1,
            to: 0,
            done_bytes: 0,
            total_bytes: 0,
            seconds: 0.0,
        }],
        moving_rate: 0,
        requests: Requests::default(),
        passthrough: PassthroughStatus {
            files: vec!["f".into()],
            refused: vec![("why".into(), 1)],
            ..PassthroughStatus::default()
        },
        jobs: vec![job()],
    }
}

fn status() -> Status {
    Status {
        version: String::new(),
        pid: 0,
        origin: PathBuf::new(),
        cache: PathBuf::new(),
        transport: String::new(),
        mode: Mode::WriteBack,
        policy: String::new(),
        eviction: String::new(),
        limit_bytes: 0,
        used_bytes: 0,
        records_bytes: 0,
        mapped_bytes: 0,
        dirty_bytes: 0,
        oldest_dirty_age_ms: None,
        extents: 0,
        dirty_extents: 0,
        wanted_ranges: 0,
        damaged_bytes: 0,
        repaired_bytes: 0,
        warm_opens: 0,
        detached: None,
        health: Health::Full { reason: String::new() },
        rebuilder: Rebuilder::Idle,
        servers: vec![ServerStatus {
            side: Side::Cache,
            path: PathBuf::new(),
            profile: String::new(),
            reads: 0,
            read_bytes: 0,
            writes: 0,
            written_bytes: 0,
            errors: 0,
            queued: 0,
            slower: Some(2.0),
        }],
        rules: rules(),
        report: report(),
        notes: vec![String::new()],
    }
}

fn report() -> Report {
    let left = vec![Skipped { path: PathBuf::new(), reason: String::new() }];
    Report { left, cluster: Some(TokenCounts::default()), ..Report::default() }
}

#[test]
fn every_key_of_a_status_is_described_and_no_other() {
    check("halocline status", &AnyStatus { status: status(), tier: Some(tier()) });
    // The command adds the curve: `crates/cli/tests/json_keys.rs` compares what it prints with the same section.
    let point = serde_json::json!({
        "cache_bytes": 1, "lru": 0.5, "s3fifo": 0.5, "ours": 0.5, "optimum": 0.5, "error": 0.0
    });
    let mut with_curve = serde_json::to_value(report()).unwrap();
    with_curve["curve"] = serde_json::json!({
        "block_bytes": 1, "accesses": 1, "footprint_bytes": 1, "sampled_share": 1.0,
        "policy": "p", "points": [point]
    });
    check("--report", &with_curve);
    check("halocline jobs", &[job()]);
    check("halocline pin", &rules());
}

/// The answer `report` with each key that is described as a counter set to `value`.
fn counted(report: &Report, value: u64) -> Report {
    let section = Section::find("--report").unwrap();
    let of_nodes = section.within.iter().filter(|(prefix, _)| *prefix == "cluster.");
    let of_nodes =
        of_nodes.flat_map(|(prefix, metrics)| metrics.iter().map(move |it| (*prefix, it)));
    let mut answer = serde_json::to_value(report).unwrap();
    let mut counters = 0;
    for (prefix, metric) in section.metrics.iter().map(|it| ("", it)).chain(of_nodes) {
        if metric.unit.ends_with("counter") {
            let at = format!("/{prefix}{}", metric.key).replace('.', "/");
            *answer.pointer_mut(&at).expect(metric.key) = value.into();
            counters += 1;
        }
    }
    assert!(counters > 20, "{counters}");
    serde_json::from_value(answer).unwrap()
}

/// A `run` that joins a mount reports what was counted since it joined, whatever counter was added to the report.
#[test]
fn all_counters_of_a_report_begin_when_a_run_joins() {
    let since = counted(&report(), 7).since(&counted(&report(), 5));
    let expected = counted(&since, 2);
    let json = |report: &Report| serde_json::to_value(report).unwrap();
    assert_eq!(json(&since), json(&expected));
}

fn file_info() -> FileInfo {
    FileInfo {
        path: PathBuf::new(),
        tier: 0,
        tier_name: String::new(),
        place: PathBuf::new(),
        size_bytes: 0,
        disk_bytes: 0,
        pinned: false,
        excluded: false,
        passed_through: false,
        lost: false,
        clean_copy: None,
    }
}

#[test]
fn every_key_of_an_explained_file_is_described_and_no_other() {
    check(
        "halocline explain FILE",
        &FileExplanation {
            file: file_info(),
            policy: String::new(),
            ssd_limit_bytes: 0,
            ssd_free_bytes: 0,
            opens: 0,
            last_open_ms: None,
            leaves_after: None,
            may_leave: None,
            jobs: vec![JobUse { name: String::new(), coming: 0, next: None }],
            handles: 0,
            passed_handles: 0,
            hard_links: 1,
            known_names: 1,
            too_large: false,
            stayed_ms: None,
            stayed: None,
            reasons: vec![String::new()],
            remedies: vec![String::new()],
        },
    );
}

#[test]
fn every_key_of_other_answers_is_described_and_no_other() {
    let skipped = vec![Skipped { path: PathBuf::new(), reason: String::new() }];
    let conflicts = skipped.clone();
    check("halocline flush", &MoveReport { skipped, conflicts, ..MoveReport::default() });
    check(
        "halocline where FILE",
        &[ExtentInfo {
            offset: 0,
            length: 0,
            side: Side::Cache,
            layout: Some(Layout::OneDh),
            group: 0,
            dirty: false,
            last_use_ms: None,
            dirty_since_ms: None,
        }],
    );
    let file = CachedFileInfo { path: "a".into(), cached_bytes: 2, dirty_bytes: 1, extents: 1 };
    check(
        "halocline where DIR",
        &CachedTree { files: vec![file], cached_bytes: 2, dirty_bytes: 1 },
    );
    check("halocline where PATH", &[file_info()]);
    let costs = vec![CostTerms {
        side: Side::Origin,
        layout: None,
        servers: 0,
        largest_part_bytes: 0,
        startup_s: 0.0,
        transfer_s: 0.0,
        total_s: 0.0,
    }];
    check(
        "halocline explain",
        &Explanation {
            policy: String::new(),
            processes: 1,
            cached_bytes: 0,
            decision: Side::Origin,
            reason: String::new(),
            now: None,
            note: None,
            nodes: None,
            layout: None,
            costs,
            benefit_s: 0.0,
        },
    );
}

#[test]
fn every_key_of_a_checked_tier_is_described_and_no_other() {
    let one = PathBuf::new;
    check(
        "halocline fsck ROOT",
        &ScanFindings {
            files: vec![0],
            ssd_bytes: 0,
            adopted: vec![one()],
            copies: 0,
            removed: 0,
            problems: vec![
                Problem::Conflict { path: one(), other: one() },
                Problem::Lost { path: one(), place: one() },
                Problem::SecondLink { path: one(), place: one() },
                Problem::UnownedLink { path: one(), place: one() },
                Problem::NotAFile { other: one() },
                Problem::Leftover { other: one() },
                Problem::NotCutOver { path: one() },
                Problem::Unlinked { other: one() },
                Problem::CopyGone { path: one(), other: one() },
                Problem::CopyDiffers { path: one(), other: one() },
                Problem::ManyNames { names: 2, other: one() },
            ],
        },
    );
}

#[test]
fn each_key_has_a_unit_and_a_meaning_and_its_name_says_the_same() {
    for metric in SECTIONS.iter().flat_map(|section| section.metrics) {
        assert!(!metric.meaning.is_empty() && !metric.unit.is_empty(), "{}", metric.key);
        for (suffix, unit) in [("_bytes", "bytes"), ("_s", "seconds"), ("_ms", "milliseconds")] {
            let is_it = metric.key.ends_with(suffix) && !metric.key.ends_with("_per_s");
            let agrees = !is_it || metric.unit.starts_with(unit);
            assert!(agrees, "{} is said to be {}", metric.key, metric.unit);
        }
    }
}

#[test]
fn the_page_in_the_repository_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/METRICS.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == markdown(), "run `cargo run -p halocline-cli -- docs --pages-only docs`");
}
