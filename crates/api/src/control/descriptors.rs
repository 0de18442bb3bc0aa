//! Sends descriptors through Unix sockets, each with one byte.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};

use halocline_os::error::Result;

/// The byte that accompanies a descriptor in the stream.
const BYTE: u8 = b'=';

/// Sends a descriptor, or a byte without one.
pub fn send(socket: impl AsFd, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let rights: Vec<_> = descriptor.into_iter().collect();
    if !rights.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&rights));
    }
    sendmsg(socket, &[IoSlice::new(&[BYTE])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Whether what comes next is from [`send`], and not a line.
///
/// # Errors
/// `ECONNRESET` if the peer has ended the connection.
pub(super) fn is_next(socket: impl AsFd) -> Result<bool> {
    let mut next = [0_u8];
    let (_, bytes) = recv(&socket, &mut next, RecvFlags::PEEK)?;
    if bytes == 0 {
        return Err(Errno::CONNRESET.into());
    }
    Ok(next == [BYTE])
}

/// The descriptor that was sent, if there was one.
pub fn receive(socket: impl AsFd) -> Result<Option<OwnedFd>> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0_u8];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(rights)
}
