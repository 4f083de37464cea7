//! Memory that the allocator keeps although nobody uses it.

/// `malloc_trim(3)`: gives pages that are free back to the kernel; returns whether there were any. On a C library
/// without it nothing is done.
pub fn trim() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call has no memory arguments, and the allocator locks itself.
        unsafe { libc::malloc_trim(0) != 0 }
    }
    #[cfg(not(target_env = "gnu"))]
    false
}
