//! Files on the SSD of a tier mount that grow after they were there: nobody sees a full SSD, and the
//! limit is kept, whoever serves them.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::mount::{self, Mount};
use crate::programs;
use crate::tier_limits::Tmpfs;
use crate::warm_passthrough::Mapping;

/// Files that were there: the kernel wrote behind their ends by itself, and the SSD full.
#[test]
fn no_program_sees_a_full_ssd_where_files_grow_again() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(&["--ssd-limit", "100%"]);
    let _ssd = Tmpfs::mount(&mount.root().join("ssd"), "12M");
    mount.start();
    let block = vec![5; 1 << 20];
    let names = ["end", "holes", "mapped", "allocated"].map(|name| mount.path().join(name));
    for name in &names {
        fs::write(name, &block).expect("a small file");
    }
    let reopened =
        names.clone().map(|name| File::options().read(true).write(true).open(name).expect("open"));
    let [mut end, holes, mapped, allocated] = reopened;
    end.seek(SeekFrom::End(0)).expect("seek");
    holes.set_len(16 << 20).expect("a hole");
    mapped.set_len(16 << 20).expect("a hole");
    let map = Mapping::new(&mapped, 16 << 20, true);
    let whole = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&allocated, whole, 0, 16 << 20).expect("the HDD has room");
    for number in 1..16 {
        end.write_all(&block).expect("the HDD has room");
        holes.write_all_at(&block, number << 20).expect("the HDD has room");
        allocated.write_all_at(&block, number << 20).expect("the HDD has room");
        map.write(usize::try_from(number << 20).expect("small"), &block);
    }
    mapped.sync_all().expect("the HDD has room");
    drop((map, end, holes, mapped, allocated));
    for name in &names {
        assert!(fs::read(name).expect("read") == block.repeat(16), "{}", name.display());
    }
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}

/// I5: what grows while the kernel serves readers of it comes to the mount process, which keeps the
/// limit; readers and mappings see it.
#[test]
fn a_file_that_grows_beside_readers_keeps_the_limit() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mount = Mount::tier(&["--ssd-limit", "8M"]);
    let (block, path) = (vec![5; 1 << 20], mount.path().join("file"));
    for name in ["file", "one", "two", "three"] {
        fs::write(mount.path().join(name), &block).expect("write");
    }
    let reader = File::open(&path).expect("open");
    let seen = Mapping::new(&reader, 1 << 20, false);
    let mut writer = File::options().read(true).write(true).open(&path).expect("open");
    let map = Mapping::new(&writer, 1 << 20, true);
    writer.seek(SeekFrom::End(0)).expect("seek");
    for _ in 0..5 {
        writer.write_all(&block).expect("others make room");
        let files = fs::read_dir(mount.root().join("ssd")).expect("list");
        let blocks = |file: fs::DirEntry| file.metadata().map_or(0, |file| file.blocks());
        let used: u64 = files.map(|file| 512 * blocks(file.expect("list"))).sum();
        assert!(used <= 8 << 20, "{used}");
    }
    map.write(7, &[9]);
    writer.write_all_at(&[8], 100).expect("write");
    let seen = [seen.read(7, 1), seen.read(100, 1), map.read(100, 1)].concat();
    assert_eq!(seen, [9, 8, 8], "one file, whoever serves it");
    let mut content = vec![0; 7 << 20];
    let read = reader.read_at(&mut content, 0).expect("read");
    assert!(read > 0 && content[7] == 9 && content[100] == 8);
    assert_eq!(reader.metadata().expect("stat").len(), 6 << 20);
}

/// `df` told of an SSD without its limit, and of a sum that fits on neither tier.
#[test]
fn what_df_tells_can_be_written() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(&["--ssd-limit", "8M"]);
    let _ssd = Tmpfs::mount(&mount.root().join("ssd"), "64M");
    let _hdd = Tmpfs::mount(&mount.root().join("hdd"), "24M");
    mount.start();
    let told = || rustix::fs::statvfs(mount.path()).expect("statvfs");
    let mib = |blocks: u64| (blocks * told().f_frsize) >> 20;
    let (total, free) = (mib(told().f_blocks), mib(told().f_bfree));
    assert!((31..=32).contains(&total) && (31..=32).contains(&free), "{total} {free}");
    let available = mib(told().f_bavail);
    assert!((23..=24).contains(&available), "{available}");
    let block = vec![5; 1 << 20];
    let mut file = File::create(mount.path().join("file")).expect("create");
    (0..available).for_each(|_| file.write_all(&block).expect("df told of room"));
    let left = mib(told().f_bavail);
    assert!((7..=9).contains(&left), "the SSD is left: {left}");
    drop(file);
    let mut file = File::create(mount.path().join("other")).expect("create");
    (1..left).for_each(|_| file.write_all(&block).expect("df told of room"));
    drop(file);
    mount.unmount();
}
