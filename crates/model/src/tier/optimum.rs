//! The optimum of all possible policies, by exhaustive search: for small cases.

use std::collections::HashMap;

use super::replay::Trace;

/// Fewest bytes read from the disk.
pub fn read(trace: &Trace) -> u64 {
    best(trace, false)
}

/// Fewest bytes read from the disk and written back to it by evictions.
pub fn moved(trace: &Trace) -> u64 {
    best(trace, true)
}

/// Least cost over all sets of cached files, reference by reference. At most 20 files.
fn best(trace: &Trace, count_evicted: bool) -> u64 {
    assert!(trace.sizes.len() <= 20, "every set of files is tried");
    let bytes = |set: u32| -> u64 {
        (0..trace.sizes.len()).filter(|file| set & (1 << file) != 0).map(|f| trace.sizes[f]).sum()
    };
    let mut states = HashMap::from([(0_u32, 0_u64)]);
    for &file in &trace.refs {
        let bit = 1 << file;
        let mut next: HashMap<u32, u64> = HashMap::new();
        let mut reach = |set: u32, cost: u64| {
            let least = next.entry(set).or_insert(u64::MAX);
            *least = cost.min(*least);
        };
        for (&set, &cost) in &states {
            if set & bit != 0 {
                reach(set, cost);
                continue;
            }
            let cost = cost + trace.sizes[file];
            reach(set, cost);
            // Any subset may stay besides the new file.
            let mut stay = set;
            loop {
                if bytes(stay | bit) <= trace.capacity {
                    let written = if count_evicted { bytes(set & !stay) } else { 0 };
                    reach(stay | bit, cost + written);
                }
                if stay == 0 {
                    break;
                }
                stay = (stay - 1) & set;
            }
        }
        states = next;
    }
    states.into_values().min().unwrap_or(0)
}
