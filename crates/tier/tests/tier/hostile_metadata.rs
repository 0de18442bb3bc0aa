//! What a tier reads of its own when it is mounted, changed in each place: records of copies, intents,
//! links, numbers and the set's identity. None panics, none leads out of the tiers, and two files
//! never have one number.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, XattrFlags, linkat, setxattr};

use halocline_api::control::tier::PRIVATE;
use halocline_testkit::hostile::{Random, changed};
use halocline_tier::FileTier;
use halocline_vfs::Engine;

use crate::clean_copies::keeping;
use crate::fixture::Fixture;

/// The attribute of a migrated copy that keeps the number programs know the file by.
const NUMBER_XATTR: &str = "user.halocline.inode";

/// Trees that are mounted, one for each seed.
const TREES: u64 = 60;

/// Tiers with everything that they write about files.
fn tiers() -> Fixture {
    let fixture = keeping();
    fs::create_dir(fixture.ssd("d")).unwrap();
    fixture.write("d/here", b"here");
    fixture.with_copy("d/copied", b"copied");
    for path in ["d/below", "d/shared"] {
        fixture.write(path, path.as_bytes());
    }
    let (vnode, (dir, name)) = (fixture.vnode("d/shared").unwrap(), fixture.at("d/name"));
    fixture.tier().link(&vnode, &dir, name).unwrap();
    drop((vnode, dir));
    assert_eq!(fixture.demote("d/below").files + fixture.demote("d/shared").files, 2);
    let intents = fixture.ssd(PRIVATE).join("intents");
    symlink("1/d/nothing", intents.join("0123456789abcdef")).unwrap();
    let [from, to] = ["d/below", "d/here"].map(|path| fixture.ssd(path));
    linkat(CWD, from, CWD, intents.join("77-from"), AtFlags::empty()).unwrap();
    linkat(CWD, to, CWD, intents.join("77-to"), AtFlags::empty()).unwrap();
    fixture
}

/// The paths below a directory that are links, and those that are files.
fn nodes(dir: &Path) -> [Vec<PathBuf>; 2] {
    let (mut dirs, [mut links, mut files]) = (vec![dir.to_owned()], [vec![], vec![]]);
    while let Some(dir) = dirs.pop() {
        let mut entries: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort_unstable();
        for path in entries {
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_symlink() {
                links.push(path);
            } else if kind.is_file() {
                files.push(path);
            }
        }
    }
    [links, files]
}

/// Puts other targets and names into links, other numbers on files, and other bytes into the identity of the set.
fn change(fixture: &Fixture, random: &mut Random) {
    let [links, files] = nodes(fixture.dir.path());
    let root = fixture.hdd("").into_os_string().into_vec();
    let targets: Vec<_> = links.iter().map(|link| fs::read_link(link).unwrap()).collect();
    let mut samples: Vec<&[u8]> =
        targets.iter().map(|target| target.as_os_str().as_bytes()).collect();
    samples.extend([&root[..], b"../../outside/victim", b"1/../../outside/victim", b"1/d/copied"]);
    let names: Vec<_> = links.iter().map(|link| link.file_name().unwrap().as_bytes()).collect();
    let node_of = |samples: &[&[u8]], random: &mut Random, most: usize| {
        let mut bytes = changed(samples, random);
        bytes.retain(|byte| *byte != 0);
        bytes.truncate(most);
        bytes
    };
    for link in &links {
        if random.below(2) == 0 {
            continue;
        }
        let target = OsString::from_vec(node_of(&samples, random, 4000));
        let mut name = node_of(&names, random, 255);
        name.retain(|byte| *byte != b'/');
        let to = match random.below(3) {
            0 if !matches!(&name[..], b"" | b"." | b"..") => {
                link.with_file_name(OsString::from_vec(name))
            }
            _ => link.clone(),
        };
        fs::remove_file(link).unwrap();
        // What is taken stays as it is.
        let _ = symlink(if target.is_empty() { "x".into() } else { target }, to);
    }
    let numbers: Vec<_> = files.iter().map(|file| inode(file).to_string()).collect();
    let mut samples: Vec<&[u8]> = numbers.iter().map(String::as_bytes).collect();
    let own = inode(&fixture.ssd("")).to_string();
    samples.extend([&b"18446744073709551615"[..], b"0", b"1", own.as_bytes()]);
    for file in &files {
        let number = match random.below(3) {
            0 => continue,
            1 => samples[random.below(samples.len())].to_owned(),
            _ => node_of(&samples, random, 64),
        };
        setxattr(file, NUMBER_XATTR, &number, XattrFlags::empty()).unwrap();
    }
    for tier in ["ssd", "hdd"] {
        let label = fixture.dir.path().join(tier).join(PRIVATE).join("tier.json");
        if random.below(4) == 0 {
            let bytes = fs::read(&label).unwrap();
            fs::write(&label, changed(&[&bytes], random)).unwrap();
        }
    }
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

#[test]
fn hostile_records_lead_nowhere_and_two_files_never_have_one_number() {
    let mut opened = 0;
    for seed in 0..TREES {
        let mut fixture = tiers();
        let outside = fixture.dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("victim"), "precious").unwrap();
        fixture.tier = None;
        change(&fixture, &mut Random(seed));
        let looked_at = FileTier::check(&fixture.set(), false);
        if fixture.try_open().is_ok() {
            looked_at.expect("what is mounted can be looked at");
            check_numbers(&fixture, seed);
            opened += 1;
        }
        assert_eq!(fs::read(outside.join("victim")).unwrap(), b"precious", "seed {seed}");
        assert_eq!(fs::read(fixture.ssd("d/here")).unwrap(), b"here", "seed {seed}");
        assert_eq!(fs::read(fixture.ssd("d/copied")).unwrap(), b"copied", "seed {seed}");
    }
    assert!(opened > TREES / 4, "{opened} trees were mounted");
}

/// Each file has a number, which no other has, whether it is asked by name or listed.
fn check_numbers(fixture: &Fixture, seed: u64) {
    let [links, files] = nodes(&fixture.ssd(""));
    let private = fixture.ssd(PRIVATE);
    let mut known = std::collections::BTreeMap::new();
    let root = fixture.tier().root();
    known.insert(fixture.tier().key(&root).1, inode(&fixture.ssd("")));
    for path in links.iter().chain(&files).filter(|path| !path.starts_with(&private)) {
        let name = path.strip_prefix(fixture.ssd("")).unwrap();
        // What cannot be looked up leads nowhere.
        let Some(Ok(vnode)) = name.to_str().map(|name| fixture.vnode(name)) else { continue };
        let number = fixture.tier().key(&vnode).1;
        let first = *known.entry(number).or_insert_with(|| inode(path));
        assert_eq!(first, inode(path), "seed {seed}: {number} of {} is another's", name.display());
    }
}
