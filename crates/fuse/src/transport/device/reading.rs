//! What reads are answered from.

use std::cell::RefCell;

use fuser::ReplyData;
use halocline_os::catch_panic::unpanicked;

use crate::front::{Answer, Refused};

/// Bytes of a page.
const PAGE: usize = 4096;

thread_local! {
    /// What reads of this thread are answered from; it grows to the largest read and stays. The
    /// answer begins at a page's start, because the kernel maps page by page what it copies.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers with what `read` puts into the `size` bytes that it is given.
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
        match unpanicked(|| read(room)) {
            Ok(count) => reply.data(&room[..count]),
            Err(Refused(errno)) => reply.error(errno),
        }
    });
}
