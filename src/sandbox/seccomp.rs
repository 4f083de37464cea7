//! The system call filter of the sandbox: no input may be pushed into the terminal it shares with us, its first process
//! cannot be held, and those parts of the kernel that have let programs out of sandboxes before, and that an ordinary
//! program does without, are not there.
//!
//! `TIOCSTI` puts bytes into a terminal's input queue as if they were typed, `TIOCLINUX` pastes a selection on a
//! console: with either, a program could type commands into the shell that started us. A program that traced process 1
//! of the sandbox could stop it for good, and the run would never end. The filter is a classic BPF program (seccomp(2))
//! over `struct seccomp_data { int nr; u32 arch; u64 ip; u64 args[6]; }`.

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
const JUMP_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
/// The low half of `args[1]`: all the kernel looks at, as the second argument of ioctl(2) is an `unsigned int` and that
/// of ptrace(2) a `pid_t`. A filter that compared 64 bits could be passed by setting a high one.
const OFFSET_ARG1_LOW: u32 = 24;

const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32; // SECCOMP_RET_ERRNO

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
/// Process 1 of the sandbox: bwrap's, which waits for the command.
const FIRST: u32 = 1;
/// The numbers of the x32 form of x86-64 begin here; no distribution has programs of it, so all are refused.
const X32: u32 = 0x4000_0000;

/// One of the ways in which this kernel can be called, and the numbers that calls have there.
struct Way {
    /// `AUDIT_ARCH_*`, linux/audit.h.
    arch: u32,
    ioctl: u32,
    ptrace: u32,
    bpf: u32,
    perf_event_open: u32,
    userfaultfd: u32,
    /// `request_key` and `keyctl` follow it.
    add_key: u32,
}

/// io_uring_setup, io_uring_enter and io_uring_register: calls as new as these have one number everywhere. What they do
/// passes no filter, and programs fall back when they are refused, as they are in containers.
const IO_URING: [u32; 3] = [425, 426, 427];

#[cfg(target_arch = "x86_64")]
const WAYS: &[Way] = &[
    Way {
        arch: 0xc000_003e,
        ioctl: 16,
        ptrace: 101,
        bpf: 321,
        perf_event_open: 298,
        userfaultfd: 323,
        add_key: 248,
    },
    Way {
        arch: 0x4000_0003,
        ioctl: 54,
        ptrace: 26,
        bpf: 357,
        perf_event_open: 336,
        userfaultfd: 374,
        add_key: 286,
    },
];
#[cfg(target_arch = "aarch64")]
const WAYS: &[Way] = &[
    Way {
        arch: 0xc000_00b7,
        ioctl: 29,
        ptrace: 117,
        bpf: 280,
        perf_event_open: 241,
        userfaultfd: 282,
        add_key: 217,
    },
    Way {
        arch: 0x4000_0028,
        ioctl: 54,
        ptrace: 26,
        bpf: 386,
        perf_event_open: 364,
        userfaultfd: 388,
        add_key: 309,
    },
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const WAYS: &[Way] = &[];

/// The filter as bwrap's `--seccomp` wants it: an array of `struct sock_filter`. `None` on a processor whose call
/// numbers are not known here; the sandbox must then get a terminal session of its own.
pub(super) fn program() -> Option<Vec<u8>> {
    if WAYS.is_empty() {
        return None;
    }
    let bytes = assemble(WAYS).into_iter().flat_map(|i| {
        let [c0, c1] = i.code.to_ne_bytes();
        let [k0, k1, k2, k3] = i.k.to_ne_bytes();
        [c0, c1, i.if_true, i.if_false, k0, k1, k2, k3]
    });
    Some(bytes.collect())
}

fn load(k: u32) -> Instruction {
    Instruction { code: LOAD, if_true: 0, if_false: 0, k }
}

/// Over the next `len` instructions unless the number at hand is `k`, or with `JUMP_AT_LEAST` at least `k`.
fn unless(code: u16, k: u32, len: usize) -> Instruction {
    Instruction { code, if_true: 0, if_false: len as u8, k }
}

fn ret(k: u32) -> Instruction {
    Instruction { code: RETURN, if_true: 0, if_false: 0, k }
}

fn assemble(ways: &[Way]) -> Vec<Instruction> {
    let mut out = vec![load(OFFSET_ARCH)];
    for way in ways {
        let mut block = vec![load(OFFSET_NR), unless(JUMP_AT_LEAST, X32, 1), ret(REFUSE)];
        // The keyrings of a user are one for all of the user's processes, whatever their namespaces.
        let keys = [way.add_key, way.add_key + 1, way.add_key + 2];
        let others = [way.bpf, way.perf_event_open, way.userfaultfd];
        for number in IO_URING.into_iter().chain(others).chain(keys) {
            block.extend([unless(JUMP_EQUAL, number, 1), ret(REFUSE)]);
        }
        for (number, bad) in [(way.ioctl, &[TIOCSTI, TIOCLINUX][..]), (way.ptrace, &[FIRST])] {
            block.extend([unless(JUMP_EQUAL, number, 2 + 2 * bad.len()), load(OFFSET_ARG1_LOW)]);
            block.extend(bad.iter().flat_map(|value| [unless(JUMP_EQUAL, *value, 1), ret(REFUSE)]));
            block.push(ret(ALLOW));
        }
        block.push(ret(ALLOW));
        out.push(unless(JUMP_EQUAL, way.arch, block.len()));
        out.extend(block);
    }
    // No other architecture can call this kernel; if one could, its numbers would be unknown.
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
                JUMP_AT_LEAST => at += usize::from(if a >= i.k { i.if_true } else { i.if_false }),
                RETURN => return i.k,
                other => panic!("code {other}"),
            }
        }
    }

    #[test]
    fn what_is_named_is_refused_on_every_way_in_and_nothing_else() {
        let program = assemble(WAYS);
        for way in WAYS {
            let of = |nr, arg1| run(&program, nr, way.arch, arg1);
            for bad in [0x5412, 0x541c, 0xdead_0000_0000_5412] {
                assert_eq!(of(way.ioctl, bad), REFUSE, "{:x} {bad:x}", way.arch);
            }
            for bad in [1, 0xdead_0000_0000_0001] {
                assert_eq!(of(way.ptrace, bad), REFUSE, "{:x} {bad:x}", way.arch);
            }
            let keys = [way.add_key, way.add_key + 1, way.add_key + 2];
            for nr in [way.bpf, way.perf_event_open, way.userfaultfd, 425, 426, 427].into_iter().chain(keys) {
                assert_eq!(of(nr, 0), REFUSE, "{:x} {nr}", way.arch);
            }
            for nr in [way.ioctl, way.bpf, 0, 0x3fff_ffff] {
                assert_eq!(of(X32 | nr, 0), REFUSE, "{:x} {nr}", way.arch);
            }
            for (nr, arg1) in [(way.ioctl, 0x5401), (way.ptrace, 2), (way.ptrace, 0), (1, 0x5412), (1, 1)] {
                assert_eq!(of(nr, arg1), ALLOW, "{:x} {nr} {arg1}", way.arch);
            }
            let named = 9 + [way.ioctl, way.ptrace].len();
            let passed = (0..500).filter(|nr| of(*nr, 1) == ALLOW && of(*nr, 0x5412) == ALLOW).count();
            assert_eq!(passed, 500 - named, "{:x}", way.arch);
        }
        assert_eq!(run(&program, 1, 0x1234, 0), REFUSE);
    }

    #[test]
    fn the_bytes_are_whole_instructions() {
        if let Some(bytes) = program() {
            assert_eq!(bytes.len(), assemble(WAYS).len() * 8);
        }
    }
}
