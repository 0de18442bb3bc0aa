//! The paper's Fig. 9, 12, 14 and Table 2 with EMULATED devices: files on the SSD side of a tier
//! mount against the same accesses to an emulated SSD and to an emulated HDD alone.
//!
//! Each request is done on the real file, through the mount or in the bare directory; then the time that the emulated
//! device needs is waited for. Mount and device never overlap, so the ratio to the HDD is rather too low. For the same
//! reason, sequential programs get the disk in time slices, as the scheduler of the paper's kernel gives it to them: if
//! it were served request by request, a disk with several programs would only seek.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::{EmulatedDevice, EmulatedHdd, EmulatedSsd};
use halocline_os::error::{Error, Result};
use halocline_storage::device::emulate::EmulatedServer;
use halocline_storage::device::null::NullDevice;
use halocline_storage::device::{Device, ServerFile};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;

use super::plot::Bar;
use super::random::Random;
use super::setup::Setup;
use super::{files, median};
use crate::print::say;

/// How long CFQ (in Linux 3.3.1, which the paper used) lets one program have the disk.
const SLICE: Duration = Duration::from_millis(100);
/// Bytes of each file if several programs run.
const SHARE: u64 = 16 << 20;

/// Everything that was measured, and on which devices.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    /// No real device was measured.
    emulated: bool,
    hdd: EmulatedHdd,
    ssd: EmulatedSsd,
    lines: Vec<Line>,
}

/// One bar of a figure; its values are medians.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(flatten)]
    case: Case,
    unit: &'static str,
    tier: f64,
    ssd_alone: f64,
    hdd_alone: f64,
    /// `tier / hdd_alone`.
    ratio: f64,
    /// `tier / ssd_alone`.
    of_ssd: f64,
}

/// What is done, and what the paper reports for it.
#[derive(Debug, Clone, Copy, Serialize)]
struct Case {
    figure: &'static str,
    random: bool,
    write: bool,
    request_bytes: u64,
    processes: u64,
    /// The ratio of the paper's middleware to its HDD, if the paper gives it.
    paper_ratio: Option<f64>,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        let mut add = |figure, write, request_bytes, processes, paper_ratio| {
            let random = figure == "Table 2";
            cases.push(Self { figure, random, write, request_bytes, processes, paper_ratio });
        };
        for write in [false, true] {
            for processes in [1, 4, 12] {
                add("Fig. 9", write, 1 << 20, processes, (processes == 12).then_some(580.0 / 85.0));
            }
        }
        for write in [false, true] {
            let peak = if write { 2.18 } else { 2.2 };
            for (request, paper) in [(4 << 10, 0.5), (64 << 10, 2.0), (1 << 20, 2.0), (SHARE, peak)]
            {
                add("Fig. 12", write, request, 1, Some(paper));
            }
        }
        for request in [4 << 10, 64 << 10] {
            for processes in [1, 4, 12] {
                let largest = request > 4 << 10 && processes == 12;
                add("Fig. 14", false, request, processes, largest.then_some(578.0 / 86.0));
            }
        }
        // The paper does not say how many processes wrote.
        for processes in [1, 12] {
            add("Table 2", true, 4 << 10, processes, Some(14_878.0 / 195.0));
        }
        cases
    }

    fn name(&self) -> String {
        format!(
            "{:<8} {} {} {} KiB x {}",
            self.figure,
            if self.random { "random" } else { "sequential" },
            if self.write { "write" } else { "read" },
            self.request_bytes >> 10,
            self.processes
        )
    }

    fn unit(&self) -> &'static str {
        if self.random { "IOPS" } else { "MB/s" }
    }

    /// IOPS or MB/s of all processes together.
    fn run(&self, dir: &DeviceDir, alone: u64, span: Duration) -> Result<f64> {
        let share = if self.processes == 1 { alone } else { SHARE };
        let files: Vec<TimedFile> =
            (0..self.processes).map(|process| dir.open(process, share)).collect::<Result<_>>()?;
        let begun = Instant::now();
        let requests: io::Result<u64> = thread::scope(|scope| {
            let processes: Vec<_> = files
                .iter()
                .map(|file| scope.spawn(move || self.process(dir, file, share, begun + span)))
                .collect();
            processes.into_iter().map(|process| process.join().expect("a process")).sum()
        });
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let done = if self.random {
            requests? as f64
        } else {
            (requests? * self.request_bytes) as f64 / 1e6
        };
        Ok(done / begun.elapsed().as_secs_f64())
    }

    /// The number of requests that one process did before `end`.
    fn process(
        &self,
        dir: &DeviceDir,
        file: &TimedFile,
        share: u64,
        end: Instant,
    ) -> io::Result<u64> {
        let mut buffer = vec![7; usize::try_from(self.request_bytes).expect("small")];
        let slots = share / self.request_bytes;
        let mut random = Random::new(0x9E37_79B9);
        let mut turn = dir.turns.as_ref().map(|turns| (turns.lock(), Instant::now()));
        for number in 0.. {
            if let Some((turn, begun)) = &mut turn
                && begun.elapsed() >= SLICE
            {
                MutexGuard::bump(turn);
                *begun = Instant::now();
            }
            if number > 0 && Instant::now() >= end {
                return Ok(number);
            }
            let slot = if self.random { random.below(slots) } else { number % slots };
            let at = slot * self.request_bytes;
            if self.write {
                file.bytes.write_all_at(&buffer, at)?;
                dir.device.write_at(&file.on_device, at, &[IoSlice::new(&buffer)])?;
            } else {
                file.bytes.read_exact_at(&mut buffer, at)?;
                dir.device.read_at(&file.on_device, at, &mut [IoSliceMut::new(&mut buffer)])?;
            }
        }
        unreachable!("numbers do not end")
    }
}

/// An open file: its bytes, and what the emulated device takes it for.
struct TimedFile {
    bytes: File,
    on_device: ServerFile,
}

/// Where files are, and the emulated device that they seem to be on.
struct DeviceDir {
    dir: PathBuf,
    /// Where a file must be for the figure to be valid.
    real: PathBuf,
    /// Only lets the time pass: the bytes are read and written in `dir`.
    device: EmulatedServer,
    /// For a disk: whoever holds the lock has the disk.
    turns: Option<Mutex<()>>,
}

impl DeviceDir {
    fn new(dir: PathBuf, real: PathBuf, device: EmulatedDevice) -> Self {
        let turns = matches!(device, EmulatedDevice::Hdd(_)).then(Mutex::default);
        Self { dir, real, device: EmulatedServer::new(device, Arc::new(NullDevice)), turns }
    }

    fn open(&self, process: u64, bytes: u64) -> Result<TimedFile> {
        let name = format!("{bytes}-{process}");
        let file = files::open(&self.dir.join(&name), bytes)?;
        if !fs::symlink_metadata(self.real.join(&name))?.is_file() {
            return Err(Error::invalid(
                "a file of the benchmark was demoted: its figures would not be the SSD's",
                "make room in --dir, or give a smaller --size",
            ));
        }
        Ok(TimedFile { on_device: ServerFile::new(file.try_clone()?)?, bytes: file })
    }
}

pub(super) fn measure(
    setup: &Setup,
    bytes: u64,
    repetitions: u32,
    span: Duration,
) -> Result<Figures> {
    let (hdd, ssd) = (EmulatedHdd::default(), EmulatedSsd::default());
    let bare = || (setup.below("bare"), setup.below("bare"));
    let dir = |(dir, real), device| DeviceDir::new(dir, real, device);
    let dirs = [
        dir((setup.tier(), setup.below("ssd")), EmulatedDevice::Ssd(ssd)),
        dir(bare(), EmulatedDevice::Ssd(ssd)),
        dir(bare(), EmulatedDevice::Hdd(hdd)),
    ];
    let alone = bytes.clamp(SHARE, 16 * SHARE);
    let mut lines = Vec::new();
    for case in Case::all() {
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..repetitions {
            for (dir, figures) in dirs.iter().zip(&mut figures) {
                figures.push(case.run(dir, alone, span)?);
            }
        }
        let [tier, ssd_alone, hdd_alone] = figures.map(median);
        let (ratio, of_ssd) = (tier / hdd_alone, tier / ssd_alone);
        lines.push(Line { case, unit: case.unit(), tier, ssd_alone, hdd_alone, ratio, of_ssd });
    }
    for dir in &dirs {
        for (process, share) in (0..12).map(|process| (process, SHARE)).chain([(0, alone)]) {
            let _ = fs::remove_file(dir.dir.join(format!("{share}-{process}")));
        }
    }
    Ok(Figures { emulated: true, hdd, ssd, lines })
}

impl Figures {
    /// Our ratios to the disk, and the paper's.
    pub(super) fn bars(&self) -> Vec<Bar> {
        let bar = |line: &Line| Bar {
            name: line.case.name(),
            ours: line.ratio,
            other: line.case.paper_ratio,
        };
        self.lines.iter().map(bar).collect()
    }
}

pub(super) fn tell(figures: &Figures) {
    say!("");
    say!(
        "the paper's figures on EMULATED devices (disk {} rpm, {} MB/s; SSD {} MB/s): no real \
         hardware was measured",
        figures.hdd.rpm,
        figures.hdd.mb_per_s,
        figures.ssd.read_mb_per_s
    );
    say!(
        "{:<40} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7}",
        "",
        "tier",
        "SSD alone",
        "HDD alone",
        "of SSD",
        "of HDD",
        "paper"
    );
    for line in &figures.lines {
        let paper = line.case.paper_ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        say!(
            "{:<40} {:>9.1} {:>9.1} {:>9.1} {:>7.2} {:>7.2} {:>7}  {}",
            line.case.name(),
            line.tier,
            line.ssd_alone,
            line.hdd_alone,
            line.of_ssd,
            line.ratio,
            paper,
            line.unit
        );
    }
}
