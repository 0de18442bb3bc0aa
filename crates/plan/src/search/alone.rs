//! What anybody would try first: everything on one class of servers, or on one server.
//!
//! The search sorts its candidates by the cost model and replays the first of them; where the cost model takes a split for
//! faster, these may be far behind, and no change of a split leads to them.

use crate::layout::{DEFAULT_STRIPE, STRIPE_BYTES_MIN, WIDTH_BYTES_MAX};
use crate::servers::Servers;

/// How many are tried at most. With thousands of servers, a replay takes as long as many of few.
const TRIED: (usize, usize) = (4, 48);
/// Limit of the widths of all that are tried.
const WIDTHS: usize = 1 << 22;

/// The stripes of some servers, for requests of any length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stripe {
    /// As long as a request.
    Whole,
    /// An even part of a request for each server.
    Even,
    /// So many bytes, whatever the requests.
    Fixed(u64),
}

/// Some servers with everything, and the others with nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Alone {
    /// Which class of servers; `None` for one server of several of its class.
    pub(super) class: Option<usize>,
    members: Vec<usize>,
    stripe: Stripe,
}

impl Alone {
    /// What anybody would try first; further stripes on each class are uniform layouts.
    pub(super) fn all(servers: &Servers, items: usize) -> Vec<Self> {
        let room = servers.room();
        let mut all = Vec::new();
        // The fastest first.
        for (class, of) in servers.classes().iter().enumerate().rev() {
            let members = || of.members.clone();
            all.push(Self { class: Some(class), members: members(), stripe: Stripe::Whole });
            if of.members.len() > 1 {
                for stripe in [Stripe::Even, Stripe::Fixed(DEFAULT_STRIPE)] {
                    all.push(Self { class: Some(class), members: members(), stripe });
                }
            }
        }
        let mut single: Vec<(usize, usize)> = Vec::new();
        for of in servers.classes().iter().rev().filter(|of| of.members.len() > 1) {
            let mut members = of.members.clone();
            members.sort_by_key(|member| std::cmp::Reverse(room[*member]));
            single.extend(members.into_iter().enumerate());
        }
        // One of each class before the second of any.
        single.sort_by_key(|(rank, _)| *rank);
        let alone =
            |(_, server)| Self { class: None, members: vec![server], stripe: Stripe::Whole };
        all.extend(single.into_iter().map(alone));
        let widths = items.saturating_mul(servers.count()).max(1);
        all.truncate((WIDTHS / widths).clamp(TRIED.0, TRIED.1));
        all
    }

    /// A width for each of so many servers, for requests of `size` bytes.
    pub(super) fn widths(&self, servers: usize, size: u64) -> Vec<u64> {
        let members = self.members.len() as u64;
        let width = match self.stripe {
            Stripe::Even if size.is_multiple_of(members) => size / members,
            Stripe::Whole | Stripe::Even => size,
            Stripe::Fixed(width) => width,
        };
        let mut widths = vec![0; servers];
        for member in &self.members {
            widths[*member] = width.clamp(STRIPE_BYTES_MIN, WIDTH_BYTES_MAX);
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::candidates::tests::unequal;
    use crate::servers::disk_and_ssd;

    #[test]
    fn each_class_and_each_server_is_there_unless_they_are_too_many() {
        let widths = |servers: &Servers, items| -> Vec<Vec<u64>> {
            let all = Alone::all(servers, items);
            all.iter().map(|alone| alone.widths(servers.count(), 9000)).collect()
        };
        assert_eq!(widths(&disk_and_ssd(), 1), [[0, 9000], [9000, 0]]);
        let mut pairs = unequal(2).all().to_vec();
        pairs.extend(unequal(2).all().to_vec());
        let pairs = Servers::new(pairs).expect("servers");
        let classes = [9000, 4500, DEFAULT_STRIPE];
        let fast = classes.map(|width| vec![0, width, 0, width]);
        let slow = classes.map(|width| vec![width, 0, width, 0]);
        let single = [1, 0, 3, 2].map(|server| {
            let mut widths = vec![0; 4];
            widths[server] = 9000;
            widths
        });
        assert_eq!(widths(&pairs, 1), [&fast[..], &slow, &single].concat());
        assert_eq!(Alone::all(&unequal(600), 1).len(), TRIED.1);
        assert_eq!(Alone::all(&unequal(600), 2048).len(), TRIED.0);
    }
}
