//! POSIX ACLs: the kernel checks them, and a file system keeps them as extended attributes. What a new inode inherits,
//! and what a change of the mode does to the ACL, and the reverse.

use std::collections::BTreeMap;

use halocline_cluster::names::attributes::Attributes;
use halocline_os::posix_acl::{self, Entry, tag};
use halocline_vfs::Caller;
use halocline_vfs::ownership::is_in_group;

/// Permission bits of one class.
const BITS: u16 = 0o7;

/// The attribute with the ACL of an inode.
pub(crate) const ACCESS: &[u8] = posix_acl::ACCESS.as_bytes();
/// The attribute with the ACL that new inodes in a directory get.
pub(crate) const DEFAULT: &[u8] = posix_acl::DEFAULT.as_bytes();

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Reads an attribute's value; `None` if it is no ACL. One without entries stands for no ACL.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let acl = Self(posix_acl::decode(value)?);
        (acl.0.is_empty() || acl.is_sound()).then_some(acl)
    }

    /// Whether each class has its entry once, and there is a mask where named users or groups need one.
    fn is_sound(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let all = [tag::OWNER, tag::USER, tag::OWNING_GROUP, tag::GROUP, tag::MASK, tag::OTHER];
        let has_names = count(tag::USER) + count(tag::GROUP) > 0;
        let once = [tag::OWNER, tag::OWNING_GROUP, tag::OTHER].map(count) == [1; 3];
        let masks = count(tag::MASK);
        once && (masks == 1 || masks == 0 && !has_names)
            && self.0.iter().all(|entry| all.contains(&entry.tag) && entry.bits & !BITS == 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it grants exactly what the permission bits say.
    pub(crate) fn is_only_mode(&self) -> bool {
        self.0.len() <= 3
    }

    /// Encodes it as an attribute's value.
    pub(crate) fn to_value(&self) -> Vec<u8> {
        posix_acl::encode(&self.0)
    }

    /// The entries that mirror the permission bits, each with the shift of its bits: the group bits mirror the mask
    /// where there is one.
    fn classes(&mut self) -> impl Iterator<Item = (&mut Entry, u32)> {
        let has_mask = self.0.iter().any(|entry| entry.tag == tag::MASK);
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            tag::OWNER => Some((entry, 6)),
            tag::MASK => Some((entry, 3)),
            tag::OWNING_GROUP if !has_mask => Some((entry, 3)),
            tag::OTHER => Some((entry, 0)),
            _ => None,
        })
    }

    /// The permission bits that this ACL stands for.
    pub(crate) fn mode(&self) -> u32 {
        let mut acl = self.clone();
        acl.classes().map(|(entry, shift)| u32::from(entry.bits) << shift).sum()
    }

    /// This ACL after a chmod to `mode`.
    pub(crate) fn with_mode(&self, mode: u32) -> Self {
        let mut acl = self.clone();
        acl.classes().for_each(|(entry, shift)| entry.bits = bits(mode, shift));
        acl
    }

    /// The ACL of something without one.
    pub(crate) fn of_mode(mode: u32) -> Self {
        let classes = [(tag::OWNER, 6), (tag::OWNING_GROUP, 3), (tag::OTHER, 0)];
        let entry = |(tag, shift)| Entry { tag, bits: bits(mode, shift), id: u32::MAX };
        Self(classes.map(entry).to_vec())
    }

    /// An ACL that grants nobody what one of both refuses. Who is named in one only gets nothing by that name, nor as one of
    /// the others.
    pub(crate) fn narrower(&self, other: &Self) -> Self {
        let key = |entry: &Entry| {
            let is_named = matches!(entry.tag, tag::USER | tag::GROUP);
            (entry.tag, if is_named { entry.id } else { 0 })
        };
        let [own, others] = [self, other]
            .map(|acl| acl.0.iter().map(|it| (key(it), *it)).collect::<BTreeMap<_, _>>());
        let mut all = others.clone();
        all.extend(&own);
        for (key, entry) in &mut all {
            // One without a mask hides nothing behind it.
            let missing = if entry.tag == tag::MASK { BITS } else { 0 };
            let bits_in = |acl: &BTreeMap<_, Entry>| acl.get(key).map_or(missing, |it| it.bits);
            entry.bits = bits_in(&own) & bits_in(&others);
        }
        Self(all.into_values().collect())
    }

    /// The ACL that a new inode inherits from its directory, and its permission bits: those that both the ACL and
    /// `mode` grant.
    fn inherited(&self, mode: u32) -> (Self, u32) {
        let mut acl = self.clone();
        acl.classes().for_each(|(entry, shift)| entry.bits &= bits(mode, shift));
        let mode = mode & !0o777 | acl.mode();
        (acl, mode)
    }
}

fn bits(mode: u32, shift: u32) -> u16 {
    u16::try_from(mode >> shift & u32::from(BITS)).unwrap_or(BITS)
}

/// What a new inode gets from its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inherited {
    pub(crate) mode: u32,
    pub(crate) gid: u32,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What a new file (a directory if `is_directory`) inherits from its directory. `mode` is what the program asked for;
/// its umask counts only if there is no default ACL.
pub(crate) fn inherit(
    directory: &Attributes,
    (mode, umask): (u32, u32),
    caller: Caller,
    is_directory: bool,
) -> Inherited {
    let mut mode = mode & 0o7777;
    let set_group = libc::S_ISGID | libc::S_IXGRP;
    // A caller outside the group cannot make a setgid file for it. As the kernel decides it: by the mode that was asked for.
    let is_refused = !is_directory
        && directory.mode & libc::S_ISGID != 0
        && mode & set_group == set_group
        && !is_in_group(caller, directory.gid);
    if is_refused {
        mode &= !libc::S_ISGID;
    }
    let mut xattrs = BTreeMap::new();
    let acl = directory.xattrs.get(DEFAULT).and_then(|value| Some((value, Acl::parse(value)?)));
    match acl.filter(|(_, acl)| !acl.is_empty()) {
        None => mode &= !(umask & 0o777),
        Some((value, acl)) => {
            let (access, left) = acl.inherited(mode);
            mode = left;
            if !access.is_only_mode() {
                xattrs.insert(ACCESS.to_vec(), access.to_value());
            }
            if is_directory {
                xattrs.insert(DEFAULT.to_vec(), value.clone());
            }
        }
    }
    if directory.mode & libc::S_ISGID == 0 {
        return Inherited { mode, gid: caller.gid, xattrs };
    }
    if is_directory {
        mode |= libc::S_ISGID;
    }
    Inherited { mode, gid: directory.gid, xattrs }
}

#[cfg(test)]
mod tests {
    use halocline_cluster::names::attributes::Kind;

    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let entry = |&(tag, bits, id): &(u16, u16, u32)| Entry { tag, bits, id };
        Acl(entries.iter().map(entry).collect())
    }

    impl Acl {
        /// An ACL with a named user, and therefore with a mask.
        pub(crate) fn sample() -> Self {
            acl(&[
                (tag::OWNER, 7, u32::MAX),
                (tag::USER, 6, 10),
                (tag::OWNING_GROUP, 5, u32::MAX),
                (tag::MASK, 7, u32::MAX),
                (tag::OTHER, 1, u32::MAX),
            ])
        }
    }

    #[test]
    fn values_are_read_as_they_are_written_and_others_refused() {
        let small = acl(&[(tag::OWNER, 7, 0), (tag::OWNING_GROUP, 5, 0), (tag::OTHER, 0, 0)]);
        for acl in [Acl::sample(), small.clone(), acl(&[])] {
            assert_eq!(Acl::parse(&acl.to_value()), Some(acl));
        }
        let value = Acl::sample().to_value();
        for wrong in [&b""[..], &[3, 0, 0, 0], &value[..value.len() - 1], &value[..20]] {
            assert_eq!(Acl::parse(wrong), None, "{wrong:?}");
        }
        let no_mask = acl(&[
            (tag::OWNER, 7, 0),
            (tag::USER, 7, 1),
            (tag::OWNING_GROUP, 5, 0),
            (tag::OTHER, 0, 0),
        ]);
        assert_eq!(Acl::parse(&no_mask.to_value()), None);
        assert_eq!((Acl::sample().mode(), small.mode()), (0o771, 0o750));
        assert!(small.is_only_mode() && !Acl::sample().is_only_mode());
        assert_eq!(Acl::sample().with_mode(0o640).mode(), 0o640);
        assert_eq!(
            Acl::sample().with_mode(0o640).0[2].bits,
            5,
            "the group keeps what the mask hides"
        );
    }

    #[test]
    fn what_is_made_in_a_directory() {
        let by = |uid| Caller { uid, gid: 8, pid: 0 };
        let mut directory = Attributes::new(Kind::Directory, 0o755, 0);
        directory.gid = 50;
        let file = inherit(&directory, (0o666, 0o027), by(7), false);
        assert_eq!((file.mode, file.gid, file.xattrs.len()), (0o640, 8, 0));
        directory.mode |= libc::S_ISGID;
        let below = inherit(&directory, (0o777, 0o022), by(7), true);
        assert_eq!((below.mode, below.gid), (0o2755, 50));
        let program = inherit(&directory, (0o2755, 0), by(7), false);
        assert_eq!((program.mode, program.gid), (0o755, 50));
        assert_eq!(inherit(&directory, (0o2755, 0), by(0), false).mode, 0o2755);
        let hidden = inherit(&directory, (0o2775, 0o077), by(7), false);
        assert_eq!(hidden.mode, 0o700, "the umask comes afterwards");
        assert_eq!(inherit(&directory, (0o2745, 0), by(7), false).mode, 0o2745);
        directory.xattrs.insert(DEFAULT.to_vec(), Acl::sample().to_value());
        let file = inherit(&directory, (0o666, 0o077), by(7), false);
        assert_eq!(file.mode, 0o660, "the umask does not count");
        let access = Acl::parse(&file.xattrs[ACCESS]).unwrap();
        assert_eq!((access.mode(), file.xattrs.len()), (0o660, 1));
        let below = inherit(&directory, (0o777, 0), by(7), true);
        assert_eq!((below.mode, below.xattrs.len()), (0o2771, 2));
    }
}
