//! What the engine keeps of files that nobody uses: nothing. Each file that is known holds a
//! descriptor, or the memory for one.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use halocline_api::control::{Controlled, RuleChange};
use halocline_vfs::Engine;

use crate::fixture::{Fixture, ME, still};

/// Whether anything but this test knows the inode.
fn is_known(fixture: &Fixture, key: (u64, u64)) -> bool {
    let engine = fixture.engine();
    engine.below(&engine.root()).0.find(key).is_some()
}

fn key(fixture: &Fixture) -> (u64, u64) {
    fixture.engine().key(&fixture.vnode("file"))
}

/// Its descriptor stayed open, and so its space on the origin in use, until the mount ended.
#[test]
fn a_file_that_is_removed_before_it_was_flushed_is_let_go() {
    let fixture = Fixture::new(still(1 << 20, "always"));
    fixture.write("file", 0, &[1; 4096]);
    let key = key(&fixture);
    fixture.engine().unlink(&fixture.engine().root(), OsStr::new("file"), ME).unwrap();
    assert!(!is_known(&fixture, key));
}

#[test]
fn a_file_that_was_flushed_is_let_go() {
    let fixture = Fixture::new(still(1 << 20, "always"));
    fixture.write("file", 0, &[1; 4096]);
    assert!(is_known(&fixture, key(&fixture)), "it has to be flushed");
    fixture.flush();
    assert!(!is_known(&fixture, key(&fixture)));
}

#[test]
fn a_file_that_was_looked_at_or_fetched_is_let_go() {
    let fixture = Fixture::new(still(1 << 20, "always"));
    fs::write(fixture.origin.path().join("file"), [1; 4096]).unwrap();
    let key = key(&fixture);
    let file = Path::new("file");
    let check = |after: &str| assert!(!is_known(&fixture, key), "{after}");
    fixture.read("file", 0, 4096);
    fixture.engine().fetch_wanted().unwrap();
    check("a fetch");
    fixture.engine().locate(file, None).unwrap();
    check("a question where it is");
    fixture.engine().change_rules(&RuleChange::Pin("*".to_owned())).unwrap();
    check("a pin");
    fixture.evict("file");
    check("an eviction");
    fixture.warm("file");
    check("warming");
}
