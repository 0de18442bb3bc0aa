//! Whether a plan gives files servers of their own.

use std::collections::BTreeSet;

use halocline_plan::layout::Layout;
use halocline_plan::servers::Servers;

/// What has servers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Apart {
    /// Each file has one server.
    Files,
    /// Each part of a file has one server.
    Parts,
    /// Files, or parts of them, have some servers of a kind, and others have others of it.
    Groups,
}

impl Apart {
    /// `None` if no server of a kind is left out for another one.
    pub(super) fn of<'l>(
        servers: &Servers,
        layouts: impl Iterator<Item = &'l Layout>,
    ) -> Option<Self> {
        let mut used: Vec<BTreeSet<Vec<usize>>> = vec![BTreeSet::new(); servers.classes().len()];
        let (mut is_one, mut is_whole) = (true, true);
        for layout in layouts {
            is_whole &= layout.parts().len() == 1;
            for part in layout.parts() {
                is_one &= part.widths.iter().filter(|width| **width > 0).count() == 1;
                for (class, used) in servers.classes().iter().zip(&mut used) {
                    let members = class.members.iter().copied();
                    let some: Vec<usize> =
                        members.filter(|member| part.widths[*member] > 0).collect();
                    if !some.is_empty() {
                        used.insert(some);
                    }
                }
            }
        }
        // Sets in order: those that begin with other servers may share none.
        let is_apart = |sets: &BTreeSet<Vec<usize>>| {
            let first = sets.first();
            let shares =
                |set: &&Vec<usize>| first.is_some_and(|f| f.iter().any(|s| set.contains(s)));
            sets.len() > 1 && sets.iter().skip(1).any(|set| !shares(&set))
        };
        if !used.iter().any(is_apart) {
            return None;
        }
        Some(match (is_one, is_whole) {
            (true, true) => Self::Files,
            (true, false) => Self::Parts,
            (false, _) => Self::Groups,
        })
    }

    /// Why, for people.
    pub(super) const fn sentence(self) -> &'static str {
        match self {
            Self::Files => {
                "each file lies on one server, so that those who use different files do not share a disk's head"
            }
            Self::Parts => {
                "each part of a file lies on one server, so that those who use different parts do not share a disk's head"
            }
            Self::Groups => {
                "files have servers of a kind to themselves, so that those who use different files do not share a disk's head"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_servers;
    use super::*;
    use halocline_model::profile::DeviceProfile;
    use halocline_plan::layout::Part;

    #[test]
    fn what_has_servers_of_its_own_is_told() {
        let kinds =
            [DeviceProfile::hdd_7200(); 4].into_iter().chain([DeviceProfile::ssd_generic()]);
        let name = |(number, profile): (usize, DeviceProfile)| (number.to_string(), profile);
        let servers = test_servers::named(kinds.enumerate().map(name));
        let simple = |widths: [u64; 5]| Layout::simple(widths.to_vec());
        let parts = |first: [u64; 5], rest: [u64; 5]| {
            let part = |begin, end, widths: [u64; 5]| Part { begin, end, widths: widths.to_vec() };
            Layout::new(vec![part(0, Some(8), first), part(8, None, rest)], 5).expect("a layout")
        };
        let (one, other) = ([1, 0, 0, 0, 0], [0, 1, 0, 0, 0]);
        let (disks, ssd) = ([1, 1, 1, 1, 0], [0, 0, 0, 0, 1]);
        for (layouts, expected) in [
            (vec![simple(one), simple(other)], Some(Apart::Files)),
            (vec![parts(one, other)], Some(Apart::Parts)),
            (vec![simple([1, 1, 0, 0, 0]), simple([0, 0, 1, 1, 1])], Some(Apart::Groups)),
            (vec![simple(disks), simple(disks)], None),
            (vec![simple(one), simple(one)], None),
            (vec![parts(ssd, disks)], None),
            (vec![simple(one), simple(disks)], None),
        ] {
            assert_eq!(Apart::of(&servers, layouts.iter()), expected, "{layouts:?}");
        }
    }
}
