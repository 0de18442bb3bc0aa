//! What one `judge` costs, per policy: `cargo run --release -p halocline-model --example judge_cost`.

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "an example may measure")]
#![expect(clippy::print_stdout, reason = "this is what it is for")]

use std::hint::black_box;
use std::time::Instant;

use halocline_model::admit::{CacheSide, OriginSide, POLICIES, Query, Setting};
use halocline_model::layout::CacheGeometry;
use halocline_model::profile::DeviceProfile;
use halocline_model::request::{ByteRange, Direction};

const ROUNDS: u32 = 5;
const JUDGEMENTS: u64 = 1_000_000;

fn main() {
    let setting = Setting {
        origin: OriginSide { servers: 8, stripe: 65_536, profile: DeviceProfile::hdd_7200() },
        cache: CacheSide {
            geometry: CacheGeometry::new(4, 65_536, 2),
            profile: DeviceProfile::ssd_revodrive_x2(),
            channels: 1,
        },
    };
    for row in POLICIES {
        let policy = (row.make)(&setting);
        let nanoseconds = (0..ROUNDS).map(|_| {
            let begun = Instant::now();
            for index in 0..JUDGEMENTS {
                let offset = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
                let len = 8192 << (index % 7);
                black_box(policy.judge(black_box(&Query {
                    direction: Direction::Write,
                    range: ByteRange::at(offset, len),
                    processes: 16,
                    owner: 3,
                    distance: Some(offset),
                    run_bytes: len,
                    last_run_bytes: len,
                    orderly: true,
                    continues_origin: false,
                    in_step: false,
                    origin_serves_reads: false,
                    cache_pressure: 0.5,
                })));
            }
            begun.elapsed().as_nanos() / u128::from(JUDGEMENTS)
        });
        println!("{}: {} ns", row.name, nanoseconds.min().unwrap_or(0));
    }
}
