//! Descriptors that another program hands over (unix(7), `SCM_RIGHTS`).

use super::fault::point;
use crate::base::{Errno, Sys};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, recvmsg,
    sendmsg, shutdown, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
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

/// A socket that this process was started with, as descriptor `fd`; closed on exec from now on.
///
/// # Errors
/// `EBADF` when there is none, `ENOTSOCK` when it is something else.
pub fn inherited(fd: i32) -> Sys<OwnedFd> {
    point()?;
    if fd < 3 {
        return Err(Errno::EBADF);
    }
    // SAFETY: only borrowed for this call, which fails for a descriptor that is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    nix::sys::socket::getsockopt(&borrowed, nix::sys::socket::sockopt::SockType)
        .map_err(|e| Errno(e as i32))?;
    let ours = borrowed.try_clone_to_owned().map_err(Errno::from)?;
    // The inherited number itself must not reach what is executed.
    nix::unistd::close(fd).map_err(|e| Errno(e as i32))?;
    Ok(ours)
}

/// Sends one byte and with it the descriptor `fd`.
///
/// # Errors
/// As `sendmsg(2)`.
pub fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Sys<()> {
    point()?;
    let fds = [fd.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&fds)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b".")], &control, flags, None)
        .map(drop)
        .map_err(|e| Errno(e as i32))
}

/// Ends a socket both ways; whoever waits in `accept(2)` on it returns.
///
/// # Errors
/// As `shutdown(2)`.
pub fn shut_down(socket: BorrowedFd<'_>) -> Sys<()> {
    point()?;
    shutdown(socket.as_raw_fd(), Shutdown::Both).map_err(|e| Errno(e as i32))
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
