//! A proxy outside of the sandbox that lets a command reach a few hosts and nothing else: HTTP, CONNECT and SOCKS5 on
//! one port of the sandbox's own loopback.
//!
//! The socket is made inside, where the sandbox's network is, and its descriptor is sent out; so no process of ours is
//! inside, and nothing of the host's is bound there. A connection that is not on the list is answered with why.

use crate::base::{Errno, Net, Result, host_and_port, leads_outside};
use crate::sys::socket;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// By this variable a sandbox within a sandbox finds the proxy that is its only way out.
const VIA: &str = "SBX_FUSE_NET_VIA";

/// A request's head must be shorter.
const HEAD: usize = 64 << 10;
/// How long a client may take for its request, and a host for taking a connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections at a time; what comes beyond is closed.
const MOST: usize = 256;
/// Different hosts that are remembered as refused.
const REMEMBERED: usize = 100;

/// The proxy's side of a running sandbox.
pub(super) struct Proxy {
    net: Net,
    via: Option<SocketAddr>,
    /// The listening socket, once it came.
    door: Mutex<Door>,
    open: AtomicUsize,
    refused: Mutex<BTreeMap<String, usize>>,
}

enum Door {
    Awaited,
    Open(Arc<TcpListener>),
    Closed,
}

impl Proxy {
    /// Serves what `from` brings, in threads, until closed.
    pub(super) fn start(net: Net, from: OwnedFd) -> Result<Arc<Proxy>> {
        let via = std::env::var(VIA).ok().and_then(|v| v.parse().ok());
        let (door, open) = (Mutex::new(Door::Awaited), AtomicUsize::new(0));
        let proxy = Arc::new(Proxy { net, via, door, open, refused: Mutex::default() });
        let ours = proxy.clone();
        std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || {
                if let Err(e) = ours.serve(&from) {
                    tracing::warn!("the proxy of the sandbox ended: {e}");
                }
            })
            .map(|_| proxy)
            .map_err(|e| crate::base::Error::sys("start a thread", e))
    }

    fn serve(self: &Arc<Proxy>, from: &OwnedFd) -> io::Result<()> {
        // The end without a descriptor: the sandbox never stood.
        let Some(fd) = socket::receive_fd(from.as_fd())? else {
            return Ok(());
        };
        let listener = Arc::new(TcpListener::from(fd));
        {
            let mut door = self.door.lock();
            if matches!(*door, Door::Closed) {
                return Ok(());
            }
            *door = Door::Open(listener.clone());
        }
        loop {
            let client = match listener.accept() {
                Ok((client, _)) => client,
                Err(_) if matches!(*self.door.lock(), Door::Closed) => return Ok(()),
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ECONNABORTED)) => continue,
                Err(e) => return Err(e),
            };
            if self.open.fetch_add(1, Ordering::AcqRel) >= MOST {
                self.open.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let ours = self.clone();
            std::thread::Builder::new().name("proxy".into()).spawn(move || {
                if let Err(e) = ours.converse(client) {
                    tracing::debug!("a connection through the proxy ended: {e}");
                }
                ours.open.fetch_sub(1, Ordering::AcqRel);
            })?;
        }
    }

    /// Takes no more connections; what was refused, by host and port, and how often.
    pub(super) fn close(&self) -> BTreeMap<String, usize> {
        let before = std::mem::replace(&mut *self.door.lock(), Door::Closed);
        if let Door::Open(listener) = before
            && let Err(e) = socket::shut_down(listener.as_fd())
        {
            tracing::debug!("cannot close the proxy's door: {e}");
        }
        std::mem::take(&mut *self.refused.lock())
    }

    fn converse(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        let mut first = [0];
        client.read_exact(&mut first)?;
        match first[0] {
            5 => self.socks(client),
            4 => client.write_all(&[0, 91, 0, 0, 0, 0, 0, 0]), // SOCKS4 cannot name hosts: rejected
            byte => self.http(client, byte),
        }
    }

    /// Connects to `host`, if that is allowed.
    fn reach(&self, host: &str, port: u16) -> std::result::Result<TcpStream, Refusal> {
        let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        if !self.net.lets(host, port) {
            self.remember(&shown);
            return Err(Refusal::Rule(format!("{shown} is not on the list of --net")));
        }
        if let Some(via) = self.via {
            return reach_via(via, &shown);
        }
        let failed = |e: io::Error| Refusal::Failed(format!("cannot reach {shown}: {e}"));
        let mut last = None;
        for address in (host, port).to_socket_addrs().map_err(failed)? {
            if !leads_outside(host, address.ip()) {
                self.remember(&shown);
                let why = format!("{host} leads to {}, an address of this machine or its link", address.ip());
                last = Some(Refusal::Rule(format!("{why}; name the address itself in --net")));
                continue;
            }
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = Some(failed(e)),
            }
        }
        Err(last.unwrap_or_else(|| Refusal::Failed(format!("{host} has no address"))))
    }

    fn remember(&self, target: &str) {
        let mut refused = self.refused.lock();
        if refused.len() < REMEMBERED || refused.contains_key(target) {
            *refused.entry(target.to_owned()).or_default() += 1;
        }
    }

    fn http(&self, mut client: TcpStream, first: u8) -> io::Result<()> {
        let mut bytes = vec![first];
        let Some(end) = read_head(&mut client, &mut bytes)? else {
            return answer(&mut client, "431 Request Header Fields Too Large", "the request is too long");
        };
        let rest = bytes.split_off(end);
        let Some(request) = Request::parse(&bytes) else {
            let why = "this is a proxy: it takes CONNECT HOST:PORT, and GET http://HOST/ and the like";
            return answer(&mut client, "400 Bad Request", why);
        };
        let mut host = match self.reach(&request.host, request.port) {
            Ok(host) => host,
            Err(Refusal::Rule(why)) => return answer(&mut client, "403 Forbidden", &why),
            Err(Refusal::Failed(why)) => return answer(&mut client, "502 Bad Gateway", &why),
        };
        match request.head {
            Some(head) => host.write_all(&head)?,
            None => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?,
        }
        host.write_all(&rest)?;
        relay(client, host)
    }

    /// SOCKS5, RFC 1928: no authentication, CONNECT only.
    fn socks(&self, mut client: TcpStream) -> io::Result<()> {
        let methods = read_counted(&mut client)?;
        if !methods.contains(&0) {
            return client.write_all(&[5, 0xff]);
        }
        client.write_all(&[5, 0])?;
        let mut request = [0; 4];
        client.read_exact(&mut request)?;
        let reply = |code: u8| [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
        let host = match request[3] {
            1 => std::net::Ipv4Addr::from(read_array::<4>(&mut client)?).to_string(),
            3 => match String::from_utf8(read_counted(&mut client)?) {
                Ok(name) => name,
                Err(_) => return client.write_all(&reply(4)),
            },
            4 => std::net::Ipv6Addr::from(read_array::<16>(&mut client)?).to_string(),
            _ => return client.write_all(&reply(8)), // address type not supported
        };
        let port = u16::from_be_bytes(read_array::<2>(&mut client)?);
        if request[1] != 1 {
            return client.write_all(&reply(7)); // command not supported
        }
        match self.reach(&host, port) {
            Ok(stream) => {
                client.write_all(&reply(0))?;
                relay(client, stream)
            }
            Err(Refusal::Rule(_)) => client.write_all(&reply(2)), // not allowed by ruleset
            Err(Refusal::Failed(_)) => client.write_all(&reply(4)), // host unreachable
        }
    }
}

enum Refusal {
    /// By the list.
    Rule(String),
    /// It cannot be reached.
    Failed(String),
}

/// Asks the proxy that we ourselves are behind.
fn reach_via(via: SocketAddr, target: &str) -> std::result::Result<TcpStream, Refusal> {
    let failed = |e: io::Error| Refusal::Failed(format!("cannot reach the proxy around us: {e}"));
    let mut stream = TcpStream::connect_timeout(&via, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").map_err(failed)?;
    // By single bytes: what follows the head is not for us.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD {
        head.extend_from_slice(&read_array::<1>(&mut stream).map_err(failed)?);
    }
    if head.starts_with(b"HTTP/1.1 200") {
        return Ok(stream);
    }
    let mut why = String::new();
    match stream.read_to_string(&mut why) {
        Ok(_) if head.starts_with(b"HTTP/1.1 403") => {
            let why = why.trim();
            Err(Refusal::Rule(why.strip_prefix("sbx-fuse: ").unwrap_or(why).to_owned()))
        }
        _ => Err(Refusal::Failed(format!("the proxy around us does not reach {target}: {}", why.trim()))),
    }
}

/// A request to a proxy.
struct Request {
    host: String,
    port: u16,
    /// What the host is sent; nothing for CONNECT.
    head: Option<Vec<u8>>,
}

impl Request {
    fn parse(head: &[u8]) -> Option<Request> {
        let mut lines = head.split(|&b| b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l));
        let mut words = std::str::from_utf8(lines.next()?).ok()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !version.starts_with("HTTP/1.") {
            return None;
        }
        if method == "CONNECT" {
            let (host, port) = host_and_port(target)?;
            return Some(Request { host: host.to_owned(), port: port?, head: None });
        }
        let scheme = target.get(..7).filter(|s| s.eq_ignore_ascii_case("http://"))?;
        let rest = &target[scheme.len()..];
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let (host, port) =
            host_and_port(authority).filter(|(host, _)| !host.is_empty() && !host.contains('@'))?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        // One request a connection: the next might be for another host.
        let mut out =
            format!("{method} {slash}{path} {version}\r\nHost: {authority}\r\nConnection: close\r\n")
                .into_bytes();
        for line in lines.take_while(|l| !l.is_empty()) {
            let name = line.split(|&b| b == b':').next()?.trim_ascii();
            let ours = [b"host".as_slice(), b"connection", b"keep-alive", b"upgrade"];
            let is_ours = ours.iter().any(|n| name.eq_ignore_ascii_case(n));
            if !is_ours && !name.get(..6).is_some_and(|p| p.eq_ignore_ascii_case(b"proxy-")) {
                out.extend_from_slice(line);
                out.extend_from_slice(b"\r\n");
            }
        }
        out.extend_from_slice(b"\r\n");
        Some(Request { host: host.to_owned(), port: port.unwrap_or(80), head: Some(out) })
    }
}

/// Reads to the end of a head; where that is, unless it is too long.
fn read_head(client: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut piece = [0; 4096];
    loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if bytes.len() > HEAD {
            return Ok(None);
        }
        match client.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&piece[..n]),
        }
    }
}

fn answer(client: &mut TcpStream, status: &str, why: &str) -> io::Result<()> {
    let body = format!("sbx-fuse: {why}\n");
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    // What the client still sends is read away: closing with it unread would reset the connection and lose the answer.
    client.shutdown(Shutdown::Write)?;
    io::copy(&mut client.take(1 << 20), &mut io::sink()).map(drop)
}

/// Passes bytes on both ways until both ends are done.
fn relay(client: TcpStream, host: TcpStream) -> io::Result<()> {
    client.set_read_timeout(None)?;
    host.set_read_timeout(None)?;
    let (mut from_client, mut to_host) = (client.try_clone()?, host.try_clone()?);
    let up = std::thread::Builder::new().name("proxy".into()).spawn(move || {
        let done = io::copy(&mut from_client, &mut to_host);
        let ended = to_host.shutdown(Shutdown::Write);
        done.and(ended)
    })?;
    let (mut from_host, mut to_client) = (host, client);
    let down = io::copy(&mut from_host, &mut to_client);
    let ended = to_client.shutdown(Shutdown::Write);
    if down.is_err() {
        from_host.shutdown(Shutdown::Both)?;
    }
    let up = up.join().map_err(|_| io::Error::other("a thread panicked"))?;
    down.and(ended).and(up)
}

fn read_array<const N: usize>(from: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A byte that tells how many follow, and those.
fn read_counted(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(read_array::<1>(from)?[0])];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Inside the sandbox: makes the listening socket, sends it out through `out`, and returns the variables by which
/// programs find it. With `host_loopback` also what is on a loopback is asked of the proxy.
///
/// # Errors
/// When there is no loopback, or nobody takes the socket.
pub(super) fn open_door(
    out: OwnedFd,
    host_loopback: bool,
) -> std::result::Result<Vec<(OsString, OsString)>, Errno> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let at = listener.local_addr()?;
    socket::send_fd(out.as_fd(), listener.as_fd())?;
    let own = if host_loopback { "" } else { "localhost,127.0.0.1,::1" };
    let mut env: Vec<(OsString, OsString)> = vec![(VIA.into(), at.to_string().into())];
    for (name, value) in [
        ("http_proxy", format!("http://{at}")),
        ("https_proxy", format!("http://{at}")),
        ("all_proxy", format!("socks5h://{at}")),
        ("no_proxy", own.to_owned()),
    ] {
        env.push((name.to_ascii_uppercase().into(), (&value).into()));
        env.push((name.into(), value.into()));
    }
    Ok(env)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_apart_and_made_anew() {
        let parsed = |text: &str| Request::parse(text.as_bytes());
        let r = parsed("GET http://a.b:81/x?y HTTP/1.1\r\nHost: evil\r\nProxy-Auth: 1\r\nConnection: keep-alive\r\nA: b\r\n\r\n")
            .unwrap();
        assert_eq!((r.host.as_str(), r.port), ("a.b", 81));
        let head = String::from_utf8(r.head.unwrap()).unwrap();
        assert_eq!(head, "GET /x?y HTTP/1.1\r\nHost: a.b:81\r\nConnection: close\r\nA: b\r\n\r\n");
        let r = parsed("GET HTTP://a?q HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!((r.port, r.head.unwrap().starts_with(b"GET /?q HTTP/1.0\r\nHost: a\r\n")), (80, true));
        let r = parsed("CONNECT [::1]:443 HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((r.host.as_str(), r.port, r.head), ("::1", 443, None));
        for bad in [
            "GET / HTTP/1.1",
            "CONNECT a HTTP/1.1",
            "GET http://u@a/ HTTP/1.1",
            "GET http:/// HTTP/1.1",
            "x",
            "é",
        ] {
            assert!(parsed(&format!("{bad}\r\n\r\n")).is_none(), "{bad}");
        }
    }
}
