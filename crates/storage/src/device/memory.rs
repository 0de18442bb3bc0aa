//! A server without a file system: names and bytes are in memory, and vanish with it.
//!
//! For simulations and tests, which put an emulated device and a simulated clock around it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::request::ByteRange;
use parking_lot::{Mutex, RwLock};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Device, Directory, OpaqueFile, ServerFile, Space};
use halocline_os::error::Result;
use halocline_vfs::Allocate;

/// Size of a block, whose bytes are all present or all missing.
const BLOCK: u64 = 4096;

/// Names and bytes of one server. Clones refer to the same server.
#[derive(Debug, Clone, Default)]
pub struct MemoryServer(Arc<Files>);

#[derive(Debug, Default)]
struct Files {
    by_path: Mutex<BTreeMap<PathBuf, ServerFile>>,
    labels: Mutex<BTreeMap<String, Vec<u8>>>,
    made: AtomicU64,
}

/// The bytes of one file: a hole wherever there is no block.
#[derive(Debug, Clone, Default)]
struct MemoryFile(Arc<RwLock<Content>>);

#[derive(Debug, Default)]
struct Content {
    len: u64,
    /// By block number.
    blocks: BTreeMap<u64, Box<[u8]>>,
}

/// The part of a range in one block.
struct Piece {
    block: u64,
    /// Its start and end within the block.
    within: std::ops::Range<usize>,
}

fn pieces(range: ByteRange) -> impl Iterator<Item = Piece> {
    let index = |at: u64| usize::try_from(at).expect("a place in a block");
    (range.start / BLOCK..range.end.div_ceil(BLOCK)).map(move |block| {
        let from = range.start.saturating_sub(block * BLOCK);
        let to = (range.end - block * BLOCK).min(BLOCK);
        Piece { block, within: index(from)..index(to) }
    })
}

impl Content {
    fn block(&mut self, block: u64) -> &mut [u8] {
        self.blocks.entry(block).or_insert_with(|| vec![0; 4096].into_boxed_slice())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let end = self.len.min(offset.saturating_add(buf.len() as u64));
        let mut done = 0;
        for piece in pieces(ByteRange::new(offset.min(end), end)) {
            let into = &mut buf[done..done + piece.within.len()];
            done += into.len();
            match self.blocks.get(&piece.block) {
                Some(bytes) => into.copy_from_slice(&bytes[piece.within]),
                None => into.fill(0),
            }
        }
        done
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let mut rest = data;
        for piece in pieces(ByteRange::new(offset, end)) {
            let (now, later) = rest.split_at(piece.within.len());
            self.block(piece.block)[piece.within].copy_from_slice(now);
            rest = later;
        }
        if !data.is_empty() {
            self.len = self.len.max(end);
        }
    }

    /// Makes `range` read as zeros; with `keep_blocks`, the blocks are kept, or allocated.
    fn zero(&mut self, range: ByteRange, keep_blocks: bool) {
        for Piece { block, within } in pieces(range) {
            if keep_blocks {
                self.block(block)[within].fill(0);
            } else if within.len() as u64 == BLOCK {
                self.blocks.remove(&block);
            } else if let Some(bytes) = self.blocks.get_mut(&block) {
                bytes[within].fill(0);
            }
        }
    }

    fn reserve(&mut self, range: ByteRange) {
        for piece in pieces(range) {
            self.block(piece.block);
        }
    }

    fn truncate(&mut self, len: u64) {
        if len < self.len {
            self.zero(ByteRange::new(len, self.len.next_multiple_of(BLOCK)), false);
            self.blocks.split_off(&len.div_ceil(BLOCK));
        }
        self.len = len;
    }

    /// As `lseek(2)`: there is a hole at the end.
    fn seek(&self, from: u64, data: bool) -> io::Result<u64> {
        if from >= self.len {
            return Err(Errno::NXIO.into());
        }
        let first = from / BLOCK;
        let found = if data {
            let (block, _) = self.blocks.range(first..).next().ok_or(Errno::NXIO)?;
            *block
        } else {
            let mut block = first;
            while self.blocks.contains_key(&block) {
                block += 1;
            }
            block
        };
        let at = from.max(found * BLOCK);
        if data && at >= self.len {
            return Err(Errno::NXIO.into());
        }
        Ok(at.min(self.len))
    }
}

impl OpaqueFile for MemoryFile {
    fn again(&self) -> Box<dyn OpaqueFile> {
        Box::new(self.clone())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.read().len)
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(self.0.read().blocks.len() as u64 * BLOCK)
    }

    fn seek(&self, whence: SeekFrom) -> io::Result<u64> {
        match whence {
            SeekFrom::Data(from) => self.0.read().seek(from, true),
            SeekFrom::Hole(from) => self.0.read().seek(from, false),
            _ => Err(Errno::INVAL.into()),
        }
    }
}

/// The content of a file of such a server.
fn content(file: &ServerFile) -> io::Result<&RwLock<Content>> {
    file.as_opaque::<MemoryFile>().map(|file| &*file.0)
}

impl Directory for MemoryServer {
    fn open(&self, path: &Path) -> io::Result<Option<ServerFile>> {
        self.0.by_path.lock().get(path).map(ServerFile::again).transpose()
    }

    fn create(&self, path: &Path) -> io::Result<ServerFile> {
        let made = || {
            let number = self.0.made.fetch_add(1, Ordering::Relaxed) + 1;
            ServerFile::opaque(Box::<MemoryFile>::default(), number)
        };
        self.0.by_path.lock().entry(path.to_owned()).or_insert_with(made).again()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.by_path.lock().remove(path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.0.by_path.lock();
        if files.contains_key(to) {
            return Err(Errno::EXIST.into());
        }
        let file = files.remove(from).ok_or(Errno::NOENT)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let files = self.0.by_path.lock();
        let below = files.keys().filter_map(|file| file.strip_prefix(path).ok());
        let mut names: Vec<_> =
            below.filter_map(|rest| Some(rest.iter().next()?.to_owned())).collect();
        names.dedup();
        Ok(names)
    }

    fn allocated_of(&self, path: &Path) -> io::Result<u64> {
        self.0.by_path.lock().get(path).map_or(Ok(0), ServerFile::allocated)
    }

    fn sync_parents(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn label(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.0.labels.lock().get(name).cloned())
    }

    fn set_label(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.labels.lock().insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }
}

impl Device for MemoryServer {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let content = content(file)?.read();
        let mut done = 0;
        for buf in bufs {
            let count = content.read(offset + done as u64, buf);
            done += count;
            if count < buf.len() {
                break;
            }
        }
        Ok(done)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut content = content(file)?.write();
        let mut at = offset;
        for buf in bufs {
            content.write(at, buf);
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        let mut content = content(file)?.write();
        match how {
            Allocate::PunchHole => content.zero(range, false),
            Allocate::Zero { .. } => content.zero(range, true),
            Allocate::Reserve | Allocate::ReserveKeepSize => content.reserve(range),
        }
        if matches!(how, Allocate::Reserve | Allocate::Zero { keep_size: false }) {
            content.len = content.len.max(range.end);
        }
        Ok(())
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        content(file)?.write().truncate(len);
        Ok(())
    }

    fn sync(&self, file: &ServerFile, _: bool) -> io::Result<()> {
        content(file).map(drop)
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space { total: u64::MAX, available: u64::MAX, no_files: false, is_read_only: false })
    }
}
