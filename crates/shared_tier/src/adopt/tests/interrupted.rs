//! Adoptions that die, and that the disks refuse.

use std::sync::Arc;

use rustix::fs::IFlags;

use super::*;
use crate::repair::refused::tests::Flagged;
use crate::repair::tests::Death;

/// Regression: a mount without --cluster was accepted, and lost names; late deaths could not be completed by the same command.
#[test]
fn an_adoption_that_dies_at_any_step_is_completed_and_not_mounted_before() {
    let (mut free, mut late) = (0, 0);
    for steps in 0.. {
        let world = old();
        let root = world.at("n1");
        let death = Arc::new(Death::default());
        death.end_after(steps);
        let died = run_watched(&root, "n1", true, Some(death)).is_err();
        let is_claimed = root.join("ssd/.halocline/node").exists();
        match refuse_if_begun(&root) {
            Ok(()) => free += 1,
            Err(error) if is_claimed => {
                assert!(error.to_string().contains("--cluster"), "{steps}: {error}");
            }
            Err(error) => {
                assert!(error.to_string().contains("--adopt NODE --repair"), "{steps}: {error}");
                let alone = world.alone();
                let refused = crate::repair::run(&root, None, &world.store, Some(&alone));
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains("--adopt NODE --repair"), "{steps}: {refused}");
            }
        }
        if died {
            late += u32::from(is_claimed);
            let again = run(&root, "n1", Some(&world.alone()));
            again.unwrap_or_else(|error| panic!("{steps}: {error}"));
        }
        assert!(!adoption_mark::is_on(&root.join("ssd")), "{steps}");
        world.repair(true);
        check(&world);
        if !died {
            break;
        }
    }
    // Before its first step nothing is changed; the last ones take the marks away.
    assert_eq!((free, late), (1, 3));
}

/// Regression: an adoption ended halfway at what it could not change, with a bare errno.
#[test]
fn what_cannot_be_changed_is_refused_before_anything_is() {
    for path in ["n1/ssd/hot", "n1/ssd/q", "n1/ssd/.", "shared/cold", "shared/new", "shared/."] {
        let world = old();
        let flagged = Flagged::new(world.at(path), IFlags::IMMUTABLE);
        let Some(flagged) = flagged else { return };
        for repair in [false, true] {
            let refused = run(&world.at("n1"), "n1", repair.then(|| world.alone()).as_ref());
            let refused = refused.unwrap_err().to_string();
            let shown = path.replace("shared/", "hdd/").replace("/.", "/");
            assert!(
                refused.contains(&format!("{shown}: Operation not permitted"))
                    && refused.contains("chattr -i -a")
                    && refused.contains("nothing was changed"),
                "{path}: {refused}"
            );
        }
        assert!(refuse_if_begun(&world.at("n1")).is_ok());
        assert!(world.at("n1/ssd/cold").is_symlink() && !world.at("shared/q").exists());
        drop(flagged);
        run(&world.at("n1"), "n1", Some(&world.alone())).unwrap();
        world.repair(true);
        check(&world);
    }
}
