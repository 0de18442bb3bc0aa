//! Files that the kernel serves by itself.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, fcntl_getfl};

use halocline_api::control::Controlled;
use halocline_tier::{Handle, TierOptions};
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{CALLER, Fixture, limited};

fn with_passthrough() -> Fixture {
    let limited = limited(64 << 20);
    Fixture::new(TierOptions { passthrough: true, passthrough_writes: true, ..limited })
}

/// What the kernel does with a file that is handed to it: it opens it again, and keeps that open
/// while a mapping lives, even after the handle is closed.
fn pass(fixture: &Fixture, handle: &Handle, must: bool) -> Option<File> {
    let mut mapped = None;
    let taken = fixture.tier().pass_through(handle, must, &mut |fd| {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let access = fcntl_getfl(fd)? & OFlags::RWMODE;
        mapped = Some(File::options().read(true).write(access != OFlags::RDONLY).open(path)?);
        Ok(())
    });
    assert_eq!(taken, mapped.is_some());
    mapped
}

/// I10: what a program stores through a mapping that outlives its handle is not lost.
#[test]
fn i10_a_mapped_file_stays_where_it_is() {
    let fixture = with_passthrough();
    fixture.write("file", b"one");
    // A mapping keeps the path by which it was made, and so the kernel knows the inode.
    let _known = fixture.vnode("file").unwrap();
    let writer = fixture.open_file("file", libc::O_RDWR);
    let mapping = pass(&fixture, &writer, false).expect("ample room");
    assert!(fixture.demote("file").skipped[0].reason.contains("closed"));
    drop(writer);
    assert!(fixture.demote("file").skipped[0].reason.contains("mapped"));
    // Others are served in the same way, or they would see old bytes.
    let reader = fixture.open_file("file", libc::O_RDONLY);
    assert!(pass(&fixture, &reader, false).is_some(), "a small file, but a mapped one");
    drop(reader);
    mapping.write_all_at(b"two", 0).unwrap();
    drop(mapping);
    // The last mapping is gone: small files are ours again, and move with their open handles.
    let reader = fixture.open_file("file", libc::O_RDONLY);
    assert!(pass(&fixture, &reader, false).is_none());
    assert_eq!(fixture.demote("file").files, 1);
    assert_eq!(fixture.read(&reader), b"two");
    fixture.check_places();
}

#[test]
fn i10_our_own_open_handles_are_no_mappings() {
    let fixture = with_passthrough();
    fixture.write("file", b"one");
    let held = fixture.open_file("file", libc::O_RDWR);
    let writer = fixture.open_file("file", libc::O_RDWR);
    let mapping = pass(&fixture, &writer, false).expect("ample room");
    drop(writer);
    assert!(fixture.demote("file").skipped[0].reason.contains("mapped"));
    fixture.tier().write(&held, 0, b"two", CALLER).unwrap();
    drop(mapping);
    assert_eq!(fixture.demote("file").files, 1, "nothing but a handle of ours is left");
    fixture.tier().write(&held, 3, b"!", CALLER).unwrap();
    assert_eq!(fixture.content("file").unwrap(), b"two!");
    fixture.check_places();
}

/// I5: a new file was handed to the kernel, which wrote it past the limit until the SSD was full, and
/// the program got ENOSPC beside an empty HDD.
#[test]
fn i5_what_may_grow_is_not_handed_over() {
    let fixture = with_passthrough();
    let tier = fixture.tier();
    let is_passed = |handle: &Handle| pass(&fixture, handle, false).is_some();
    let new = fixture.create("file");
    assert!(!is_passed(&new), "made to be written");
    tier.write(&new, 0, &[1; 8192], CALLER).unwrap();
    drop(new);
    assert!(is_passed(&fixture.open_file("file", libc::O_RDWR)), "there are its blocks");
    assert!(!is_passed(&fixture.open_file("file", libc::O_RDWR | libc::O_APPEND)));
    assert!(!is_passed(&fixture.open_file("file", libc::O_WRONLY | libc::O_TRUNC)));
    let sized = SetAttr { size: Some(1 << 20), ..SetAttr::default() };
    tier.set_attr(&fixture.vnode("file").unwrap(), None, &sized, CALLER).unwrap();
    assert!(!is_passed(&fixture.open_file("file", libc::O_RDWR)), "holes may be filled");
    assert!(pass(&fixture, &fixture.open_file("file", libc::O_RDWR), true).is_some(), "it must");
    let refused = tier.tier_status().unwrap().passthrough.refused;
    assert!(
        refused.iter().any(|(why, count)| why.contains("may grow") && *count == 4),
        "{refused:?}"
    );
}

/// I5: a file that was there grew past the limit, and failed with ENOSPC beside an empty HDD, where a
/// program opened it again and wrote behind its end: the kernel did.
#[test]
fn i5_writes_beside_the_kernels_readers_come_to_the_mount() {
    let fixture = Fixture::new(TierOptions { passthrough: true, ..limited(1 << 20) });
    let tier = fixture.tier();
    fixture.write("file", &vec![1; 128 << 10]);
    let writer = fixture.open_file("file", libc::O_RDWR);
    assert!(pass(&fixture, &writer, false).is_none(), "it may grow");
    assert!(!tier.open_mode(&writer).direct, "it is ours as others are");
    drop(writer);
    // Beside a reader that the kernel serves only mappings are handed over.
    let reader = fixture.open_file("file", libc::O_RDONLY);
    assert!(pass(&fixture, &reader, false).is_some() && !tier.open_mode(&reader).direct);
    let writer = fixture.open_file("file", libc::O_RDWR);
    assert!(pass(&fixture, &writer, true).is_some() && tier.open_mode(&writer).direct);
    fixture.write("other", &vec![2; 512 << 10]);
    for number in 2..7 {
        tier.write(&writer, number << 17, &vec![1; 128 << 10], CALLER).unwrap();
        assert!(fixture.used() <= 1 << 20);
    }
    assert_eq!((fixture.where_is("file"), fixture.where_is("other")), (0, 1));
}
