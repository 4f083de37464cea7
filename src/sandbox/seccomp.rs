//! The system call filter of the sandbox: no input may be pushed into the terminal it shares with us.
//!
//! `TIOCSTI` puts bytes into a terminal's input queue as if they were typed, `TIOCLINUX` pastes a selection on a
//! console: with either, a program could type commands into the shell that started us. The filter is a classic BPF
//! program (seccomp(2)) over `struct seccomp_data { int nr; u32 arch; u64 ip; u64 args[6]; }`.

/// One instruction of classic BPF: `struct sock_filter`, linux/filter.h.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
/// The low half of `args[1]`: all the kernel looks at, as the second argument of ioctl(2) is an `unsigned int`. A
/// filter that compared 64 bits could be passed by setting a high one.
const OFFSET_ARG1_LOW: u32 = 24;

const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32; // SECCOMP_RET_ERRNO

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;

/// `(AUDIT_ARCH_*, numbers of ioctl)` for each way this kernel can be called. x86-64 has the x32 form of the number
/// as well.
#[cfg(target_arch = "x86_64")]
const CALLS: &[(u32, &[u32])] = &[(0xc000_003e, &[16, 0x4000_0000 | 514]), (0x4000_0003, &[54])];
#[cfg(target_arch = "aarch64")]
const CALLS: &[(u32, &[u32])] = &[(0xc000_00b7, &[29]), (0x4000_0028, &[54])];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: &[(u32, &[u32])] = &[];

/// The filter as bwrap's `--seccomp` wants it: an array of `struct sock_filter`. `None` on a processor whose call
/// numbers are not known here; the sandbox must then get a terminal session of its own.
pub(super) fn program() -> Option<Vec<u8>> {
    if CALLS.is_empty() {
        return None;
    }
    let bytes = assemble(CALLS).into_iter().flat_map(|i| {
        let [c0, c1] = i.code.to_ne_bytes();
        let [k0, k1, k2, k3] = i.k.to_ne_bytes();
        [c0, c1, i.if_true, i.if_false, k0, k1, k2, k3]
    });
    Some(bytes.collect())
}

fn assemble(calls: &[(u32, &[u32])]) -> Vec<Instruction> {
    let jump = |k, if_true, if_false| Instruction { code: JUMP_EQUAL, if_true, if_false, k };
    let load = |k| Instruction { code: LOAD, if_true: 0, if_false: 0, k };
    let ret = |k| Instruction { code: RETURN, if_true: 0, if_false: 0, k };
    let mut out = vec![load(OFFSET_ARCH)];
    for (i, (arch, numbers)) in calls.iter().enumerate() {
        // Length of this block after its arch check: load, one jump a number, ALLOW.
        let len = numbers.len() + 2;
        out.push(jump(*arch, 0, len as u8));
        out.push(load(OFFSET_NR));
        let later: usize = calls[i + 1..].iter().map(|(_, n)| n.len() + 3).sum();
        for (j, number) in numbers.iter().enumerate() {
            // To the argument checks: over the remaining jumps, ALLOW, the later blocks and the unknown-arch refusal.
            let over = (numbers.len() - 1 - j) + 1 + later + 1;
            out.push(jump(*number, over as u8, 0));
        }
        out.push(ret(ALLOW));
    }
    // No other architecture can call this kernel; if one could, its numbers would be unknown.
    out.push(ret(REFUSE));
    out.push(load(OFFSET_ARG1_LOW));
    out.push(jump(TIOCSTI, 2, 0));
    out.push(jump(TIOCLINUX, 1, 0));
    out.push(ret(ALLOW));
    out.push(ret(REFUSE));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn run(program: &[Instruction], nr: u32, arch: u32, arg1: u64) -> u32 {
        let mut data = [0u8; 64];
        data[0..4].copy_from_slice(&nr.to_le_bytes());
        data[4..8].copy_from_slice(&arch.to_le_bytes());
        data[24..32].copy_from_slice(&arg1.to_le_bytes());
        let (mut at, mut a) = (0, 0u32);
        loop {
            let i = program[at];
            at += 1;
            match i.code {
                LOAD => a = u32::from_le_bytes(data[i.k as usize..][..4].try_into().unwrap()),
                JUMP_EQUAL => at += usize::from(if a == i.k { i.if_true } else { i.if_false }),
                RETURN => return i.k,
                other => panic!("code {other}"),
            }
        }
    }

    #[test]
    fn only_the_two_requests_are_refused_on_every_way_in() {
        let calls: &[(u32, &[u32])] =
            &[(0xc000_003e, &[16, 0x4000_0202]), (0x4000_0003, &[54]), (0xc000_00b7, &[29])];
        let program = assemble(calls);
        for (arch, numbers) in calls {
            for nr in *numbers {
                for bad in [0x5412, 0x541c, 0xdead_0000_0000_5412] {
                    assert_eq!(run(&program, *nr, *arch, bad), REFUSE, "{arch:x} {nr:x} {bad:x}");
                }
                assert_eq!(run(&program, *nr, *arch, 0x5401), ALLOW);
            }
            assert_eq!(run(&program, 1, *arch, 0x5412), ALLOW);
        }
        assert_eq!(run(&program, 1, 0x1234, 0), REFUSE);
    }

    #[test]
    fn the_bytes_are_whole_instructions() {
        if let Some(bytes) = program() {
            assert_eq!(bytes.len(), assemble(CALLS).len() * 8);
        }
    }
}
