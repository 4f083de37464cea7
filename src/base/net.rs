//! What a command may reach in the network, when that is a few hosts only: the list, and its rules.

use std::net::IpAddr;
use std::str::FromStr;

/// The network of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Net {
    /// None.
    #[default]
    Off,
    /// The host's own.
    All,
    /// Through a proxy outside, what every one of these lists lets through.
    Only(Vec<Vec<Target>>),
}

impl Net {
    /// Whether a host and port may be reached through the proxy.
    pub fn lets(&self, host: &str, port: u16) -> bool {
        match self {
            Net::Only(lists) => lists.iter().all(|list| list.iter().any(|t| t.is(host, port))),
            Net::Off | Net::All => false,
        }
    }

    /// Whether a list names an address of the host itself, so that the sandbox's own cannot be meant.
    pub fn names_loopback(&self) -> bool {
        let loopback = |t: &Target| match &t.host {
            Host::Address(ip) => ip.to_canonical().is_loopback(),
            Host::Name(name) => is_localhost(name),
            Host::Beneath(_) => false,
        };
        matches!(self, Net::Only(lists) if lists.iter().flatten().any(loopback))
    }
}

/// `HOST[:PORT]`: a name, `*.NAME` for all beneath it, or an address; a port, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: Host,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    Beneath(String),
    Address(IpAddr),
}

impl Target {
    fn is(&self, host: &str, port: u16) -> bool {
        let host = plain(host);
        let address = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        let same = match (&self.host, address) {
            (Host::Address(ip), Some(asked)) => ip.to_canonical() == asked,
            (Host::Name(name), None) => *name == host,
            (Host::Beneath(name), None) => host.strip_suffix(name.as_str()).is_some_and(|h| h.ends_with('.')),
            _ => false,
        };
        same && self.port.is_none_or(|p| p == port)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let wrong = || format!("'{text}' is not HOST or HOST:PORT");
        let (host, port) = host_and_port(text).ok_or_else(wrong)?;
        let host = plain(host);
        let named = |name: &str| {
            let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            (!name.is_empty() && !name.starts_with('.') && name.bytes().all(fits)).then(|| name.to_owned())
        };
        let host = match (host.parse(), host.strip_prefix("*.")) {
            (Ok(ip), _) => Host::Address(ip),
            (_, Some(name)) => Host::Beneath(named(name).ok_or_else(wrong)?),
            _ => Host::Name(named(&host).ok_or_else(wrong)?),
        };
        Ok(Target { host, port })
    }
}

/// A host and, if there is one, a port; the address of IPv6 stands in brackets where a port follows.
pub fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let port = |p: &str| p.parse::<u16>().ok().filter(|p| *p > 0);
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return match after.strip_prefix(':') {
            Some(p) => Some((host, Some(port(p)?))),
            None => after.is_empty().then_some((host, None)),
        };
    }
    match text.rsplit_once(':') {
        Some((host, _)) if host.contains(':') => {
            text.parse::<std::net::Ipv6Addr>().ok().map(|_| (text, None))
        }
        Some((host, p)) => Some((host, Some(port(p)?))),
        None => Some((text, None)),
    }
}

fn plain(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether a connection may go to the address that `host` has: a name must not lead to the host itself or to the
/// services of its link, which only an address, or `localhost`, names.
pub fn leads_outside(host: &str, address: IpAddr) -> bool {
    let host = plain(host);
    if is_localhost(&host) || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || ip.is_multicast())
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(lists: &[&[&str]]) -> Net {
        Net::Only(lists.iter().map(|l| l.iter().map(|t| t.parse().unwrap()).collect()).collect())
    }

    #[test]
    fn a_list_lets_through_what_it_names() {
        let net = only(&[&["Crates.io", "*.example.org:443", "10.0.0.1:80", "[::1]:8080"]]);
        for (host, port) in [
            ("crates.io", 443),
            ("CRATES.IO.", 80),
            ("a.b.example.org", 443),
            ("10.0.0.1", 80),
            ("::ffff:10.0.0.1", 80),
            ("::1", 8080),
        ] {
            assert!(net.lets(host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("static.crates.io", 443),
            ("example.org", 443),
            ("evilexample.org", 443),
            ("a.example.org", 80),
            ("10.0.0.1", 81),
            ("127.0.0.1", 8080),
            ("0:0:0:0:0:0:0:2", 8080),
        ] {
            assert!(!net.lets(host, port), "{host}:{port}");
        }
        assert!(!Net::Off.lets("crates.io", 443));
    }

    #[test]
    fn every_list_must_agree() {
        let net = only(&[&["a", "b:1"], &["b"]]);
        assert!(net.lets("b", 1) && !net.lets("b", 2) && !net.lets("a", 1));
        assert!(only(&[&["localhost:1"]]).names_loopback() && !net.names_loopback());
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for bad in ["", ":80", "a:0", "a:x", "a:70000", "http://a", "a/b", "*.", "*", "[::1", "[a]:1", "a b"]
        {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_does_not_lead_to_the_host_itself() {
        let ip = |t: &str| t.parse::<IpAddr>().unwrap();
        for inner in ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1", "fe80::1"] {
            assert!(!leads_outside("example.org", ip(inner)), "{inner}");
        }
        assert!(leads_outside("localhost", ip("127.0.0.1")) && leads_outside("127.0.0.1", ip("127.0.0.1")));
        assert!(leads_outside("example.org", ip("10.1.2.3")));
    }
}
