//! Files that `mark-servers` attests, which an earlier version has written or moved, and those that it does not.

use halocline_model::file_layout::FileLayout;
use halocline_storage::volume::origin::relayout::{self, Relayout, Wish};

use super::*;

/// Moves a file to the first server alone, as an earlier version does: it attests nothing.
fn moved_by_an_earlier_version(dir: &Path, name: &str) {
    let layout = FileLayout::from_parts([(0, vec![4096, 0, 0])]).unwrap();
    let volume = Relayout::open(dir).unwrap();
    let wish = Wish { path: name.into(), layout };
    let [change] = &relayout::look(volume.origin(), &[wish], true).unwrap()[..] else { panic!() };
    volume.relayout(change, &mut |_| Ok(()), &mut |_| ()).unwrap();
    removexattr(dir.join("namespace").join(name), ATTESTED).unwrap();
}

/// Regression: the object of a file of holes alone is its layout, which counted for nothing. In a copy such files failed, after they
/// were to be marked, too, and the reason that was told was that their data had been removed.
#[test]
fn a_file_of_holes_alone_is_attested_by_its_layout() {
    let Some((scratch, dir, tree)) = volume() else { return };
    let origin = opened(&dir);
    create(&origin, "file", 7);
    File::create_new(tree.join("holes")).unwrap().set_len(20_000).unwrap();
    drop(origin);
    for name in ["file", "holes"] {
        moved_by_an_earlier_version(&dir, name);
    }
    let unmarked = scratch.path().join("unmarked");
    copy(&dir, &unmarked);
    let origin = opened(&unmarked);
    for name in ["file", "holes"] {
        has_nothing(&origin, name);
        let told = read(&origin, name).unwrap_err().to_string();
        assert!(told.contains("run `halocline mark-servers` on the original"), "{told}");
    }
    drop(origin);
    let marked = mark_servers(&dir, Evidence::Contents).unwrap();
    assert_eq!(marked, Marked { servers: false, files: Some(2), unmarked: Vec::new() });
    let to = scratch.path().join("copy");
    copy(&dir, &to);
    let origin = opened(&to);
    has(&origin, "file", 7);
    has(&origin, "holes", 0);
}

/// Regression: one file that refused the attribute kept all others from being marked.
#[test]
fn a_file_that_cannot_be_marked_is_told_and_the_others_are_marked() {
    let Some((scratch, dir, tree)) = volume() else { return };
    for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
        create(&opened(&dir), name, byte);
        removexattr(tree.join(name), ATTESTED).unwrap();
    }
    fs::remove_file(dir.join(RECORD)).unwrap();
    let chattr = |how: &str| {
        let done = Command::new("chattr").arg(how).arg(tree.join("b")).status();
        done.is_ok_and(|done| done.success())
    };
    if !chattr("+i") {
        return skip("chattr(1) sets no attributes here");
    }
    let marked = mark_servers(&dir, Evidence::Contents);
    assert!(chattr("-i"));
    let marked = marked.unwrap();
    assert_eq!(marked.files, Some(2));
    let [UnmarkedFile { path, reason, has_data: true }] = &marked.unmarked[..] else {
        panic!("{marked:?}")
    };
    assert!(path == Path::new("b") && reason.contains("chattr -i -a "), "{reason}");
    // The volume does not say that all are: in a copy it would have nothing.
    assert!(!dir.join(RECORD).exists());
    let to = scratch.path().join("copy");
    copy(&dir, &to);
    has(&opened(&to), "b", 2);
    let marked = mark_servers(&dir, Evidence::Contents).unwrap();
    assert_eq!(marked, Marked { servers: false, files: Some(1), unmarked: Vec::new() });
    assert!(dir.join(RECORD).exists());
}
