//! Buffers for the answers to reads.

use std::cell::RefCell;

use fuser::ReplyData;
use halocline_os::catch_panic::catch_panic;

use crate::front::{Answer, Refused};

/// Bytes of a page.
const PAGE: usize = 4096;

thread_local! {
    /// Buffer for answers to reads of this thread; it grows to the largest read and is kept. The answer begins at a
    /// page boundary, because the kernel maps page by page what it copies.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers with what `read` puts into a buffer of `size` bytes.
pub(super) fn read(
    size: usize,
    mut read: impl FnMut(&mut [u8]) -> Answer<usize>,
    reply: ReplyData,
) {
    READ_BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size + PAGE {
            buffer.resize(size + PAGE, 0);
        }
        let start = buffer.as_ptr().align_offset(PAGE).min(PAGE);
        let room = &mut buffer[start..start + size];
        match catch_panic(|| read(room)) {
            Ok(count) => reply.data(&room[..count]),
            Err(Refused(errno)) => reply.error(errno),
        }
    });
}
