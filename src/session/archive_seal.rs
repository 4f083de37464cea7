//! The seal of an archive: a checksum over all of it, in a last frame that every zstd reader skips.
//!
//! The trailer is a skippable frame (RFC 8878, 3.1.2): magic and size, then a mark, the number of bytes before it and
//! their BLAKE3 hash. Only the last bytes of a file can be a trailer, so whatever is cut off, added or changed is
//! noticed. An encrypted archive has the sealed one inside.

use std::io::{Error, Read, Result, Write};

/// The trailer's length in bytes.
pub(super) const TRAILER: usize = 56;
/// Skippable frame of 48 bytes, and the mark of ours.
const HEAD: [u8; 16] = *b"\x5f\x2a\x4d\x18\x30\0\0\0sbxfuse1";

/// A checksum of an archive's bytes.
pub(super) type Seal = [u8; 32];

fn trailer(len: u64, hash: &Seal) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..16].copy_from_slice(&HEAD);
    bytes[16..24].copy_from_slice(&len.to_le_bytes());
    bytes[24..].copy_from_slice(hash);
    bytes
}

/// Passes bytes on and adds the trailer at the end.
pub(super) struct SealWriter<W> {
    to: W,
    hash: blake3::Hasher,
    len: u64,
}

impl<W: Write> SealWriter<W> {
    pub(super) fn new(to: W) -> Self {
        SealWriter { to, hash: blake3::Hasher::new(), len: 0 }
    }

    /// Writes the trailer.
    pub(super) fn finish(mut self) -> Result<(W, Seal)> {
        let seal = *self.hash.finalize().as_bytes();
        self.to.write_all(&trailer(self.len, &seal))?;
        Ok((self.to, seal))
    }
}

impl<W: Write> Write for SealWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = self.to.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.len += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> Result<()> {
        self.to.flush()
    }
}

/// Gives the bytes before the trailer, and at their end an error unless the trailer is theirs.
pub(super) struct SealReader<R> {
    from: R,
    buffer: Vec<u8>,
    start: usize,
    hash: blake3::Hasher,
    len: u64,
    seal: Option<Seal>,
}

impl<R: Read> SealReader<R> {
    pub(super) fn new(from: R) -> Self {
        SealReader { from, buffer: Vec::new(), start: 0, hash: blake3::Hasher::new(), len: 0, seal: None }
    }

    /// The seal, once everything was read and found good.
    pub(super) fn seal(&self) -> Option<Seal> {
        self.seal
    }

    /// Reads to the end; the seal is good when this succeeds. `seen` gets the bytes so far.
    pub(super) fn check(mut self, seen: &mut dyn FnMut(u64)) -> Result<(R, Seal)> {
        let mut sink = vec![0; 256 << 10];
        while self.read(&mut sink)? > 0 {
            seen(self.len);
        }
        let seal = self.seal.ok_or_else(damaged)?;
        Ok((self.from, seal))
    }

    /// More bytes into the buffer; false at the end.
    fn fill(&mut self) -> Result<bool> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let held = self.buffer.len();
        self.buffer.resize(held + (128 << 10), 0);
        let got = loop {
            match self.from.read(&mut self.buffer[held..]) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                other => break other,
            }
        };
        self.buffer.truncate(held + *got.as_ref().unwrap_or(&0));
        Ok(got? > 0)
    }
}

impl<R: Read> Read for SealReader<R> {
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        if to.is_empty() || self.seal.is_some() {
            return Ok(0);
        }
        while self.buffer.len() - self.start <= TRAILER {
            if self.fill()? {
                continue;
            }
            let seal = *self.hash.finalize().as_bytes();
            if self.buffer[self.start..] != trailer(self.len, &seal) {
                return Err(damaged());
            }
            self.seal = Some(seal);
            return Ok(0);
        }
        let n = to.len().min(self.buffer.len() - self.start - TRAILER);
        to[..n].copy_from_slice(&self.buffer[self.start..self.start + n]);
        self.hash.update(&to[..n]);
        self.start += n;
        self.len += n as u64;
        Ok(n)
    }
}

fn damaged() -> Error {
    Error::other("it is cut short or was changed: its checksum is not that of its content")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(bytes: &[u8]) -> Vec<u8> {
        let mut to = SealWriter::new(Vec::new());
        to.write_all(bytes).unwrap();
        to.finish().unwrap().0
    }

    #[test]
    fn what_was_sealed_is_read_back_and_nothing_else_is() {
        for len in [0, 1, 55, 56, 57, 300_000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let whole = sealed(&bytes);
            let mut back = Vec::new();
            SealReader::new(&whole[..]).read_to_end(&mut back).unwrap();
            assert_eq!(back, bytes);
            for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
                assert!(SealReader::new(&whole[..cut]).check(&mut |_| {}).is_err(), "{len} cut at {cut}");
            }
            assert!(SealReader::new(&[&whole[..], b"x"].concat()[..]).check(&mut |_| {}).is_err());
            for at in [0, whole.len() - 1, whole.len() - TRAILER, whole.len() - 40] {
                let mut bad = whole.clone();
                bad[at] ^= 1;
                assert!(SealReader::new(&bad[..]).check(&mut |_| {}).is_err(), "{len} changed at {at}");
            }
        }
    }
}
