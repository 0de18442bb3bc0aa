//! Another directory with the same bytes: what a kill would leave, beside a store that its process
//! goes on with.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};

/// Copies a directory, holes as holes: journals are made larger than they are used.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            copy_file(&entry.path(), &target);
        }
    }
}

fn copy_file(from: &Path, to: &Path) {
    let (source, target) = (File::open(from).unwrap(), File::create(to).unwrap());
    target.set_len(source.metadata().unwrap().len()).unwrap();
    let mut at = 0;
    while let Ok(data) = seek(&source, SeekFrom::Data(at)) {
        at = seek(&source, SeekFrom::Hole(data)).unwrap();
        let mut bytes = vec![0; usize::try_from(at - data).unwrap()];
        source.read_exact_at(&mut bytes, data).unwrap();
        target.write_all_at(&bytes, data).unwrap();
    }
}
