//! The layouts of the cache volume (docs/ALGORITHMS.md, section 1.3): 1-DH, 1-DV and 2-D.

use serde::{Deserialize, Serialize};

use crate::striping::Striping;

/// How an extent is distributed over the cache servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Layout {
    /// Striped over all servers.
    #[serde(rename = "1dh")]
    OneDh,
    /// Whole on the owner's server.
    #[serde(rename = "1dv")]
    OneDv,
    /// Striped inside the owner's group of servers.
    #[serde(rename = "2d")]
    TwoD,
}

impl Layout {
    /// All layouts in the order in which ties are broken (docs/ALGORITHMS.md, section 2.1).
    pub const ALL: [Self; 3] = [Self::OneDh, Self::OneDv, Self::TwoD];

    /// The name for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::OneDh => "1-DH",
            Self::OneDv => "1-DV",
            Self::TwoD => "2-D",
        }
    }

    /// The name used in JSON and, followed by the group, in cache object names: no name is another one followed by
    /// digits.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneDh => "1dh",
            Self::OneDv => "1dv",
            Self::TwoD => "2d",
        }
    }
}

/// Whether `name` is `start` followed by digits: then, with a group, the two could not be distinguished.
const fn is_ambiguous(name: &[u8], start: &[u8]) -> bool {
    let mut at = 0;
    while at < start.len() {
        if at == name.len() || name[at] != start[at] {
            return false;
        }
        at += 1;
    }
    while at < name.len() {
        if !name[at].is_ascii_digit() {
            return false;
        }
        at += 1;
    }
    true
}

const _: () = {
    assert!(is_ambiguous(b"2d1", b"2d") && !is_ambiguous(b"2dx", b"2d"));
    let mut one = 0;
    while one < Layout::ALL.len() {
        let mut other = 0;
        while other < Layout::ALL.len() {
            let names = (Layout::ALL[one].name().as_bytes(), Layout::ALL[other].name().as_bytes());
            assert!(
                one == other || !is_ambiguous(names.0, names.1),
                "names of objects are ambiguous"
            );
            other += 1;
        }
        one += 1;
    }
};

/// A layout with the group that the owner determined: all that is needed to find an extent's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Placement {
    /// The layout.
    pub layout: Layout,
    /// 0 for 1-DH, the server for 1-DV, the group for 2-D.
    pub group: u16,
}

/// The cache volume's geometry: servers, stripe and, if 2-D is a candidate, its groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheGeometry {
    servers: u32,
    stripe: u64,
    groups: Option<u32>,
}

impl CacheGeometry {
    /// Geometry of `servers` servers. `groups` is dropped unless `1 < groups < servers` and it
    /// divides `servers`: only then is 2-D a candidate.
    pub const fn new(servers: u32, stripe: u64, groups: u32) -> Self {
        assert!(servers > 0 && stripe > 0, "a cache volume needs a server and a stripe");
        let usable = groups > 1 && groups < servers && servers.is_multiple_of(groups);
        Self { servers, stripe, groups: if usable { Some(groups) } else { None } }
    }

    /// Number of cache servers, N.
    pub const fn servers(self) -> u32 {
        self.servers
    }

    /// Stripe size in bytes.
    pub const fn stripe(self) -> u64 {
        self.stripe
    }

    /// Number of groups g of 2-D, if it is a candidate.
    pub const fn groups(self) -> Option<u32> {
        self.groups
    }

    /// The placement of `owner`'s data under `layout`. 2-D falls back to 1-DH if it is not a candidate.
    #[expect(clippy::cast_possible_truncation, reason = "a volume has far fewer than 2^16 servers")]
    pub const fn place(self, layout: Layout, owner: u32) -> Placement {
        match (layout, self.groups) {
            (Layout::OneDv, _) => Placement { layout, group: (owner % self.servers) as u16 },
            (Layout::TwoD, Some(groups)) => Placement { layout, group: (owner % groups) as u16 },
            (Layout::OneDh | Layout::TwoD, _) => Placement { layout: Layout::OneDh, group: 0 },
        }
    }

    /// Whether the placement belongs to this geometry.
    pub const fn has(self, placement: Placement) -> bool {
        let group = placement.group as u32;
        match (placement.layout, self.groups) {
            (Layout::OneDh, _) => true,
            (Layout::OneDv, _) => group < self.servers,
            (Layout::TwoD, Some(groups)) => group < groups,
            (Layout::TwoD, None) => false,
        }
    }

    /// The first server of a placement, and the striping over it and the following ones.
    ///
    /// # Panics
    /// If the placement does not belong to this geometry.
    pub const fn resolve(self, placement: Placement) -> (u32, Striping) {
        let group = placement.group as u32;
        let (first, count) = match (placement.layout, self.groups) {
            (Layout::OneDh, _) => (0, self.servers),
            (Layout::OneDv, _) => (group, 1),
            (Layout::TwoD, Some(groups)) => {
                (group * (self.servers / groups), self.servers / groups)
            }
            (Layout::TwoD, None) => panic!("2-D placement on a volume without groups"),
        };
        assert!(first + count <= self.servers, "placement outside the cache volume");
        (first, Striping::new(count, self.stripe))
    }
}
