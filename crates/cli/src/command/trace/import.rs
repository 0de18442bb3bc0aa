//! `halocline trace import`: a trace of another tool as one of ours.

mod convert;

use std::io::{self, BufRead, BufWriter};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum, value_parser};
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_trace::import::dxt::{self, Module};
use halocline_trace::import::{Imported, Sink, csv};
use halocline_trace::{Kind, Source, Writer};

use crate::failure::{Failure, Outcome};
use crate::output::Replacement;
use crate::preflight;
use crate::print::{say, tell};
use crate::reading;
use crate::recording;
use crate::replaceable::{self, ResultKind};
use crate::text;

/// Make a trace of what another tool recorded
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// CSV with the header `time_s,process,file,op,offset,length[,duration_s]`; the text that
    /// darshan-dxt-parser prints; or a log of Darshan with DXT data (.darshan)
    file: PathBuf,
    /// The trace to write
    #[arg(short, long)]
    out: PathBuf,
    /// What FILE is, where its name and first bytes do not tell
    #[arg(long)]
    format: Option<Format>,
    /// Sort a CSV that is not in the order of time
    #[arg(long)]
    sort: bool,
    /// Which requests to take of a file that Darshan recorded on several levels
    #[arg(long, default_value = "lowest")]
    module: Level,
    /// Python with the package `darshan`, for logs of Darshan
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// How long the program that reads a log of Darshan may take
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = value_parser!(u32).range(1..), allow_hyphen_values = true)]
    convert_seconds: u32,
    /// How much memory it may take
    #[arg(long, value_name = "GIB", default_value_t = 8, value_parser = value_parser!(u32).range(1..), allow_hyphen_values = true)]
    convert_gib: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    Dxt,
    Darshan,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Level {
    /// POSIX requests, and MPI-IO requests of files that have no others
    Lowest,
    Posix,
    Mpiio,
}

/// Imports. A trace that was there is replaced when the new one is whole.
pub(crate) fn execute(args: &ImportArgs) -> Outcome {
    let name = text::path(&args.file);
    let unreadable = |error| Failure::unreadable(&args.file, &error);
    let mut input = reading::open(&args.file, "importing")?;
    let begin = input.fill_buf().map_err(unreadable)?;
    if let Some(remedy) = unreadable_text(begin).filter(|_| !is_log(args)) {
        return Err(Failure::refused(format!("{name}: {remedy}")));
    }
    let format = args.format.or_else(|| recognise(&args.file, begin)).ok_or_else(|| {
        Failure::refused(format!(
            "{name}: neither CSV nor text of darshan-dxt-parser nor a log of Darshan; say --format"
        ))
    })?;
    let dir = match args.out.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    preflight::no_input(&args.out, &[&args.file]).map_err(Failure::refused)?;
    replaceable::check(&args.out, ResultKind::Trace).map_err(Failure::refused)?;
    let out = Replacement::begin(&args.out).map_err(at(&args.out, "write"))?;
    let (kind, resolution_ns) = match format {
        Format::Csv => (Kind::Csv, 0),
        Format::Dxt => (Kind::DxtText, dxt::RESOLUTION_NS),
        Format::Darshan => (Kind::DarshanLog, 1),
    };
    let source = args.file.file_name().map_or(Vec::new(), |name| name.as_bytes().to_vec());
    let source = Source { kind, resolution_ns, name: source };
    let failed = |error: halocline_trace::Error| {
        // What FILE says: nothing was changed.
        let is_of_the_text = match &error {
            halocline_trace::Error::Line { .. } => true,
            halocline_trace::Error::Io(error) => error.kind() == io::ErrorKind::InvalidData,
            _ => false,
        };
        match error {
            halocline_trace::Error::Io(error) if is_of_writing(&error) => {
                at(&args.out, "write")(error)
            }
            error if is_of_the_text => Failure::refused(format!("{name}: {error}")),
            error => Failure::failed(format!("{name}: {error}")),
        }
    };
    let writer = Writer::new(BufWriter::new(out.file()), &source).map_err(failed)?;
    let ordered = format == Format::Csv && !args.sort;
    let mut sink = if ordered { Sink::ordered(writer) } else { Sink::sorted(writer, dir) };
    match format {
        Format::Csv => csv::import(input, &mut sink).map_err(failed)?,
        Format::Dxt => dxt::import(input, module(args), &mut sink).map_err(failed)?,
        Format::Darshan => convert::import(args, &mut sink)?,
    }
    let (_, imported) = sink.finish().map_err(failed)?;
    if imported.requests == 0 && recording::has_requests(&args.out) {
        return Err(Failure::refused(format!(
            "{name}: it has no requests; the earlier trace {} is kept",
            text::path(&args.out)
        )));
    }
    out.finish().map_err(at(&args.out, "write"))?;
    tell_of(&imported, &args.out, &name);
    Ok(ExitCode::SUCCESS)
}

fn at(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_owned();
    move |error| Error::at(&path, what)(error).into()
}

/// Whether it is an error of the trace that is written, or of the temporary files beside it, and not of what is read.
fn is_of_writing(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge | ReadOnlyFilesystem)
}

const fn module(args: &ImportArgs) -> Module {
    match args.module {
        Level::Lowest => Module::Lowest,
        Level::Posix => Module::Posix,
        Level::Mpiio => Module::Mpiio,
    }
}

/// Whether FILE is said to be a log, which its own library reads.
fn is_log(args: &ImportArgs) -> bool {
    let known = || args.file.extension().is_some_and(|end| end == "darshan");
    args.format.map_or_else(known, |format| format == Format::Darshan)
}

/// What to do with bytes that are no text yet, or a trace already.
fn unreadable_text(begin: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 7] = [
        (b"\x89HCT", "it is a trace already; show, plan or simulate it"),
        (b"\x1f\x8b", "it is compressed; unpack it first (gunzip)"),
        (b"\x28\xb5\x2f\xfd", "it is compressed; unpack it first (unzstd)"),
        (b"\xfd7zXZ", "it is compressed; unpack it first (unxz)"),
        (b"BZh", "it is compressed; unpack it first (bunzip2)"),
        (b"\xff\xfe", "it is UTF-16; make it UTF-8 first (iconv -f UTF-16 -t UTF-8)"),
        (b"\xfe\xff", "it is UTF-16; make it UTF-8 first (iconv -f UTF-16 -t UTF-8)"),
    ];
    KINDS.iter().find(|(magic, _)| begin.starts_with(magic)).map(|(_, remedy)| *remedy)
}

/// By its name, and else by its first bytes.
fn recognise(path: &Path, begin: &[u8]) -> Option<Format> {
    // As some editors begin a text.
    let begin = begin.strip_prefix("\u{feff}".as_bytes()).unwrap_or(begin);
    if path.extension().is_some_and(|end| end == "darshan") {
        Some(Format::Darshan)
    } else if begin.starts_with(b"time_s") || path.extension().is_some_and(|end| end == "csv") {
        Some(Format::Csv)
    } else if begin.trim_ascii_start().starts_with(b"#") {
        Some(Format::Dxt)
    } else {
        None
    }
}

fn tell_of(imported: &Imported, out: &Path, name: &str) {
    let count = |number: u64, what: &str| counted(usize::try_from(number).unwrap_or(0), what);
    say!("{} written to {}", count(imported.requests, "request"), text::path(out));
    if imported.empty > 0 {
        tell!("{name}: {} of no bytes left out", count(imported.empty, "request"));
    }
    for why in &imported.missing {
        tell!("{name}: not whole: {why}");
    }
}
