//! What a trace asks for. Traces may be other people's, so everything is bounded before anything is done.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use halocline_os::counted::counted;
use halocline_os::memory::MemoryInfo;
use halocline_trace::{Op, Reader, Request};
use serde::{Deserialize, Serialize};

use crate::command::planned_files::resolved;
use crate::failure::Failure;
use crate::print::tell;
use crate::reading;
use crate::text;

/// Limit of the requests: each process keeps its own in memory, so that reading them takes none of the time.
const REQUESTS_MAX: u64 = 8 << 20;
/// Limit of the bytes of a request: a process has buffers of that size.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Limit of the processes: each is a real one.
const PROCESSES_MAX: usize = 1024;
/// Limit of the written ranges of a file that are told apart.
const RANGES_MAX: usize = 1 << 12;
/// Limit of the files.
const FILES_MAX: usize = 1 << 16;

/// A file of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TraceFile {
    /// Its path below the directory.
    pub(super) path: PathBuf,
    /// One past the last byte that is read or written; 0 if there is no request.
    pub(super) end: u64,
    /// Whether it is read.
    pub(super) is_read: bool,
    /// How many bytes from its beginning on are all written.
    pub(super) written: u64,
}

/// All requests in short.
#[derive(Debug)]
pub(super) struct Script {
    /// By their numbers in the trace.
    named: Vec<TraceFile>,
    /// The numbers of the processes with requests, ascending.
    pub(super) processes: Vec<u32>,
    pub(super) requests: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

impl Script {
    /// Reads the trace at `path`, of whose names `below` is taken off, if given. Refused: a trace without requests, one that
    /// asks for more than can be played, and names that are not below the directory.
    pub(super) fn read(path: &Path, below: Option<&Below>) -> Result<Self, Failure> {
        let refused = |what: String| Failure::refused(format!("{}: {what}", text::path(path)));
        reading::check_repeatable(path)?;
        let mut reader = Reader::new(reading::open(path, "reading")?)
            .map_err(|error| refused(error.to_string()))?;
        let mut uses: Vec<(u64, bool, Written)> = Vec::new();
        let mut longest: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut requests, mut bytes) = (0, [0_u64; 2]);
        while let Some(block) = reader.next_block().map_err(|error| refused(error.to_string()))? {
            for request in block {
                check(request).map_err(&refused)?;
                let number = request.file as usize;
                if uses.len() <= number {
                    uses.resize(number + 1, (0, false, Written::default()));
                }
                let (end, is_read, written) = &mut uses[number];
                *end = request.end().max(*end);
                match request.op {
                    Op::Read => *is_read = true,
                    Op::Write => written.add(request.offset, request.end()),
                }
                let longest = longest.entry(request.process).or_default();
                *longest = request.length.max(*longest);
                let sum = &mut bytes[usize::from(request.op == Op::Write)];
                *sum = sum.saturating_add(request.length);
                requests += 1;
            }
            if requests > REQUESTS_MAX || longest.len() > PROCESSES_MAX || uses.len() > FILES_MAX {
                return Err(refused(format!(
                    "it has more than {REQUESTS_MAX} requests, {} or {}: play a smaller one",
                    counted(PROCESSES_MAX, "process"),
                    counted(FILES_MAX, "file")
                )));
            }
        }
        if requests == 0 {
            return Err(refused("there are no requests in it".into()));
        }
        let available = MemoryInfo::now().and_then(|memory| memory.bytes("MemAvailable"));
        check_memory(longest.values().sum(), available).map_err(&refused)?;
        if reader.completeness().is_partial() {
            let why = reader.completeness().cut.as_deref().unwrap_or("its source lacks requests");
            tell!("{}: not whole: {why}", text::path(path));
        }
        let named = uses.into_iter().enumerate().map(|(number, (end, is_read, written))| {
            let name = u32::try_from(number).ok().and_then(|number| reader.file(number));
            let path = if end == 0 {
                PathBuf::new()
            } else {
                relative(name.unwrap_or_default(), below).map_err(&refused)?
            };
            Ok(TraceFile { path, end, is_read, written: written.first_gap() })
        });
        let named = named.collect::<Result<_, Failure>>()?;
        let [read_bytes, written_bytes] = bytes;
        let processes = longest.into_keys().collect();
        Ok(Self { named, processes, requests, read_bytes, written_bytes })
    }

    /// The files with requests.
    pub(super) fn files(&self) -> impl Iterator<Item = &TraceFile> {
        self.named.iter().filter(|file| file.end > 0)
    }

    /// Bytes that must be in the files before they are read.
    pub(super) fn bytes_to_prepare(&self) -> u64 {
        let read = self.files().filter(|file| file.is_read);
        read.map(|file| file.end).fold(0, u64::saturating_add)
    }
}

/// The ranges of a file that are written, those that touch as one.
#[derive(Debug, Clone, Default)]
struct Written(BTreeMap<u64, u64>);

impl Written {
    /// Adds the bytes from `start` to `end`, unless there are too many ranges: then the file counts as written in less of it
    /// than it is.
    fn add(&mut self, mut start: u64, mut end: u64) {
        let before = self.0.range(..=start).next_back();
        if let Some((&first, _)) = before.filter(|(_, last)| **last >= start) {
            start = first;
        }
        while let Some((&next, &last)) = self.0.range(start..=end).next() {
            end = end.max(last);
            self.0.remove(&next);
        }
        if self.0.len() < RANGES_MAX || start == 0 {
            self.0.insert(start, end);
        }
    }

    /// The first byte that is not written.
    fn first_gap(&self) -> u64 {
        self.0.get(&0).copied().unwrap_or(0)
    }
}

/// Refuses a request that is too long to be played.
pub(super) fn check(request: &Request) -> Result<(), String> {
    if request.length > REQUEST_BYTES_MAX {
        return Err(format!(
            "a request of {} bytes: at most {REQUEST_BYTES_MAX} can be played",
            request.length
        ));
    }
    Ok(())
}

/// Refuses a trace whose processes' longest requests have `longest` bytes together: each process has two buffers of that
/// size, all of which is written to. Where there is less memory, the kernel would end other programs.
fn check_memory(longest: u64, available: Option<u64>) -> Result<(), String> {
    let buffers = longest.saturating_mul(2);
    match available.filter(|available| buffers > *available) {
        Some(available) => Err(format!(
            "the requests of its processes take {} of memory, and {} are available: play a smaller one",
            text::bytes(buffers),
            text::bytes(available)
        )),
        None => Ok(()),
    }
}

/// What names of a trace begin with, looked up once: each file, in each process, is found below the same path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Below {
    given: PathBuf,
    /// Where that leads; recorded paths have no symbolic links.
    resolved: Option<PathBuf>,
}

impl Below {
    pub(super) fn new(given: &Path) -> Self {
        Self { given: given.to_owned(), resolved: resolved(given) }
    }

    fn taken_off<'n>(&self, name: &'n Path) -> Option<&'n Path> {
        let resolved = || name.strip_prefix(self.resolved.as_deref()?).ok();
        name.strip_prefix(&self.given).ok().or_else(resolved)
    }
}

/// The path below the directory of a file called `name` in the trace.
pub(super) fn relative(name: &[u8], below: Option<&Below>) -> Result<PathBuf, String> {
    let name = Path::new(OsStr::from_bytes(name));
    let inside = match below {
        None => name,
        Some(below) => below.taken_off(name).ok_or_else(|| {
            let (name, below) = (text::path(name), text::path(&below.given));
            format!("{name} is not below {below}; correct --below")
        })?,
    };
    let mut path = PathBuf::new();
    for part in inside.strip_prefix("/").unwrap_or(inside).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return Err(format!("{}: not a path below a directory", text::path(name))),
        }
    }
    if path.as_os_str().is_empty() {
        return Err(format!("{}: not the name of a file below a directory", text::path(name)));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others' traces may have 1024 processes with requests of 1 GiB: the buffers took all memory.
    #[test]
    fn what_takes_more_memory_than_there_is_is_refused() {
        let available = MemoryInfo::now().unwrap().bytes("MemAvailable").unwrap();
        assert!(available > 1 << 20, "{available}");
        check_memory(4096, Some(8192)).unwrap();
        check_memory(u64::MAX, None).unwrap();
        let error = check_memory(4097, Some(8192)).unwrap_err();
        assert!(error.contains("8.00 KiB are available"), "{error}");
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut written = Written::default();
        for (start, end, first_gap) in
            [(4, 8, 0), (10, 12, 0), (8, 9, 0), (0, 3, 3), (3, 4, 9), (2, 11, 12), (20, 20, 12)]
        {
            written.add(start, end);
            assert_eq!(written.first_gap(), first_gap, "{start} {written:?}");
        }
        for at in 0..2 * RANGES_MAX as u64 {
            written.add(100 + 2 * at, 101 + 2 * at);
        }
        assert!(written.0.len() <= RANGES_MAX, "{}", written.0.len());
        written.add(0, 101);
        assert_eq!(written.first_gap(), 101);
    }

    /// Whoever puts another link there while a trace is played moves none of its files.
    #[test]
    fn what_names_begin_with_is_looked_up_once() {
        let scratch = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(scratch.path()).unwrap();
        let link = real.join("link");
        let lead = |to: &str| {
            std::fs::create_dir_all(real.join(to)).unwrap();
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(real.join(to), &link).unwrap();
        };
        lead("one");
        let below = Below::new(&link);
        let below: Below = serde_json::from_str(&serde_json::to_string(&below).unwrap()).unwrap();
        lead("two");
        let name = |of: &str| real.join(of).join("file").into_os_string().into_encoded_bytes();
        assert_eq!(relative(&name("one"), Some(&below)), Ok("file".into()));
        assert_eq!(relative(&name("link"), Some(&below)), Ok("file".into()));
        relative(&name("two"), Some(&below)).unwrap_err();
    }

    #[test]
    fn names_stay_below_the_directory() {
        let good = |name: &str, below: Option<&str>| {
            let below = below.map(|below| Below::new(Path::new(below)));
            relative(name.as_bytes(), below.as_ref()).map(|path| path.display().to_string())
        };
        assert_eq!(good("/data/a", None).unwrap(), "data/a");
        assert_eq!(good("ior.0", None).unwrap(), "ior.0");
        assert_eq!(good("./x//y", None).unwrap(), "x/y");
        assert_eq!(good("/mnt/x/y", Some("/mnt")).unwrap(), "x/y");
        let here = std::env::current_dir().and_then(std::fs::canonicalize).unwrap().join("gone/x");
        assert_eq!(good(here.to_str().unwrap(), Some("gone")).unwrap(), "x", "as it was recorded");
        for (name, below) in [
            ("../a", None),
            ("/a/../../b", None),
            ("/", None),
            ("", None),
            ("/mnt", Some("/mnt")),
            ("/a", Some("/b")),
        ] {
            assert!(good(name, below).is_err(), "{name:?}");
        }
    }
}
