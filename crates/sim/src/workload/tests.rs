use std::collections::BTreeMap;

use super::*;

fn ranges(workload: &impl Workload, op: Op) -> Vec<(u64, u64)> {
    let own = workload.requests().filter(|request| request.op == op);
    let mut ranges: Vec<_> = own.map(|request| (request.offset, request.length)).collect();
    ranges.sort_unstable();
    ranges
}

/// The ranges are `[0, end)` without holes and without overlaps.
fn assert_whole(ranges: &[(u64, u64)], end: u64) {
    let mut at = 0;
    for (offset, length) in ranges {
        assert_eq!(*offset, at);
        at += length;
    }
    assert_eq!(at, end);
}

#[test]
fn ior_is_segments_of_blocks_of_transfers() {
    let ior = Ior::new(3, 40, 10, 2).unwrap();
    let of = |process| (0..8).map(move |step| (process, step));
    let offsets: Vec<_> = of(1).map(|(process, step)| ior.access(process, step).offset).collect();
    // The block of rank 1 in each segment of 3 blocks, from its begin to its end.
    assert_eq!(offsets, [40, 50, 60, 70, 160, 170, 180, 190]);
    assert_whole(&ranges(&ior, Op::Write), 240);
    assert!(ranges(&ior, Op::Read).is_empty());
    let first: Vec<_> = ior.requests().take(4).map(|request| request.process).collect();
    assert_eq!(first, [0, 1, 2, 0]);

    let own = ior.clone().file_per_process();
    assert_eq!((own.files(), own.access(2, 5).file, own.access(2, 5).offset), (3, 2, 50));

    let both = ior.directions(true, true).unwrap().reorder();
    assert_eq!((both.access(1, 0).op, both.access(1, 8).op), (Op::Write, Op::Read));
    assert_eq!(both.access(1, 8).offset, 80, "what rank 2 wrote");
    assert_whole(&ranges(&both, Op::Read), 240);
}

#[test]
fn random_ior_moves_each_transfer_once() {
    for (processes, segments) in [(1, 1), (3, 7), (4, 64), (5, 13)] {
        let ior = Ior::new(processes, 40, 10, segments).unwrap().random(7);
        let end = u64::from(processes) * 40 * segments;
        assert_whole(&ranges(&ior, Op::Write), end);
        let own = ior.clone().file_per_process();
        let mut files = BTreeMap::<u32, Vec<_>>::new();
        for request in own.requests() {
            assert_eq!(request.file, request.process);
            files.entry(request.file).or_default().push((request.offset, request.length));
        }
        for ranges in files.values_mut() {
            ranges.sort_unstable();
            assert_whole(ranges, 40 * segments);
        }
    }
    let ior = Ior::new(4, 40, 10, 64).unwrap().random(7);
    let continued =
        (1..256).filter(|step| ior.access(0, *step).offset == ior.access(0, *step - 1).offset + 10);
    assert!(continued.count() < 10, "not in order");
}

#[test]
fn hpio_regions_take_turns_with_gaps() {
    let hpio = Hpio::new(2, 3, 8, 2, Op::Read).unwrap();
    let all = ranges(&hpio, Op::Read);
    assert_eq!(all, [(0, 8), (10, 8), (20, 8), (30, 8), (40, 8), (50, 8)]);
    assert_eq!(hpio.access(1, 2).offset, 50);
    let dense = Hpio::new(4, 5, 7, 0, Op::Write).unwrap();
    assert_whole(&ranges(&dense, Op::Write), 140);
}

#[test]
fn tiles_are_rows_of_a_dense_array() {
    // 2 by 2 tiles of 3 by 2 elements of 4 bytes: rows of 6 elements.
    let tile = Tile::new((2, 2), (3, 2), 4, (0, 0), Op::Write).unwrap();
    let of = |process: u32| [0, 1].map(|step| tile.access(process, step).offset);
    assert_eq!([of(0), of(1), of(2), of(3)], [[0, 24], [12, 36], [48, 72], [60, 84]]);
    assert_whole(&ranges(&tile, Op::Write), 96);
    // Neighbours share one element each way: rows of 5, tile 3 begins at (2, 1).
    let lapped = Tile::new((2, 2), (3, 2), 4, (1, 1), Op::Read).unwrap();
    assert_eq!(
        (lapped.access(3, 0).offset, lapped.access(3, 1).offset),
        ((5 + 2) * 4, (10 + 2) * 4)
    );
    let column = Tile::new((1, 2), (3, 2), 4, (0, 0), Op::Read).unwrap();
    assert_eq!(ranges(&column, Op::Read), [(0, 24), (24, 24)]);
}

#[test]
fn btio_dumps_the_cube_every_five_steps() {
    for processes in [1, 4, 9, 25] {
        for variant in [Variant::Simple, Variant::Full] {
            let btio = Btio::new(Class::S, processes, variant, true).unwrap();
            // 60 steps are 12 dumps of 12^3 points of 40 bytes.
            let end = 12 * 12 * 12 * 12 * 40;
            assert_whole(&ranges(&btio, Op::Write), end);
            assert_whole(&ranges(&btio, Op::Read), end);
        }
    }
    // On 4 processes each row is cut in two; a process has a quarter of the 2 * 144 half rows.
    let simple = Btio::new(Class::S, 4, Variant::Simple, false).unwrap();
    assert_eq!(simple.steps(0), 72 * 12);
    assert_eq!(simple.access(0, 0).length, 6 * 40);
    // Cells of process 0 of 4 lie on a diagonal: (0, 0, 0) and (1, 1, 1).
    assert_eq!(simple.access(0, 36).offset, (6 + 12 * (6 + 12 * 6)) * 40);
    // Class B writes 1.70 GB in 40 dumps, as its report says.
    let b = Btio::new(Class::B, 16, Variant::Full, false).unwrap();
    assert_eq!(ranges(&b, Op::Write).iter().map(|range| range.1).sum::<u64>(), 1_697_932_800);
}

#[test]
fn parameters_that_make_no_sense_are_refused() {
    assert!(Ior::new(0, 1, 1, 1).is_err() && Ior::new(1, 10, 3, 1).is_err());
    assert!(Ior::new(9, 1 << 60, 1, 9).is_err());
    assert!(Ior::new(1, 1, 1, 1).unwrap().directions(false, false).is_err());
    assert!(
        Hpio::new(1, 0, 1, 0, Op::Read).is_err() && Hpio::new(1, 1, 1, u64::MAX, Op::Read).is_err()
    );
    assert!(Tile::new((2, 2), (3, 3), 1, (3, 0), Op::Read).is_err());
    assert!(Tile::new((1 << 31, 2), (1, 1), 1, (0, 0), Op::Read).is_err());
    assert!(Btio::new(Class::S, 5, Variant::Full, false).is_err());
    assert!(Btio::new(Class::S, 169, Variant::Full, false).is_err());
}
