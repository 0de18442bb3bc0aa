//! docs/MODEL.md shows what the code computes: its queries are asked again, its table is made
//! again, and both must be in it word for word.

use halocline_model::admit::{self, CacheSide, OriginSide, Query, Setting};
use halocline_model::layout::CacheGeometry;
use halocline_model::profile::DeviceProfile;
use halocline_model::query::answer;
use halocline_model::request::{ByteRange, Direction};

const DOCUMENT: &str = include_str!("../../../docs/MODEL.md");

#[test]
fn the_queries_of_the_document_answer_what_it_says() {
    let mut asked = 0;
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("{\"query\"") {
            let said = lines.next().and_then(|next| next.strip_prefix("-> ")).expect("an answer");
            assert_eq!(answer(line).expect("an answer").to_string(), said, "{line}");
            asked += 1;
        }
    }
    assert!(asked >= 4, "the document has lost its queries");
}

/// A row of the table: what `adaptive` says of a write among 16 processes, 8 disks and 4 SSDs.
fn row(what: &str, len: u64, distance: Option<u64>, run_bytes: u64) -> String {
    let setting = Setting {
        origin: OriginSide { servers: 8, stripe: 65_536, profile: DeviceProfile::hdd_7200() },
        cache: CacheSide {
            geometry: CacheGeometry::new(4, 65_536, 2),
            profile: DeviceProfile::ssd_revodrive_x2(),
            channels: 1,
        },
    };
    let policy = admit::by_name("adaptive", &setting).expect("the default policy");
    let verdict = policy.judge(&Query {
        direction: Direction::Write,
        range: ByteRange::at(1 << 30, len),
        processes: 16,
        owner: 0,
        distance,
        run_bytes,
        last_run_bytes: run_bytes,
        orderly: true,
        continues_origin: false,
        in_step: false,
        origin_serves_reads: false,
        cache_pressure: 0.0,
    });
    let decision = if verdict.critical { verdict.layout.name() } else { "origin" };
    let milliseconds = |ps: u64| format!("{}.{:02}", ps / 1_000_000_000, ps / 10_000_000 % 100);
    let (origin, cache) = (milliseconds(verdict.origin_ps), milliseconds(verdict.cache_ps));
    format!("| {what} | {origin} | {cache} | {decision} |")
}

#[test]
fn the_table_of_the_document_is_what_adaptive_says() {
    let (kb, far) = (1024, Some(500 << 20));
    for row in [
        row("8 KB, random", 8 * kb, far, 8 * kb),
        row("64 KB, random", 64 * kb, far, 64 * kb),
        row("512 KB, random", 512 * kb, far, 512 * kb),
        row("128 KB, the last part of a random 512 KB", 128 * kb, Some(0), 512 * kb),
        row("8 KB, first of its process", 8 * kb, None, 8 * kb),
        row("1 MB, first of its process", 1024 * kb, None, 1024 * kb),
        row("1 MB, inside a stream", 1024 * kb, Some(0), 64 * 1024 * kb),
    ] {
        assert!(DOCUMENT.contains(&row), "docs/MODEL.md lacks\n{row}");
    }
}
