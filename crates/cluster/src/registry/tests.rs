use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

pub(crate) fn entry(session: u64) -> Entry {
    Entry {
        session: Session(session),
        node: "n1".to_owned(),
        cache: PathBuf::from("/ssd"),
        cache_id: "id".to_owned(),
        boot_id: "boot".to_owned(),
        since: 1,
        cache_seen: None,
        seen: None,
        list_id: None,
    }
}

fn without_look(entry: Entry) -> Entry {
    Entry { seen: None, list_id: None, ..entry }
}

#[test]
fn sessions_enter_and_leave() {
    let place = tempfile::tempdir().unwrap();
    let registry = Registry::open(&place.path().join("r")).unwrap();
    registry.enter(&entry(5)).unwrap();
    registry.enter(&entry(u64::MAX)).unwrap();
    let mut sessions = registry.sessions().unwrap();
    sessions.sort();
    assert_eq!(sessions, [Session(5), Session(u64::MAX)]);
    assert_eq!(registry.entry(Session(5)).map(without_look), Some(entry(5)));
    assert_eq!(registry.name(Session(5)), "node n1 (session 0000000000000005)");
    registry.leave(Session(5)).unwrap();
    registry.leave(Session(5)).unwrap();
    assert_eq!(registry.sessions().unwrap(), [Session(u64::MAX)]);
}

/// Regression: nodes whose clients show the same file with different numbers each got tokens of their own, and cached
/// the same bytes.
#[test]
fn i11_nodes_that_identify_files_differently_do_not_share_them() {
    let place = tempfile::tempdir().unwrap();
    let registry = Registry::open(&place.path().join("r")).unwrap();
    let [own, other] = [1, 2].map(Session);
    for session in [1, 2] {
        registry.enter(&entry(session)).unwrap();
    }
    registry.check_views(own).unwrap();
    let path = place.path().join("r").join(name_of(other));
    let right = registry.entry(other).unwrap();
    let seen = right.seen.unwrap();
    let write = |seen| {
        let entry = Entry { node: "far".to_owned(), seen, ..right.clone() };
        fs::write(&path, serde_json::to_vec(&entry).unwrap()).unwrap();
    };
    for wrong in [
        FileIdentity { inode: seen.inode + 1, ..seen },
        FileIdentity { born_ns: u64::from(seen.born_ns == 0), ..seen },
    ] {
        write(Some(wrong));
        let refused = registry.check_views(own).unwrap_err().to_string();
        assert!(refused.contains("on node far"), "{refused}");
        registry.check_views(other).unwrap();
    }
    for right in [None, Some(seen), Some(FileIdentity { device: 0, ..seen })] {
        write(right);
        registry.check_views(own).unwrap();
    }
}

#[test]
fn what_others_put_there_is_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("r");
    let registry = Registry::open(&dir).unwrap();
    fs::write(place.path().join("else"), "{}").unwrap();
    symlink(place.path().join("else"), dir.join(name_of(Session(1)))).unwrap();
    fs::create_dir(dir.join(name_of(Session(2)))).unwrap();
    fs::write(dir.join(name_of(Session(3))), "{\"session\":4}").unwrap();
    fs::write(dir.join("session-xyz"), "").unwrap();
    for session in 1..4 {
        assert_eq!(registry.entry(Session(session)), None);
    }
    assert_eq!(registry.sessions().unwrap().len(), 3, "each counts until it is recovered");
    symlink(&dir, place.path().join("link")).unwrap();
    Registry::open(&place.path().join("link")).unwrap_err();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    let refused = Registry::open(&dir).unwrap_err().to_string();
    assert!(refused.contains("chmod 0700"), "{refused}");
}
/// Regression: the store distinguished origins by the inode number of this directory, which is the same on file
/// systems that were made alike. The nodes of one counted as nodes of the other, and their writes were lost.
#[test]
fn origins_have_names_that_no_other_has() {
    let place = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| place.path().join(name));
    let open = |dir: &Path| {
        fs::create_dir_all(dir).unwrap();
        Registry::open(&dir.join("r")).unwrap()
    };
    let names = dirs.each_ref().map(|dir| open(dir).store_name().unwrap());
    assert_ne!(names[0], names[1]);
    assert!(names.iter().all(|name| name.len() == 32), "{names:?}: no inode number");
    assert_eq!(open(&dirs[0]).store_name().unwrap(), names[0]);
    // A copy of an origin, with its list, is a different origin.
    fs::copy(dirs[0].join("r/id"), dirs[1].join("r/id")).unwrap();
    let refused = Registry::open(&dirs[1].join("r")).unwrap_err().to_string();
    assert!(refused.contains("is a copy of the list"), "{refused}");
    for unread in ["", "{}", "{\"id\":\"../x\",\"inode\":1,\"born_ns\":0}"] {
        fs::write(dirs[1].join("r/id"), unread).unwrap();
        Registry::open(&dirs[1].join("r")).unwrap_err();
    }
}

#[test]
fn sessions_of_earlier_versions_are_seen_where_these_look_for_them() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("r");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
    let old = serde_json::to_vec(&entry(5)).unwrap();
    fs::write(dir.join(name_of(Session(5))), &old).unwrap();
    let registry = Registry::open(&dir).unwrap();
    let inode = fs::metadata(&dir).unwrap().ino();
    assert_eq!(registry.store_name().unwrap(), format!("{inode:x}"));
    let refused = registry.check_version().unwrap_err().to_string();
    assert!(refused.contains("node n1"), "{refused}");
    registry.leave(Session(5)).unwrap();
    let registry = Registry::open(&dir).unwrap();
    registry.check_version().unwrap();
    // A session that begins at the same time is seen by the other.
    registry.enter(&entry(6)).unwrap();
    registry.check_views(Session(6)).unwrap();
    fs::write(dir.join(name_of(Session(5))), &old).unwrap();
    let refused = registry.check_views(Session(6)).unwrap_err().to_string();
    assert!(refused.contains("another version"), "{refused}");
}

/// Regression: when a list was renamed or removed, a new one was begun beside live nodes.
#[test]
fn i11_a_list_that_is_gone_is_not_begun_anew() {
    let place = tempfile::tempdir().unwrap();
    let origin = place.path().join("an $(origin)");
    fs::create_dir(&origin).unwrap();
    let [dir, away] = ["r", "away"].map(|name| origin.join(name));
    let registry = Registry::open(&dir).unwrap();
    registry.enter(&entry(5)).unwrap();
    let presence_of = |session| registry.presence_of(Session(session)).unwrap();
    assert_eq!([5, 6].map(presence_of), [Presence::Here, Presence::Unlisted]);
    Registry::refuse_if_missing(&away).unwrap_err();
    fs::rename(&dir, &away).unwrap();
    assert_eq!(presence_of(5), Presence::Elsewhere);
    let refused = match Registry::open(&dir) {
        Err(refused) => refused.to_string(),
        Ok(_) => return halocline_testkit::skipping::skip("no extended attributes here"),
    };
    assert!(refused.contains("is missing") && refused.contains("setfattr -x"), "{refused}");
    assert!(
        refused.contains(&format!(" '{}'", origin.display())),
        "one word of a shell: {refused}"
    );
    fs::create_dir(&dir).unwrap();
    assert_eq!(presence_of(5), Presence::Elsewhere);
    let refused = Registry::open(&dir).unwrap_err().to_string();
    assert!(refused.contains("is not the list"), "{refused}");
    fs::remove_dir(&dir).unwrap();
    fs::rename(&away, &dir).unwrap();
    assert_eq!(presence_of(5), Presence::Here);
    Registry::open(&dir).unwrap();
}
