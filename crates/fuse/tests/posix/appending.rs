//! Programs that change `O_APPEND` of a file that they have open.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use halocline_fuse::Transport;
use halocline_fuse::transport::uring;
use rustix::fs::{OFlags, fcntl_setfl};

use crate::harness::{Kind, mounted_with};

/// Regression: what counted was how the file had been opened. A write at an offset went to the end, and what others had
/// appended since was overwritten.
#[test]
fn what_appends_is_what_a_descriptor_says_at_the_write() {
    let ring = uring::obstacle().is_none().then_some(Transport::Ring);
    for transport in ring.into_iter().chain([Transport::Device]) {
        for kind in [Kind::Plain, Kind::Tier] {
            let Some(mounted) = mounted_with(kind, false, |options| options.transport = transport)
            else {
                return;
            };
            let path = mounted.path("f");
            fs::write(&path, "0123456789").expect("write");
            let append = File::options().append(true).open(&path).expect("open");
            fcntl_setfl(&append, OFlags::empty()).expect("it appends no more");
            append.write_all_at(b"at one", 1).expect("write");
            assert_eq!(fs::read(&path).expect("read"), b"0at one789");
            fcntl_setfl(&append, OFlags::APPEND).expect("it appends again");
            (&append).write_all(b" end").expect("append");
            let at = File::options().write(true).open(&path).expect("open");
            fcntl_setfl(&at, OFlags::APPEND).expect("it appends");
            (&append).write_all(b" one").expect("append");
            (&at).write_all(b" two").expect("append");
            assert_eq!(fs::read(&path).expect("read"), b"0at one789 end one two");
        }
    }
}
