//! `network_reachable`: something listens at a port.

use std::io::ErrorKind;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use waypost::evidence::{Cost, Finding, Probe, Site};
use waypost::record::Claim;

/// Recorded kind of claims about ports.
pub const NETWORK_REACHABLE: &str = "network_reachable";

/// Checks `network_reachable`: a TCP connection to `8089`, on this machine, or `host:8089` is taken; with
/// `listening: false`, it is refused. Nothing is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct PortProbe;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Probe for PortProbe {
    fn kind(&self) -> &str {
        NETWORK_REACHABLE
    }

    fn cost(&self) -> Cost {
        Cost::Waiting
    }

    fn is_live(&self) -> bool {
        true
    }

    fn is_local(&self, _: &Claim) -> bool {
        true
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Finding {
        let wanted = match &claim.expect {
            Value::Null => true,
            Value::Object(map) if map.len() == 1 => match map.get("listening") {
                Some(Value::Bool(wanted)) => *wanted,
                _ => return Finding::failed("`listening` is `true` or `false`"),
            },
            other => return Finding::failed(format!("`{other}` is no expectation of a port")),
        };
        let (host, port) = match address(&claim.subject) {
            Ok(address) => address,
            Err(why) => return Finding::failed(why),
        };
        let listens = match TcpStream::connect((host, port)).await {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
            // The name, the way there, or this machine: it says nothing of who listens.
            Err(error) => return Finding::unknown(format!("cannot ask for it: {error}")),
        };
        let found = json!({ "listening": listens });
        if listens == wanted { Finding::ok(found) } else { Finding::differs(found) }
    }

    async fn pin(&self, _: &Claim, _: &Site) -> Finding {
        Finding::failed("that something listens is expected, not pinned")
    }
}

/// Sees that something is a port, or a host and a port.
///
/// # Errors
/// Why it is none.
pub fn check_port(subject: &str) -> Result<(), String> {
    address(subject).map(drop)
}

/// Reads a port, or a host and a port.
fn address(subject: &str) -> Result<(&str, u16), String> {
    let (host, port) = subject.rsplit_once(':').unwrap_or(("127.0.0.1", subject));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match port.parse() {
        Ok(port) if port > 0 && !host.is_empty() => Ok((host, port)),
        _ => Err(format!("`{subject}` is no port: write `8089` or `host:8089`")),
    }
}
