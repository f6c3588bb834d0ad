//! `network_reachable`: a listener on a port.

use std::io::{self, ErrorKind};

use async_trait::async_trait;
use serde_json::json;
use tokio::net::TcpStream;
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
use waypost::record::Claim;

use crate::expectations::expected::Expected;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";
/// Recorded kind of claims about ports.
pub const NETWORK_REACHABLE: &str = "network_reachable";

/// Checks `network_reachable`: a process listens on port `8089` of this machine, at any address, or
/// `host:8089` accepts a TCP connection. `listening: false` expects no listener, or a refused connection. The
/// probe sends no data.
///
/// On Linux, the probe reads the kernel's socket tables. On other systems, only listeners at `127.0.0.1` and
/// `::1` are found.
#[derive(Debug, Clone, Copy, Default)]
pub struct PortProbe;

#[async_trait]
impl Probe for PortProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(NETWORK_REACHABLE, Cost::Waiting).local().live()
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        let expect = Expected::read(&claim.expect, "a port", &["listening"])?;
        let wanted = expect.flag("listening")?.unwrap_or(true);
        let listens = match address(&claim.subject).map_err(Finding::failed)? {
            (Some(host), port) => takes(host, port).await,
            (None, port) => listens_here(port).await,
        };
        // A failure of name resolution, routing or this machine does not show whether the port has a listener.
        let listens = listens.map_err(|error| Finding::unknown(format!("cannot connect: {error}")))?;
        Ok(Finding::compared(listens == wanted, json!({ "listening": listens })))
    }
}

/// Checks that `subject` is a port, or a host and a port.
///
/// # Errors
/// The reason as text.
pub fn check_port(subject: &str) -> Result<(), String> {
    address(subject).map(drop)
}

/// Parses a port, or a host and a port.
fn address(subject: &str) -> Result<(Option<&str>, u16), String> {
    let (host, port) = match subject.rsplit_once(':') {
        Some((host, port)) => (Some(host.trim_start_matches('[').trim_end_matches(']')), port),
        None => (None, subject),
    };
    if host.is_some_and(|host| host.contains(['/', '@', ' '])) {
        return Err(format!("`{subject}` is not a port: write `8089` or `host:8089`, or `http:` for a URL"));
    }
    match port.parse() {
        Ok(port) if port > 0 && host != Some("") => Ok((host, port)),
        _ => Err(format!("`{subject}` is not a port: write `8089` or `host:8089`")),
    }
}

/// Returns whether `host` accepts a connection.
async fn takes(host: &str, port: u16) -> io::Result<bool> {
    match TcpStream::connect((host, port)).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether a process listens on a port of this machine.
///
/// The socket tables cover all addresses but not firewall redirects, so a connection is tried as well.
async fn listens_here(port: u16) -> io::Result<bool> {
    let listed = tokio::task::spawn_blocking(move || is_listed(port)).await;
    if listed.is_ok_and(|listed| listed) {
        return Ok(true);
    }
    // The machine may lack IPv6.
    Ok(takes("127.0.0.1", port).await? || takes("::1", port).await.unwrap_or_default())
}

/// Returns whether the kernel lists a listener on `port`; `false` without socket tables (`proc_net(5)`).
fn is_listed(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().any(|list| {
        std::fs::read_to_string(list).is_ok_and(|list| list.lines().any(|line| is_listener(line, port)))
    })
}

/// Returns whether a table line is a listener on `port`: `0: 0100007F:1F90 00000000:0000 0A ...`.
fn is_listener(line: &str, port: u16) -> bool {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let own = columns.next().and_then(|address| address.rsplit_once(':'));
    let is_at = own.is_some_and(|(_, own)| u16::from_str_radix(own, 16) == Ok(port));
    is_at && columns.nth(1) == Some(LISTENING)
}
