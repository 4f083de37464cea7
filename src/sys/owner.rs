//! Reading what the owner may not read by its mode, without changing the mode.
//!
//! The owner of a file of mode 000 could `chmod` it; but a review that changes what it looks at would take every later
//! look for a change. In a user namespace of its own, where nothing but the owner's own id exists, a process has
//! `CAP_DAC_OVERRIDE` over the owner's own objects and no others (user_namespaces(7)). So what was refused is called once
//! more by a process that lives for this one call and shares memory and descriptors with ours.

use super::check;
use crate::base::{Errno, Sys};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many [`Rights`] there are.
static ALLOWED: AtomicUsize = AtomicUsize::new(0);

/// As long as there is one, this process reads its user's own objects whatever their mode. A server of a mount must not
/// have one: there the mode is what the programs of the session are to see.
#[derive(Debug)]
pub struct Rights(());

impl Rights {
    /// Takes the owner's rights.
    #[expect(clippy::new_without_default, reason = "rights are asked for, never had by default")]
    pub fn new() -> Rights {
        ALLOWED.fetch_add(1, Ordering::Relaxed);
        Rights(())
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        ALLOWED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `first`, or what `again` gives with the owner's rights where `first` was refused.
pub(super) fn or_as_owner<T>(first: Sys<T>, again: impl FnOnce() -> Sys<T>) -> Sys<T> {
    match first {
        Err(Errno::EACCES)
            if ALLOWED.load(Ordering::Relaxed) > 0 && super::process::effective_ids().0 != 0 =>
        {
            as_owner(again).unwrap_or(Err(Errno::EACCES))
        }
        other => other,
    }
}

struct Job<F, T> {
    f: Option<F>,
    out: Option<T>,
    maps: [(&'static std::ffi::CStr, Vec<u8>); 3],
}

/// Bytes of stack for one call.
const STACK: usize = 256 << 10;

/// Calls `f` in a user namespace of its own; `None` where there can be none.
fn as_owner<T>(f: impl FnOnce() -> T) -> Option<T> {
    let (uid, gid) = super::process::effective_ids();
    let mut job = Job {
        f: Some(f),
        out: None,
        maps: [
            (c"/proc/self/setgroups", b"deny".to_vec()),
            (c"/proc/self/uid_map", format!("{uid} {uid} 1").into_bytes()),
            (c"/proc/self/gid_map", format!("{gid} {gid} 1").into_bytes()),
        ],
    };
    let mut stack = vec![0u128; STACK / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_NEWUSER | libc::SIGCHLD;
    let pid = start(&mut job, &mut stack, flags).ok()?;
    // SAFETY: waits for a child of ours; the status is not asked for.
    while let Err(Errno::EINTR) = check(unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) }) {}
    job.out
}

fn start<F: FnOnce() -> T, T>(job: &mut Job<F, T>, stack: &mut [u128], flags: i32) -> Sys<i32> {
    let top = stack.as_mut_ptr_range().end;
    // SAFETY: `CLONE_VFORK` suspends this thread until the child has ended, so that `job` and `stack`, which only the
    // child uses meanwhile, outlive it; the stack grows down from its aligned end.
    check(unsafe { libc::clone(child::<F, T>, top.cast(), flags, std::ptr::from_mut(job).cast()) })
}

extern "C" fn child<F: FnOnce() -> T, T>(job: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes a job of these types, and nobody else uses it until this process has ended.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    if job.maps.iter().all(|(path, text)| write(path, text)) {
        job.out = job.f.take().map(|f| f());
    }
    0
}

fn write(path: &std::ffi::CStr, text: &[u8]) -> bool {
    // SAFETY: the path is NUL-terminated, the text as long as said, and the descriptor closed here is the one opened.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        let written = libc::write(fd, text.as_ptr().cast(), text.len());
        libc::close(fd);
        usize::try_from(written) == Ok(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_a_namespace_of_its_own_gives_what_it_gives() {
        let mut called = 0;
        // A host may forbid such namespaces: then nothing is called.
        let got = as_owner(|| {
            called += 1;
            std::fs::read_to_string("/proc/self/setgroups").map(|text| text.trim_end().to_owned()).ok()
        });
        assert_eq!(got.is_some(), called == 1);
        assert!(got.is_none_or(|text| text.as_deref() == Some("deny")), "it ran where it should not");
    }
}
