//! Readable random names, and what a name may be.

use crate::base::{Error, Result, quote};
use std::io::Read;

const FIRST: [&str; 64] = [
    "able", "amber", "bold", "brave", "brisk", "calm", "clear", "clever", "coral", "cosy", "crisp", "dapper",
    "deft", "eager", "early", "easy", "fair", "fleet", "fond", "fresh", "gentle", "glad", "golden", "grand",
    "green", "happy", "hardy", "jolly", "keen", "kind", "light", "lively", "loyal", "lucky", "mellow",
    "merry", "mild", "neat", "nimble", "noble", "olive", "plain", "plucky", "polite", "proud", "quick",
    "quiet", "rapid", "ready", "royal", "sharp", "silver", "sleek", "smart", "solid", "spry", "steady",
    "sunny", "swift", "tidy", "vivid", "warm", "wise", "witty",
];
const SECOND: [&str; 64] = [
    "adder", "alder", "ant", "aspen", "badger", "bat", "bear", "beaver", "beech", "birch", "bison", "cedar",
    "clover", "crane", "crow", "deer", "dove", "eagle", "elk", "elm", "falcon", "fern", "finch", "fox",
    "frog", "gecko", "goose", "hare", "hawk", "hazel", "heron", "horse", "ibis", "ivy", "jay", "kite",
    "koala", "lark", "lemur", "lily", "lynx", "maple", "mole", "moose", "mouse", "newt", "oak", "otter",
    "owl", "panda", "pine", "puma", "quail", "rabbit", "raven", "robin", "rowan", "seal", "stork", "swan",
    "tern", "toad", "wolf", "wren",
];

/// `N` random bytes of the kernel's.
///
/// # Errors
/// When `/dev/urandom` cannot be read.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|e| Error::on_path("read", "/dev/urandom", e))?;
    Ok(bytes)
}

/// A random lowercase hexadecimal text of `N` bytes.
///
/// # Errors
/// As [`random`].
pub(super) fn random_hex<const N: usize>() -> Result<String> {
    Ok(random::<N>()?.iter().map(|b| format!("{b:02x}")).collect())
}

/// A random name such as `brave-otter`; with a number from the `attempt`th try on, should the plain ones be taken.
///
/// # Errors
/// As [`random`].
pub(super) fn suggest(attempt: u32) -> Result<String> {
    let [a, b, c] = random::<3>()?;
    let plain = format!("{}-{}", FIRST[usize::from(a) % 64], SECOND[usize::from(b) % 64]);
    Ok(if attempt < 16 { plain } else { format!("{plain}-{c}") })
}

/// Checks a name a person gave: 1 to 64 of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit. Such a name is a
/// plain file name and needs no quoting in a shell.
///
/// # Errors
/// `Usage`.
pub(super) fn check(name: &[u8]) -> Result<&str> {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
    let good = (1..=64).contains(&name.len()) && name[0].is_ascii_alphanumeric() && name.iter().all(plain);
    match std::str::from_utf8(name) {
        Ok(name) if good => Ok(name),
        _ => {
            // What it quotes has quotes already.
            let shown = quote(name);
            let shown = if shown.starts_with('"') { shown } else { format!("'{shown}'") };
            Err(Error::usage(format!("{shown} cannot be the name of a session"))
                .hint("use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggested_names_are_allowed_ones() {
        for attempt in [0, 20] {
            let name = suggest(attempt).unwrap();
            assert!(check(name.as_bytes()).is_ok(), "{name}");
        }
    }

    #[test]
    fn names_that_are_no_plain_file_name_are_refused() {
        for bad in [&b""[..], b".", b"..", b"-x", b"a/b", b"a b", b"\xff", &[b'a'; 65], b".trash"] {
            assert!(check(bad).is_err(), "{}", quote(bad));
        }
        assert!(check(b"fix-1.2_b").is_ok());
    }
}
