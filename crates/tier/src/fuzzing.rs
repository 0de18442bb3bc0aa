//! Bodies of this crate's fuzz targets (`fuzz/`): input that anybody who can write to a tier may have written. They are
//! called by cargo-fuzz, and by the tests below over the same seeds (docs/TESTING.md, fuzz targets).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use halocline_api::control::tier::PRIVATE;
use halocline_os::bounded;
use tempfile::TempDir;

use crate::copy_records::{CopyRecord, fuzzing::era};
use crate::leftover_intents;
use crate::tier_links::{Target, TierLinks};
use crate::{FileTier, TierSet};

/// A symbolic link, with one line for the name and one for the target: a parsed place is below its tier, and records,
/// intents and targets are the same when they are written again.
pub fn link(bytes: &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (name, target) = (&bytes[..at], &bytes[(at + 1).min(bytes.len())..]);
    let roots = ["/t/ssd", "/t/hdd", "/t/hdd/inner"].map(PathBuf::from);
    let links = TierLinks::new(&roots, &[("/former".into(), 1), ("/another".into(), 9)]);
    match links.read(target) {
        Target::Away(tier, place) => {
            assert!((1..3).contains(&tier));
            assert!(place.components().all(|part| matches!(part, Component::Normal(_))));
            for again in [links.to(tier, &place), links.to_shared(tier, &place)] {
                assert_eq!(links.read(again.as_bytes()), Target::Away(tier, place.clone()));
            }
        }
        Target::Users(users) => {
            let stored = links.stored(&users);
            assert_eq!(links.read(stored.as_bytes()), Target::Users(users));
        }
    }
    if let Some((tier, place)) = leftover_intents::parse(target) {
        let again = leftover_intents::target(tier, &place);
        assert_eq!(leftover_intents::parse(again.as_bytes()), Some((tier, place)));
    }
    let Ok(name) = std::str::from_utf8(name) else { return };
    if let Some(record) = CopyRecord::parse(name, target) {
        assert!(record.name().len() < 255);
        let again = leftover_intents::target(record.tier, &record.place);
        assert_eq!(CopyRecord::parse(&record.name(), again.as_bytes()), Some(record));
    }
    era(name);
}

/// The number that an attribute of a file keeps.
pub fn number(value: &[u8]) {
    crate::inode_numbers::fuzzing::number(value);
}

/// A directory of our own, in memory if possible.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory")
}

/// Two tiers with one file each, and entries given by the lines of some bytes: `tier.json` of each tier, then symbolic
/// links, `PATH TARGET`. The tiers are refused, or examined and repaired; no file is lost, and nothing outside changes.
pub fn tree(bytes: &[u8]) {
    let scratch = scratch();
    let at = |path: &str| scratch.path().join(path);
    for tier in ["ssd", "hdd"] {
        fs::create_dir_all(at(tier).join(PRIVATE)).expect("a directory");
        fs::write(at(tier).join("file"), tier).expect("it is written");
    }
    fs::write(at("outside"), "precious").expect("it is written");
    let mut lines = bytes.split(|byte| *byte == b'\n');
    for tier in ["ssd", "hdd"] {
        if let Some(label) = lines.next().filter(|label| !label.is_empty()) {
            fs::write(at(tier).join(PRIVATE).join("tier.json"), label).expect("it is written");
        }
    }
    for line in lines.take(32) {
        let mut words = line.splitn(2, |byte| *byte == b' ');
        let (Some(path), Some(target)) = (words.next(), words.next()) else { continue };
        let [path, target] = [path, target].map(|word| Path::new(OsStr::from_bytes(word)));
        let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_plain || path.as_os_str().as_bytes().contains(&0) {
            continue;
        }
        let path = at("ssd").join(path);
        // What exists already stays, and what cannot be created is left out.
        let _ = fs::create_dir_all(path.parent().expect("below a tier"));
        let _ = symlink(target, path);
    }
    let Ok(set) = TierSet::below(scratch.path(), &["ssd", "hdd"]) else { return };
    let _ = (TierSet::names_below(scratch.path()), FileTier::check(&set, false));
    let first = FileTier::check(&set, true);
    if first.is_ok() {
        FileTier::check(&set, true).map(drop).expect("what was brought in order is opened again");
    }
    let found = |path: PathBuf| bounded::read_to_string(&path, 64).ok();
    assert_eq!(found(at("outside")).as_deref(), Some("precious"));
    assert_eq!(found(at("ssd/file")).as_deref(), Some("ssd"));
    let is_there = |dir: &Path| walk(dir).any(|path| found(path).as_deref() == Some("hdd"));
    assert!(is_there(&at("hdd")) || is_there(&at("ssd")), "a file is lost");
}

/// The files below a directory.
fn walk(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let (mut dirs, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.into_iter()
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;

    #[test]
    fn hostile_links_mean_a_place_of_a_tier_or_are_a_users() {
        let seeds = [
            ("record", "1.2.3.4.5.6-1.2.3.4.5.6-7\n1/d/copied"),
            ("away", "\n/t/hdd/d/file"),
            ("shared", "\n/t/hdd/inner/./d/file"),
            ("users", "\n/t/hdd/.//d/../file"),
            ("era", "1f 0e1c2d3f-4455\n/former/d"),
        ];
        run("tier_link", &seeds.map(|(name, text)| (name, text.into())), 20_000, link);
    }

    #[test]
    fn hostile_numbers_of_files() {
        let seeds =
            [("small", "4711"), ("made-up", "18014398509481984"), ("most", "18446744073709551615")];
        run("tier_number", &seeds.map(|(name, text)| (name, text.into())), 20_000, number);
    }

    #[test]
    fn hostile_trees_never_lead_outside_the_tiers() {
        let ssd = r#"{"set":"s","tier":0,"roots":[["/t/hdd",1]]}"#;
        let hdd = r#"{"set":"s","tier":1}"#;
        let links = "a 1/file\n.halocline/intents/77 1/file\n.halocline/copies/era 1f 0e1c2d3f\n\
            .halocline/copies/1.2.3.4.5.6-1.2.3.4.5.6-7 1/file\nd/out ../../outside\nd/gone /t/hdd/gone";
        let seeds = [
            ("recorded", format!("{ssd}\n{hdd}\n{links}").into_bytes()),
            ("new", format!("\n\n{links}").into_bytes()),
        ];
        run("tier_tree", &seeds, 300, tree);
    }
}
