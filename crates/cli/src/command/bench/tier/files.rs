//! Reads and writes of files in the page cache: what the mount costs where no device is involved.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use halocline_os::counted::counted;
use halocline_os::error::Result;

use super::random::Random;
use super::setup::Setup;
use super::{Row, mebibytes};

/// One way to read or write.
struct Access {
    random: bool,
    write: bool,
    request: u64,
    jobs: u64,
}

/// The largest request.
const REQUEST_MAX: u64 = 1 << 20;
/// The most jobs at one time.
const JOBS_MAX: u64 = 4;
/// The fewest bytes of all jobs together: each has room for a request.
pub(super) const BYTES_MIN: u64 = REQUEST_MAX * JOBS_MAX;
/// The shortest time over which one figure is measured.
const SPAN: Duration = Duration::from_millis(700);

impl Access {
    fn all() -> impl Iterator<Item = Self> {
        let sizes = [REQUEST_MAX, 4 << 10];
        sizes.into_iter().flat_map(|request| {
            [1, JOBS_MAX].into_iter().flat_map(move |jobs| {
                [(false, false), (false, true), (true, false), (true, true)]
                    .into_iter()
                    .map(move |(random, write)| Self { random, write, request, jobs })
            })
        })
    }

    fn name(&self) -> String {
        format!(
            "{} {} {} KiB, {}",
            if self.random { "random" } else { "sequential" },
            if self.write { "write" } else { "read" },
            self.request >> 10,
            counted(self.jobs, "job")
        )
    }

    /// MiB a second over the jobs' files in `dir`.
    fn run(&self, dir: &Path, bytes: u64) -> Result<f64> {
        let share = bytes / self.jobs;
        let files: Vec<File> = (0..self.jobs)
            .map(|job| open(&dir.join(format!("job{job}")), share))
            .collect::<Result<_>>()?;
        let begun = Instant::now();
        let done: std::io::Result<u64> = thread::scope(|scope| {
            let jobs: Vec<_> = files
                .iter()
                .enumerate()
                .map(|(job, file)| scope.spawn(move || self.job(file, share, job as u64, begun)))
                .collect();
            jobs.into_iter().map(|job| job.join().expect("a job")).sum()
        });
        Ok(mebibytes(done?) / begun.elapsed().as_secs_f64())
    }

    fn job(&self, file: &File, bytes: u64, job: u64, begun: Instant) -> std::io::Result<u64> {
        let mut buffer = vec![7; usize::try_from(self.request).expect("small")];
        let slots = bytes / self.request;
        let (mut random, mut done) = (Random::new(job.wrapping_mul(0x9E37_79B9) | 1), 0);
        for number in 0.. {
            // Looking at the clock for every small request would cost too much.
            if number % 64 == 0 && number > 0 && begun.elapsed() > SPAN {
                break;
            }
            let slot = if self.random { random.below(slots) } else { number % slots };
            let at = slot * self.request;
            if self.write {
                file.write_all_at(&buffer, at)?;
            } else {
                file.read_exact_at(&mut buffer, at)?;
            }
            done += self.request;
        }
        Ok(done)
    }
}

/// The file at `path` with `bytes` bytes, created if it does not exist.
pub(super) fn open(path: &Path, bytes: u64) -> Result<File> {
    let options = File::options().read(true).write(true).to_owned();
    if std::fs::metadata(path).map_or(0, |file| file.len()) != bytes {
        // Closed before the measurement: the mount process serves the handle of a program that makes a file grow.
        let file = options.clone().create(true).truncate(true).open(path)?;
        let block = vec![1; 1 << 20];
        for at in (0..bytes).step_by(block.len()) {
            let len = block.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
            file.write_all_at(&block[..len], at)?;
        }
    }
    Ok(options.open(path)?)
}

pub(super) fn measure(setup: &Setup, bytes: u64, repetitions: u32) -> Result<Vec<Row>> {
    // The dirty pages of three copies must not wait for the disk.
    let bytes = bytes.min(256 << 20);
    let mut places: Vec<PathBuf> = setup.places();
    // The same files below the mount: the pages of another file may be placed in memory so that copying them is a
    // quarter faster or slower.
    places[1] = setup.below("ssd");
    let mut rows = Vec::new();
    for access in Access::all() {
        let mut figures = vec![Vec::new(); places.len()];
        for _ in 0..repetitions {
            for (place, figures) in places.iter().zip(&mut figures) {
                figures.push(access.run(place, bytes)?);
            }
        }
        rows.push(Row::of_places("files", access.name(), "MiB/s", figures));
    }
    for place in &places {
        for job in 0..JOBS_MAX {
            let _ = std::fs::remove_file(place.join(format!("job{job}")));
        }
    }
    Ok(rows)
}
