//! The layouts of files that are not in equal stripes: one small file each, on the first server that had room for it.
//!
//! An object keeps one layout for its lifetime, which is written and durable before any file refers to the object, so
//! that a reference always leads to a layout. What must hold: bytes are never read or written with a layout that is not
//! exactly what was written (ensured by a checksum), and a layout takes no more memory than its limits allow.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;

use std::fmt::Write;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;

use halocline_model::file_layout::FileLayout;
use halocline_model::striping::Striping;
use xxhash_rust::xxh3::xxh3_64;

use super::identity::{self, ObjectId};
use crate::device::ServerFile;
use crate::volume::server::Server;
use crate::volume::{Distribution, Volume, object_paths};
use halocline_api::config::STRIPE_BYTES_MAX;
use halocline_os::bounded;

/// The beginning of a layout, before its checksum.
const HEAD: &str = "halocline-layout 1 ";
/// Limit of the parts of a layout.
const PARTS_MAX: usize = 256;
/// Smallest stripe width other than 0: requests are not cut into smaller pieces.
const WIDTH_BYTES_MIN: u64 = 512;

/// How the object `id` is distributed over the servers of `volume`: according to its layout, or as `usual` if its
/// number needs none. `None` if a layout is needed and missing.
///
/// # Errors
/// `InvalidData` if the layout is damaged, and any error of reading.
pub(super) fn distribution_of(
    id: ObjectId,
    volume: &Volume,
    usual: Striping,
) -> io::Result<Option<Distribution>> {
    if !id.number.has_layout {
        return Ok(Some(usual.into()));
    }
    let path = id.path_in(object_paths::LAYOUTS);
    let Some((server, file)) = find(&path, volume)? else { return Ok(None) };
    let bytes = read_small(server, &file)?;
    let wrong = |what: String| {
        let what =
            format!("{}: {what}; restore it from a backup", server.dir().join(path).display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    };
    decode(&bytes, volume.servers().len()).map(|layout| Some(layout.into())).map_err(wrong)
}

/// The layout at `path`, and the server that has it: nearly always the first one.
fn find<'v>(path: &Path, volume: &'v Volume) -> io::Result<Option<(&'v Server, ServerFile)>> {
    for server in volume.servers() {
        if let Some(file) = server.directory().open_to_read(path)? {
            return Ok(Some((server, file)));
        }
    }
    Ok(None)
}

/// All of a layout. It is metadata: where the server is a directory, reading it is neither counted nor emulated.
fn read_small(server: &Server, file: &ServerFile) -> io::Result<Vec<u8>> {
    if let Ok(file) = file.local() {
        return bounded::read_from(file, bounded::SMALL_FILE_BYTES_MAX);
    }
    let most = usize::try_from(bounded::SMALL_FILE_BYTES_MAX).expect("a small number");
    let len = usize::try_from(file.size()?).unwrap_or(usize::MAX).min(most + 1);
    let mut bytes = vec![0; len];
    let read = server.device().read_at(file, 0, &mut [IoSliceMut::new(&mut bytes)])?;
    bytes.truncate(read);
    bounded::read_from(&bytes[..], bounded::SMALL_FILE_BYTES_MAX)
}

/// The error for an object whose layout is missing.
pub(super) fn missing(id: ObjectId) -> io::Error {
    let path = id.path_in(object_paths::LAYOUTS);
    let or_changed = id.inode.map_or_else(String::new, |inode| {
        let remedy = identity::remedy_for_number(inode);
        format!("; or, if somebody changed its {} past the mount, {remedy}", identity::ATTRIBUTE)
    });
    let what = format!(
        "its layout, {} on a server, is missing; restore it from a backup{or_changed}",
        path.display()
    );
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Makes the layout of an object durable on a server, before anything refers to the object. If it fails, nothing of it stays.
pub(super) fn write(id: ObjectId, layout: &FileLayout, server: &Server) -> io::Result<()> {
    let path = id.path_in(object_paths::LAYOUTS);
    let written = || {
        let file = server.directory().create(&path)?;
        server.device().write_at(&file, 0, &[IoSlice::new(encode(layout).as_bytes())])?;
        server.device().sync(&file, false)?;
        server.directory().sync_parents(&path)
    };
    // A torn one would be taken for that of the object, also if another server has the whole.
    written().or_else(|error| server.directory().remove(&path).and(Err(error)))
}

/// Removes the layout of an object to which nothing refers; a missing layout is not an error. An error comes with its
/// server.
pub(super) fn remove(id: ObjectId, volume: &Volume) -> Result<(), (&Server, io::Error)> {
    let path = id.path_in(object_paths::LAYOUTS);
    if !id.number.has_layout {
        return Ok(());
    }
    for server in volume.servers() {
        let of_server = |error| (&**server, error);
        if server.directory().open_to_read(&path).map_err(of_server)?.is_some() {
            return server.directory().remove(&path).map_err(of_server);
        }
    }
    Ok(())
}

/// Refuses a layout that could not be read again.
pub(super) fn check(layout: &FileLayout) -> Result<(), String> {
    let parts = layout.parts();
    if parts.len() > PARTS_MAX {
        return Err(format!("its layout has {} parts; at most {PARTS_MAX}", parts.len()));
    }
    let widths = parts.iter().flat_map(|part| part.striping.widths()).filter(|width| **width > 0);
    for width in widths {
        if !(WIDTH_BYTES_MIN..=STRIPE_BYTES_MAX).contains(width) {
            return Err(format!(
                "a stripe of {width} bytes; from {WIDTH_BYTES_MIN} to {STRIPE_BYTES_MAX}, or 0"
            ));
        }
    }
    Ok(())
}

/// A line for each part (its first byte and the width for each server), after a line with their checksum.
fn encode(layout: &FileLayout) -> String {
    let mut body = String::new();
    for part in layout.parts() {
        write!(body, "{}", part.start).expect("a string grows");
        for width in part.striping.widths() {
            write!(body, " {width}").expect("a string grows");
        }
        body.push('\n');
    }
    format!("{HEAD}{:016x}\n{body}", xxh3_64(body.as_bytes()))
}

fn decode(bytes: &[u8], servers: usize) -> Result<FileLayout, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "no layout of a file")?;
    let (head, body) = text.split_once('\n').ok_or("no layout of a file")?;
    let sum = head.strip_prefix(HEAD).ok_or("no layout of a file, or one of a newer version")?;
    if sum != format!("{:016x}", xxh3_64(body.as_bytes())) {
        return Err("the layout of a file is damaged".into());
    }
    let mut parts = Vec::new();
    for line in body.lines() {
        let number = |word: &str| word.parse::<u64>().map_err(|error| format!("{word:?}: {error}"));
        // One more than allowed suffices to refuse it.
        let numbers = line.split(' ').take(servers + 2).map(number);
        let mut numbers = numbers.collect::<Result<Vec<u64>, String>>()?;
        if numbers.len() != servers + 1 || parts.len() == PARTS_MAX {
            return Err(format!("not a layout over {servers} servers in {PARTS_MAX} parts"));
        }
        let start = numbers.remove(0);
        parts.push((start, numbers));
    }
    let layout = FileLayout::from_parts(parts)?;
    check(&layout).map(|()| layout)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout() -> FileLayout {
        let parts = [(0, vec![4096, 0, 65536]), (1 << 20, vec![512, 1024, 0])];
        FileLayout::from_parts(parts).unwrap()
    }

    #[test]
    fn layouts_survive_the_way_to_disk_and_back() {
        assert_eq!(decode(encode(&layout()).as_bytes(), 3), Ok(layout()));
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        let good = encode(&layout());
        for len in 0..good.len() {
            decode(&good.as_bytes()[..len], 3).unwrap_err();
        }
        decode(good.as_bytes(), 2).unwrap_err();
        decode(good.as_bytes(), 4).unwrap_err();
        decode(good.replace("layout 1", "layout 2").as_bytes(), 3).unwrap_err();
        for widths in [vec![511], vec![STRIPE_BYTES_MAX + 1]] {
            let layout = FileLayout::from_parts([(0, widths)]).unwrap();
            assert!(decode(encode(&layout).as_bytes(), 1).unwrap_err().contains("stripe of"));
        }
        let many = (0..=PARTS_MAX as u64).map(|at| (at * 512, vec![512 + at]));
        let many = FileLayout::from_parts(many).unwrap();
        decode(encode(&many).as_bytes(), 1).unwrap_err();
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in "[0-9 \n]{0,80}", servers in 1usize..5) {
            let text = format!("{HEAD}{:016x}\n{body}", xxh3_64(body.as_bytes()));
            let _ = decode(text.as_bytes(), servers);
        }

        /// Any changed byte is detected.
        #[test]
        fn no_changed_byte_is_believed(at in 0usize..60, to in any::<u8>()) {
            let mut bytes = encode(&layout()).into_bytes();
            let at = at % bytes.len();
            prop_assume!(bytes[at] != to);
            bytes[at] = to;
            prop_assert!(decode(&bytes, 3).is_err());
        }
    }
}
