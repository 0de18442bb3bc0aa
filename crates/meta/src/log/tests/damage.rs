//! Logs with changed or missing bytes: reported with file and byte, and never silently shortened.

use super::*;
use crate::record;

/// What can be read of the log in `dir`, and whether it reports damage.
fn salvaged(dir: &Path) -> Result<(Records, bool)> {
    let salvaged = salvage(&PrivateDir::open(dir).unwrap(), "boot")?;
    let mut found = scanned(&salvaged)?;
    found.remove(record::STATE_KEY).unwrap();
    Ok((found, salvaged.damage.is_some()))
}

/// A flipped bit in every byte of every file: all records are there, or all but the last batch, or an error names the
/// file and the place.
#[test]
fn a_flipped_bit_anywhere_is_an_error_or_takes_the_last_batch() {
    let (_dir, live, image) = scratch();
    let (whole, states) = written(&live);
    let (all, but_one) = (states.last().unwrap(), &states[states.len() - 2]);
    let mut errors = 0;
    for (name, bytes) in &whole {
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 9);
        for at in 0..end.min(bytes.len()) {
            let mut files = whole.clone();
            files.get_mut(name).unwrap()[at] ^= 1 << (at % 8);
            put(&image, &files);
            match open(&image, false).and_then(|log| scanned(&log)) {
                Ok(found) => {
                    assert!(found == *all || found == *but_one, "{name} byte {at}: a mixture");
                }
                Err(Error::Store { path, what, remedy }) => {
                    assert!(path == image && !remedy.is_empty());
                    assert!(what.contains(name.as_str()) && what.contains("byte"), "{what}");
                    errors += 1;
                }
                Err(other) => panic!("{name} byte {at}: unclear: {other}"),
            }
        }
    }
    assert!(errors > 5_000, "{errors}");
}

/// After a power loss a gap is the end of the log; where a later batch says that it was synced, it is damage.
#[test]
fn a_gap_in_what_was_synced_is_damage_after_a_power_loss_too() {
    let (_dir, live, image) = scratch();
    let log = open(&live, false).unwrap();
    let mut story = Story::new(2);
    let before = story.steps(&log, 12);
    log.sync().unwrap();
    let after = story.steps(&log, 8);
    drop(log);
    let whole = files(&live);
    let name = &logs(&whole)[0];
    let places = places(&whole[name], generation(&whole));
    assert_eq!(places.len(), 21);
    for (index, &place) in places[..20].iter().enumerate() {
        let mut files = whole.clone();
        files.get_mut(name).unwrap()[place + 20] ^= 1;
        put(&image, &files);
        let opened = open(&image, true).and_then(|log| scanned(&log));
        if index < 12 {
            let what = opened.unwrap_err().to_string();
            assert!(what.contains(&format!("byte {place}")), "{what}");
        } else {
            let left = if index == 12 { &before[11] } else { &after[index - 13] };
            assert_eq!(opened.unwrap(), *left, "batch {index}");
        }
    }
}

#[test]
fn a_file_that_is_missing_is_damage_and_named() {
    let (_dir, live, image) = scratch();
    let (whole, _) = written(&live);
    let names: Vec<_> = whole.keys().collect();
    let needed = names.len() - 2;
    for &name in &names[..needed.min(2)] {
        for torn in [false, true] {
            let mut files = whole.clone();
            files.remove(name);
            put(&image, &files);
            let error = open(&image, torn).unwrap_err().to_string();
            assert!(error.contains(name.as_str()) && error.contains("missing"), "{error}");
        }
    }
    let mut files = whole.clone();
    files.retain(|name, _| !name.starts_with(SNAPSHOT));
    put(&image, &files);
    let error = open(&image, false).unwrap_err().to_string();
    assert!(error.contains("snapshot is missing"), "{error}");
}

/// Whatever is missing at the end of a log, from a byte to all its files: what was synced is there, or the damage is
/// reported.
#[test]
fn a_log_that_ends_before_what_was_synced_is_damaged() {
    let (_dir, live, image) = scratch();
    let (_, mut states) = written(&live);
    let log = open(&live, false).unwrap();
    let mut story = Story { random: 9, now: states.pop().unwrap() };
    let synced = story.step(&log);
    log.sync().unwrap();
    let unsynced = story.step(&log);
    drop(log);
    let whole = files(&live);
    let generation = generation(&whole);
    let used = |name: &String| places(&whole[name], generation).len() > 1;
    let last = logs(&whole).into_iter().rev().find(used).unwrap();
    let places = places(&whole[&last], generation);
    let bound = places[places.len() - 2];
    let mut refused = 0;
    for torn in [false, true] {
        for cut in HEAD..*places.last().unwrap() {
            let mut files = whole.clone();
            files.get_mut(&last).unwrap()[cut..].fill(0);
            put(&image, &files);
            let opened = open(&image, torn).and_then(|log| scanned(&log));
            let error = match opened {
                // A batch may be followed by up to seven zeros.
                Ok(found) => {
                    assert!(cut > bound - 8, "cut at {cut}");
                    assert!(found == synced || found == unsynced, "cut at {cut}");
                    continue;
                }
                Err(error) => error.to_string(),
            };
            assert!(error.contains(&last) && error.contains("was synced"), "{error}");
            files.get_mut(&last).unwrap().truncate(cut);
            put(&image, &files);
            open(&image, torn).unwrap_err();
            // A damaged sync point refuses nothing.
            files.get_mut("synced").unwrap()[20] ^= 1;
            put(&image, &files);
            open(&image, torn).unwrap();
            refused += 1;
        }
        let logs = logs(&whole);
        for kept in 0..logs.iter().position(|name| *name == last).unwrap() {
            let mut files = whole.clone();
            files.retain(|name, _| !logs[kept..].contains(name));
            put(&image, &files);
            let error = open(&image, torn).unwrap_err().to_string();
            assert!(error.contains("or a later file, is missing"), "{error}");
        }
    }
    assert!(refused > 50, "{refused}");
}

/// A flipped bit in every byte of every file, and each file missing: with a complete snapshot, the result is what some
/// first batches made; if no damage is reported it is complete; and no file is changed.
#[test]
fn what_can_be_read_of_a_damaged_log_is_a_prefix_and_says_so() {
    let (_dir, live, image) = scratch();
    let (whole, states) = written(&live);
    let (all, but_one) = (states.last().unwrap(), &states[states.len() - 2]);
    let mut prefixes = 0;
    let mut check = |files: &BTreeMap<String, Vec<u8>>, name: &str, what: &str| {
        put(&image, files);
        let found = salvaged(&image);
        assert!(super::files(&image) == *files, "{what}: it was changed");
        let Ok((found, is_damaged)) = found else {
            return assert!(files.len() < 3, "{what}: nothing is read");
        };
        if is_damaged && !name.starts_with(SNAPSHOT) {
            assert!(states.contains(&found), "{what}: a mixture");
            prefixes += 1;
        } else if !is_damaged {
            assert!(found == *all || found == *but_one, "{what}: less, and nothing is said");
        }
    };
    check(&whole, "", "whole");
    for (name, bytes) in &whole {
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 9);
        for at in (0..end.min(bytes.len())).step_by(7) {
            let mut files = whole.clone();
            files.get_mut(name).unwrap()[at] ^= 1 << (at % 8);
            check(&files, name, &format!("{name} byte {at}"));
        }
        let mut files = whole.clone();
        files.remove(name);
        // It was not synced: nothing refers to the last file.
        let used = |name: &&String| places(&whole[*name], generation(&whole)).len() > 1;
        let last = logs(&whole).iter().rfind(used).cloned();
        if name.starts_with(SNAPSHOT) || name.starts_with(LOG) && Some(name) < last.as_ref() {
            check(&files, SNAPSHOT, &format!("without {name}"));
        }
    }
    assert!(prefixes > 500, "{prefixes}");
    put(&image, &BTreeMap::new());
    salvaged(&image).unwrap_err();
}
