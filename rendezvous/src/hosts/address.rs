//! Where rank 0 of a group on several hosts listens: `tcp://HOST:PORT`.

use super::HostsError;
use crate::launcher;
use deadline::Deadline;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::mpsc;

const TCP: &str = "tcp://";
const ENVIRONMENT: &str = "env://";
/// The longest host name.
const HOST_BYTES: usize = 253;

/// The address at which rank 0 of a group on several hosts listens while the ranks join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAddress {
    host: String,
    port: u16,
}

impl HostAddress {
    /// The address that a `rootinfo_path` names: `tcp://HOST:PORT`, or what the launcher's environment says for
    /// `env://`. `None` for the path of a file.
    pub fn of_path(path: &Path) -> Option<Result<Self, HostsError>> {
        let text = path.to_string_lossy();
        if text == ENVIRONMENT {
            return Some(launcher::address_from(launcher::variable));
        }
        text.starts_with(TCP).then(|| Self::parse(&text))
    }

    /// Reads `tcp://HOST:PORT`.
    pub fn parse(text: &str) -> Result<Self, HostsError> {
        let bad = |problem| HostsError::BadAddress { given: text.chars().take(300).collect(), problem };
        let rest = text.strip_prefix(TCP).ok_or(bad("does not start with tcp://"))?;
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or(bad("has no port after the bracket"))?,
            None => rest.rsplit_once(':').ok_or(bad("has no port"))?,
        };
        if host.contains(':') && !rest.starts_with('[') {
            return Err(bad("has a host that is neither a name nor an IP address in brackets"));
        }
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = digits.then(|| port.parse().ok()).flatten().filter(|port| *port != 0);
        let port = port.ok_or(bad("has a port that is not a number from 1 to 65535"))?;
        Self::new(host, port).map_err(bad)
    }

    /// A host's name or IP address, without brackets, and a port.
    pub(crate) fn new(host: &str, port: u16) -> Result<Self, &'static str> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let six = |c: char| c.is_ascii_alphanumeric() || ":.%-_".contains(c);
        if host.is_empty() || host.len() > HOST_BYTES {
            return Err("has no host, or one that is too long");
        }
        if host.contains(':') {
            // A scope is the name of an interface, or its number.
            let address = host.split('%').next().unwrap_or(host);
            if !host.chars().all(six) || address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("has a host that is neither a name nor an IP address");
            }
        } else if !host.chars().all(plain) {
            return Err("has a host that is neither a name nor an IP address");
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// Its IP addresses, at the latest at the deadline.
    pub(super) fn resolve(&self, deadline: Deadline) -> Result<Vec<SocketAddr>, HostsError> {
        let failed = |reason: String| HostsError::NotResolved { address: self.to_string(), reason };
        let found = match self.host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, self.port)],
            // The resolver has no deadline: it runs in a thread of its own, which is left behind if need be.
            Err(_) => {
                let (host, port) = (self.host.clone(), self.port);
                let (send, receive) = mpsc::channel();
                let lookup = move || {
                    let _ = send.send((host.as_str(), port).to_socket_addrs().map(Vec::from_iter));
                };
                std::thread::Builder::new().spawn(lookup).map_err(|error| failed(error.to_string()))?;
                match receive.recv_timeout(deadline.left()) {
                    Ok(found) => found.map_err(|error| failed(error.to_string()))?,
                    Err(_) => return Err(failed(format!("no answer within {:.1?}", deadline.limit()))),
                }
            }
        };
        if found.iter().any(|address| address.ip().is_unspecified() || address.ip().is_multicast()) {
            let problem = "is not the address of one host";
            return Err(HostsError::BadAddress { given: self.to_string(), problem });
        }
        if found.is_empty() {
            return Err(failed("it has no address".to_owned()));
        }
        Ok(found)
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "{TCP}[{host}]:{port}") } else { write!(f, "{TCP}{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn addresses_are_read_and_shown_as_they_were_written() {
        for text in
            ["tcp://node1:29500", "tcp://10.0.0.1:1", "tcp://[fd00::1]:65535", "tcp://[fe80::1%eth0]:80"]
        {
            assert_eq!(HostAddress::parse(text).unwrap().to_string(), text);
        }
        assert!(HostAddress::of_path(Path::new("/tmp/tcp://x")).is_none());
        assert!(HostAddress::of_path(Path::new("tcp:/x")).is_none());
    }

    #[test]
    fn f78_a_bad_address_is_refused_with_what_is_wrong_and_the_right_form() {
        for (text, word) in [
            ("tcp://", "port"),
            ("tcp://node", "port"),
            ("tcp://node:", "has a port that is not a number from 1 to 65535"),
            ("tcp://node:0", "1 to 65535"),
            ("tcp://node:65536", "1 to 65535"),
            ("tcp://node:+80", "1 to 65535"),
            ("tcp://node:80x", "1 to 65535"),
            ("tcp://:80", "has no host, or one that is too long"),
            ("tcp://fd00::1:80", "has a host that is neither a name nor an IP address in brackets; "),
            ("tcp://[fd00::1]80", "has no port after the bracket"),
            ("tcp://[zz::1]:80", "has a host that is neither a name nor an IP address; "),
            ("tcp://a b:80", "neither"),
            ("tcp://a/b:80", "neither"),
            ("http://a:80", "does not start with tcp://"),
        ] {
            let error = HostAddress::parse(text).unwrap_err().to_string();
            assert!(
                error.contains(word)
                    && error.contains(
                        "; write tcp://HOST:PORT, with an IPv6 address in brackets: tcp://[fd00::1]:29500"
                    ),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn f78_no_host_and_every_host_are_refused_when_they_are_resolved() {
        let soon = || Deadline::after(Duration::from_secs(20)).unwrap();
        let resolve = |text| HostAddress::parse(text).unwrap().resolve(soon());
        assert_eq!(resolve("tcp://127.0.0.1:80").unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        assert!(matches!(resolve("tcp://0.0.0.0:80"), Err(HostsError::BadAddress { .. })));
        assert!(matches!(resolve("tcp://[::]:80"), Err(HostsError::BadAddress { .. })));
        let error = resolve("tcp://no-such-host.invalid:80").unwrap_err();
        assert!(matches!(error, HostsError::NotResolved { .. }), "{error}");
        let end = "; check the name on this host, or give the IP address";
        assert!(
            error.to_string().starts_with("tcp://no-such-host.invalid:80: the host cannot be resolved ("),
            "{error}"
        );
        assert!(error.to_string().ends_with(end), "{error}");
    }
}
