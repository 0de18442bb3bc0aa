//! What every admission policy must do, and what the adaptive one promises.

use proptest::prelude::*;

use super::{
    Admission, CacheSide, Explanation, Observation, OriginSide, POLICIES, Query, Setting, Verdict,
    by_name,
};
use crate::layout::{CacheGeometry, Layout};
use crate::profile::{DeviceProfile, ServiceProfile};
use crate::request::{ByteRange, Direction};

const KB: u64 = 1024;
const MB: u64 = 1024 * KB;

/// M disks and N of the papers' SSDs.
fn setting(origin: u32, cache: u32) -> Setting {
    Setting {
        origin: OriginSide { servers: origin, stripe: 64 * KB, profile: DeviceProfile::hdd_7200() },
        cache: CacheSide {
            geometry: CacheGeometry::new(cache, 64 * KB, 2),
            profile: DeviceProfile::ssd_revodrive_x2(),
            channels: 1,
        },
    }
}

fn query(offset: u64, len: u64, distance: Option<u64>, run_bytes: u64) -> Query {
    Query {
        direction: Direction::Write,
        range: ByteRange::at(offset, len),
        processes: 16,
        owner: 3,
        distance,
        run_bytes,
        last_run_bytes: 0,
        orderly: true,
        continues_origin: false,
        in_step: false,
        origin_serves_reads: false,
        cache_pressure: 0.0,
    }
}

fn random(len: u64) -> Query {
    query(77 * MB, len, Some(500 * MB), len)
}

fn make(name: &str, setting: &Setting) -> Box<dyn Admission> {
    by_name(name, setting).expect("a row")
}

/// Bytes admitted of a stream of `total` bytes in requests of `piece` bytes, one of as many
/// streams as there are `processes`.
fn admitted_of_stream(
    policy: &dyn Admission,
    (direction, processes): (Direction, u32),
    total: u64,
    piece: u64,
) -> u64 {
    (0..total / piece)
        .map(|index| {
            let distance = (index > 0).then_some(0);
            let query = query(index * piece, piece, distance, (index + 1) * piece);
            Query { direction, processes, ..query }
        })
        .filter(|query| policy.judge(query).critical)
        .map(|query| query.range.len())
        .sum()
}

/// Whether a policy predicts how long requests take; then it does so for every request.
fn predicts(policy: &dyn Admission) -> bool {
    let Verdict { origin_ps, cache_ps, .. } = policy.judge(&random(64 * KB));
    (origin_ps, cache_ps) != (0, 0)
}

fn any_query() -> impl Strategy<Value = Query> {
    (
        any::<bool>(),
        0..(1u64 << 40),
        0..(1u64 << 28),
        1..5000u32,
        any::<u32>(),
        prop::option::of(0..(1u64 << 40)),
        (0..(1u64 << 30), 0.0..=1.0f32),
    )
        .prop_map(
            |(read, start, len, processes, owner, distance, (before, cache_pressure))| Query {
                direction: if read { Direction::Read } else { Direction::Write },
                range: ByteRange::at(start, len),
                processes,
                owner,
                distance,
                run_bytes: len + if distance == Some(0) { before } else { 0 },
                last_run_bytes: before,
                orderly: true,
                continues_origin: false,
                in_step: false,
                origin_serves_reads: false,
                cache_pressure,
            },
        )
}

#[test]
fn policies_that_judge_by_cost_predict_it() {
    let names = POLICIES.iter().filter(|row| predicts(&*(row.make)(&setting(6, 2))));
    let names: Vec<_> = names.map(|row| row.name).collect();
    assert!(["adaptive", "sla", "s4d"].iter().all(|name| names.contains(name)), "{names:?}");
}

proptest! {
    #[test]
    fn every_policy_explains_what_it_judges(query in any_query(), m in 1..9u32, n in 1..9u32) {
        let setting = setting(m, n);
        for row in POLICIES {
            let policy = (row.make)(&setting);
            let (verdict, said) = (policy.judge(&query), policy.explain(&query));
            prop_assert_eq!(verdict.critical, said.critical, "{}", row.name);
            prop_assert_eq!(Some(verdict.layout), said.layout);
            prop_assert!(!said.reason.is_empty());
            let cost = |layout| said.costs.iter().find(|cost| cost.layout == layout);
            let origin_ps = cost(None).expect("the origin").total_ps;
            let cache_ps = cost(Some(verdict.layout)).expect("the layout chosen").total_ps;
            let predicted = if predicts(&*policy) { (origin_ps, cache_ps) } else { (0, 0) };
            prop_assert_eq!((verdict.origin_ps, verdict.cache_ps), predicted, "{}", row.name);
            if verdict.layout == Layout::TwoD {
                prop_assert!(setting.cache.geometry.groups().is_some());
            }
        }
    }

    #[test]
    fn an_empty_request_is_never_critical(query in any_query()) {
        let query = Query { range: ByteRange::at(query.range.start, 0), run_bytes: 0, ..query };
        for row in POLICIES {
            prop_assert!(!(row.make)(&setting(8, 4)).judge(&query).critical, "{}", row.name);
        }
    }

    #[test]
    fn more_processes_never_make_either_side_faster(query in any_query(), more in 0..100u32) {
        for name in ["adaptive", "sla"] {
            let policy = make(name, &setting(8, 4));
            let few = policy.judge(&query);
            let many = policy.judge(&Query { processes: query.processes + more, ..query });
            prop_assert!(many.origin_ps >= few.origin_ps && many.cache_ps >= few.cache_ps);
        }
    }

    #[test]
    fn a_fuller_cache_admits_no_more(query in any_query()) {
        let policy = make("adaptive", &setting(8, 4));
        let at = |cache_pressure| policy.judge(&Query { cache_pressure, ..query }).critical;
        prop_assert!(at(0.0) || !at(1.0));
    }

    #[test]
    fn adaptive_admits_nothing_between_equals(query in any_query(), servers in 1..9u32) {
        let mut equal = setting(servers, servers);
        equal.origin.profile = equal.cache.profile;
        // One layout only: with others the cache could still be the better laid out of two equals.
        equal.cache.geometry = CacheGeometry::new(servers, 64 * KB, 0);
        let query = Query { processes: 1, ..query };
        let policy = make("adaptive", &equal);
        prop_assert!(!policy.judge(&query).critical);
    }
}

#[test]
fn names_are_unique_and_found() {
    for row in POLICIES {
        assert_eq!(make(row.name, &setting(8, 4)).name(), row.name);
    }
    let error = by_name("adaptiv", &setting(8, 4)).expect_err("no row").to_string();
    assert!(error.contains("\"adaptiv\"") && error.contains("adaptive, sla"), "{error}");
}

#[test]
fn adaptive_admits_random_requests_however_full_the_cache_is() {
    for (origin, cache) in [(1, 1), (8, 4)] {
        let policy = make("adaptive", &setting(origin, cache));
        for len in [4 * KB, 8 * KB, 64 * KB, 512 * KB] {
            for processes in [1, 4, 16, 128] {
                for cache_pressure in [0.0, 0.5, 1.0] {
                    for direction in [Direction::Read, Direction::Write] {
                        let query = Query { direction, processes, cache_pressure, ..random(len) };
                        assert!(policy.judge(&query).critical, "{:?}", policy.explain(&query));
                    }
                }
            }
        }
    }
}

#[test]
fn adaptive_admits_all_of_a_random_request_that_the_kernel_cut() {
    let policy = make("adaptive", &setting(8, 4));
    let piece = 128 * KB;
    for index in 0..4 {
        let distance = if index == 0 { Some(500 * MB) } else { Some(0) };
        let query = query(77 * MB + index * piece, piece, distance, (index + 1) * piece);
        assert!(policy.judge(&query).critical, "{:?}", policy.explain(&query));
    }
}

#[test]
fn adaptive_leaves_streams_on_the_origin() {
    for (origin, cache) in [(1, 1), (8, 4)] {
        let policy = make("adaptive", &setting(origin, cache));
        for by in [(Direction::Write, 1), (Direction::Read, 1)] {
            for (piece, most) in [(MB, 0), (128 * KB, 384 * KB), (8 * KB, 512 * KB)] {
                let admitted = admitted_of_stream(policy.as_ref(), by, 64 * MB, piece);
                assert!(admitted <= most, "{by:?} {piece}: {admitted} bytes of a stream admitted");
            }
        }
        // What the kernel leaves of a large request that it cut.
        let rest = Query { processes: 1, ..query(9 * MB, 2 * KB, Some(0), 9 * MB) };
        assert!(!policy.judge(&rest).critical);
        // A stream that several threads deliver out of order.
        for distance in [MB, 2 * MB, 3 * MB] {
            let near = Query { processes: 1, ..query(9 * MB, MB, Some(distance), MB) };
            assert!(!policy.judge(&near).critical);
        }
    }
}

/// A flush writes them to all disks at once.
#[test]
fn adaptive_admits_a_lone_stream_of_writes_to_one_of_many_disks_at_a_time() {
    let admitted = |disks, direction, piece, per_byte_ps| {
        let mut setting = setting(disks, 4);
        setting.cache.profile.write.per_byte_ps = per_byte_ps;
        setting.cache.profile.read.per_byte_ps = per_byte_ps;
        admitted_of_stream(make("adaptive", &setting).as_ref(), (direction, 1), 64 * MB, piece)
    };
    let most = 63 * MB;
    assert!(admitted(8, Direction::Write, 64 * KB, 1429) > most);
    // An SSD that needs as long as the disk less its share of the flush.
    assert!(admitted(8, Direction::Write, 64 * KB, 5000) > most);
    assert!(admitted(8, Direction::Write, 64 * KB, 8000) < MB);
    // Nothing is gained with one disk, in requests that keep two disks busy, or from reads.
    for (disks, direction, piece) in [
        (1, Direction::Write, 64 * KB),
        (8, Direction::Write, 128 * KB),
        (8, Direction::Write, 32 * KB),
        (8, Direction::Read, 64 * KB),
    ] {
        assert!(admitted(disks, direction, piece, 1429) < MB, "{disks} {direction:?} {piece}");
    }
}

#[test]
fn adaptive_admits_streams_that_share_a_disk_where_its_seeks_are_worth_it() {
    for direction in [Direction::Read, Direction::Write] {
        for piece in [8 * KB, 64 * KB, 512 * KB, 2 * MB] {
            let policy = make("adaptive", &setting(8, 4));
            let by = (direction, 16);
            let admitted = admitted_of_stream(policy.as_ref(), by, 64 * MB, piece);
            assert!(admitted > 60 * MB, "{direction:?} {piece}: {admitted} bytes admitted");
        }
    }
    // A disk that writes 64 MB at a time hardly seeks.
    let policy = make("adaptive", &setting(1, 1));
    let admitted = admitted_of_stream(policy.as_ref(), (Direction::Write, 16), 1024 * MB, 64 * MB);
    assert_eq!(admitted, 0);
}

#[test]
fn adaptive_asks_of_a_byte_what_the_ssd_takes_for_it() {
    // 4 MB at a time: a seek is 0.35 of the transfer.
    let stream = Query { processes: 8, ..query(64 * MB, 4 * MB, Some(0), 64 * MB) };
    let with_ssd = |per_byte_ps| {
        let mut setting = setting(1, 1);
        setting.cache.profile.write.per_byte_ps = per_byte_ps;
        make("adaptive", &setting).judge(&stream).critical
    };
    assert!(with_ssd(1429) && with_ssd(2500));
    assert!(!with_ssd(3500), "the disk alone is faster than the SSD and the disk");
}

#[test]
fn adaptive_leaves_on_the_origin_what_continues_there() {
    for (origin, cache) in [(1, 1), (8, 4)] {
        let policy = make("adaptive", &setting(origin, cache));
        for processes in [1, 2, 16] {
            let turn = Query { processes, ..query(64 * MB, 64 * KB, Some(0), 64 * KB) };
            let there = Query { continues_origin: true, ..turn };
            assert!(policy.judge(&turn).critical);
            let said = policy.explain(&there);
            assert!(!said.critical && said.reason.contains("without a seek"), "{}", said.reason);
        }
    }
}

#[test]
fn adaptive_tries_the_origin_for_processes_in_step_where_the_disks_are_busy() {
    let turn = Query { in_step: true, ..query(64 * MB, 64 * KB, Some(0), 64 * KB) };
    let policy = make("adaptive", &setting(1, 1));
    assert!(!policy.judge(&turn).critical);
    assert!(policy.judge(&Query { cache_pressure: 0.5, ..turn }).critical, "a flush is coming");
    // Sixteen processes keep eight disks busy, two do not.
    let policy = make("adaptive", &setting(8, 4));
    assert!(!policy.judge(&turn).critical);
    assert!(policy.judge(&Query { processes: 2, ..turn }).critical);
}

#[test]
fn adaptive_leaves_long_writes_at_random_places_beside_reads_on_the_origin() {
    let policy = make("adaptive", &setting(1, 1));
    let alone = Query { processes: 1, ..random(2 * MB) };
    let beside = Query { origin_serves_reads: true, ..alone };
    assert!(policy.judge(&alone).critical, "{}", policy.explain(&alone).reason);
    assert!(!policy.judge(&beside).critical, "{}", policy.explain(&beside).reason);
    assert!(policy.judge(&Query { processes: 2, ..beside }).critical);
    assert!(policy.judge(&Query { range: ByteRange::at(77 * MB, 64 * KB), ..beside }).critical);
}

#[test]
fn adaptive_takes_fewer_servers_only_where_they_are_clearly_faster() {
    // Four channels: 16 requests of 256 KB are served at once, each on one SSD, or in four parts that wait.
    let mut four_channels = setting(8, 4);
    four_channels.cache.channels = 4;
    four_channels.cache.profile.write.per_byte_ps *= 4;
    let random = Query { processes: 16, ..random(256 * KB) };
    assert_eq!(make("adaptive", &four_channels).judge(&random).layout, Layout::OneDh);
}

#[test]
fn adaptive_learns_from_the_last_run_how_long_this_one_gets() {
    let policy = make("adaptive", &setting(8, 4));
    let after = |last_run_bytes| {
        let query = Query { last_run_bytes, processes: 1, ..random(128 * KB) };
        policy.judge(&query).critical
    };
    assert!(after(128 * KB) && after(512 * KB) && after(4 * MB));
    assert!(!after(64 * MB));
}

#[test]
fn sla_caches_the_streams_that_adaptive_leaves() {
    // Why the papers' models are not the default (docs/ALGORITHMS.md, section 3.1).
    let stream = Query { processes: 1, ..query(64 * MB, 4 * MB, Some(0), 64 * MB) };
    assert!(make("sla", &setting(8, 4)).judge(&stream).critical);
    assert!(!make("adaptive", &setting(8, 4)).judge(&stream).critical);
}

fn serve(policy: &dyn Admission, query: &Query, times_slower: u64, rounds: u32) {
    for _ in 0..rounds {
        let verdict = policy.judge(query);
        let honest = make("adaptive", &setting(8, 4)).judge(query).cache_ps;
        policy.observe(&Observation {
            on_cache: true,
            direction: query.direction,
            sequential: false,
            bytes: query.range.len(),
            parts: 1,
            predicted_ps: verdict.cache_ps,
            measured_ps: honest * times_slower,
        });
    }
}

#[test]
fn adaptive_turns_from_a_sick_cache_probes_it_and_comes_back() {
    let policy = make("adaptive", &setting(8, 4));
    let query = random(8 * KB);
    serve(policy.as_ref(), &query, 1000, 20);
    assert!(policy.judge(&query).critical, "a moment's trouble turns nothing");
    serve(policy.as_ref(), &query, 1000, 400);
    let Explanation { critical, reason, .. } = policy.explain(&query);
    assert!(!critical && reason.contains("slower than its profile"), "{reason}");
    let probes = (0..1280).filter(|_| policy.judge(&query).critical).count();
    assert_eq!(probes, 10);
    serve(policy.as_ref(), &query, 1, 400);
    assert!(policy.judge(&query).critical);
}

#[test]
fn adaptive_keeps_admitting_where_service_is_as_expected() {
    let policy = make("adaptive", &setting(8, 4));
    let query = random(8 * KB);
    serve(policy.as_ref(), &query, 2, 1000);
    assert!(policy.judge(&query).critical, "{:?}", policy.explain(&query));
}

#[test]
fn reads_that_the_origin_serves_from_ram_are_not_cached() {
    let policy = make("adaptive", &setting(8, 4));
    let query = Query { direction: Direction::Read, ..random(8 * KB) };
    for _ in 0..1000 {
        policy.observe(&Observation {
            on_cache: false,
            direction: Direction::Read,
            sequential: false,
            bytes: 8 * KB,
            parts: 1,
            predicted_ps: policy.judge(&query).origin_ps,
            measured_ps: 5_000_000,
        });
    }
    let said = policy.explain(&query);
    assert!(!said.critical && said.reason.contains("equally fast"), "{}", said.reason);
}

#[test]
fn golden_numbers_of_adaptive() {
    // 16 processes, 8 KB at random, 8 disks: q = 2; 2 * (12.17 ms + 8192 * 8333 ps).
    // 4 SSDs: q = 4; 4 * (80 us + 8192 * 1429 ps).
    let verdict = make("adaptive", &setting(8, 4)).judge(&random(8 * KB));
    assert_eq!(verdict.origin_ps, 2 * (12_170_000_000 + 8192 * 8333));
    assert_eq!(verdict.cache_ps, 4 * (80_000_000 + 8192 * 1429));
    assert_eq!(verdict.layout, Layout::OneDh);
    // 512 KB touch all servers: one whole request each is better than a part of every one.
    let verdict = make("adaptive", &setting(8, 4)).judge(&random(512 * KB));
    assert_eq!(verdict.origin_ps, 16 * (12_170_000_000 + 64 * KB * 8333));
    assert_eq!(verdict.layout, Layout::OneDv);
    assert_eq!(verdict.cache_ps, 4 * (80_000_000 + 512 * KB * 1429));
}

/// Regression: how long a write may wait for the slowest servers that a description may have overflowed.
#[test]
fn the_slowest_servers_there_can_be_are_judged() {
    let service = |startup_random_ps| ServiceProfile { startup_random_ps, ..slowest().write };
    let profiles = [0, 1, 100 << 40, 1 << 60].map(service);
    let profiles = profiles.map(|service| DeviceProfile { read: service, write: service });
    let lengths = [1, 512 * KB, 1 << 40, i64::MAX.cast_unsigned()];
    for row in POLICIES {
        for (disk, ssd) in profiles.iter().flat_map(|disk| profiles.map(|ssd| (*disk, ssd))) {
            let mut setting = setting(8, 4);
            (setting.origin.profile, setting.cache.profile) = (disk, ssd);
            let policy = (row.make)(&setting);
            for (len, processes) in lengths.into_iter().flat_map(|len| [(len, 1), (len, u32::MAX)])
            {
                for distance in [None, Some(0), Some(u64::MAX)] {
                    let query = Query { processes, ..query(0, len, distance, len) };
                    let verdict = policy.judge(&query);
                    let least = if row.name == "adaptive" { verdict.origin_ps / 2 } else { 0 };
                    let gain = verdict.origin_ps.saturating_sub(verdict.cache_ps);
                    assert!(policy.wait_limit_ps(&verdict) >= gain.min(least), "{}", row.name);
                    assert_eq!(policy.explain(&query).critical, verdict.critical, "{}", row.name);
                    policy.observe(&Observation {
                        on_cache: verdict.critical,
                        direction: query.direction,
                        sequential: distance == Some(0),
                        bytes: len,
                        parts: 4,
                        predicted_ps: verdict.origin_ps,
                        measured_ps: u64::MAX,
                    });
                }
            }
        }
    }
}

/// What takes the longest of all that is accepted.
fn slowest() -> DeviceProfile {
    let service = ServiceProfile {
        startup_sequential_ps: 1 << 60,
        startup_random_ps: 1 << 60,
        per_byte_ps: 1 << 32,
    };
    let profile = DeviceProfile { read: service, write: service };
    profile.check().expect("accepted");
    profile
}
