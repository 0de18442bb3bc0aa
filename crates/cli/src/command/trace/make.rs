//! `halocline trace make`: the requests of a benchmark as a trace.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use halocline_api::config::parse_bytes;
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_sim::workload::{Btio, Class, Hpio, Ior, Tile, Variant, Workload};
use halocline_trace::{Kind, Op, Process, Source, Writer};

use crate::failure::{Failure, Outcome};
use crate::output::Replacement;
use crate::print::say;
use crate::replaceable::{self, ResultKind};
use crate::text;

/// Requests of a trace that is made at most: what is more is a slip.
const REQUESTS_MAX: u64 = 1 << 32;

/// Processes or files of a trace that is made at most: a trace names no more.
const NAMED_MAX: u32 = 1 << 22;

/// Make a trace of the requests that a benchmark issues
#[derive(Debug, Args)]
pub(crate) struct MakeArgs {
    #[command(subcommand)]
    benchmark: Benchmark,
    /// The trace to write
    #[arg(short, long, global = true, default_value = "trace.hct")]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// IOR: segments of blocks of transfers, in a shared file or one for each process
    Ior(IorArgs),
    /// HPIO: regions of the processes take turns in the file, with gaps
    Hpio(HpioArgs),
    /// MPI-Tile-IO: tiles of a dense array of two dimensions
    Tile(TileArgs),
    /// BTIO of the NAS parallel benchmarks
    Btio(BtioArgs),
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct IorArgs {
    #[arg(short, long, default_value = "16")]
    processes: u32,
    /// Bytes of a process in each segment
    #[arg(short, long, value_parser = bytes, default_value = "1M", allow_hyphen_values = true)]
    block: u64,
    /// Bytes of a request
    #[arg(short, long, value_parser = bytes, default_value = "256K", allow_hyphen_values = true)]
    transfer: u64,
    #[arg(short, long, default_value = "1")]
    segments: u64,
    /// A file for each process
    #[arg(short = 'F', long)]
    file_per_process: bool,
    /// Write, then read; alone with --no-write, read only
    #[arg(short, long)]
    read: bool,
    /// Leave the writes out
    #[arg(long)]
    no_write: bool,
    /// In random order, with this seed
    #[arg(short = 'z', long, value_name = "SEED")]
    random: Option<u64>,
    /// Each process reads what the next one wrote
    #[arg(short = 'C', long)]
    reorder: bool,
}

#[derive(Debug, Args)]
struct HpioArgs {
    #[arg(short, long, default_value = "16")]
    processes: u32,
    /// Regions of each process
    #[arg(long, default_value = "4096")]
    count: u64,
    /// Bytes of a region
    #[arg(long, value_parser = bytes, default_value = "64K", allow_hyphen_values = true)]
    size: u64,
    /// Bytes between two regions
    #[arg(long, value_parser = bytes, default_value = "0", allow_hyphen_values = true)]
    spacing: u64,
    #[arg(long, default_value = "write")]
    op: Direction,
}

#[derive(Debug, Args)]
struct TileArgs {
    /// Tiles along a row and a column
    #[arg(long, value_parser = pair::<u32>, default_value = "4x4")]
    tiles: (u32, u32),
    /// Elements of a tile along a row and a column
    #[arg(long, value_parser = pair::<u64>, default_value = "64x64", allow_hyphen_values = true)]
    size: (u64, u64),
    /// Bytes of an element
    #[arg(long, value_parser = bytes, default_value = "4K", allow_hyphen_values = true)]
    element: u64,
    /// Elements that neighbours share along a row and a column
    #[arg(long, value_parser = pair::<u64>, default_value = "0x0")]
    overlap: (u64, u64),
    #[arg(long, default_value = "write")]
    op: Direction,
}

#[derive(Debug, Args)]
struct BtioArgs {
    /// Problem class
    #[arg(long, default_value = "a")]
    class: ClassName,
    /// A square number of processes
    #[arg(short, long, default_value = "16")]
    processes: u32,
    #[arg(long, default_value = "full")]
    variant: VariantName,
    /// Read all dumps back in the end
    #[arg(long)]
    verify: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Direction {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ClassName {
    S,
    W,
    A,
    B,
    C,
    D,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum VariantName {
    /// Collective buffering: each process writes its share of a dump
    Full,
    /// A request for each row of each cell
    Simple,
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "not bytes such as 64K, 8M or 2G".into())
}

fn pair<T: std::str::FromStr>(text: &str) -> Result<(T, T), String> {
    let both = text.split_once('x').and_then(|(x, y)| Some((x.parse().ok()?, y.parse().ok()?)));
    both.ok_or_else(|| "not two numbers such as 4x4".into())
}

/// Makes it. A trace that was there is replaced when the new one is whole.
pub(crate) fn execute(args: &MakeArgs) -> Outcome {
    match &args.benchmark {
        Benchmark::Ior(ior) => write("ior", &ior.workload().map_err(Failure::refused)?, &args.out),
        Benchmark::Hpio(hpio) => {
            let op = op(hpio.op);
            let made = Hpio::new(hpio.processes, hpio.count, hpio.size, hpio.spacing, op);
            write("hpio", &made.map_err(Failure::refused)?, &args.out)
        }
        Benchmark::Tile(tile) => {
            let op = op(tile.op);
            let made = Tile::new(tile.tiles, tile.size, tile.element, tile.overlap, op);
            write("tile", &made.map_err(Failure::refused)?, &args.out)
        }
        Benchmark::Btio(btio) => {
            write("btio", &btio.workload().map_err(Failure::refused)?, &args.out)
        }
    }
}

const fn op(direction: Direction) -> Op {
    match direction {
        Direction::Read => Op::Read,
        Direction::Write => Op::Write,
    }
}

impl IorArgs {
    fn workload(&self) -> Result<Ior, String> {
        let ior = Ior::new(self.processes, self.block, self.transfer, self.segments)?;
        let ior = ior.directions(!self.no_write, self.read)?;
        let ior = if self.file_per_process { ior.file_per_process() } else { ior };
        let ior = if self.reorder { ior.reorder() } else { ior };
        Ok(self.random.map_or(ior.clone(), |seed| ior.random(seed)))
    }
}

impl BtioArgs {
    fn workload(&self) -> Result<Btio, String> {
        let class = match self.class {
            ClassName::S => Class::S,
            ClassName::W => Class::W,
            ClassName::A => Class::A,
            ClassName::B => Class::B,
            ClassName::C => Class::C,
            ClassName::D => Class::D,
        };
        let variant = match self.variant {
            VariantName::Full => Variant::Full,
            VariantName::Simple => Variant::Simple,
        };
        Btio::new(class, self.processes, variant, self.verify)
    }
}

fn write(name: &str, workload: &impl Workload, path: &Path) -> Outcome {
    // Each is named in the trace.
    let most = workload.processes().max(workload.files());
    if most > NAMED_MAX {
        return Err(Failure::refused(format!("{most} processes or files; at most {NAMED_MAX}")));
    }
    let steps = (0..workload.processes()).map(|process| workload.steps(process));
    let requests = steps.fold(0u64, u64::saturating_add);
    if requests > REQUESTS_MAX {
        return Err(Failure::refused(format!("{requests} requests; at most {REQUESTS_MAX}")));
    }
    replaceable::check(path, ResultKind::Trace).map_err(Failure::refused)?;
    let out = Replacement::begin(path).map_err(at(path, "write"))?;
    let failed = |error| match error {
        halocline_trace::Error::Io(error) => at(path, "write")(error),
        error => Failure::failed(format!("{}: {error}", text::path(path))),
    };
    put(name, workload, BufWriter::new(out.file())).map_err(failed)?;
    out.finish().map_err(at(path, "write"))?;
    let requests = counted(usize::try_from(requests).unwrap_or(0), "request");
    say!("{requests} written to {}", text::path(path));
    Ok(ExitCode::SUCCESS)
}

fn put(
    name: &str,
    workload: &impl Workload,
    out: impl io::Write,
) -> Result<(), halocline_trace::Error> {
    let mut writer =
        Writer::new(out, &Source { name: name.into(), ..Source::new(Kind::Generated) })?;
    for file in 0..workload.files() {
        writer.file(format!("{name}.{file}").as_bytes())?;
    }
    for number in 0..u64::from(workload.processes()) {
        writer.process(&Process { number, node: Vec::new() })?;
    }
    for request in workload.requests() {
        writer.push(&request)?;
    }
    writer.finish().map(drop)
}

fn at(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_owned();
    move |error| Error::at(&path, what)(error).into()
}
