//! Recording requests of many threads, with files that fill up and recorders that are killed.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use halocline_trace::record::Recorder;
use halocline_trace::{Completeness, Kind, Op, Reader, Request, Source};
use parking_lot::Mutex;

/// A file in memory, with room for so many bytes.
#[derive(Clone)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl Disk {
    fn new(room: usize) -> Self {
        Self { bytes: Arc::default(), room }
    }

    fn read(&self) -> (Vec<Request>, Completeness, Vec<Vec<u8>>) {
        let bytes = self.bytes.lock().clone();
        let mut reader = Reader::new(bytes.as_slice()).unwrap();
        let mut all = Vec::new();
        while let Some(block) = reader.next_block().unwrap() {
            all.extend_from_slice(block);
        }
        let names = (0..reader.files())
            .map(|file| reader.file(u32::try_from(file).unwrap()).unwrap().to_vec());
        let names = names.collect();
        (all, reader.completeness().clone(), names)
    }
}

impl Write for Disk {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock();
        let taken = data.len().min(self.room - bytes.len());
        if taken == 0 {
            return Err(io::Error::from_raw_os_error(28));
        }
        bytes.extend_from_slice(&data[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start(disk: &Disk) -> Recorder {
    Recorder::start(disk.clone(), &Source::new(Kind::Mount)).unwrap()
}

#[test]
fn requests_of_many_threads_are_all_there_in_order() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let disk = Disk::new(usize::MAX);
    let recorder = start(&disk);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let recorder = &recorder;
            scope.spawn(move || {
                let file = recorder.file((thread, 0), || format!("/f{thread}").into_bytes());
                for i in 0..EACH {
                    let op = if i % 2 == 0 { Op::Read } else { Op::Write };
                    let by = 1_000_000_000 + u32::try_from(thread).unwrap();
                    // Some take long, so that those of others overtake them.
                    let serve = || {
                        if i % 100 == 0 {
                            thread::sleep(Duration::from_millis(30));
                        }
                    };
                    recorder.request((file, op, i * 4096, by), serve, |()| 4096);
                }
                // No bytes: nothing that a trace may hold.
                recorder.request((file, Op::Read, 0, 1), || (), |()| 0);
            });
        }
    });
    recorder.set_rank(1_000_000_000, 7);
    let done = recorder.finish();
    assert_eq!((done.requests, done.lost, done.error), (THREADS * EACH, 0, None));
    let (all, completeness, names) = disk.read();
    assert_eq!(all.len() as u64, THREADS * EACH);
    assert!(!completeness.is_partial(), "{completeness:?}");
    assert!(all.is_sorted_by_key(|request| request.start_ns));
    assert_eq!(names.len() as u64, THREADS);
    for file in 0..names.len() {
        let of_file = all.iter().filter(|request| request.file as usize == file);
        let offsets: Vec<u64> = of_file.map(|request| request.offset / 4096).collect();
        assert_eq!(offsets, (0..EACH).collect::<Vec<_>>());
    }
    let mut slow = all.iter().filter(|request| request.offset / 4096 % 100 == 0);
    assert!(slow.all(|request| request.duration_ns >= Some(30_000_000)));
    // After the end nothing is recorded, and nothing breaks.
    assert_eq!(recorder.request((None, Op::Read, 0, 1), || 5, |_| 1), 5);
    assert_eq!(recorder.finish().requests, THREADS * EACH);
}

/// What is there may be another trace.
#[test]
fn a_recorder_that_starts_over_writes_nothing_before_the_first_request() {
    for requests in [0, 1] {
        let disk = Disk::new(usize::MAX);
        let recorder = Recorder::start_over(disk.clone(), &Source::new(Kind::Mount)).unwrap();
        let file = recorder.file((0, 0), || b"/f".to_vec());
        recorder.request((file, Op::Read, 0, 1), || (), |()| 0);
        thread::sleep(Duration::from_millis(60));
        assert_eq!(*disk.bytes.lock(), b"");
        for _ in 0..requests {
            recorder.request((file, Op::Read, 0, 1), || (), |()| 4096);
        }
        assert_eq!(recorder.finish().requests, requests);
        if requests == 0 {
            assert_eq!(*disk.bytes.lock(), b"");
            continue;
        }
        let (all, completeness, _) = disk.read();
        assert!(all.len() == 1 && !completeness.is_partial(), "{completeness:?}");
    }
}

#[test]
fn one_name_is_one_file_and_a_rank_one_process() {
    let disk = Disk::new(usize::MAX);
    let recorder = start(&disk);
    recorder.set_rank(1_000_000_001, 3);
    let a = recorder.file((1, 1), || b"/a".to_vec());
    assert_eq!(recorder.file((1, 1), || unreachable!("it is known")), a);
    assert_eq!(recorder.file((1, 2), || b"/a".to_vec()), a);
    let b = recorder.file((1, 3), || b"/b".to_vec());
    assert_ne!(a, b);
    for (file, by) in [(a, 1_000_000_001), (b, 1_000_000_002)] {
        recorder.request((file, Op::Write, 0, by), || (), |()| 1);
    }
    recorder.finish();
    let bytes = disk.bytes.lock().clone();
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    reader.next_block().unwrap();
    assert_eq!(reader.process(0).unwrap().number, 3);
    assert_eq!(reader.process(1).unwrap().number, 1_000_000_002);
}

/// What the recorder has flushed when it is killed is read, and said to be cut off.
#[test]
fn what_was_flushed_survives_a_kill() {
    let disk = Disk::new(usize::MAX);
    let recorder = start(&disk);
    assert!(disk.read().1.is_partial(), "it is begun and has no end");
    let file = recorder.file((1, 1), || b"/a".to_vec());
    recorder.request((file, Op::Read, 0, 1), || (), |()| 1);
    // Flushed within a second or so, whatever the machine does.
    while disk.read().0.is_empty() {
        thread::sleep(Duration::from_millis(10));
    }
    let (all, completeness, _) = disk.read();
    assert_eq!(all.len(), 1);
    assert!(completeness.cut.is_some() && completeness.weight() <= 0.5);
    drop(recorder);
}

/// Regression: whole blocks that had been written before, but not flushed, were told to be missing.
#[test]
fn a_full_disk_ends_the_recording_and_not_the_requests() {
    // None, and some blocks.
    for room in [300, 400_000] {
        let disk = Disk::new(room);
        let recorder = start(&disk);
        let file = recorder.file((1, 1), || b"/a".to_vec());
        let mut served = 0_u64;
        while recorder.progress().error.is_none() {
            // Neither offset nor length is foretold: some bytes each.
            let offset = (served * 0x9E37_79B9) % (1 << 40);
            served += recorder.request((file, Op::Read, offset, 1), || 1, |_| 1 + offset % 1000);
            if served.is_multiple_of(64) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        served += recorder.request((file, Op::Read, 0, 1), || 1, |_| 1);
        let done = recorder.finish();
        assert!(done.error.as_ref().unwrap().contains("No space left"), "{done:?}");
        assert_eq!(done.requests + done.lost, served);
        let (all, completeness, _) = disk.read();
        assert_eq!(all.len() as u64, done.requests);
        assert!(completeness.is_partial());
    }
}

/// A writer that waits for its disk makes no request wait: what does not fit is counted.
#[test]
fn a_disk_that_hangs_makes_nobody_wait() {
    struct Hanging(Arc<AtomicBool>, Disk);
    impl Write for Hanging {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            while self.0.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
            self.1.write(data)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (hangs, disk) = (Arc::new(AtomicBool::new(false)), Disk::new(usize::MAX));
    let out = Hanging(hangs.clone(), disk.clone());
    let recorder = Recorder::start(out, &Source::new(Kind::Mount)).unwrap();
    let file = recorder.file((1, 1), || b"/a".to_vec());
    hangs.store(true, Ordering::Release);
    let served = AtomicU64::new(0);
    // More than all buffers hold together: this ends only if nobody waits.
    for i in 0..3 << 20 {
        recorder.request((file, Op::Read, i, 1), || served.fetch_add(1, Ordering::Relaxed), |_| 1);
    }
    hangs.store(false, Ordering::Release);
    let done = recorder.finish();
    assert_eq!(done.requests + done.lost, 3 << 20);
    assert!(done.lost > 0);
    let (all, completeness, _) = disk.read();
    assert_eq!((all.len() as u64, completeness.lost), (done.requests, done.lost));
    assert!(completeness.cut.is_none());
}

#[test]
fn files_that_the_kernel_serves_make_a_trace_partial() {
    let disk = Disk::new(usize::MAX);
    let recorder = start(&disk);
    recorder.unseen();
    assert_eq!(recorder.finish().unseen_opens, 1);
    assert!(disk.read().1.incomplete_source);
}

/// A file whose writes panic once that is set.
struct Defective(Disk, Arc<AtomicBool>);

impl Write for Defective {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        assert!(!self.1.load(Ordering::Relaxed), "on purpose");
        self.0.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread ended, nothing was recorded any more, and nobody was told.
#[test]
fn a_recorder_that_panics_says_so_and_counts_what_is_missing() {
    const REQUESTS: u64 = 20_000;
    let panics = Arc::<AtomicBool>::default();
    let out = Defective(Disk::new(usize::MAX), panics.clone());
    let recorder = Recorder::start(out, &Source::new(Kind::Mount)).unwrap();
    panics.store(true, Ordering::Relaxed);
    let file = recorder.file((1, 1), || b"/f".to_vec());
    for number in 0..REQUESTS {
        recorder.request((file, Op::Read, number * 4096, 7), || (), |()| 4096);
    }
    let done = recorder.finish();
    assert!(done.error.is_some_and(|error| error.contains("panicked")));
    assert_eq!((done.requests, done.lost), (0, REQUESTS));
}
