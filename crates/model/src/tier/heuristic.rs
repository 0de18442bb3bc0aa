//! The papers' heuristic: knows the references to come, weighs them by size.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{Keep, Trace};

/// Algorithms 4 and 5 in the reading of SPEC section 5.
#[derive(Debug)]
pub(super) struct Heuristic;

/// (references after `index`) times size: gain of a file that comes in, cost of one that leaves.
fn weight(trace: &Trace, index: usize, file: usize) -> u128 {
    let later = trace.refs[index + 1..].iter().filter(|&&other| other == file).count();
    later as u128 * u128::from(trace.sizes[file])
}

impl Keep for Heuristic {
    fn referenced(&mut self, _trace: &Trace, _index: usize) {}

    fn make_room(
        &mut self,
        trace: &Trace,
        index: usize,
        cached: &BTreeSet<usize>,
        free: u64,
    ) -> Option<Vec<usize>> {
        let file = trace.refs[index];
        if !trace.refs[index + 1..].contains(&file) {
            return None;
        }
        let (size, gain) = (trace.sizes[file], weight(trace, index, file));
        let mut order: Vec<(u128, usize)> =
            cached.iter().map(|&file| (weight(trace, index, file), file)).collect();
        order.sort_by_key(|&(cost, file)| (cost, Reverse(trace.sizes[file]), &trace.names[file]));
        let (mut leaving, mut freed, mut cost) = (Vec::new(), free, 0);
        for (weight, file) in order {
            if freed >= size {
                break;
            }
            cost += weight;
            if cost >= gain {
                return None;
            }
            freed += trace.sizes[file];
            leaving.push(file);
        }
        (freed >= size).then_some(leaving)
    }
}
