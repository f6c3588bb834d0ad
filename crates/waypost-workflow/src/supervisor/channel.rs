//! Packets with descriptors between the engine and the processes that serve it.
//!
//! This owns the sockets: pairs of `AF_UNIX` `SOCK_SEQPACKET`, which keep message edges and tell both ends when the
//! other is gone. The end may also show as an error (`ECONNRESET`, when messages were unread), so whoever receives
//! treats every error as the end.

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

/// Makes a connected pair; neither end is inherited by a program that is run.
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

/// Receives one message into `buffer` without waiting; `None` is the end.
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
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is longer than any should be"));
    }
    Ok(Some((&mut buffer[..message.bytes], descriptors)))
}

/// The engine's end of a pair.
#[derive(Debug)]
pub(super) struct Link(AsyncFd<OwnedFd>);

impl Link {
    /// Registers the descriptor with the runtime that this is called in.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(unsafe_code, reason = "tokio deprecated the safe constructors as unsound for some types")]
        // SAFETY: an `OwnedFd` is open and has one number until it is dropped, which is when the `AsyncFd` is.
        let registered = unsafe { AsyncFd::register(socket) };
        Ok(Self(registered?))
    }

    pub(super) async fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, |socket| send(socket, bytes, descriptors)).await
    }

    /// Waits for a message of at most 16 bytes, without descriptors; `None` is the end, in whatever form it came.
    ///
    /// A message is either returned or still there: dropping the future loses none.
    pub(super) async fn receive(&self) -> Option<Message> {
        let read = |socket: &OwnedFd| Message::read(socket);
        let mut received = self.0.async_io(Interest::READABLE, read).await;
        if received.is_err() {
            // A reset is told once, before the messages that came before it.
            received = self.try_receive();
        }
        received.unwrap_or_default()
    }

    /// Takes a message that is already there.
    pub(super) fn try_receive(&self) -> io::Result<Option<Message>> {
        Message::read(self.0.get_ref())
    }

    /// Tells the other end that no message will follow; its answers still arrive.
    pub(super) fn finish(&self) {
        // Fails only if the other end is gone, which is what the caller wants to bring about.
        let _ = rustix::net::shutdown(self.0.get_ref(), rustix::net::Shutdown::Write);
    }
}

/// A short message that the engine received.
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
