//! Random workloads on which `adaptive` was far below the origin alone or the best policy, by the seed and number of
//! `halocline bench admission` (docs/decisions/0035-where-the-heads-are.md,
//! docs/decisions/0045-which-order-the-disks-see.md and docs/decisions/0049-what-a-fill-may-exchange.md). Simulated, so
//! the numbers are exact.

use halocline_sim::study::Case;

/// Speed of `adaptive` as a ratio to the origin alone and to the best of the other policies.
fn ratios(seed: u64, number: u64) -> (f64, f64) {
    let policies = ["adaptive", "never", "always", "sla", "s4d"];
    let outcomes = Case::random(seed, number).judge(&policies).unwrap();
    let seconds = |index: usize| outcomes[index].total_seconds;
    let best = (1..policies.len()).map(seconds).fold(f64::INFINITY, f64::min);
    (seconds(1) / seconds(0), best / seconds(0))
}

fn assert_all(cases: &[(u64, u64, &str)], of_never: f64, of_best: f64) {
    for &(seed, number, what) in cases {
        let (never, best) = ratios(seed, number);
        assert!(never >= of_never, "{what}: {never:.3} of the origin alone");
        assert!(best >= of_best, "{what}: {best:.3} of the best policy");
    }
}

#[test]
fn processes_in_step_are_left_on_the_origin() {
    let cases = [
        (1, 355, "2 processes take turns, 512 KiB, reads and writes, 8 disks: was 0.141"),
        (1, 857, "2 processes take turns, 64 KiB, reads and writes, 8 disks: was 0.307"),
        (1, 954, "2 processes take turns, 64 KiB, mostly reads: was 0.136"),
        (1, 509, "4 processes take turns, 32 KiB, reads: was 0.162"),
        (3, 914, "2 processes take turns, 32 KiB, reads: was 0.386"),
        (1, 208, "2 processes take turns, 32 KiB, writes alone: was 0.787"),
    ];
    assert_all(&cases, 0.97, 0.95);
}

#[test]
fn a_stream_that_reads_and_writes_stays_together() {
    let cases = [
        (1, 760, "1 process, 4 KiB, 67 % read: was 0.767"),
        (1, 681, "1 process, 8 KiB, 74 % read: was 0.857"),
    ];
    assert_all(&cases, 0.97, 0.97);
}

#[test]
fn writes_join_what_the_origin_reads_anyway() {
    let cases = [
        (1, 967, "2 processes take turns, 8 KiB, 60 % read, out of step: was 1.000 of the best"),
        (2, 508, "2 processes take turns, 8 KiB, 61 % read, out of step: was 1.000 of the best"),
    ];
    assert_all(&cases, 20.0, 10.0);
}

#[test]
fn large_requests_that_seek_come_to_the_cache() {
    let cases = [
        (1, 306, "8 sequential processes, 4 MiB, 3 passes: was 0.485"),
        (1, 452, "32 random processes, 4 MiB, a third read, 2 passes: was 0.600"),
        (2, 308, "4 sequential processes, 4 MiB, 2 passes: was 0.555"),
    ];
    assert_all(&cases, 1.5, 0.92);
}

#[test]
fn processes_in_the_order_of_each_of_several_disks_are_left_on_the_origin() {
    let cases = [
        (1, 657, "8 processes, a stripe each, 8 disks: was 0.801"),
        (1, 459, "2 processes, half of 8 disks each: was 0.834"),
        (3, 443, "2 processes, half of 8 disks each: was 0.798"),
        (2, 243, "2 processes, 2 MiB, all of 8 disks: was 0.841"),
        (3, 332, "8 processes, a stripe each, 3 passes: was 0.842"),
    ];
    assert_all(&cases, 0.97, 0.97);
}

#[test]
fn a_flush_keeps_what_is_written_over_next() {
    let cases = [
        (1, 3, "4 processes, 3 passes, a cache of 65 %: was 0.784"),
        (1, 541, "8 processes in strides, 3 passes, a cache of 94 %: was 0.863"),
        (2, 707, "8 processes in strides, 3 passes, a cache of 85 %: was 0.775"),
        (2, 779, "32 processes in strides, 3 passes, a cache of 93 %: was 0.720"),
        (3, 848, "2 sequential processes, 4 MiB, 3 passes, a cache of 88 %: was 0.757"),
    ];
    assert_all(&cases, 1.8, 0.9);
}

#[test]
fn long_requests_at_random_places_beside_reads_stay_on_the_origin() {
    let cases = [
        (1, 842, "1 process, 4 MiB, 42 % read: was 0.905"),
        (3, 947, "1 process, 1 MiB, 48 % read: was 0.913"),
        (3, 411, "1 process, 4 MiB, 8 disks, 54 % read: was 0.916"),
    ];
    assert_all(&cases, 0.97, 0.97);
}

#[test]
fn requests_at_random_places_are_no_streams_by_chance() {
    assert_all(&[(1, 502, "1 random process, 512 KiB: was 0.646")], 3.0, 0.97);
}

#[test]
fn a_loop_over_more_than_fits_exchanges_nothing() {
    let cases = [
        (2, 391, "4 sequential processes, 16 KiB, a cache of 27 %: was 0.535"),
        (2, 563, "2 sequential processes, 8 KiB, a cache of 24 %: was 0.753"),
        (2, 126, "2 processes in strides, 2 MiB, a cache of 13 %: was 0.936"),
        (3, 118, "2 processes in strides, 512 KiB, 87 % read: was 0.959"),
        (1, 284, "8 processes in strides, 4 MiB, 74 % read: was 0.943"),
    ];
    assert_all(&cases, 0.97, 0.97);
    let cases = [
        (2, 187, "32 sequential processes, 8 KiB, 80 % read: was 0.875 of the best"),
        (3, 958, "32 sequential processes, 8 KiB, 75 % read: was 0.863 of the best"),
        (2, 926, "2 processes in strides, 4 KiB, 8 disks: was 0.892 of the best"),
    ];
    assert_all(&cases, 1.3, 0.9);
}

#[test]
fn a_wait_in_vain_does_not_send_many_writes_into_the_flush() {
    let cases = [(1, 673, "4 processes in strides, 1 MiB, a cache of 12 %: was 0.967")];
    assert_all(&cases, 0.97, 0.97);
    let cases = [(2, 385, "2 processes in strides, 2 MiB, 3 passes: was 0.868 of the best")];
    assert_all(&cases, 1.6, 0.95);
}

#[test]
fn a_lone_stream_that_keeps_few_of_many_disks_busy_comes_to_the_cache() {
    let cases = [
        (1, 263, "1 process, a stripe at a time, 8 disks, 2 passes: was 0.856 of the best"),
        (1, 777, "the same, a cache of 13 %: was 0.851 of the best"),
        (5, 994, "the same, 1 pass, a cache of 10 %: was 0.860 of the best"),
        (2, 288, "the same, 3 passes, 100 us between two: was 0.877 of the best"),
    ];
    assert_all(&cases, 1.07, 0.91);
    // Of two stripes the flush would take longer than is gained, and of half a stripe the SSD takes as long as a disk.
    let cases = [(1, 864, "1 process, 128 KiB, 8 disks"), (7, 991, "1 process, 32 KiB, 8 disks")];
    assert_all(&cases, 0.99, 0.9);
}
