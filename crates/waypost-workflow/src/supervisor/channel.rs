//! Packets with descriptors, between the engine and the processes of its supervisor.
//!
//! Owns the sockets: pairs of `AF_UNIX` `SOCK_SEQPACKET`, with message boundaries and a report of a closed
//! peer to the other end. A close may also appear as an error (`ECONNRESET`, after unread messages), so
//! receivers treat every error as a close.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::wire::DESCRIPTORS_MAX;

/// Makes a connected pair of sockets, both close-on-exec.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message without waiting.
pub(super) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "at most {DESCRIPTORS_MAX} descriptors a message");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
    assert_eq!(sent, bytes.len(), "a packet is sent whole");
    Ok(())
}

/// Receives one message into `buffer` without waiting; `None` if the peer is closed.
pub(super) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(&mut [u8], Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)
    })?;
    let mut descriptors = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    if message.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message exceeds the limit"));
    }
    Ok(Some((&mut buffer[..message.bytes], descriptors)))
}

/// Engine's end of a pair.
#[derive(Debug)]
pub(super) struct Link(AsyncFd<OwnedFd>);

impl Link {
    /// Registers the socket with the current tokio runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(unsafe_code, reason = "tokio deprecated the safe constructors as unsound for some types")]
        // SAFETY: an `OwnedFd` is open, with a fixed number, until the `AsyncFd` drops it.
        let registered = unsafe { AsyncFd::register(socket) };
        Ok(Self(registered?))
    }

    pub(super) async fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, |socket| send(socket, bytes, descriptors)).await
    }

    /// Waits for a message of at most 16 bytes, without descriptors; `None` after a close or any error.
    ///
    /// Cancel safe: a dropped future leaves the message in the socket.
    pub(super) async fn receive(&self) -> Option<Message> {
        let read = |socket: &OwnedFd| Message::read(socket);
        let mut received = self.0.async_io(Interest::READABLE, read).await;
        if received.is_err() {
            // A reset is reported once, before the messages that arrived earlier.
            received = self.try_receive();
        }
        received.unwrap_or_default()
    }

    /// Receives a message without waiting.
    pub(super) fn try_receive(&self) -> io::Result<Option<Message>> {
        Message::read(self.0.get_ref())
    }

    /// Signals to the peer that no message follows; answers of the peer still arrive.
    pub(super) fn finish(&self) {
        // Fails only if the peer is gone, as intended here.
        let _ = rustix::net::shutdown(self.0.get_ref(), rustix::net::Shutdown::Write);
    }
}

/// Short message to the engine.
#[derive(Debug)]
pub(super) struct Message {
    bytes: [u8; 16],
    count: usize,
}

impl Message {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }

    fn read(socket: &OwnedFd) -> io::Result<Option<Self>> {
        let mut bytes = [0; 16];
        let count = receive(socket, &mut bytes)?.map(|(message, _)| message.len());
        Ok(count.map(|count| Self { bytes, count }))
    }
}
