//! The probe for recorded exit codes. Runs nothing: it compares recorded values.

use async_trait::async_trait;
use serde_json::Value;

use crate::record::Claim;

use super::{COMMAND_EXIT, Cost, Finding, Probe, Site};

/// Checks `command_exit`: the recorded exit code equals the expected code, or a code on the expected list.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExitProbe;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Probe for ExitProbe {
    fn kind(&self) -> &str {
        COMMAND_EXIT
    }

    fn cost(&self) -> Cost {
        Cost::Recorded
    }

    fn is_live(&self) -> bool {
        false
    }

    fn is_local(&self, _: &Claim) -> bool {
        false
    }

    fn glance(&self, _: &Claim, _: &Site) -> Option<Finding> {
        None
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Finding {
        let wanted = match codes(&claim.expect) {
            Ok(wanted) => wanted,
            Err(why) => return Finding::failed(why),
        };
        match site.exit_code() {
            Some(code) if wanted.contains(&i64::from(code)) => Finding::ok(code),
            Some(code) => Finding::differs(code),
            None => Finding::failed("no exit code was recorded"),
        }
    }

    async fn pin(&self, _: &Claim, _: &Site) -> Finding {
        Finding::failed("`exit` evidence needs an expected code, and cannot be pinned")
    }
}

/// Parses an expected code or a list of codes.
fn codes(expect: &Value) -> Result<Vec<i64>, String> {
    let code = |value: &Value| value.as_i64().ok_or_else(|| format!("`{value}` is not an exit code"));
    match expect {
        Value::Null => Err("the claim has no exit code".to_owned()),
        Value::Array(list) if list.is_empty() => Err("the claim has no exit code".to_owned()),
        Value::Array(list) => list.iter().map(code).collect(),
        one => Ok(vec![code(one)?]),
    }
}
