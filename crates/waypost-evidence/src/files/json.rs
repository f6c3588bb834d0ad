//! `json_value`: a value in a JSON file.

use async_trait::async_trait;
use serde_json::Value;
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site, read_file};
use waypost::json_path::JsonPath;
use waypost::record::{Claim, Verdict};
use waypost::unique_keys::UniqueKeys;

use crate::expectations::expected::Expected;
use crate::expectations::observed::recorded;
use crate::fits;

/// Recorded kind of claims about a value in a JSON file.
pub const JSON_VALUE: &str = "json_value";
/// Largest JSON file; the parsed tree needs ten times its size.
pub(crate) const JSON_BYTES_MAX: usize = 16 << 20;

/// Checks `json_value`: the value at `path` in a file fits `value`.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonProbe;

#[async_trait]
impl Probe for JsonProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(JSON_VALUE, Cost::Reading).local()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let expect = Expected::read(&claim.expect, "a JSON file", &["path", "value"])?;
        let (Some(path), Some(wanted)) = (expect.get("path").and_then(Value::as_str), expect.get("value"))
        else {
            return Err(Finding::failed("the claim needs `path` and `value`"));
        };
        check_path(path).map_err(Finding::failed)?;
        let bytes = read_file(site, &claim.subject, JSON_BYTES_MAX).await.map_err(Finding::either_way)?;
        let value = read_json(&bytes, "it")?;
        let absent = || Finding::absent(format!("the file has no value at `{path}`"));
        let found = at(&value, path)?.ok_or_else(absent)?;
        let finding = Finding::compared(fits(wanted, &found)?, recorded(&found));
        let is_null = finding.verdict() == Verdict::Failed && found.is_null();
        Ok(if is_null { finding.because("the value is null") } else { finding })
    }
}

/// Prefixes of parser errors about limits of this parser rather than invalid JSON.
const LIMITS: [&str; 2] = ["recursion limit exceeded", "number out of range"];

/// Parses JSON and rejects duplicate keys, because parsers disagree on the winner. An error is a finding
/// about `what`.
pub(crate) fn read_json(bytes: &[u8], what: &str) -> Result<Value, Finding> {
    serde_json::from_slice(bytes).map(|UniqueKeys(value)| value).map_err(|error| {
        let why = error.to_string();
        match error.is_data() {
            true => Finding::failed(format!("{what} {why}")),
            false if LIMITS.iter().any(|limit| why.starts_with(limit)) => {
                Finding::unknown(format!("cannot read the JSON of {what}: {why}"))
            }
            false => Finding::failed(format!("{what} is not JSON: {why}")),
        }
    })
}

/// Returns the value at a path, if present.
pub(crate) fn at(value: &Value, path: &str) -> Result<Option<Value>, Finding> {
    Ok(path_of(path).map_err(Finding::failed)?.find(value).ok())
}

/// Checks that a path names one value.
///
/// # Errors
/// The reason as text.
pub fn check_path(path: &str) -> Result<(), String> {
    path_of(path).map(drop)
}

fn path_of(text: &str) -> Result<JsonPath, String> {
    let why = match JsonPath::parse(text) {
        Ok(path) if !path.is_list() => return Ok(path),
        Ok(_) => "a claim is about one value".to_owned(),
        Err(error) => error.message,
    };
    Err(format!("`{text}` is not a path, such as `$.meta.count` or `$.items[0].name`: {why}"))
}
