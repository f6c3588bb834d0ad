//! Subjects and names of claims about HTTP answers and containers, known to every build.
//!
//! A build without the feature of a kind refuses each subject of that kind.

use serde_json::Value;
use waypost::evidence::InvalidExpectation;

use crate::{check, fits};

/// Recorded kind of claims about HTTP answers.
pub const API_RESPONSE: &str = "api_response";
/// Recorded kind of claims about containers.
pub const CONTAINER_RUNNING: &str = "container_running";
/// Methods that a claim may use. Other methods are meant to change data, and a claim is checked many times.
pub const METHODS: [&str; 4] = ["GET", "HEAD", "OPTIONS", "POST"];
/// Accepted values of `engine`.
pub const ENGINES: [&str; 3] = ["auto", "docker", "podman"];

/// Possible statuses of an answer (RFC 9110, section 15).
const STATUSES: std::ops::RangeInclusive<u16> = 100..=599;
/// Longest name of a container. Engines accept longer names; in practice nothing needs them.
const NAME_CHARS_MAX: usize = 255;

/// Checks that `text` is a valid URL for an HTTP request.
///
/// # Errors
/// The reason as text, without a quotation of the URL. Every URL is an error without the feature `http`.
pub fn check_url(text: &str) -> Result<(), String> {
    is_private(text).map(drop)
}

/// Returns whether a URL has a private address or `localhost` as its host.
pub fn is_private_url(text: &str) -> bool {
    is_private(text) == Ok(true)
}

#[cfg(feature = "http")]
fn is_private(url: &str) -> Result<bool, String> {
    crate::network::url::Url::read(url).map(|url| url.host.is_private())
}

#[cfg(not(feature = "http"))]
fn is_private(_: &str) -> Result<bool, String> {
    Err(crate::left_out("http"))
}

/// Checks that each expectation matches at least one possible status.
///
/// # Errors
/// [`InvalidExpectation`] if no status fits.
pub fn check_status(expect: &Value) -> Result<(), InvalidExpectation> {
    check(expect)?;
    if let Value::Array(list) = expect {
        return list.iter().try_for_each(check_status);
    }
    let is_one = STATUSES.into_iter().any(|status| fits(expect, &status.into()) == Ok(true));
    if is_one { Ok(()) } else { Err(InvalidExpectation::new(format!("no HTTP status matches `{expect}`"))) }
}

/// Checks that `name` is a valid header name: a token of RFC 9110, section 5.6.2.
///
/// # Errors
/// The reason as text.
pub fn check_header(name: &str) -> Result<(), String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match !name.is_empty() && name.bytes().all(is_token) {
        true => Ok(()),
        false => Err(format!("`{name}` is not a header name")),
    }
}

/// Checks that `name` is a valid container name or id.
///
/// # Errors
/// The reason as text. Every name is an error without the feature `container`.
pub fn check_container(name: &str) -> Result<(), String> {
    if cfg!(not(feature = "container")) {
        return Err(crate::left_out("container"));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match begins && name.len() <= NAME_CHARS_MAX && name.bytes().all(is_plain) {
        true => Ok(()),
        false => Err("not a container name: use letters, digits, `_`, `.` and `-`".to_owned()),
    }
}
