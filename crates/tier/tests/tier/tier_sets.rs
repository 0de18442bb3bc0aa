//! Which directories make a set of tiers.

use std::fs;
use std::path::PathBuf;

use halocline_api::control::tier::Problem;
use halocline_tier::{FileTier, TierSet};

use crate::fixture::{Fixture, limited};

/// A mount of two of its three tiers went down with the first link to the third.
#[test]
fn a_set_is_refused_without_one_of_its_tiers() {
    let mut fixture = Fixture::with(&["fast", "ssd", "hdd"], limited(1 << 20));
    fixture.write("file", b"x");
    fixture.set_room(1, 0);
    assert_eq!(fixture.demote("file").files, 1);
    assert_eq!(fixture.where_is("file"), 2);
    fixture.tier = None;
    let names = TierSet::names_below(fixture.dir.path()).unwrap();
    assert_eq!(names, ["fast", "ssd", "hdd"]);
    let two = TierSet::below(fixture.dir.path(), &["fast", "ssd"]).unwrap();
    for refused in [
        FileTier::open(&two, limited(1 << 20)).unwrap_err(),
        FileTier::check(&two, false).unwrap_err(),
    ] {
        let refused = refused.to_string();
        assert!(refused.contains("/hdd is tier 2") && refused.contains("--tiers"), "{refused}");
    }
    fixture.open();
    assert_eq!(fixture.content("file").unwrap(), b"x");
}

/// A look at three directories with the two usual names made these a set, which the third could not
/// join any more.
#[test]
fn a_check_makes_no_tiers_of_directories() {
    let dir = tempfile::tempdir().unwrap();
    for tier in ["ssd", "hdd", "tape"] {
        fs::create_dir(dir.path().join(tier)).unwrap();
    }
    fs::write(dir.path().join("hdd/file"), "x").unwrap();
    let two = TierSet::below(dir.path(), &["ssd", "hdd"]).unwrap();
    let found = FileTier::check(&two, false).unwrap();
    assert!(matches!(found.problems[..], [Problem::Unlinked { .. }]), "{found:?}");
    assert!(TierSet::names_below(dir.path()).is_none());
    let three = TierSet::below(dir.path(), &["ssd", "hdd", "tape"]).unwrap();
    assert_eq!(FileTier::check(&three, true).unwrap().adopted, [PathBuf::from("file")]);
    assert_eq!(TierSet::names_below(dir.path()).unwrap().len(), 3);
}
