//! Descriptors that another program hands over (unix(7), `SCM_RIGHTS`).

use super::fault::point;
use crate::base::{Errno, Sys};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair,
};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Two connected stream sockets, closed on exec.
///
/// # Errors
/// As `socketpair(2)`.
pub fn pair() -> Sys<(OwnedFd, OwnedFd)> {
    point()?;
    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|e| Errno(e as i32))
}

/// Waits for a message and gives the descriptor that comes with it; `None` when the other end was closed without one.
///
/// # Errors
/// As `recvmsg(2)`.
pub fn receive_fd(socket: BorrowedFd<'_>) -> Sys<Option<OwnedFd>> {
    point()?;
    let mut byte = [0u8; 1];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut bytes, Some(&mut space), flags) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other.map_err(|e| Errno(e as i32))?,
        };
        let fd = message.cmsgs().map_err(|e| Errno(e as i32))?.find_map(|control| match control {
            ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
            _ => None,
        });
        // SAFETY: the kernel made this descriptor for us with the message, and nobody else knows it.
        return Ok(fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
    }
}
