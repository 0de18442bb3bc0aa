//! Several small files moved in parallel.
//!
//! Moving a small file consists mostly of waiting for syncs: those of several files are one commit of their file
//! systems' journals. Each move is complete in itself and keeps its order of steps, so a kill or a power loss finds
//! each of them at its own step. Large files are moved one after the other: their copies keep the devices busy, and a
//! disk is slow with two at a time.

use std::thread;

/// The most files that are moved at the same time.
pub(super) const PARALLEL_MAX: usize = 64;
/// Files of at least this many bytes are moved alone.
pub(super) const ALONE_BYTES: u64 = 1 << 20;

/// Calls `act` for all items at the same time or, if they must come `one_by_one`, in this thread; returns the results
/// in the order of the items.
pub(super) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    one_by_one: bool,
    act: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let Some((last, others)) = items.split_last().filter(|_| !one_by_one) else {
        return items.iter().map(act).collect();
    };
    let act = &act;
    thread::scope(|scope| {
        let spawn = |item| {
            let builder = thread::Builder::new().name("tier-move".into());
            builder.spawn_scoped(scope, move || act(item))
        };
        let running: Vec<_> = others.iter().map(|item| (item, spawn(item))).collect();
        let last = act(last);
        let join = |(item, thread): (_, std::io::Result<thread::ScopedJoinHandle<'_, R>>)| {
            // Without a thread, it is done here.
            let Ok(thread) = thread else { return act(item) };
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let mut outcomes: Vec<R> = running.into_iter().map(join).collect();
        outcomes.push(last);
        outcomes
    })
}

/// How many of the first of the given files are moved at the same time, according to their sizes: as many as have
/// `bytes` together, and at most `most`.
pub(super) fn parallel_count(
    sizes: impl IntoIterator<Item = u64>,
    bytes: u64,
    most: usize,
) -> usize {
    let (mut count, mut sum) = (0, 0);
    for size in sizes {
        let alone = size >= ALONE_BYTES;
        if count == most || sum >= bytes || (alone && count > 0) {
            break;
        }
        count += 1;
        if alone {
            break;
        }
        sum += size;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_go_together_as_far_as_they_are_needed() {
        let count = |sizes: &[u64], bytes| parallel_count(sizes.iter().copied(), bytes, 4);
        assert_eq!(count(&[], 10), 0);
        assert_eq!(count(&[4, 4, 4, 4, 4, 4], u64::MAX), 4);
        assert_eq!(count(&[4, 4, 4, 4], 8), 2);
        assert_eq!(count(&[4, 4, 4, 4], 9), 3);
        assert_eq!(count(&[4, ALONE_BYTES, 4], u64::MAX), 1);
        assert_eq!(count(&[ALONE_BYTES, 4], u64::MAX), 1);
    }

    #[test]
    fn outcomes_come_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..PARALLEL_MAX).collect();
        for one_by_one in [false, true] {
            assert_eq!(in_parallel(&items, one_by_one, |item| item * 2)[..3], [0, 2, 4]);
        }
    }
}
