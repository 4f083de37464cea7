//! Locks between processes.

use crate::harness::*;

crate::cases![flock_between_processes, record_locks_between_processes];

fn flock_between_processes() {
    let bed = Bed::new(|l| put(l.join("f"), "1"));
    let path = bed.at("f").to_str().unwrap().to_owned();
    assert_eq!(in_process(&["try-flock", &path]), 0);
    let holder = Other::start(&["flock", &path]);
    assert_eq!(in_process(&["try-flock", &path]), libc::EWOULDBLOCK);
    // The lock is on the file, whichever layer it is in.
    put(bed.at("f"), "2");
    assert_eq!(in_process(&["try-flock", &path]), libc::EWOULDBLOCK);
    holder.end();
    assert_eq!(in_process(&["try-flock", &path]), 0);
}

fn record_locks_between_processes() {
    let bed = Bed::new(|l| put(l.join("f"), "0123456789"));
    let path = bed.at("f").to_str().unwrap().to_owned();
    let holder = Other::start(&["lock", "2", "4", &path]);
    assert_eq!(in_process(&["try-lock", "0", "3", &path]), libc::EAGAIN);
    assert_eq!(in_process(&["try-lock", "5", "1", &path]), libc::EAGAIN);
    assert_eq!(in_process(&["try-lock", "6", "4", &path]), 0);
    assert_eq!(in_process(&["try-lock", "0", "2", &path]), 0);
    holder.end();
    assert_eq!(in_process(&["try-lock", "0", "0", &path]), 0);
}
