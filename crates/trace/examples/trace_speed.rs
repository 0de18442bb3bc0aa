//! Bytes and time that a request takes in the trace format, for three workloads:
//!
//! ```text
//! cargo run --release -p halocline-trace --example trace_speed [-- DIR]
//! ```
//!
//! With DIR the traces stay there, so that general compressors can be tried on them.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufReader, BufWriter};
use std::path::PathBuf;
use std::time::Instant;

use halocline_trace::{Kind, Op, Process, Reader, Request, Source, Writer};

const REQUESTS: u32 = 4_000_000;
const PROCESSES: u32 = 16;

/// Numbers that look random and are the same each time (splitmix64).
fn random(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn request(workload: &str, index: u32) -> Request {
    let noise = random(u64::from(index));
    let (process, round) = (index % PROCESSES, u64::from(index / PROCESSES));
    let (offset, length) = match workload {
        "sequential" => (u64::from(process) << 40 | round << 18, 1 << 18),
        "strided" => ((round * u64::from(PROCESSES) + u64::from(process)) << 16, 1 << 16),
        _ => ((noise >> 32) << 12, 4096 << (noise % 4)),
    };
    Request {
        // 10 to 18 us apart, and 100 to 1,100 us long, as from a disk's cache.
        start_ns: u64::from(index) * 10_000 + noise % 8_192,
        duration_ns: Some(100_000 + (noise >> 20) % 1_000_000),
        process,
        file: 0,
        op: if noise & (1 << 50) == 0 { Op::Read } else { Op::Write },
        offset,
        length,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir()?;
    let dir = std::env::args_os().nth(1).map_or(scratch.path().to_owned(), PathBuf::from);
    println!("{:12}{:>16}{:>20}{:>20}", "workload", "bytes/request", "written/s", "read/s");
    for workload in ["sequential", "strided", "random"] {
        let path = dir.join(format!("{workload}.hct"));
        let mut requests: Vec<_> = (0..REQUESTS).map(|index| request(workload, index)).collect();
        requests.sort_by_key(|request| request.start_ns);
        let source = Source::new(Kind::Generated);
        let begun = Instant::now();
        let mut writer = Writer::new(BufWriter::new(File::create(&path)?), &source)?;
        writer.file(b"file")?;
        for number in 0..u64::from(PROCESSES) {
            writer.process(&Process { number, node: Vec::new() })?;
        }
        for request in &requests {
            writer.push(request)?;
        }
        drop(writer.finish()?);
        let written = f64::from(REQUESTS) / begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let mut reader = Reader::new(BufReader::new(File::open(&path)?))?;
        let mut bytes = 0;
        while let Some(block) = reader.next_block()? {
            bytes += block.iter().map(|request| request.length).sum::<u64>();
        }
        black_box(bytes);
        assert_eq!(reader.completeness().requests, u64::from(REQUESTS));
        let read = f64::from(REQUESTS) / begun.elapsed().as_secs_f64();
        let size = std::fs::metadata(&path)?.len();
        let each = f64::from(u32::try_from(size)?) / f64::from(REQUESTS);
        println!("{workload:12}{each:>16.2}{written:>20.0}{read:>20.0}");
    }
    Ok(())
}
