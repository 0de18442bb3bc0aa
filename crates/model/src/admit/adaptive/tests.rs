use super::*;
use crate::admit::{CacheSide, Side};
use crate::layout::CacheGeometry;
use crate::profile::DeviceProfile;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn papers() -> Adaptive {
    Adaptive::new(Setting {
        origin: Side { servers: 8, stripe: 64 * KIB, profile: DeviceProfile::hdd_7200() },
        cache: CacheSide {
            geometry: CacheGeometry::new(4, 64 * KIB, 2),
            profile: DeviceProfile::ssd_paper(),
        },
    })
}

fn random(len: u64) -> Query {
    Query {
        direction: Direction::Write,
        range: ByteRange::at(1000 * MIB, len),
        processes: 16,
        owner: 0,
        distance: Some(77 * MIB),
        run_bytes: len,
        expected_run_bytes: len,
        cache_pressure: 0.0,
    }
}

fn streaming(len: u64, before: u64, first: bool) -> Query {
    Query {
        distance: (!first).then_some(0),
        run_bytes: before + len,
        expected_run_bytes: before + len,
        ..random(len)
    }
}

#[test]
fn small_random_requests_are_admitted_even_under_pressure() {
    for len in [4 * KIB, 8 * KIB, 64 * KIB, 512 * KIB] {
        for cache_pressure in [0.0, 0.5, 1.0] {
            let query = Query { cache_pressure, ..random(len) };
            assert!(papers().judge(&query).critical, "{len} bytes at {cache_pressure}");
        }
    }
}

#[test]
fn a_stream_of_large_requests_stays_home_from_its_first_byte() {
    for piece in [128 * KIB, MIB, 4 * MIB] {
        let mut admitted = 0;
        for index in 0..512 * MIB / piece {
            let query = streaming(piece, index * piece, index == 0);
            admitted += if papers().judge(&query).critical { piece } else { 0 };
        }
        assert!(admitted * 20 < 512 * MIB, "{admitted} bytes in pieces of {piece}");
    }
}

#[test]
fn a_stream_of_small_requests_is_soon_recognised() {
    let mut admitted = 0;
    for index in 0..8192 {
        let query = streaming(64 * KIB, index * 64 * KIB, index == 0);
        admitted += if papers().judge(&query).critical { 64 * KIB } else { 0 };
    }
    assert!(admitted * 20 < 512 * MIB, "{admitted} bytes");
}

#[test]
fn equally_fast_sides_admit_nothing_and_say_so() {
    let same = DeviceProfile::ssd_generic();
    let policy = Adaptive::new(Setting {
        origin: Side { servers: 1, stripe: 64 * KIB, profile: same },
        cache: CacheSide { geometry: CacheGeometry::new(1, 64 * KIB, 1), profile: same },
    });
    assert!(!policy.judge(&random(8 * KIB)).critical);
    assert!(policy.explain(&random(8 * KIB)).reason.contains("equally fast"));
}

#[test]
fn judge_and_explain_agree() {
    for len in [KIB, 8 * KIB, 512 * KIB, 4 * MIB, 64 * MIB] {
        let (verdict, explained) = (papers().judge(&random(len)), papers().explain(&random(len)));
        assert_eq!(verdict.critical, explained.critical);
        assert_eq!(Some(verdict.layout), explained.layout);
    }
}

#[test]
fn a_cache_measured_slow_gets_nothing_until_its_mark_fades() {
    let policy = papers();
    let query = random(512 * KIB);
    let verdict = policy.judge(&query);
    assert!(verdict.critical);
    let seen = |on_cache, predicted_ps: u64, times| Observation {
        on_cache,
        direction: Direction::Write,
        sequential: false,
        bytes: 512 * KIB,
        parts: 4,
        predicted_ps,
        measured_ps: predicted_ps * times,
    };
    // The origin turns out as fast as a cache; the cache as slow as a disk.
    for _ in 0..4000 {
        policy.observe(&seen(true, policy.judge(&query).cache_ps, 8));
        let verdict = policy.judge(&query);
        policy.observe(&Observation {
            measured_ps: verdict.origin_ps / 8,
            ..seen(false, verdict.origin_ps, 1)
        });
    }
    assert!(!policy.judge(&query).critical, "a slow cache still gets requests");
    for _ in 0..200_000 {
        policy.observe(&seen(false, policy.judge(&query).origin_ps, 1));
        let home = policy.judge(&query);
        policy.observe(&Observation {
            measured_ps: verdict.origin_ps,
            ..seen(false, home.origin_ps, 1)
        });
    }
    assert!(policy.judge(&query).critical, "the cache is never tried again");
}
