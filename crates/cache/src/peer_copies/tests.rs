use std::path::PathBuf;

use halocline_model::layout::{Layout, Placement};

use super::*;
use crate::coherence::Cached;

fn copies(node: &str, all: &[(u64, &[u32])]) -> Copies {
    let (node, dir) = (node.to_owned(), PathBuf::from("/ssd"));
    let cache = Arc::new(PeerCache { cache_id: node.clone(), node, dir });
    let placement = Placement { layout: Layout::OneDh, group: 0 };
    let blocks = all.iter().map(|(first, sums)| Blocks {
        file: 5,
        placement,
        first: *first,
        sums: sums.to_vec(),
    });
    let cached = Cached { geometry: CacheGeometry::new(1, 65_536, 0), blocks: blocks.collect() };
    Copies { all: vec![(cache, cached)], are_all: true }
}

/// Blocks with their checksums, and who has them.
fn found(of: &PeerCopies, range: ByteRange) -> Vec<(u64, u32, String)> {
    let mut all = Vec::new();
    for copy in of.find(range) {
        for (at, sum) in copy.blocks.sums.iter().enumerate() {
            all.push((copy.blocks.first + at as u64, *sum, copy.cache.node.clone()));
        }
    }
    all
}

fn blocks(range: std::ops::Range<u64>) -> ByteRange {
    ByteRange::new(range.start * BLOCK, range.end * BLOCK)
}

fn one(number: u64, sum: u32) -> (u64, u32, String) {
    (number, sum, "n1".to_owned())
}

const ALL: ByteRange = ByteRange::new(0, u64::MAX);

#[test]
fn what_was_stated_is_found_until_it_is_dropped() {
    let known = PeerCopies::default();
    let first = known.due(blocks(0..3), 0).unwrap();
    assert_eq!(first, ByteRange::new(0, WINDOW));
    known.ask(first, 0).unwrap().answered(copies("n1", &[(0, &[10, 11, 12]), (5, &[15])]));
    assert_eq!(known.due(blocks(0..3), 1), None);
    assert!(known.ask(first, 1).is_none(), "another thread has asked");
    assert!(known.due(blocks(0..3), ASKED_FOR_MS).is_some(), "there may be more by now");
    assert_eq!(found(&known, ALL), [one(0, 10), one(1, 11), one(2, 12), one(5, 15)]);
    assert_eq!(found(&known, ByteRange::new(BLOCK + 1, 2 * BLOCK)), [one(1, 11)]);
    // One byte of a block makes all of it worthless.
    known.drop_range(ByteRange::new(2 * BLOCK - 1, 2 * BLOCK));
    assert_eq!(found(&known, ALL), [one(0, 10), one(2, 12), one(5, 15)]);
    assert!(known.due(blocks(0..1), 1).is_some(), "a range of the window is another one's now");
    // Somebody could not say all: it is asked again soon, and what was said before still holds.
    let mut some = copies("n1", &[(1, &[11])]);
    some.are_all = false;
    known.ask(first, 1).unwrap().answered(some);
    assert_eq!(found(&known, ALL), [one(0, 10), one(1, 11), one(2, 12), one(5, 15)]);
    assert_eq!(known.due(blocks(0..1), ASKED_AGAIN_MS), None);
    assert!(known.due(blocks(0..1), 1 + ASKED_AGAIN_MS).is_some());
    known.drop_range(ALL);
    assert_eq!(found(&known, ALL), []);
}

#[test]
fn what_is_dropped_while_a_question_is_under_way_is_not_taken_from_its_answer() {
    let known = PeerCopies::default();
    let window = ByteRange::new(0, WINDOW);
    let question = known.ask(window, 0).unwrap();
    known.drop_range(blocks(1..2));
    question.answered(copies("n1", &[(0, &[10, 11, 12])]));
    assert_eq!(found(&known, ALL), [one(0, 10), one(2, 12)]);
    assert_eq!(known.due(window, 1), Some(window), "it is asked again");
    // One that is given up changes nothing for the next one.
    drop(known.ask(window, 1).unwrap());
    known.drop_range(blocks(0..1));
    known.ask(window, 1).unwrap().answered(copies("n1", &[(0, &[10, 11, 12])]));
    assert_eq!(found(&known, ALL), [one(0, 10), one(1, 11), one(2, 12)]);
}

#[test]
fn of_two_nodes_with_a_block_one_is_asked_for_it_and_nothing_beside_the_window_counts() {
    let known = PeerCopies::default();
    let end = WINDOW / BLOCK;
    let mut answers = copies("n1", &[(2, &[12]), (4, &[14])]);
    answers.all.extend(copies("n2", &[(1, &[1, 2, 3, 4, 5])]).all);
    known.ask(ByteRange::new(0, WINDOW), 0).unwrap().answered(answers);
    let other = |number: u64, sum: u32| (number, sum, "n2".to_owned());
    let all = [other(1, 1), one(2, 12), other(3, 3), one(4, 14), other(5, 5)];
    assert_eq!(found(&known, ALL), all);
    known.forget(blocks(2..5));
    assert_eq!(found(&known, ALL), [other(1, 1), other(5, 5)]);
    let over = copies("n1", &[(end - 1, &[1, 2])]);
    known.ask(ByteRange::at(WINDOW, WINDOW), 0).unwrap().answered(over);
    assert_eq!(found(&known, ALL), [other(1, 1), other(5, 5), one(end, 2)]);
    let huge = copies("n1", &[(u64::MAX / BLOCK, &[1])]);
    known.ask(ByteRange::at(2 * WINDOW, WINDOW), 0).unwrap().answered(huge);
    assert_eq!(found(&known, ALL).len(), 3);
    assert_eq!(known.known.lock().weight, 3 * (1 + COPY_WEIGHT));
}

/// Regression: each file had a bound, and all files together had none.
#[test]
fn what_all_files_remember_is_bounded() {
    let all = Arc::<Remembered>::default();
    let taken = || all.0.load(Ordering::Relaxed);
    let sums = vec![7; usize::try_from(WINDOW / BLOCK).unwrap()];
    let file = |windows: u64| {
        let file = PeerCopies::among(Arc::clone(&all));
        for number in 0..windows {
            let asked = window(number);
            let stated = copies("n1", &[(asked.start / BLOCK, &sums)]);
            file.ask(asked, 0).unwrap().answered(stated);
        }
        file
    };
    let files: Vec<_> = (0..5).map(|_| file(1000)).collect();
    assert!((ALL_FILES_MAX..ALL_FILES_MAX + 2 * sums.len()).contains(&taken()), "{}", taken());
    assert!(found(&files[4], window(999)).is_empty(), "it comes from the origin");
    assert_eq!(found(&files[0], window(999)).len(), sums.len());
    let before = taken();
    files[0].drop_range(blocks(1..2));
    assert_eq!(taken(), before - 1 + COPY_WEIGHT, "in two copies now");
    drop(files);
    assert_eq!(taken(), 0);
}
