//! `artifact_exists` with file content, modification time and path patterns.

use async_trait::async_trait;
use jiff::Timestamp;
use regex_lite::Regex;
use serde_json::{Map, Value, json};
use waypost::evidence::{
    ARTIFACT_EXISTS, Cost, ExistsProbe, Finding, Probe, Site, find_all, find_names, is_pattern, modified,
    named_by, read_file,
};
use waypost::record::{Claim, Verdict};

use crate::check_count;
use crate::files::json::{JSON_BYTES_MAX, read_json, value_at};
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

    fn glance(&self, _: &Claim, _: &Site) -> Option<Finding> {
        None
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Finding {
        if is_pattern(&claim.subject) {
            return self.check_all(claim, site).await.unwrap_or_else(|finding| finding);
        }
        self.check_one(claim, site).await
    }

    async fn pin(&self, claim: &Claim, site: &Site) -> Finding {
        self.outer.pin(claim, site).await
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
        let wrong = |error| Finding::failed(format!("`count`: {error}"));
        check_count(&count).map_err(wrong)?;
        let paths = match expect.get("type").and_then(Value::as_str) {
            Some("symlink") => links(site, find_names(site, &claim.subject).await?).await,
            _ => find_all(site, &claim.subject).await?,
        };
        let found = json!({ "count": paths.len() });
        if !fits(&count, &json!(paths.len())).map_err(wrong)? {
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
            let one = self.check_one(&Claim { subject: path.clone(), expect, ..claim.clone() }, site).await;
            let path = named_by(&path);
            let why = one.why().map_or_else(|| path.to_string(), |why| format!("{path}: {why}"));
            match one.verdict() {
                Verdict::Ok if none_is_so => return Ok(Finding::ok(json!({ "file": path }))),
                Verdict::Ok => {}
                Verdict::Failed if none_is_so && one.is_of_world() => {}
                _ => return Err(one.because(why)),
            }
        }
        Ok(if none_is_so { Finding::differs(found) } else { Finding::ok(found) })
    }

    async fn check_one(&self, claim: &Claim, site: &Site) -> Finding {
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
                _ => Finding::failed("`absent` is `true`, and excludes other expectations"),
            };
        }
        let kind = outer.get("type").cloned();
        let found = self.outer.check(&bare(outer), site).await;
        if inner.is_empty() || found.verdict() == Verdict::Failed && is_of_kind(found.found(), kind.as_ref())
        {
            return found;
        }
        if found.verdict() != Verdict::Ok {
            return found.either_way();
        }
        let mut error_text = found.found().clone();
        if let Some(than) = inner.get("newer_than") {
            match newer(claim, than, site, &mut error_text).await {
                Ok(true) => {}
                Ok(false) => return Finding::differs(error_text),
                Err(finding) => return finding.either_way(),
            }
        }
        let inner: Map<String, Value> =
            inner.into_iter().filter(|(name, _)| !OUTSIDE.contains(&name.as_str())).collect();
        if inner.is_empty() {
            return Finding::ok(error_text);
        }
        match read_file(site, &claim.subject, LOOKED_INTO_BYTES_MAX).await {
            Ok(bytes) => looked_into(&inner, &bytes, error_text),
            Err(finding) => finding.either_way(),
        }
    }
}

/// Returns the paths that are symbolic links.
async fn links(site: &Site, paths: Vec<String>) -> Vec<String> {
    let mut links = Vec::new();
    for path in paths {
        let claim = Claim::new(ARTIFACT_EXISTS, path.clone()).expecting(json!({ "type": "symlink" }));
        // An inaccessible path stays in the list: the check of the path reports the error.
        let found = ExistsProbe.check(&claim, site).await;
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
            ("contains", _) => Err("`contains` has an empty text".to_owned()),
            ("matches", Value::String(pattern)) if pattern.is_empty() => Err("`matches` is empty".to_owned()),
            ("matches", Value::String(pattern)) => {
                let regex = Regex::new(pattern)
                    .map_err(|error| format!("`matches` is not a regular expression: {error}"));
                regex.map(|regex| regex.is_match(&text))
            }
            ("json", Value::Object(values)) if !values.is_empty() => match json_fits(values, bytes) {
                Ok((fit, values)) => {
                    found["json"] = values.into();
                    Ok(fit)
                }
                Err(finding) => return finding,
            },
            ("json", _) => Err("`json` is a map of paths and values".to_owned()),
            ("lines", wanted) => {
                let lines = json!(text.lines().count());
                let fit = check_count(wanted)
                    .and_then(|()| fits(wanted, &lines))
                    .map_err(|error| format!("`lines`: {error}"));
                found["lines"] = lines;
                fit
            }
            (other, _) => {
                return Finding::unknown(format!("unsupported expectation `{other}`"));
            }
        };
        match one {
            Ok(one) => {
                if !one && !matches!(name.as_str(), "lines" | "json") {
                    found[name.as_str()] = Value::Bool(false);
                }
                holds &= one;
            }
            Err(why) => return Finding::failed(why),
        }
    }
    if holds { Finding::ok(found) } else { Finding::differs(found) }
}

/// Returns whether the values at some JSON paths fit, with the values found.
fn json_fits(expect: &Map<String, Value>, bytes: &[u8]) -> Result<(bool, Map<String, Value>), Finding> {
    if bytes.len() > JSON_BYTES_MAX {
        let why = format!("the file exceeds {JSON_BYTES_MAX} bytes, the limit for JSON");
        return Err(Finding::unknown(why));
    }
    let value = read_json(bytes, "it")?;
    let (mut holds, mut found) = (true, Map::new());
    for (path, wanted) in expect {
        let at = value_at(&value, path).map_err(Finding::failed)?;
        let fit = fits(wanted, at.unwrap_or(&Value::Null));
        let fit = fit.map_err(|error| Finding::failed(format!("`json`: {error}")))?;
        let Some(at) = at else {
            return Err(Finding::absent(format!("the file has no value at `{path}`")));
        };
        holds &= fit;
        found.insert(path.clone(), at.clone());
    }
    Ok((holds, found))
}
