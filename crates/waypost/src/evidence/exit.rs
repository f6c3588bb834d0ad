//! The probe for recorded exit codes. Runs nothing: it compares recorded values.

use async_trait::async_trait;
use serde_json::Value;

use crate::record::Claim;

use super::{COMMAND_EXIT, Cost, Finding, InvalidExpectation, Probe, ProbeKind, Site};

/// Checks `command_exit`: the recorded exit code equals the expected code, or a code on the expected list.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExitProbe;

#[async_trait]
impl Probe for ExitProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(COMMAND_EXIT, Cost::Recorded)
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let wanted = codes(&claim.expect)?;
        let code = site.exit_code().ok_or_else(|| Finding::failed("no exit code was recorded"))?;
        Ok(Finding::compared(wanted.contains(&i64::from(code)), code))
    }
}

/// Parses an expected code or a list of codes.
fn codes(expect: &Value) -> Result<Vec<i64>, InvalidExpectation> {
    let code = |value: &Value| {
        value.as_i64().ok_or_else(|| InvalidExpectation::new(format!("`{value}` is not an exit code")))
    };
    match expect {
        Value::Null => Err(InvalidExpectation::new("the claim has no exit code")),
        Value::Array(list) if list.is_empty() => Err(InvalidExpectation::new("the claim has no exit code")),
        Value::Array(list) => list.iter().map(code).collect(),
        one => Ok(vec![code(one)?]),
    }
}
