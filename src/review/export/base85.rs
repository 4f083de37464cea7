//! git's base 85 (the format of `GIT binary patch`, git's diff format): five digits for four bytes, in lines of at most
//! 52 bytes, each of which begins with a letter for its length.

const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
const LINE: usize = 52;

/// Appends `bytes` as lines.
pub(super) fn lines(bytes: &[u8], out: &mut Vec<u8>) {
    for line in bytes.chunks(LINE) {
        let len = line.len() as u8;
        out.push(if len <= 26 { b'A' + len - 1 } else { b'a' + len - 27 });
        for four in line.chunks(4) {
            let mut word = [0; 4];
            word[..four.len()].copy_from_slice(four);
            let mut rest = u32::from_be_bytes(word);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(rest % 85) as usize];
                rest /= 85;
            }
            out.extend_from_slice(&digits);
        }
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn four_bytes_are_five_digits_and_a_line_says_its_length() {
        let mut out = Vec::new();
        super::lines(&[0, 0, 0, 0], &mut out);
        super::lines(&[0xff], &mut out);
        super::lines(&[0; 53], &mut out);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "D00000");
        assert_eq!(lines[1], "A{{R30");
        assert_eq!((lines[2].len(), lines[2].as_bytes()[0], lines[3].len()), (66, b'z', 6));
    }
}
