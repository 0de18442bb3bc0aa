//! What both a disk and the store grant, where nobody knows which of them is newer.

use std::collections::BTreeMap;

use halocline_cluster::names::attributes::{Attributes, Kind};

use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::places::users_xattrs::CAPABILITY;

/// Deletions in a directory are refused by this bit: it grants nothing.
const REFUSES: u32 = libc::S_ISVTX;
/// The permission bits of the owner.
const OF_OWNER: u32 = 0o700;

/// The attributes of a disk with no permission that the store does not have. The owner is that of the disk, whose content it was;
/// so are the attributes that grant nothing.
pub(crate) fn narrower(on_disk: &Attributes, stored: &Attributes, keeps_acls: bool) -> Attributes {
    let mut both = on_disk.clone();
    both.mode = narrower_mode(on_disk, stored);
    if on_disk.xattrs.get(CAPABILITY) != stored.xattrs.get(CAPABILITY) {
        both.xattrs.remove(CAPABILITY);
    }
    if keeps_acls {
        let xattrs = [&on_disk.xattrs, &stored.xattrs];
        if let [Some(disk), Some(store)] = xattrs.map(|of| acl(of, DEFAULT)) {
            both.xattrs.insert(DEFAULT.to_vec(), disk.narrower(&store).to_value());
        }
        match xattrs.map(|of| acl(of, ACCESS)) {
            [None, None] => {}
            [disk, store] => {
                let disk = disk.unwrap_or_else(|| Acl::of_mode(on_disk.mode));
                let store = store.unwrap_or_else(|| Acl::of_mode(stored.mode));
                let acl = disk.narrower(&store).with_mode(both.mode);
                both.xattrs.insert(ACCESS.to_vec(), acl.to_value());
            }
        }
    }
    both
}

/// Takes everything away that admits anybody but the owner, or gives programs rights.
pub(crate) fn owner_only(of: &mut Attributes) {
    of.mode &= OF_OWNER;
    of.xattrs.retain(|name, _| ![ACCESS, DEFAULT, CAPABILITY].contains(&name.as_slice()));
}

fn narrower_mode(on_disk: &Attributes, stored: &Attributes) -> u32 {
    let (one, other) = (on_disk.mode, stored.mode);
    // In a directory it says which group new files have.
    let kept = if on_disk.kind == Kind::Directory { one & libc::S_ISGID } else { 0 };
    one & other & !REFUSES | (one | other) & REFUSES | kept
}

/// One without entries is none.
fn acl(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>, name: &[u8]) -> Option<Acl> {
    xattrs.get(name).and_then(|value| Acl::parse(value)).filter(|acl| !acl.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mode: u32, acl: Option<&Acl>) -> Attributes {
        let mut of = Attributes::new(Kind::File, mode, 0);
        of.xattrs.extend(acl.map(|acl| (ACCESS.to_vec(), acl.to_value())));
        of
    }

    #[test]
    fn nobody_gets_what_one_of_both_refuses() {
        let modes = [(0o644, 0o600, 0o600), (0o600, 0o644, 0o600), (0o4750, 0o705, 0o700)];
        for (disk, store, both) in modes {
            assert_eq!(narrower(&of(disk, None), &of(store, None), true).mode, both);
        }
        let directory = |mode| Attributes { kind: Kind::Directory, ..of(mode, None) };
        for (disk, store, both) in [(0o777, 0o1777, 0o1777), (0o2775, 0o755, 0o2755)] {
            assert_eq!(narrower(&directory(disk), &directory(store), true).mode, both);
        }
        let sample = Acl::sample();
        for (disk, store) in [(Some(&sample), None), (None, Some(&sample))] {
            let both = narrower(&of(0o771, disk), &of(0o750, store), true);
            let acl = Acl::parse(&both.xattrs[ACCESS]).unwrap();
            assert_eq!((both.mode, acl.mode()), (0o750, 0o750));
            // The named user has nothing of what others have, either.
            assert_eq!(acl, sample.narrower(&Acl::of_mode(0o750)).with_mode(0o750));
            assert_ne!(acl, sample.with_mode(0o750));
        }
        let same = narrower(&of(0o771, Some(&sample)), &of(0o771, Some(&sample)), true);
        assert_eq!(same, of(0o771, Some(&sample)));
    }

    #[test]
    fn capabilities_are_those_of_both_and_what_grants_nothing_is_the_disk_s() {
        let mut disk = of(0o755, None);
        let store = disk.clone();
        disk.uid = 7;
        disk.xattrs.insert(CAPABILITY.to_vec(), b"all".to_vec());
        disk.xattrs.insert(b"user.a".to_vec(), b"b".to_vec());
        let both = narrower(&disk, &store, true);
        assert_eq!((both.uid, both.xattrs.len()), (7, 1));
        assert_eq!(narrower(&disk, &disk, true), disk);
    }
}
