//! The records that stand before a tar header and say what does not fit in it (POSIX pax, "x" headers).
//!
//! Written out here because values are bytes: an xattr may hold newlines, which a reader by lines would cut at.

use crate::base::Time;

/// Extended attributes, the way GNU tar and bsdtar name them.
pub(super) const XATTR: &[u8] = b"SCHILY.xattr.";
/// What is neither a file nor anything tar knows: `socket`.
pub(super) const TYPE: &[u8] = b"SBX.type";
/// Nanoseconds in a second.
const BILLION: u32 = 1_000_000_000;

/// Appends a record `LEN key=value\n`, where LEN counts itself.
pub(super) fn push(to: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    to.extend(len.to_string().into_bytes());
    to.push(b' ');
    to.extend(key);
    to.push(b'=');
    to.extend(value);
    to.push(b'\n');
}

/// The records of a block, in order; `None` when it is not made of records.
pub(super) fn parse(mut block: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut all = Vec::new();
    while !block.is_empty() {
        let space = block.iter().take(12).position(|&b| b == b' ')?;
        let digits = &block[..space];
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let len: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let record = block.get(space + 1..len)?;
        let (&last, pair) = record.split_last()?;
        let equals = pair.iter().position(|&b| b == b'=')?;
        if last != b'\n' {
            return None;
        }
        all.push((&pair[..equals], &pair[equals + 1..]));
        block = &block[len..];
    }
    Some(all)
}

/// The inverse of [`Time::decimal`].
pub(super) fn parse_time(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let sec: i64 = whole.parse().ok()?;
    let nsec: u32 = format!("{fraction:0<9}").parse().ok()?;
    if text.starts_with('-') && nsec > 0 {
        return Some(Time { sec: sec.checked_sub(1)?, nsec: BILLION - nsec });
    }
    Some(Time { sec, nsec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_survive(pairs in prop::collection::vec(
            ("[a-zA-Z.]{1,30}", prop::collection::vec(any::<u8>(), 0..1100)), 0..5)
        ) {
            let mut block = Vec::new();
            for (key, value) in &pairs {
                push(&mut block, key.as_bytes(), value);
            }
            let back = parse(&block).unwrap();
            prop_assert_eq!(back.len(), pairs.len());
            for ((key, value), (k, v)) in pairs.iter().zip(back) {
                prop_assert_eq!((key.as_bytes(), value.as_slice()), (k, v));
            }
        }

        #[test]
        fn hostile_records_never_panic(block in prop::collection::vec(any::<u8>(), 0..60)) {
            parse(&block);
            parse_time(&block);
        }

        #[test]
        fn times_survive(sec in -1i64 << 40..1i64 << 40, nsec in 0u32..BILLION) {
            let t = Time { sec, nsec };
            prop_assert_eq!(parse_time(t.decimal().as_bytes()), Some(t));
        }
    }
}
