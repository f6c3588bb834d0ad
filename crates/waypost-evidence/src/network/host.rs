//! Hosts of URLs and connections.

use std::net::IpAddr;

/// The host part of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    /// A literal address.
    Address(IpAddr),
    /// This machine.
    Localhost,
    /// A name to resolve.
    Name(String),
}

impl Host {
    pub(crate) fn read(text: &str) -> Self {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse() {
            return Self::Address(address);
        }
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        if name == "localhost" || name.ends_with(".localhost") { Self::Localhost } else { Self::Name(name) }
    }

    /// Returns whether the host is this machine.
    pub(crate) fn is_here(&self) -> bool {
        match self {
            Self::Address(address) => address.to_canonical().is_loopback(),
            Self::Localhost => true,
            Self::Name(_) => false,
        }
    }
}
