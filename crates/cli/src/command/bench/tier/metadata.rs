//! Names: many small files created, examined, opened and removed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use halocline_os::counted::counted;
use halocline_os::error::Result;

use super::Row;
use super::setup::Setup;

/// What is done with each file, in this order.
const STEPS: [&str; 4] = ["create", "stat", "open and close", "unlink"];
/// The number of directories in the part with many.
const MANY: u64 = 100;

/// Operations a second for each of [`STEPS`].
fn run(dir: &Path, files: u64, directories: u64) -> Result<[f64; 4]> {
    let root = dir.join("names");
    let directory = |number: u64| root.join(format!("d{number}"));
    for number in 0..directories {
        fs::create_dir_all(directory(number))?;
    }
    let paths: Vec<PathBuf> = (0..files)
        .map(|number| directory(number % directories).join(format!("f{number}")))
        .collect();
    let acts: [fn(&Path) -> std::io::Result<()>; 4] = [
        |path| File::create_new(path).map(drop),
        |path| fs::metadata(path).map(drop),
        |path| File::open(path).map(drop),
        |path| fs::remove_file(path),
    ];
    let mut rates = [0.0; 4];
    for (act, rate) in acts.iter().zip(&mut rates) {
        let begun = Instant::now();
        for path in &paths {
            act(path)?;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let count = files as f64;
        *rate = count / begun.elapsed().as_secs_f64();
    }
    fs::remove_dir_all(&root)?;
    Ok(rates)
}

pub(super) fn measure(setup: &Setup, files: u64, repetitions: u32) -> Result<Vec<Row>> {
    let places = setup.places();
    let mut rows = Vec::new();
    for directories in [1, MANY] {
        let mut figures = vec![[const { Vec::new() }; 4]; places.len()];
        for _ in 0..repetitions {
            for (place, figures) in places.iter().zip(&mut figures) {
                for (rate, figures) in run(place, files, directories)?.into_iter().zip(figures) {
                    figures.push(rate);
                }
            }
        }
        for (step, name) in STEPS.iter().enumerate() {
            let what = format!("{name}, {}", counted(directories, "directory"));
            let figures = figures.iter_mut().map(|figures| std::mem::take(&mut figures[step]));
            rows.push(Row::of_places("metadata", what, "1/s", figures));
        }
    }
    Ok(rows)
}
