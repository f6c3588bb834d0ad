//! `artifact_exists` with what a file contains.

use async_trait::async_trait;
use regex_lite::Regex;
use serde_json::{Map, Value, json};
use waypost::evidence::{ARTIFACT_EXISTS, Cost, ExistsProbe, Finding, Probe, Site, read_file};
use waypost::record::{Claim, Verdict};

use crate::fits;

/// Largest file that is looked into: it is read whole, beside seven others.
const LOOKED_INTO_BYTES_MAX: usize = 64 << 20;
/// What the probe of `waypost` knows itself.
const OUTER: [&str; 2] = ["type", "size"];

/// Checks `artifact_exists`: what the probe of `waypost` does, and what the file `contains`, `matches`, how many `lines` it
/// has, and that it is `absent`.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileProbe {
    outer: ExistsProbe,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Probe for FileProbe {
    fn kind(&self) -> &str {
        ARTIFACT_EXISTS
    }

    fn cost(&self) -> Cost {
        Cost::Reading
    }

    fn is_live(&self) -> bool {
        false
    }

    fn is_local(&self, _: &Claim) -> bool {
        true
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Finding {
        let Value::Object(expect) = &claim.expect else { return self.outer.check(claim, site).await };
        let (outer, inner): (Map<String, Value>, Map<String, Value>) =
            expect.clone().into_iter().partition(|(name, _)| OUTER.contains(&name.as_str()));
        let bare = |outer: Map<String, Value>| {
            let expect = if outer.is_empty() { Value::Null } else { Value::Object(outer) };
            Claim { expect, ..claim.clone() }
        };
        if let Some(absent) = inner.get("absent") {
            return match (absent, expect.len()) {
                (Value::Bool(true), 1) => absence(self.outer.check(&bare(outer), site).await),
                _ => Finding::failed("`absent` is `true`, and stands alone"),
            };
        }
        let found = self.outer.check(&bare(outer), site).await;
        if found.verdict() != Verdict::Ok || inner.is_empty() {
            return found;
        }
        match read_file(site, &claim.subject, LOOKED_INTO_BYTES_MAX).await {
            Ok(bytes) => looked_into(&inner, &bytes, found.found().clone()),
            Err(finding) => finding,
        }
    }

    async fn pin(&self, claim: &Claim, site: &Site) -> Finding {
        self.outer.pin(claim, site).await
    }
}

/// Makes of what is there that it is not absent, and the other way round.
fn absence(finding: Finding) -> Finding {
    match finding.verdict() {
        Verdict::Ok => Finding::differs(finding.found().clone()),
        Verdict::Failed if finding.is_of_world() => Finding::ok(Value::Null),
        _ => finding,
    }
}

fn looked_into(expect: &Map<String, Value>, bytes: &[u8], mut found: Value) -> Finding {
    let text = String::from_utf8_lossy(bytes);
    let mut holds = true;
    for (name, wanted) in expect {
        let one = match (name.as_str(), wanted) {
            ("contains", Value::String(part)) if !part.is_empty() => Ok(text.contains(part)),
            ("contains", Value::Array(parts)) if !parts.is_empty() => {
                let has = |part: &Value| Some(text.contains(part.as_str().filter(|part| !part.is_empty())?));
                let all: Option<Vec<bool>> = parts.iter().map(has).collect();
                all.map(|all| !all.contains(&false)).ok_or_else(|| "`contains` is a list of texts".to_owned())
            }
            ("contains", _) => Err("`contains` says no text".to_owned()),
            ("matches", Value::String(pattern)) => {
                let regex = Regex::new(pattern)
                    .map_err(|error| format!("`matches` is no regular expression: {error}"));
                regex.map(|regex| regex.is_match(&text))
            }
            ("lines", wanted) => {
                let lines = json!(text.lines().count());
                let fit = fits(wanted, &lines).map_err(|error| format!("`lines`: {error}"));
                found["lines"] = lines;
                fit
            }
            (other, _) => {
                return Finding::unknown(format!("the expectation `{other}` cannot be checked here"));
            }
        };
        match one {
            Ok(one) => {
                if !one && name != "lines" {
                    found[name.as_str()] = Value::Bool(false);
                }
                holds &= one;
            }
            Err(why) => return Finding::failed(why),
        }
    }
    if holds { Finding::ok(found) } else { Finding::differs(found) }
}
