//! `artifact_exists` with file content, modification time and path patterns.

use async_trait::async_trait;
use jiff::Timestamp;
use regex_lite::Regex;
use serde_json::{Map, Value, json};
use waypost::evidence::{
    ARTIFACT_EXISTS, Cost, ExistsProbe, Finding, Probe, ProbeKind, Site, find_all, find_names, is_pattern,
    modified, named_by, read_file,
};
use waypost::record::{Claim, Verdict};

use crate::check_count;
use crate::expectations::expected::{holds, invalid};
use crate::files::json::{JSON_BYTES_MAX, at, read_json};
use crate::fits;

/// Largest file whose content is checked. The file is read whole, and up to eight checks run at once.
const LOOKED_INTO_BYTES_MAX: usize = 64 << 20;
/// Most files of a pattern: ten times the files of a `foreach` with a thousand items.
const NAMED_MAX: usize = 10_000;
/// Expectations that `waypost`'s own probe checks.
const OUTER: [&str; 3] = ["type", "size", "mode"];
/// Expectations that need only metadata, not the content.
const OUTSIDE: [&str; 1] = ["newer_than"];

/// Checks `artifact_exists`: the expectations of `waypost`'s probe, and the keys `contains`, `matches`,
/// `lines`, `json`, `newer_than` and `absent`.
///
/// A [pattern](waypost::evidence::is_pattern) holds if every matching file meets the expectations and `count`
/// matches. Without `count`, at least one file must match. Under [`not`](waypost::record::Terms::not) without
/// `count`, the claim holds if none of the files meets the expectations.
///
/// - `failed`: an expectation differs, or the file is absent. The opposite fails too if the comparison lacks
///   an operand: the file itself (with expectations beyond the type), the file of `newer_than`, or valid
///   JSON.
/// - `unknown`: the file cannot be accessed or read, or its content exceeds 64 MiB (16 MiB for `json`).
#[derive(Debug, Clone, Copy, Default)]
pub struct FileProbe {
    outer: ExistsProbe,
}

#[async_trait]
impl Probe for FileProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(ARTIFACT_EXISTS, Cost::Reading).local()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        match is_pattern(&claim.subject) {
            true => self.check_all(claim, site).await,
            false => self.check_one(claim, site).await,
        }
    }
}

impl FileProbe {
    /// Checks every file of a pattern, and their `count`.
    async fn check_all(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let mut expect = match &claim.expect {
            Value::Null => Map::new(),
            Value::Object(map) => map.clone(),
            other => return Err(Finding::failed(format!("unsupported expectation `{other}` of files"))),
        };
        if let Some(absent) = expect.get("absent") {
            if *absent != Value::Bool(true) || expect.len() > 1 {
                return Err(Finding::failed("`absent` is `true`, and excludes other expectations"));
            }
            expect = [("count".to_owned(), json!(0))].into_iter().collect();
        }
        // `not` negates per file: "no log contains it", not "some log lacks it".
        let none_is_so = claim.terms.not && !expect.contains_key("count");
        let count = expect.shift_remove("count").unwrap_or_else(|| json!("> 0"));
        if count.is_null() {
            return Err(Finding::failed("`count` has no value"));
        }
        check_count(&count).map_err(|error| invalid("count", error))?;
        let paths = match expect.get("type").and_then(Value::as_str) {
            Some("symlink") => links(site, find_names(site, &claim.subject).await?).await,
            _ => find_all(site, &claim.subject).await?,
        };
        let found = json!({ "count": paths.len() });
        if !holds("count", &count, &json!(paths.len()))? {
            let finding = Finding::differs(found);
            let is_of_none = paths.is_empty() && expect.keys().any(|name| name != "type");
            return Ok(if is_of_none { finding.either_way() } else { finding });
        }
        if paths.is_empty() && !is_zero(&count) {
            return Err(Finding::failed("no file matches, and only `count: 0` allows that"));
        }
        if expect.is_empty() {
            return Ok(Finding::ok(found));
        }
        if paths.len() > NAMED_MAX {
            return Err(Finding::unknown(format!("the pattern matches more than {NAMED_MAX} files")));
        }
        for path in paths {
            let expect = Value::Object(expect.clone());
            let claim = Claim { subject: path.clone(), expect, ..claim.clone() };
            let one = self.check_one(&claim, site).await.unwrap_or_else(|finding| finding);
            let path = named_by(&path);
            let why = one.why().map_or_else(|| path.to_string(), |why| format!("{path}: {why}"));
            match one.verdict() {
                Verdict::Ok if none_is_so => return Ok(Finding::ok(json!({ "file": path }))),
                Verdict::Ok => {}
                Verdict::Failed if none_is_so && one.is_of_world() => {}
                _ => return Err(one.because(why)),
            }
        }
        Ok(Finding::compared(!none_is_so, found))
    }

    async fn check_one(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let Value::Object(expect) = &claim.expect else { return self.outer.check(claim, site).await };
        let (outer, inner): (Map<String, Value>, Map<String, Value>) =
            expect.clone().into_iter().partition(|(name, _)| OUTER.contains(&name.as_str()));
        let kind = outer.get("type").cloned();
        let expect = if outer.is_empty() { Value::Null } else { Value::Object(outer) };
        let outer = Claim { expect, ..claim.clone() };
        if let Some(absent) = inner.get("absent") {
            return match (absent, &claim.expect) {
                (Value::Bool(true), Value::Object(all)) if all.len() == 1 => {
                    self.outer.check(&outer, site).await.map(absence)
                }
                _ => Err(Finding::failed("`absent` is `true`, and excludes other expectations")),
            };
        }
        let found = self.outer.check(&outer, site).await?;
        if inner.is_empty() || found.verdict() == Verdict::Failed && is_of_kind(found.found(), kind.as_ref())
        {
            return Ok(found);
        }
        if found.verdict() != Verdict::Ok {
            return Ok(found.either_way());
        }
        let mut found = found.found().clone();
        if let Some(than) = inner.get("newer_than")
            && !newer(claim, than, site, &mut found).await.map_err(Finding::either_way)?
        {
            return Ok(Finding::differs(found));
        }
        let inner: Map<String, Value> =
            inner.into_iter().filter(|(name, _)| !OUTSIDE.contains(&name.as_str())).collect();
        if inner.is_empty() {
            return Ok(Finding::ok(found));
        }
        let bytes = read_file(site, &claim.subject, LOOKED_INTO_BYTES_MAX).await;
        looked_into(&inner, &bytes.map_err(Finding::either_way)?, found)
    }
}

/// Returns the paths that are symbolic links.
async fn links(site: &Site, paths: Vec<String>) -> Vec<String> {
    let mut links = Vec::new();
    for path in paths {
        let claim = Claim::new(ARTIFACT_EXISTS, path.clone()).expecting(json!({ "type": "symlink" }));
        // An inaccessible path stays in the list: the check of the path reports the error.
        let found = ExistsProbe.check(&claim, site).await.unwrap_or_else(|finding| finding);
        if found.verdict() != Verdict::Failed {
            links.push(path);
        }
    }
    links
}

/// Returns whether the found type is the expected type, so that another property must differ.
fn is_of_kind(found: &Value, wanted: Option<&Value>) -> bool {
    match wanted.and_then(Value::as_str).unwrap_or("any") {
        "any" => matches!(found["type"].as_str(), Some("file" | "directory")),
        wanted => found["type"] == wanted,
    }
}

/// Returns whether the file of a claim is at least as new as every file and time in `than`.
async fn newer(claim: &Claim, than: &Value, site: &Site, found: &mut Value) -> Result<bool, Finding> {
    let wrong = || {
        Finding::failed("`newer_than` is a path or a time, such as 2026-11-20T00:00:00Z, or a list of them")
    };
    let names: Vec<&str> = match than {
        Value::String(one) => vec![one],
        Value::Array(list) if !list.is_empty() => {
            list.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    let written = modified(site, &claim.subject).await?;
    found["modified"] = json!(written.to_string());
    for name in names {
        if name.is_empty() {
            return Err(wrong());
        }
        if is_pattern(name) {
            let why = format!("`newer_than`: `{name}` is a pattern, but a single file or time is required");
            return Err(Finding::failed(why));
        }
        let bound = match name.parse::<Timestamp>() {
            Ok(time) => time,
            Err(_) => modified(site, name).await.map_err(|finding| of_other(finding, name))?,
        };
        if written < bound {
            found["newer_than"] = json!({ name: bound.to_string() });
            return Ok(false);
        }
    }
    Ok(true)
}

/// Attributes a finding to the other file, `name`.
fn of_other(finding: Finding, name: &str) -> Finding {
    let why = finding.why().map(|why| format!("`{name}`: {why}")).unwrap_or_default();
    finding.either_way().because(why)
}

/// Returns whether a count expectation accepts only 0.
fn is_zero(count: &Value) -> bool {
    let holds = |number: u64| fits(count, &json!(number)).unwrap_or(true);
    !count.is_array() && !holds(1) && !holds(u64::MAX)
}

/// Inverts a finding of existence: a present file differs, an absent file is ok.
fn absence(finding: Finding) -> Finding {
    match finding.verdict() {
        Verdict::Ok => Finding::differs(finding.found().clone()),
        Verdict::Failed if finding.is_of_world() => Finding::ok(Value::Null),
        _ => finding,
    }
}

fn looked_into(expect: &Map<String, Value>, bytes: &[u8], mut found: Value) -> Result<Finding, Finding> {
    let text = String::from_utf8_lossy(bytes);
    let mut holds_all = true;
    for (name, wanted) in expect {
        let fit = match (name.as_str(), wanted) {
            ("contains", Value::String(part)) if !part.is_empty() => text.contains(part),
            ("contains", Value::Array(parts)) if !parts.is_empty() => {
                let has = |part: &Value| Some(text.contains(part.as_str().filter(|part| !part.is_empty())?));
                let all: Option<Vec<bool>> = parts.iter().map(has).collect();
                !all.ok_or_else(|| Finding::failed("`contains` is a list of texts"))?.contains(&false)
            }
            ("contains", _) => return Err(Finding::failed("`contains` has an empty text")),
            ("matches", Value::String(pattern)) if pattern.is_empty() => {
                return Err(Finding::failed("`matches` is empty"));
            }
            ("matches", Value::String(pattern)) => {
                let wrong = |error| format!("`matches` is not a regular expression: {error}");
                Regex::new(pattern).map_err(|error| Finding::failed(wrong(error)))?.is_match(&text)
            }
            ("json", Value::Object(values)) if !values.is_empty() => {
                let (fit, values) = json_fits(values, bytes)?;
                found["json"] = values.into();
                fit
            }
            ("json", _) => return Err(Finding::failed("`json` is a map of paths and values")),
            ("lines", wanted) => {
                let lines = json!(text.lines().count());
                check_count(wanted).map_err(|error| invalid("lines", error))?;
                let fit = holds("lines", wanted, &lines)?;
                found["lines"] = lines;
                fit
            }
            (other, _) => return Err(Finding::unknown(format!("unsupported expectation `{other}`"))),
        };
        if !fit && !matches!(name.as_str(), "lines" | "json") {
            found[name.as_str()] = Value::Bool(false);
        }
        holds_all &= fit;
    }
    Ok(Finding::compared(holds_all, found))
}

/// Returns whether the values at some JSON paths fit, with the values found.
fn json_fits(expect: &Map<String, Value>, bytes: &[u8]) -> Result<(bool, Map<String, Value>), Finding> {
    if bytes.len() > JSON_BYTES_MAX {
        let why = format!("the file exceeds {JSON_BYTES_MAX} bytes, the limit for JSON");
        return Err(Finding::unknown(why));
    }
    let value = read_json(bytes, "it")?;
    let (mut holds_all, mut found) = (true, Map::new());
    for (path, wanted) in expect {
        let at = at(&value, path)?;
        let fit = holds("json", wanted, at.as_ref().unwrap_or(&Value::Null))?;
        let Some(at) = at else {
            return Err(Finding::absent(format!("the file has no value at `{path}`")));
        };
        holds_all &= fit;
        found.insert(path.clone(), at);
    }
    Ok((holds_all, found))
}
