//! What a command reaches: hosts through the proxy, the screen, a home of its own, and sandboxes within sandboxes.

use crate::world::World;
use std::io::{Read, Write};
use std::net::TcpListener;

/// A server on the host's loopback that answers every request with `text`; its port.
fn server(text: &'static str) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(client.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let size = text.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n{text}");
            // A client that went away is its own business.
            drop(client.write_all(answer.as_bytes()));
        }
    });
    port
}

/// Tries every way to the ports given and prints what came.
const CLIENT: &str = r#"
import os, socket, struct, sys, urllib.error, urllib.request
def plain(port):
    try: return urllib.request.urlopen("http://127.0.0.1:%d/x" % port, timeout=120).read().decode()
    except urllib.error.HTTPError as e: return "%d %s" % (e.code, e.read().decode().strip())
def proxy():
    host, port = os.environ["HTTP_PROXY"].rsplit("/", 1)[1].split(":")
    return socket.create_connection((host, int(port)), 120)
def rest(s):
    out = b""
    while piece := s.recv(4096): out += piece
    return out.decode()
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
def connect(port):
    s = proxy()
    s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
    head = b""
    while not head.endswith(b"\r\n\r\n"): head += s.recv(1)
    if b" 200 " not in head: return head.split(b"\r\n")[0].decode()
    s.sendall(GET)
    return rest(s).split("\r\n\r\n")[1]
def socks(port):
    s = proxy()
    s.sendall(b"\5\1\0")
    assert s.recv(2) == b"\5\0"
    s.sendall(b"\5\1\0\3\x09127.0.0.1" + struct.pack(">H", port))
    reply = b""
    while len(reply) < 10: reply += s.recv(10 - len(reply))
    if reply[1]: return "socks %d" % reply[1]
    s.sendall(GET)
    return rest(s).split("\r\n\r\n")[1]
def direct(port):
    try: socket.create_connection(("127.0.0.1", port), 120); return "open"
    except OSError as e: return type(e).__name__
for port in map(int, sys.argv[1:]):
    print(plain(port), connect(port), socks(port), direct(port), sep=" | ")
"#;

/// What a shell has open is no way to real files, for the command that it runs: a descriptor leads around all mounts.
pub fn open_files_of_the_caller_lead_nowhere() {
    let w = World::new();
    let shell = |script: &str| {
        let sh = w.sbx(&[]);
        let program = sh.get_program().to_owned();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script]).env_clear().envs(sh.get_envs().filter_map(|(k, v)| Some((k, v?))));
        shell.env("SBX", program).current_dir(sh.get_current_dir().unwrap());
        crate::world::said(&shell.output().unwrap())
    };
    w.write("home/keep", "precious\n");
    let (code, out, err) = shell(
        "exec 8<. 9<a.txt; \"$SBX\" run --session s -- sh -c 'cat; echo theirs > /dev/stdin
         for fd in 8/../keep 9; do ls /proc/self/fd/$fd; echo theirs > /proc/self/fd/$fd; done' < a.txt",
    );
    assert_eq!((code != 0, out.as_str()), (true, "one\n"), "{err}");
    assert_eq!(
        (w.read("home/project/a.txt").as_str(), w.read("home/keep").as_str()),
        ("one\n", "precious\n")
    );
    assert!(err.contains("no changes"), "{err}");
    // What was opened for writing is written to, pipes are passed on, and who reads on goes on where the command stopped.
    let (_, out, err) = shell(
        "echo in a pipe | { exec 7<&0 </dev/null; \"$SBX\" exec s -- sh -c 'cat <&7; echo out >> /dev/stdout' > b.txt; }
         cat b.txt; printf '1\n2\n3\n' > lines; { read x; \"$SBX\" exec s -- head -n 1; cat; } < lines",
    );
    assert_eq!(out, "in a pipe\nout\n2\n3\n", "{err}");
    // What is too large to be copied at once comes through a pipe.
    let big = std::fs::File::create(w.at("home/project/big")).unwrap();
    big.set_len(70 << 20).unwrap();
    let (code, out, err) =
        shell("\"$SBX\" exec s -- wc -c < big; \"$SBX\" exec s -- head -c 1 < big | wc -c");
    assert_eq!((code, out.as_str()), (0, "73400320\n1\n"), "{err}");
    for (redirect, what) in
        [("< .", "the standard input is a directory"), ("1< a.txt", "the standard output is a file")]
    {
        let (code, out, err) = shell(&format!("\"$SBX\" run --session t -- true {redirect}"));
        assert_eq!((code, out.as_str()), (125, ""), "{err}");
        assert!(err.contains(what), "{err}");
    }
    assert!(!w.ok(&["ls"]).contains("\nt "), "no session is left");
}

/// A service's socket at a path is out of reach with the network off: a read-only mount would not keep from it.
pub fn sockets_of_services_are_none_of_the_commands() {
    let w = World::visible();
    let at = w.at("home/service.sock");
    let listener = std::os::unix::net::UnixListener::bind(&at).unwrap();
    std::fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let bound_at = |time: nix::sys::time::TimeSpec| {
        let flag = nix::sys::stat::UtimensatFlags::NoFollowSymlink;
        nix::sys::stat::utimensat(nix::fcntl::AT_FDCWD, &w.at("home/service.sock"), &time, &time, flag)
            .unwrap();
    };
    bound_at(nix::sys::time::TimeSpec::new(1_000_000_000, 0));
    let connect = "import socket, sys
try: socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('reached')
except OSError as e: print('refused')";
    let at = at.to_str().unwrap();
    for (net, want) in
        [(&[][..], "refused\n"), (&["--net=example.org"], "refused\n"), (&["--net"], "reached\n")]
    {
        let args = [&["run", "--rm"][..], net, &["--", "python3", "-c", connect, at]].concat();
        let (code, out, err) = w.run(&args);
        assert_eq!((code, out.as_str()), (0, want), "{net:?} {err}");
    }
    // From now on no sandbox of another test counts on it, until it goes at the end.
    bound_at(nix::sys::time::TimeSpec::UTIME_NOW);
    // What is in /run belongs to services, but for a few names; a sandbox in the sandbox does with what is left.
    let inner = "ls /run; mkdir /run/x || /dev/.sbx-fuse run --rm -- sh -c 'ls /run; ls /etc/resolv.conf'";
    let (code, out, err) = w.run(&["run", "--rm", "--", "sh", "-c", inner]);
    let has = |name: &str| out.lines().any(|l| l == name);
    assert_eq!(code, 0, "{out}{err}");
    assert!(!has("dbus") && !has("postgresql") && has("/etc/resolv.conf"), "{out}");
}

pub fn only_the_hosts_named_are_reached() {
    let w = World::new();
    let (yes, no) = (server("hello"), server("never"));
    let (net, yes, no) = (format!("--net=127.0.0.1:{yes},example.org"), yes.to_string(), no.to_string());
    let want = format!(
        "hello | hello | hello | ConnectionRefusedError\n403 sbx-fuse: 127.0.0.1:{no} is not on the list of --net | \
         HTTP/1.1 403 Forbidden | socks 2 | ConnectionRefusedError\n"
    );
    let (code, out, err) = w.run(&["run", "--rm", &net, "--", "python3", "-c", CLIENT, &yes, &no]);
    assert_eq!((code, out.as_str()), (0, want.as_str()), "{err}");
    assert!(err.contains(&format!("refused 3 connections to 127.0.0.1:{no} (--net)")), "{err}");
    // Within a sandbox the proxy around it is the only way, and its list counts as well.
    let inner = format!("/dev/.sbx-fuse run --rm --net=127.0.0.1 -- python3 -c \"$0\" {yes} {no}");
    let (code, out, err) = w.run(&["run", "--rm", &net, "--", "sh", "-c", &inner, CLIENT]);
    assert_eq!((code, out.as_str()), (0, want.as_str()), "{err}");
    // The configuration narrows it further, and a mistake is told.
    w.write("home/project/.sbx-fuse.toml", "[network]\nallow = ['example.org']\n");
    let (_, out, _) = w.run(&["run", "--rm", &net, "--", "python3", "-c", CLIENT, &yes]);
    assert!(out.starts_with("403 "), "{out}");
    w.write("home/project/.sbx-fuse.toml", "[network]\nallow = [\n'a/b']\n");
    assert!(w.fails(125, &["run", "--net", "true"]).contains("line 3: 'a/b' is not HOST"));
    assert!(w.fails(2, &["run", "--net=a:b", "true"]).contains("is not HOST or HOST:PORT"));
}

/// Connects to an abstract socket of its own and to the one named, and says which version of Landlock there is.
const ABSTRACT: &str = r#"
import ctypes, socket, sys
libc = ctypes.CDLL(None)
def reach(name):
    try: socket.socket(socket.AF_UNIX).connect("\0" + name); return "reached"
    except PermissionError: return "refused"
own = socket.socket(socket.AF_UNIX); own.bind("\0" + sys.argv[1] + "-own"); own.listen()
print(max(libc.syscall(444, None, 0, 1), 0), reach(sys.argv[1] + "-own"), reach(sys.argv[1]))
"#;

pub fn abstract_sockets_of_the_host_are_none_of_the_network() {
    use std::os::linux::net::SocketAddrExt;
    let w = World::new();
    let name = format!("sbx-fuse-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _server = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let says = |args: &[&str]| {
        let out = w.ok(args);
        let (version, rest) = out.trim().split_once(' ').unwrap();
        let scoped = version.parse::<u32>().unwrap() >= 6;
        let want = if scoped { "reached refused" } else { "reached reached" };
        assert_eq!(rest, want, "Landlock {version}");
        if !scoped {
            eprintln!("this kernel cannot keep abstract sockets out of reach: that was not tried");
        }
    };
    says(&["run", "--rm", "--net", "--", "python3", "-c", ABSTRACT, &name]);
    // A sandbox can still be made within, which has a view mounted.
    let inner = "/dev/.sbx-fuse run --rm --net -- python3 -c \"$0\" \"$1\"";
    says(&["run", "--rm", "--net", "--", "sh", "-c", inner, ABSTRACT, &name]);
}

pub fn the_screen_is_reached_only_when_asked_for() {
    let w = World::new();
    let socket = w.at("run/wayland-7");
    let _server = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    w.write("home/.Xauthority", "key");
    let run = |args: &[&str]| {
        let mut command = w.sbx(args);
        command.env("WAYLAND_DISPLAY", "wayland-7").env("DISPLAY", "far:0");
        crate::world::said(&command.output().unwrap())
    };
    let script = "echo \"$WAYLAND_DISPLAY,$DISPLAY\"; cat \"$XAUTHORITY\" ~/.Xauthority; \
                  python3 -c 'import os, socket; s = socket.socket(socket.AF_UNIX); \
                  s.connect(os.environ[\"XDG_RUNTIME_DIR\"] + \"/wayland-7\"); print(\"drawn\")'";
    let (_, out, err) = run(&["run", "--rm", "--", "sh", "-c", script]);
    assert_eq!(out, ",\n", "{err}");
    let (code, out, err) = run(&["run", "--rm", "--gui", "--", "sh", "-c", script]);
    assert_eq!((code, out.as_str()), (0, "wayland-7,far:0\nkeydrawn\n"), "{err}");
    let err = w.fails(125, &["run", "--rm", "--gui", "true"]);
    assert!(err.contains("there is no screen") && err.contains("hint:"), "{err}");
    drop(_server);
    std::fs::remove_file(&socket).unwrap();
    assert_eq!(run(&["run", "--rm", "--gui", "true"]).0, 125);
}

pub fn a_private_home_shows_the_persons_and_keeps_what_is_written() {
    let w = World::new();
    w.write("home/.gitconfig", "theirs\n");
    std::fs::create_dir(w.at("home/.ssh")).unwrap();
    w.write("home/.ssh/key", "secret\n");
    let script = "cat ~/.gitconfig; echo ours > ~/.gitconfig; mkdir -p ~/.config/app; echo 1 > ~/.config/app/c; \
                  echo t > $TMPDIR/t && cat $TMPDIR/t; echo p > p.txt; cat ~/project/p.txt; cat ~/.ssh/key; true";
    let (code, out, err) = w.run(&["run", "-s", "s", "--home", "private", "--", "sh", "-c", script]);
    assert_eq!((code, out.as_str()), (0, "theirs\nt\np\n"), "{err}");
    assert!(err.contains("key: No such file") && err.contains("1 added in session s"), "{err}");
    assert_eq!(w.ok(&["changes", "-s", "s"]), "A p.txt\n");
    w.ok(&["verify", "-s", "s"]);
    assert_eq!(
        w.ok(&["exec", "s", "--", "sh", "-c", "cat ~/.gitconfig ~/.config/app/c $TMPDIR/t"]),
        "ours\n1\nt\n"
    );
    w.ok(&["archive", "s"]);
    w.ok(&["restore", "s"]);
    assert_eq!(w.ok(&["exec", "s", "--", "sh", "-c", "cat ~/.gitconfig ~/.config/app/c"]), "ours\n1\n");
    w.ok(&["apply", "-s", "s", "-y"]);
    assert_eq!((w.read("home/project/p.txt"), w.read("home/.gitconfig")), ("p\n".into(), "theirs\n".into()));
    assert!(w.at("home/.config").symlink_metadata().is_err(), "something was made in the real home");
    w.ok(&["reset", "--hard", "-y", "s"]);
    assert_eq!(w.ok(&["exec", "s", "--", "sh", "-c", "cat ~/.gitconfig"]), "theirs\n");
    let err = w.fails(125, &["run", "-s", "s", "--home", "private", "--", "true"]);
    assert!(err.contains("settled"), "{err}");
}

pub fn a_reviewed_home_is_one_more_root() {
    let w = World::new();
    w.write("home/.profile", "theirs\n");
    let script = "echo ours >> ~/.profile; echo q > q.txt; cat ~/project/q.txt; echo n > ~/new";
    assert_eq!(w.ok(&["run", "-s", "r", "--home", "reviewed", "--", "sh", "-c", script]), "q\n");
    let changes = w.ok(&["changes", "-s", "r"]);
    for change in ["A home/new", "M home/.profile", "A project/q.txt"] {
        assert!(changes.contains(change), "{changes}");
    }
    assert_eq!(changes.lines().count(), 3, "{changes}");
    w.ok(&["apply", "-s", "r", "-y"]);
    assert_eq!((w.read("home/.profile"), w.read("home/new")), ("theirs\nours\n".into(), "n\n".into()));
    assert_eq!(w.read("home/project/q.txt"), "q\n");
    let home = w.at("home");
    let err = w.fails(125, &["run", "--root", home.to_str().unwrap(), "--home", "reviewed", "true"]);
    assert!(err.contains("nothing to do"), "{err}");
}

pub fn sandboxes_within_sandboxes_apply_one_level_up() {
    let w = World::new();
    let script = "S=/dev/.sbx-fuse; echo outer >> a.txt
$S run -s mid -- sh -c 'S=/dev/.sbx-fuse; echo mid >> a.txt
  $S run -s in -- sh -c \"echo in >> a.txt; echo new > n.txt\"
  $S changes -s in; tail -n 1 a.txt; $S apply -y -s in; tail -n 1 a.txt'
$S changes; tail -n 1 a.txt; $S apply -y -s mid; tail -n 1 a.txt";
    let (code, out, err) = w.run(&["run", "-s", "outer", "--", "sh", "-c", script]);
    let want = "A n.txt\nM a.txt\nmid\nin\nA n.txt\nM a.txt\nouter\nin\n";
    // The directory's times, which applying sets as well, are no matter here.
    let sorted = |text: &str| text.lines().filter(|l| *l != "P .").map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(code, 0, "{out}{err}");
    let mut got = sorted(&out);
    for pair in [0..2, 4..6] {
        got[pair].sort();
    }
    assert_eq!(got, sorted(want), "{err}");
    assert_eq!(w.read("home/project/a.txt"), "one\n");
    w.ok(&["apply", "-y", "-s", "outer"]);
    assert_eq!(w.read("home/project/a.txt"), "one\nouter\nmid\nin\n");
    assert_eq!(w.read("home/project/n.txt"), "new\n");
    // Within plain bwrap: a state directory of its own, as the host's cannot be written.
    let product = crate::support::product(crate::BUILT);
    let mut bwrap = std::process::Command::new("bwrap");
    bwrap.args(["--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc", "--"]);
    bwrap.arg(product).args(["run", "-s", "b", "--", "sh", "-c", "echo b > b.txt"]);
    let sbx = w.sbx(&[]);
    bwrap.env_clear().envs(sbx.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let out = bwrap.current_dir(w.at("home/project")).output().unwrap();
    assert!(out.status.success(), "{}", out.stderr.escape_ascii());
    assert_eq!(w.ok(&["changes", "-s", "b"]), "A b.txt\n");
}
