//! Large files, of which a session copies what it touches first and the rest soon after.

use crate::world::{World, until};
use std::os::unix::fs::FileExt;

const LEN: usize = 12 << 20;

fn world() -> (World, Vec<u8>) {
    let w = World::new();
    let bytes: Vec<u8> = (0..LEN).map(|i| (i / 4096 % 250) as u8 + 1).collect();
    std::fs::write(w.at("home/project/big"), &bytes).unwrap();
    (w, bytes)
}

pub fn what_a_command_wrote_is_seen_whole_and_applied() {
    let (w, mut bytes) = world();
    w.ok(&[
        "run",
        "-s",
        "s",
        "--",
        "sh",
        "-c",
        "printf xyz >> big; printf abc | dd of=big bs=1 seek=5000 conv=notrunc",
    ]);
    bytes.extend_from_slice(b"xyz");
    bytes[5000..5003].copy_from_slice(b"abc");
    assert!(std::fs::read(w.upper("s").join("big")).unwrap() == bytes, "an ordinary upper at rest");
    assert_eq!(w.ok(&["changes", "-s", "s"]), "M big\n");
    w.ok(&["verify", "-s", "s"]);
    w.ok(&["apply", "-s", "s", "-y"]);
    assert!(std::fs::read(w.at("home/project/big")).unwrap() == bytes);
}

pub fn a_look_at_a_mounted_session_and_its_death_lose_nothing() {
    let (w, mut bytes) = world();
    let mnt = w.at("mnt");
    w.ok(&["mount", "-s", "s", mnt.to_str().unwrap()]);
    let write = |at: u64, text: &[u8]| {
        let file = std::fs::OpenOptions::new().write(true).open(mnt.join("big")).unwrap();
        file.write_all_at(text, at).unwrap();
    };
    write(5000, b"first");
    bytes[5000..5005].copy_from_slice(b"first");
    assert_eq!(w.ok(&["changes", "-s", "s"]), "M big\n");
    w.ok(&["apply", "-s", "s", "-y"]);
    assert!(std::fs::read(w.at("home/project/big")).unwrap() == bytes);
    // The kernel shows the real file again.
    until("the change is out of the session", || w.ok(&["changes", "-s", "s"]).is_empty());
    write(9000, b"second");
    bytes[9000..9006].copy_from_slice(b"second");
    let pid = w.json(&["status", "-s", "s", "--json"])["pid"].as_i64().unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    until("the server is dead", || std::fs::read_dir(&mnt).is_err());
    assert_eq!(w.ok(&["changes", "-s", "s"]), "M big\n");
    assert!(std::fs::read(w.upper("s").join("big")).unwrap() == bytes);
    w.ok(&["verify", "-s", "s"]);
    w.ok(&["apply", "-s", "s", "-y"]);
    assert!(std::fs::read(w.at("home/project/big")).unwrap() == bytes);
}
