//! Civil time.

use crate::base::{Errno, Sys};
use std::mem::MaybeUninit;

/// A moment on the calendar and clock of this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    /// Year, e.g. 2025.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, 1 to 31.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 60.
    pub second: u32,
}

/// `localtime_r(3)` of `sec` seconds since the epoch.
///
/// # Errors
/// `EOVERFLOW` for a year that does not fit.
pub fn local(sec: i64) -> Sys<Civil> {
    let mut tm = MaybeUninit::<libc::tm>::uninit();
    let sec: libc::time_t = sec;
    // SAFETY: `tm` is written by a successful call and read only then; the time is valid for the call.
    let tm = unsafe {
        if libc::localtime_r(&raw const sec, tm.as_mut_ptr()).is_null() {
            return Err(Errno::EOVERFLOW);
        }
        tm.assume_init()
    };
    let part = |n: libc::c_int| u32::try_from(n).unwrap_or(0);
    Ok(Civil {
        year: i64::from(tm.tm_year) + 1900,
        month: part(tm.tm_mon) + 1,
        day: part(tm.tm_mday),
        hour: part(tm.tm_hour),
        minute: part(tm.tm_min),
        second: part(tm.tm_sec),
    })
}
