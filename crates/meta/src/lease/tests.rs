use super::*;

const LEFT: Stamp = Stamp::Closed { size: 9, mtime_ns: 100, ctime_ns: 100 };

fn found(size: u64, mtime_ns: i64, ctime_ns: i64) -> Stamp {
    Stamp::Closed { size, mtime_ns, ctime_ns }
}

#[test]
fn what_was_at_rest_is_compared_and_what_was_being_changed_is_dated() {
    use Verdict::{Attributes, Ours, Same, Theirs};
    let (early, late) = (found(9, 150, 150), found(9, 250, 250));
    let rows = [
        (Evidence::Ended(200), LEFT, LEFT, Same),
        (Evidence::Ended(200), LEFT, found(9, 100, 999), Attributes),
        (Evidence::Ended(200), LEFT, found(8, 100, 100), Theirs),
        (Evidence::Ended(200), LEFT, early, Theirs),
        (Evidence::Ended(200), Stamp::Writing, early, Ours),
        (Evidence::Ended(200), Stamp::Writing, late, Theirs),
        (Evidence::Ended(200), LEFT, found(8, 50, 99), Ours),
        (Evidence::Ended(200), LEFT, found(9, 300, 99), Ours),
        (Evidence::Durable(200), LEFT, LEFT, Same),
        (Evidence::Durable(200), LEFT, found(9, 100, 99), Attributes),
        (Evidence::Durable(200), LEFT, found(8, 50, 99), Theirs),
        (Evidence::Durable(200), LEFT, early, Theirs),
        (Evidence::Durable(200), Stamp::Writing, early, Ours),
        (Evidence::Durable(200), Stamp::Writing, late, Theirs),
        (Evidence::Behind(200), LEFT, early, Ours),
        (Evidence::Behind(200), LEFT, found(3, 50, 50), Ours),
        (Evidence::Behind(200), LEFT, late, Theirs),
        (Evidence::Behind(200), Stamp::Writing, early, Ours),
        (Evidence::Behind(200), Stamp::Writing, late, Theirs),
        (Evidence::Copy, LEFT, LEFT, Same),
        (Evidence::Copy, LEFT, early, Theirs),
        (Evidence::Copy, Stamp::Writing, early, Theirs),
        (Evidence::Nothing, Stamp::Writing, late, Ours),
        (Evidence::Nothing, LEFT, early, Theirs),
    ];
    for (evidence, left, found, want) in rows {
        assert_eq!(evidence.judge(left, found), want, "{evidence:?} {left:?} {found:?}");
        let kept = evidence.kept(left);
        // A later session cannot call durable what it could not look at.
        let later = match evidence {
            Evidence::Ended(_) => Evidence::Ended(900),
            _ => Evidence::Durable(900),
        };
        let later = later.judge(kept, found);
        let as_good = later == want || (later, want) == (Ours, Attributes);
        assert!(as_good || left == found, "{evidence:?} {left:?} {found:?}: {later:?}");
        assert_eq!(Evidence::Copy.kept(kept), kept, "it stays with the first that was known");
    }
}

#[test]
fn a_lease_tells_a_kill_a_power_loss_a_close_and_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let open = |boot| Lease::open(dir.path(), Some(boot)).unwrap();
    let (lease, evidence) = open("a");
    assert_eq!(evidence, Evidence::Nothing);
    lease.begin().unwrap();
    let text = lease.text.lock();
    let (until_ms, synced_ms) = (text.until_ms, text.synced_until_ms);
    drop(text);
    assert!(until_ms < synced_ms && coarse_ms() < until_ms);
    assert_eq!(open("a").1, Evidence::Ended(nanoseconds(until_ms)));
    assert_eq!(open("b").1, Evidence::Behind(nanoseconds(synced_ms)));

    let path = dir.path().join(LEASE_FILE);
    let before = std::fs::read(&path).unwrap();
    std::fs::rename(&path, dir.path().join("away")).unwrap();
    std::fs::write(&path, &before).unwrap();
    assert_eq!(open("a").1, Evidence::Copy);
    std::fs::rename(dir.path().join("away"), &path).unwrap();

    for boot in ["a", "b"] {
        lease.close(false).unwrap();
        assert_eq!(open(boot).1, Evidence::Ended(nanoseconds(until_ms)));
        lease.close(true).unwrap();
        assert_eq!(open(boot).1, Evidence::Durable(nanoseconds(until_ms)));
    }
    std::fs::write(&path, "what").unwrap();
    assert_eq!(open("a").1, Evidence::Copy, "what cannot be read excuses nothing");
}

/// A lease of a version without an exit time.
#[test]
fn the_lease_of_an_earlier_version_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (lease, _) = Lease::open(dir.path(), Some("a")).unwrap();
    lease.begin().unwrap();
    let text = lease.text.lock();
    let (until_ms, mut bytes) = (text.until_ms, text.encode());
    drop(text);
    let line = String::from_utf8(bytes.to_vec()).unwrap();
    let before = line.split(" ahead ").next().unwrap().replacen(MAGIC, MAGIC_BEFORE, 1);
    bytes.fill(b' ');
    bytes[..before.len()].copy_from_slice(before.as_bytes());
    lease.file.write_all_at(&bytes, 0).unwrap();
    let evidence = Lease::open(dir.path(), Some("a")).unwrap().1;
    assert_eq!(evidence, Evidence::Ended(nanoseconds(until_ms)));
}

#[test]
fn a_lease_is_written_once_for_many_changes_and_follows_a_clock_that_is_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let (lease, _) = Lease::open(dir.path(), Some("a")).unwrap();
    lease.begin().unwrap();
    let until_ms = lease.text.lock().until_ms;
    for _ in 0..1000 {
        lease.extend();
    }
    assert!(lease.text.lock().until_ms <= until_ms + 60_000);
    let ahead_ms = coarse_ms() + 3_600_000;
    lease.observe(found(1, 1, nanoseconds(ahead_ms)));
    assert!(lease.text.lock().until_ms > ahead_ms);
}

/// The kernel notes when an idle process ends, too: long after its last change, when others may have changed the
/// origin.
#[test]
fn the_end_of_an_idle_process_excuses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (lease, _) = Lease::open(dir.path(), Some("a")).unwrap();
    lease.begin().unwrap();
    let set_end_ms = |ms| {
        let mut text = lease.text.lock();
        text.until_ms = ms;
        lease.write(&text, false).unwrap();
    };
    lease.note_exit();
    set_end_ms(1000);
    let Evidence::Ended(busy_ns) = Lease::open(dir.path(), Some("a")).unwrap().1 else { panic!() };
    assert!(busy_ns > nanoseconds(coarse_ms() - 60_000), "{busy_ns}");
    lease.forget_exit();
    assert_eq!(Lease::open(dir.path(), Some("a")).unwrap().1, Evidence::Ended(nanoseconds(1000)));
}
