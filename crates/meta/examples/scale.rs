//! What the mapping tables cost at scale: `meta_scale [EXTENTS] [DIR] [RECORDS_BYTES]` maps that
//! many 8 KiB extents in random order over 16 files, reopens the store after a kill and after a
//! clean close, and prints times per operation and bytes per extent, where `RECORDS_BYTES` are set
//! aside for the store (all it likes without). Run it in release.

#![expect(clippy::print_stdout, reason = "it is a report")]
#![expect(clippy::cast_precision_loss, reason = "figures are printed with two digits")]

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use halocline_meta::table::{ExtentTable, Options};
use halocline_meta::{FileId, OriginKey};
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;

const FILES: u64 = 16;
const LEN: u64 = 8192;
const PROBES: u64 = 1_000_000;
const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    let extents: u64 = args.next().map_or(Ok(1_000_000), |count| count.parse())?;
    let dir = args.next().map_or_else(|| std::env::temp_dir().join("meta_scale"), PathBuf::from);
    let records = args.next().map_or(Ok(u64::MAX), |bytes| bytes.parse())?;
    fs::create_dir(&dir)?;
    println!("{extents} extents of {LEN} bytes over {FILES} files in {}", dir.display());
    let empty = resident_bytes()?;
    fill(&dir, extents, records)?;
    println!("disk       {:8.1} bytes an extent, while open", per(disk_bytes(&dir)?, extents));
    let dmt = reopen(&dir, extents, records, empty, "kill")?;
    dmt.close()?;
    drop(dmt);
    println!("disk       {:8.1} bytes an extent, closed", per(disk_bytes(&dir)?, extents));
    let dmt = reopen(&dir, extents, records, empty, "close")?;
    probe(&dmt, extents);
    change(&dmt, extents)?;
    drop(dmt);
    fs::remove_dir_all(&dir)?;
    Ok(())
}

fn open(dir: &Path, records_bytes: u64) -> Outcome<ExtentTable> {
    let eviction = halocline_model::evict::by_name("s3fifo")?;
    let options = Options { records_bytes, ..Options::new(1 << 50, eviction, 65536) };
    Ok(ExtentTable::open(dir, options)?.0)
}

fn fill(dir: &Path, extents: u64, records: u64) -> Outcome {
    let dmt = open(dir, records)?;
    for file in 0..FILES {
        dmt.files()
            .register(OriginKey { inode: file, born_ns: 0 }, Path::new(&format!("f{file}")))?;
    }
    let begin = Instant::now();
    let mut slowest = Duration::ZERO;
    for index in 0..extents {
        let (file, range) = place(index, extents);
        let one = Instant::now();
        if !dmt.blocks().reserve(file, range, HERE) {
            return Err("the limit is too small".into());
        }
        dmt.changes().map(file, range, HERE, index % 2 == 0)?;
        slowest = slowest.max(one.elapsed());
    }
    report("reserve+map", begin.elapsed(), extents);
    println!("           {slowest:8.1?} the slowest of these");
    let begin = Instant::now();
    dmt.barrier()?;
    println!("barrier    {:8.1?}", begin.elapsed());
    Ok(())
}

/// Extent number `index` of a random order over all extents.
fn place(index: u64, extents: u64) -> (FileId, ByteRange) {
    // A step that shares no factor with the count visits each extent once.
    let mut step = (0x9E37_79B9_7F4A_7C15 % extents.max(2)) | 1;
    while gcd(step, extents) != 1 {
        step += 2;
    }
    let at = u64::try_from(u128::from(index) * u128::from(step) % u128::from(extents))
        .expect("a remainder by a u64 fits");
    (FileId(1 + at % FILES), ByteRange::at(at / FILES * 2 * LEN, LEN))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn reopen(dir: &Path, extents: u64, records: u64, empty: u64, after: &str) -> Outcome<ExtentTable> {
    let begin = Instant::now();
    let dmt = open(dir, records)?;
    println!("open       {:8.2?} after a {after}", begin.elapsed());
    assert_eq!(dmt.index().usage().extents, extents, "every extent is back");
    let resident = resident_bytes()?.saturating_sub(empty);
    println!("memory     {:8.1} bytes an extent after a {after}", per(resident, extents));
    Ok(dmt)
}

fn probe(dmt: &ExtentTable, extents: u64) {
    let mut segments = Vec::new();
    let begin = Instant::now();
    for index in 0..PROBES {
        let (file, range) = place(index * 7, extents);
        dmt.index().lookup(file, range, &mut segments);
        black_box(&segments);
    }
    report("lookup", begin.elapsed(), PROBES);
    let begin = Instant::now();
    for index in 0..PROBES {
        let (file, range) = place(index * 11, extents);
        dmt.index().touch(file, range);
    }
    report("touch", begin.elapsed(), PROBES);
    let begin = Instant::now();
    for index in 0..PROBES {
        black_box(place(index * 11, extents));
    }
    report("(probe)", begin.elapsed(), PROBES);
}

fn change(dmt: &ExtentTable, extents: u64) -> Outcome {
    let changes = PROBES.min(extents / 4);
    let mut segments = Vec::new();
    let begin = Instant::now();
    for index in 0..changes {
        let (file, range) = place(index * 2 + 1, extents);
        dmt.index().lookup(file, range, &mut segments);
        dmt.changes().mark_dirty(file, range)?;
    }
    report("mark_dirty", begin.elapsed(), changes);
    let begin = Instant::now();
    for index in 0..changes {
        let (file, range) = place(index * 2 + 1, extents);
        dmt.changes().mark_dirty(file, range)?;
    }
    report("again", begin.elapsed(), changes);
    let begin = Instant::now();
    let mut cleaned = 0;
    for file in 1..=FILES {
        let dirty = dmt.index().dirty(FileId(file), ByteRange::new(0, u64::MAX), usize::MAX);
        for run in dirty.chunks(64) {
            let list: Vec<_> = run.iter().map(|extent| (extent.range, extent.generation)).collect();
            cleaned += dmt.changes().mark_clean(FileId(file), &list)?;
        }
    }
    report("mark_clean", begin.elapsed(), cleaned / LEN);
    dmt.barrier()?;
    let begin = Instant::now();
    let mut evicted = 0;
    while evicted < changes * LEN {
        let discards = dmt.evictor().evict(4 << 20, None, &mut |_, _| true)?;
        evicted += discards.iter().map(|discard| discard.range.len()).sum::<u64>();
        for discard in &discards {
            dmt.blocks().discarded(discard);
        }
    }
    report("evict", begin.elapsed(), evicted / LEN);
    Ok(())
}

fn report(what: &str, time: Duration, count: u64) {
    println!("{what:<11}{:8.1} ns each", time.as_nanos() as f64 / count as f64);
}

fn per(bytes: u64, extents: u64) -> f64 {
    bytes as f64 / extents as f64
}

fn resident_bytes() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).ok_or("no VmRSS")?;
    let kib: u64 = line.split_whitespace().nth(1).ok_or("no VmRSS")?.parse()?;
    Ok(kib * 1024)
}

fn disk_bytes(dir: &Path) -> Outcome<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        bytes += if kind.is_dir() {
            disk_bytes(&entry.path())?
        } else {
            entry.metadata()?.blocks() * 512
        };
    }
    Ok(bytes)
}
