//! Durations and sizes as people write them.

use bytesize::ByteSize;
use std::time::Duration;

/// A duration for clap: `24h`, `7d`, `1h 30m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|e| format!("{e}; write it like 90s, 24h, 7d or 2weeks"))
}

/// A size for clap: `50G` is 50·10⁹ bytes, `50GiB` is 50·2³⁰.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let odd = || "not a size; write it like 500M, 50G or 20GiB".to_owned();
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(odd());
    }
    let size = text.parse::<ByteSize>().map_err(|_| odd())?.as_u64();
    // The parser stops at the largest number it has.
    if size == u64::MAX { Err("larger than any disk".into()) } else { Ok(size) }
}

/// A number of bytes for people: `1.5 GiB`.
pub(super) fn bytes(n: u64) -> String {
    ByteSize::b(n).display().iec().to_string()
}

/// Nanoseconds of a duration, at most what fits.
pub(super) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_what_they_say_or_refused() {
        assert_eq!(size("50G").unwrap(), 50_000_000_000);
        assert_eq!(size("1.5 KiB").unwrap(), 1536);
        assert_eq!(size("0").unwrap(), 0);
        for bad in ["", "G", "-1", "50X", "1..2G", "99999999999999999999G", "nan", "inf"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(duration("1h 30m").unwrap().as_secs(), 5400);
        for bad in ["", "24", "-1h", "1 lightyear", "999999999999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(bytes(1536), "1.5 KiB");
    }
}
