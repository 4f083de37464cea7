//! What `/proc` says of processes and threads (proc(5)). All of it may be gone a moment later: absence is no error.

use crate::base::{Error, Result};

/// The fields of `/proc/PID/stat` (proc_pid_stat(5)) that we need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The name of its program, at most 15 bytes; any but NUL.
    pub comm: Vec<u8>,
    /// One letter.
    pub state: u8,
    /// The parent's process id; 0 when it has none here.
    pub parent: i32,
    /// When it was started, clock ticks since the machine was.
    pub start: u64,
    /// The processor it ran on last.
    pub processor: usize,
}

impl Stat {
    /// Whether a signal stopped it, as Ctrl-Z does; it answers nobody then.
    pub fn is_stopped(&self) -> bool {
        self.state == b'T'
    }

    fn parse(text: &[u8]) -> Option<Stat> {
        // Field 2, the name, stands in parentheses and may hold these, too: the last `)` ends it. Fields are then
        // counted from 3 on.
        let (open, close) = (text.iter().position(|&b| b == b'(')?, text.iter().rposition(|&b| b == b')')?);
        let mut fields = std::str::from_utf8(text.get(close + 1..)?).ok()?.split_ascii_whitespace();
        Some(Stat {
            comm: text.get(open + 1..close)?.to_vec(),
            state: *fields.next()?.as_bytes().first()?,
            parent: fields.next()?.parse().ok()?,
            start: fields.nth(17)?.parse().ok()?,
            processor: fields.nth(16)?.parse().ok()?,
        })
    }
}

/// What is known of process or thread `pid`; none when it is gone.
pub fn stat(pid: i32) -> Option<Stat> {
    Stat::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether process `pid` is there and was stopped by a signal.
pub fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|s| s.is_stopped())
}

/// The words after `key` and its colon in the status of process or thread `pid` (proc_pid_status(5)); none when it is
/// gone or has no such line.
pub fn status<T: std::str::FromStr>(pid: i32, key: &str) -> Option<Vec<T>> {
    let text = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let mut lines = text.split(|&b| b == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(key.as_bytes())?.strip_prefix(b":"))?;
    let words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    Some(words.filter_map(|word| word.parse().ok()).collect())
}

/// All processes that can be seen from here.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn all() -> Result<impl Iterator<Item = (i32, Stat)>> {
    let list = std::fs::read_dir("/proc").map_err(|e| Error::on_path("list", "/proc", e))?;
    let pids = list.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    Ok(pids.filter_map(|pid| Some((pid, stat(pid)?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_whatever_the_name_of_the_program() {
        let tail = b" S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 9 9 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0";
        let text = [b"12 (a) b (c)".as_slice(), tail].concat();
        let stat = Stat::parse(&text).unwrap();
        let expected = Stat { comm: b"a) b (c".into(), state: b'S', parent: 7, start: 4242, processor: 1 };
        assert_eq!(stat, expected);
        for cut in 0..text.len() - 3 {
            assert!(Stat::parse(&text[..cut]).is_none(), "{cut}");
        }
    }

    #[test]
    fn our_own_process_is_among_all() {
        let own = i32::try_from(std::process::id()).unwrap();
        let (_, stat) = all().unwrap().find(|(pid, _)| *pid == own).unwrap();
        assert!(stat.parent > 0 && stat.start > 0 && !stat.is_stopped());
        assert_eq!(status::<i32>(own, "Tgid"), Some(vec![own]));
        assert_eq!(status::<i32>(own, "Tg"), None);
        assert_eq!(status::<i32>(i32::MAX, "Tgid"), None);
    }
}
