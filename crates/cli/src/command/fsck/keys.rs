//! Every key of what `fsck --json` may answer is in `docs/METRICS.md`.

use std::path::PathBuf;

use halocline_api::control::metrics::Section;

use super::findings::NamedBy;
use super::{Findings, Problem};

#[test]
fn every_problem_is_described() {
    let path = PathBuf::new;
    let problems = vec![
        Problem::LostAtPowerLoss { path: path(), dirty_bytes: 0 },
        Problem::MissingData { path: path(), offset: 0, length: 0, dirty: true },
        Problem::DamagedData {
            path: path(),
            offset: 0,
            length: 0,
            dirty: true,
            saved: Some(path()),
        },
        Problem::LostServer { server: path() },
        Problem::StrayObject { file: 0, next_mount_removes: true },
        Problem::NoOrigin { path: path(), dirty_bytes: 0 },
        Problem::NotReachable { path: path(), dirty_bytes: 0, reason: String::new() },
        Problem::Conflict { path: path(), dirty_bytes: 0 },
        Problem::Copy { dirty_bytes: 0 },
        Problem::OrphanObject { object: String::new(), bytes: 0, removed: true },
        Problem::LeftoverObject { object: String::new(), bytes: 0 },
        Problem::MisnamedObject {
            object: String::new(),
            named_by: vec![NamedBy { path: path(), owner: 0 }],
        },
        Problem::UnreadName { reason: String::new() },
        Problem::UnreadableFile { path: path(), owner: 0, reason: String::new() },
        Problem::OtherTree { reason: String::new() },
        Problem::Uncounted { allocated_bytes: 0, counted_bytes: 0 },
    ];
    let section = Section::find("halocline fsck CACHE").unwrap();
    let kind = section.metrics.iter().find(|metric| metric.key == "problems[].problem").unwrap();
    for problem in &problems {
        let told = serde_json::to_value(problem).unwrap();
        let word = told["problem"].as_str().unwrap();
        assert!(kind.meaning.contains(&format!("`{word}`")), "{word}");
    }
    let findings = Findings {
        origin: None,
        files: 0,
        extents: 0,
        mapped_bytes: 0,
        dirty_bytes: 0,
        verified_bytes: 0,
        problems,
        repaired: false,
        origin_unchecked: Some(String::new()),
    };
    let told = serde_json::to_value(&findings).unwrap();
    assert_eq!(section.undescribed(&told), [""; 0]);
}
