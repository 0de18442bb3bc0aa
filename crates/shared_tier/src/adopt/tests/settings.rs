//! What commands had set on the tier.

use halocline_api::control::tier::PRIVATE;
use halocline_api::globs::Globs;
use halocline_api::jobs::Jobs;

use super::*;

const JOB: &str = r#"{"job": "j", "references": ["hot", "cold"]}"#;

/// Pins, and a job with its place; the disk below has what an earlier run, which died, has kept there.
pub(super) fn set_by_commands(world: &World) {
    let private = |disk: &str| PrivateDir::make(&world.at(disk).join(PRIVATE)).unwrap();
    let (ssd, shared) = (private("n1/ssd"), private("shared"));
    for (dir, rules) in [
        (&ssd, r#"{"pin": ["new/**", "p/*"], "exclude": ["x/**"]}"#),
        (&shared, r#"{"pin": ["p/*"], "exclude": []}"#),
    ] {
        dir.replace("rules.json", rules.as_bytes()).unwrap();
    }
    let jobs = ssd.sub("jobs").unwrap();
    jobs.replace("6a.json", JOB.as_bytes()).unwrap();
    jobs.replace("6a.at", b"1").unwrap();
}

/// All nodes heed what commands had set before.
pub(super) fn check(world: &World) {
    let private = |disk: &str| world.at(disk).join(PRIVATE);
    let globs = Globs::load(&private("shared"), &[], &[]).unwrap();
    let mut pins = globs.pin_sources().to_vec();
    pins.sort();
    assert_eq!(pins, ["new/**", "p/*"]);
    assert_eq!(globs.exclude_sources(), ["x/**"]);
    let [own, other] = ["n1", "n2"].map(|node| {
        let dir = world.at(&format!("{node}/ssd")).join(PRIVATE);
        let own = PrivateDir::make(&dir).unwrap().path().to_owned();
        let told = Jobs::load_shared(&private("shared"), &own, node).unwrap().list();
        assert_eq!((told.len(), told[0].name.as_str(), told[0].references), (1, "j", 2));
        told[0].position
    });
    assert_eq!((own, other), (1, 0));
    // What nobody reads any more would come back with the next adoption.
    assert!(Globs::load(&private("n1/ssd"), &[], &[]).unwrap().is_empty());
    assert!(!private("n1/ssd").join("jobs/6a.json").exists());
}
