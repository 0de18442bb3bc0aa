//! The two sides of a cache or tier: the servers of the slowest class, and all others.

use crate::FileLayout;
use crate::servers::{Class, ServerSet};

/// Stripe on both sides, in bytes.
pub(super) const STRIPE: u64 = 64 << 10;
/// Random requests of a cost model are within this many bytes.
pub(super) const SPAN: u64 = 16 << 30;

/// Indices of servers in the set, ascending.
#[derive(Debug)]
pub struct Sides {
    /// Those of the slowest class.
    pub slow: Vec<usize>,
    /// All others.
    pub fast: Vec<usize>,
}

impl Sides {
    /// Those of `set`, for a fast side that holds `capacity` bytes; `what` names it in errors.
    ///
    /// # Errors
    /// There is only one class, or the fast servers have less space.
    pub fn new(set: &ServerSet, capacity: u64, what: &str) -> Result<Self, String> {
        let mut classes = set.classes();
        let random_ps = |class: &Class| {
            let service = class.profile.service(SPAN).read;
            service.startup_random_ps.saturating_add(service.per_byte_ps.saturating_mul(STRIPE))
        };
        classes.sort_by_key(|class| std::cmp::Reverse(random_ps(class)));
        if classes.len() < 2 {
            return Err(format!("all servers are of one class: there are none for a {what}"));
        }
        let mut fast: Vec<usize> =
            classes[1..].iter().flat_map(|class| class.servers.clone()).collect();
        fast.sort_unstable();
        let room = fast.iter().map(|server| set.servers()[*server].capacity);
        let room = room.fold(0, u64::saturating_add);
        if capacity > room {
            return Err(format!("the servers of the {what} hold {room} bytes, not {capacity}"));
        }
        Ok(Self { slow: classes.swap_remove(0).servers, fast })
    }

    /// Bytes of files that the slow side of `set` holds, in equal parts.
    pub fn slow_bytes(&self, set: &ServerSet) -> u64 {
        let least = self.slow.iter().map(|server| set.servers()[*server].capacity).min();
        least.unwrap_or(0).saturating_mul(self.slow.len() as u64)
    }
}

/// [`STRIPE`] on `these` of `all` servers.
pub(super) fn striped(all: usize, these: &[usize]) -> FileLayout {
    let mut widths = vec![0; all];
    for server in these {
        widths[*server] = STRIPE;
    }
    FileLayout::uniform(widths).expect("a server has a width")
}
