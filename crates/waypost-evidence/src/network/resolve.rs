//! Resolves hosts and connects to them, after a check of the addresses.
//!
//! A name is resolved only once: the checked addresses are the addresses that get connected.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use waypost::evidence::Finding;

use crate::network::host::Host;

/// Connect timeout per address. A live machine answers within a second. Without a timeout, a silent address
/// would use up the time of the check before the next address.
const CALL: Duration = Duration::from_secs(3);

/// Returns whether an address is public: not loopback, private, link-local or reserved.
///
/// # Source
/// The IANA registries of special-purpose addresses for IPv4 and IPv6.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = matches!(
        (a, b, c),
        (0 | 10 | 127 | 224.., _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, third, fourth, fifth, sixth, seventh, eighth] = address.segments();
    let within = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match first {
        // An embedded IPv4 address, mapped or translated (NAT64), decides.
        0 if (second, third, fourth, fifth, sixth) == (0, 0, 0, 0, 0xffff) => within(seventh, eighth),
        0x64 if (second, third, fourth, fifth, sixth) == (0xff9b, 0, 0, 0, 0) => within(seventh, eighth),
        // 6to4.
        0x2002 => within(second, third),
        0x2001 => second >= 0x200 && second != 0xdb8,
        0x3fff => second >= 0x1000,
        0x2000..=0x3ffe => true,
        _ => false,
    }
}

impl Host {
    /// Returns whether the host is a literal private address or `localhost`.
    pub(crate) fn is_private(&self) -> bool {
        match self {
            Self::Address(address) => !is_public(*address),
            Self::Localhost => true,
            Self::Name(_) => false,
        }
    }

    /// Resolves the host. A name that resolves to a private address is an error unless `may_be_private`.
    async fn addresses(&self, may_be_private: bool) -> Result<Vec<IpAddr>, Finding> {
        let name = match self {
            Self::Address(address) => return Ok(vec![*address]),
            Self::Localhost => return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
            Self::Name(name) => name,
        };
        let found = tokio::net::lookup_host((name.as_str(), 0)).await;
        let found = found.map_err(|error| unreachable(&format!("`{name}` has no address"), &error))?;
        let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        match found.iter().find(|address| !is_public(**address)) {
            Some(private) if !may_be_private => Err(Finding::unknown(format!(
                "`{name}` resolves to the private address {private}: to allow private addresses, add \
                 `private: true`"
            ))),
            _ => Ok(found),
        }
    }

    /// Connects to the first address that accepts, in resolver order.
    pub(crate) async fn connect(&self, port: u16, may_be_private: bool) -> Result<TcpStream, Finding> {
        let mut last = Finding::unknown("the host has no address");
        for address in self.addresses(may_be_private).await? {
            let address = SocketAddr::new(address, port);
            let what = format!("cannot connect to {address}");
            last = match tokio::time::timeout(CALL, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => unreachable(&what, &error),
                Err(_) => Finding::unknown_yet(format!("{what}: no response within {CALL:?}")),
            };
        }
        Err(last)
    }
}

fn unreachable(what: &str, error: &io::Error) -> Finding {
    Finding::unknown_yet(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{Host, is_public};

    #[test]
    fn addresses_that_are_not_of_the_internet_are_known() {
        for public in
            ["1.1.1.1", "172.32.0.1", "192.0.1.1", "100.128.0.1", "2606:4700::1111", "2002:101:101::1"]
        {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "3fff:1::",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }

    #[test]
    fn what_names_this_machine_is_known() {
        for here in ["localhost", "LOCALHOST.", "api.localhost", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]"] {
            assert!(Host::read(here).is_here() && Host::read(here).is_private(), "{here}");
        }
        // Spellings that only a resolver understands are names; the resolved addresses get checked.
        for name in ["localhost.example", "0x7f.1", "2130706433", "127.1"] {
            assert!(matches!(Host::read(name), Host::Name(_)), "{name}");
        }
        assert!(Host::read("10.0.0.1").is_private() && !Host::read("10.0.0.1").is_here());
    }
}
