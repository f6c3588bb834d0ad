//! Packs: construction of claims, and their combined verdict.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::superseded::ClaimKey;
use crate::id::Digest;
use crate::record::{Claim, Occasion, Pack, Severity, Terms, Verdict};

use super::{ARTIFACT_EXISTS, COMMAND_EXIT, FILE_SHA256};

/// Most claims of a pack. Claims are kept in the header, with a limit of its own; a thousand fit with long
/// paths.
pub const CLAIMS_MAX: usize = 1_000;

/// Most claims that [`Pack::unmet`] lists; the pack has the rest.
pub const UNMET_MAX: usize = 5;
/// The shown digits of a digest: 48 bits tell the versions of a file apart.
const DIGEST_DIGITS_SHOWN: usize = 12;
/// Longest displayed expectation or finding, in characters: a line of a screen.
const VALUE_CHARS_MAX: usize = 120;

/// Why a pack is refused. Nothing was checked or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPack {
    /// The rule can never hold, or proves nothing.
    #[error("invalid `at_least` of {at_least} for {claims} claims: the range is 1 to {claims}")]
    AtLeast {
        /// How many claims must hold.
        at_least: u32,
        /// How many claims count.
        claims: usize,
    },
    /// The rule can never hold, as some claims are equal.
    #[error(
        "`at_least` of {at_least} of {claims} claims can never hold: {different} of them are different, \
         and duplicates count once"
    )]
    Same {
        /// How many claims must hold.
        at_least: u32,
        /// How many claims count.
        claims: usize,
        /// How many distinct claims count.
        different: usize,
    },
    /// The pack has no claims.
    #[error("a pack without claims never holds")]
    Empty,
    /// All claims only warn.
    #[error("a pack needs a claim without severity `warn`")]
    OnlyWarns,
    /// The pack has too many claims.
    #[error("a pack has {0} claims, the maximum is {CLAIMS_MAX}")]
    TooMany(usize),
}

/// The verdicts of a pack, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct VerdictSummary {
    /// All claims.
    pub total: usize,
    /// Claims that hold.
    pub ok: usize,
    /// Claims that do not hold.
    pub failed: usize,
    /// Claims that could not be checked.
    pub unknown: usize,
    /// Claims that were deliberately not checked.
    pub skipped: usize,
    /// Fraction of all claims that hold, 0 to 1; 0 without claims.
    pub rate: f64,
    /// Enough claims hold for the rule.
    pub satisfied: bool,
}

impl Pack {
    /// Creates a pack in which every claim must hold.
    pub fn all(claims: impl IntoIterator<Item = Claim>) -> Self {
        Self { at_least: None, claims: claims.into_iter().collect() }
    }

    /// Creates a pack in which at least one claim must hold.
    pub fn any(claims: impl IntoIterator<Item = Claim>) -> Self {
        Self { at_least: Some(1), ..Self::all(claims) }
    }

    /// Creates a pack in which at least `count` claims must hold.
    ///
    /// # Errors
    /// [`InvalidPack`]: `count` is 0, or exceeds the number of distinct claims.
    pub fn at_least(count: u32, claims: impl IntoIterator<Item = Claim>) -> Result<Self, InvalidPack> {
        let pack = Self { at_least: Some(count), ..Self::all(claims) };
        pack.check()?;
        Ok(pack)
    }

    /// Checks that the rule can hold: at least one claim counts, and enough claims are distinct.
    ///
    /// The rule is compared with all claims that count. On an occasion with fewer due claims, all due claims
    /// must hold ([`verdict_at`](Self::verdict_at)).
    ///
    /// # Errors
    /// [`InvalidPack`] has the reason.
    pub fn check(&self) -> Result<(), InvalidPack> {
        self.check_size()?;
        let counting: Vec<&Claim> = self.claims.iter().filter(|claim| claim.counts()).collect();
        let claims = counting.len();
        match self.at_least {
            Some(at_least) if !self.has_sound_rule() => Err(InvalidPack::AtLeast { at_least, claims }),
            _ if self.claims.is_empty() => Err(InvalidPack::Empty),
            _ if claims == 0 => Err(InvalidPack::OnlyWarns),
            Some(at_least) => match distinct(counting).len() {
                different if at_least as usize > different => {
                    Err(InvalidPack::Same { at_least, claims, different })
                }
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Checks that the number of claims is within the limit.
    pub(crate) fn check_size(&self) -> Result<(), InvalidPack> {
        match self.claims.len() {
            claims if claims > CLAIMS_MAX => Err(InvalidPack::TooMany(claims)),
            _ => Ok(()),
        }
    }

    /// Returns whether the rule asks for 1 up to all counting claims.
    fn has_sound_rule(&self) -> bool {
        let claims = self.claims.iter().filter(|claim| claim.counts()).count();
        self.at_least.is_none_or(|at_least| at_least > 0 && at_least as usize <= claims)
    }

    /// Returns the combined verdict: `ok` only if enough claims hold.
    ///
    /// Else `failed` if too few claims can hold; `unknown` if the result depends on claims that could not be
    /// checked; `skipped` if it depends only on skipped claims. Claims that only warn do not count. Without
    /// counting claims, or with an invalid rule, the verdict is `failed`.
    pub fn verdict(&self) -> Verdict {
        self.weighed(self.claims.iter().filter(|claim| claim.counts()).collect())
    }

    /// Returns the combined verdict of the claims due on an occasion; `skipped` if none is due.
    ///
    /// If the rule asks for more claims than are due, all due claims must hold. Example: `at_least: 2` and a
    /// single due claim: only this claim must hold.
    pub fn verdict_at(&self, occasion: Occasion) -> Verdict {
        let counting = || self.claims.iter().filter(|claim| claim.counts());
        let due: Vec<&Claim> = counting().filter(|claim| claim.is_due(occasion)).collect();
        if due.is_empty() && counting().next().is_some() {
            return Verdict::Skipped;
        }
        self.weighed(due)
    }

    fn weighed(&self, claims: Vec<&Claim>) -> Verdict {
        if claims.is_empty() || self.check_size().is_err() || !self.has_sound_rule() {
            return Verdict::Failed;
        }
        let needed = self.at_least.map_or(claims.len(), |least| claims.len().min(least as usize));
        let claims = if self.at_least.is_some() { distinct(claims) } else { claims };
        let count = |verdict: Verdict| claims.iter().filter(|claim| claim.verdict == verdict).count();
        let (ok, unknown, skipped) = (count(Verdict::Ok), count(Verdict::Unknown), count(Verdict::Skipped));
        if ok >= needed {
            Verdict::Ok
        } else if ok + unknown + skipped < needed {
            Verdict::Failed
        } else if unknown > 0 {
            Verdict::Unknown
        } else {
            Verdict::Skipped
        }
    }

    /// Returns a line for each counting claim that is not `ok`: expectation and finding, or why it could not
    /// be checked.
    ///
    /// Lists at most [`UNMET_MAX`] claims; a last line counts the others.
    pub fn unmet(&self) -> Vec<String> {
        let is_unmet = |claim: &&Claim| claim.counts() && claim.verdict != Verdict::Ok;
        let unmet: Vec<&Claim> = self.claims.iter().filter(is_unmet).collect();
        let mut lines: Vec<String> = unmet.iter().take(UNMET_MAX).map(|claim| claim.describe()).collect();
        if unmet.len() > UNMET_MAX {
            lines.push(format!("and {} more", unmet.len() - UNMET_MAX));
        }
        lines
    }

    /// Returns a line for each claim: expectation and finding.
    pub fn descriptions(&self) -> Vec<String> {
        self.claims.iter().map(Claim::describe).collect()
    }

    /// Counts the verdicts; `satisfied` follows [`verdict_at`](Self::verdict_at).
    pub fn summary_at(&self, occasion: Occasion) -> VerdictSummary {
        VerdictSummary { satisfied: self.verdict_at(occasion) == Verdict::Ok, ..self.summary() }
    }

    /// Counts the verdicts.
    pub fn summary(&self) -> VerdictSummary {
        let verdicts = self.claims.iter().map(|claim| claim.verdict);
        VerdictSummary::of(verdicts, self.verdict() == Verdict::Ok)
    }
}

impl VerdictSummary {
    /// Counts verdicts.
    pub fn of(verdicts: impl Iterator<Item = Verdict> + Clone, satisfied: bool) -> Self {
        let count = |verdict: Verdict| verdicts.clone().filter(|one| *one == verdict).count();
        let (total, ok) = (verdicts.clone().count(), count(Verdict::Ok));
        Self {
            total,
            ok,
            failed: count(Verdict::Failed),
            unknown: count(Verdict::Unknown),
            skipped: count(Verdict::Skipped),
            rate: if total == 0 { 0.0 } else { ok as f64 / total as f64 },
            satisfied,
        }
    }
}

impl Claim {
    /// Creates a claim of `kind` about `subject`; add the expectation by [`expecting`](Self::expecting) or
    /// [`pinning`](Self::pinning).
    pub fn new(kind: impl Into<String>, subject: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            subject: subject.into(),
            name: None,
            expect: Value::Null,
            pinned: false,
            live: false,
            host: None,
            file: None,
            stamp: None,
            terms: Terms::default(),
            verdict: Verdict::Skipped,
            found: Value::Null,
            error: None,
            checked_at: None,
        }
    }

    /// Creates a claim that a file or folder exists; `path` is relative to the base folder.
    pub fn exists(path: impl Into<String>) -> Self {
        Self::new(ARTIFACT_EXISTS, path)
    }

    /// Creates a claim that a regular file exists.
    pub fn file(path: impl Into<String>) -> Self {
        Self::exists(path).expecting(json!({ "type": "file" }))
    }

    /// Creates a claim that a file has this digest.
    pub fn sha256(path: impl Into<String>, digest: Digest) -> Self {
        Self::new(FILE_SHA256, path).expecting(digest.to_string())
    }

    /// Creates a claim that a file does not change after the commit: its digest is pinned at the commit.
    pub fn unchanged(path: impl Into<String>) -> Self {
        Self::new(FILE_SHA256, path).pinning()
    }

    /// Creates a claim that the step recorded this exit code. `command` is for display and is never run.
    pub fn exited(command: impl Into<String>, code: i32) -> Self {
        Self::new(COMMAND_EXIT, command).expecting(code)
    }

    /// Sets a display name.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Sets how and when the claim is checked, and its severity.
    #[must_use]
    pub fn on_terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Negates the claim. A pinned claim has no negation.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "it is the word of workflow files")]
    pub fn not(mut self) -> Self {
        self.terms.not = true;
        self
    }

    /// Makes the claim a warning: checked and reported, without an effect on the pack.
    #[must_use]
    pub fn warns(mut self) -> Self {
        self.terms.severity = Severity::Warn;
        self
    }

    /// Repeats the check until the claim holds, for up to `time`.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.terms.within_ms = Some(milliseconds(time));
        self
    }

    /// Sets the limit of one check, in place of the verifier's limit.
    #[must_use]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.terms.timeout_ms = Some(milliseconds(time));
        self
    }

    /// Sets the occasions of the check, in place of all occasions.
    #[must_use]
    pub fn at(mut self, occasions: impl IntoIterator<Item = Occasion>) -> Self {
        self.terms.at = occasions.into_iter().collect();
        self
    }

    /// Keeps expectation and finding out of all records; the claim is therefore checked only when its step
    /// ends.
    #[must_use]
    pub fn sensitive(mut self) -> Self {
        self.terms.sensitive = true;
        self
    }

    /// Returns whether the pack depends on the claim.
    pub fn counts(&self) -> bool {
        self.terms.severity == Severity::Fail
    }

    /// Returns whether the claim is checked on an occasion. A sensitive claim is not recorded, and so not
    /// checked later.
    pub fn is_due(&self, occasion: Occasion) -> bool {
        if self.terms.sensitive && occasion != Occasion::Commit {
            return false;
        }
        self.terms.at.is_empty() || self.terms.at.contains(&occasion)
    }

    /// Sets the expected value.
    #[must_use]
    pub fn expecting(self, expect: impl Into<Value>) -> Self {
        Self { expect: expect.into(), pinned: false, ..self }
    }

    /// Pins the claim: the expected value is measured when the step commits.
    #[must_use]
    pub fn pinning(self) -> Self {
        Self { expect: Value::Null, pinned: true, ..self }
    }

    /// Returns the title with verdict, expectation, finding and error, for display.
    pub fn describe(&self) -> String {
        let mut text = self.title();
        let state = match self.verdict {
            Verdict::Ok => ": it holds",
            Verdict::Failed => "",
            Verdict::Unknown => ": could not be checked",
            Verdict::Skipped => ": was not checked",
        };
        text.push_str(state);
        // A claim without expectations, such as `exec`, requires success.
        let is_empty =
            self.expect.is_null() || self.expect.as_object().is_some_and(serde_json::Map::is_empty);
        if !is_empty && self.verdict == Verdict::Failed {
            let expected = if self.terms.not { "expected anything but" } else { "expected" };
            text.push_str(&format!(": {expected} {}", clipped(&self.expect)));
        }
        if !self.found.is_null() {
            text.push_str(&format!(", found {}", clipped(&self.found)));
        }
        if let Some(why) = &self.error {
            text.push_str(&format!(": {why}"));
        }
        text
    }

    /// Returns the name of the claim, else its kind and subject.
    pub fn title(&self) -> String {
        let not = if self.terms.not { "not " } else { "" };
        self.name.clone().unwrap_or_else(|| format!("{not}{} {}", self.kind, self.subject))
    }
}

/// Converts to whole milliseconds, the recorded unit.
fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Removes duplicate claims: equal claims say the same of the same file, in any spelling.
fn distinct(claims: Vec<&Claim>) -> Vec<&Claim> {
    let mut seen = BTreeSet::new();
    let mut is_new = |claim: &Claim| {
        let is_path = claim.host.is_some() || matches!(&*claim.kind, ARTIFACT_EXISTS | FILE_SHA256);
        let subject = if is_path { ClaimKey::of(claim).name().to_owned() } else { claim.subject.clone() };
        let is_told = !claim.terms.sensitive || claim.checked_at.is_none();
        // A checked sensitive claim has no expectation left to compare; `check` compared it before.
        let is_new = seen.insert((claim.kind.clone(), subject, claim.expect.to_string(), claim.terms.not));
        is_new || !is_told
    };
    claims.into_iter().filter(|claim| is_new(claim)).collect()
}

/// Returns a value for display, without the outer braces of a map: `size: > 9, json: {$.a: 1}`.
pub fn shown_value(value: &Value) -> String {
    match value {
        Value::Object(members) => members_of(members),
        value => value.to_string(),
    }
}

fn members_of(members: &serde_json::Map<String, Value>) -> String {
    let inner = |value: &Value| match value {
        Value::Object(members) => format!("{{{}}}", members_of(members)),
        Value::String(text) if !text.is_empty() && !text.contains([',', '"', '{', '}', '\n']) => text.clone(),
        value => value.to_string(),
    };
    members.iter().map(|(key, value)| format!("{key}: {}", inner(value))).collect::<Vec<_>>().join(", ")
}

/// Returns a value for display, clipped; of a SHA-256 digest the first digits.
fn clipped(value: &Value) -> String {
    if let Some(digest) = value.as_str().filter(|text| text.parse::<Digest>().is_ok()) {
        return format!("{}…", &digest[..DIGEST_DIGITS_SHOWN]);
    }
    let text = shown_value(value);
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_counts_once_however_it_is_spelled() {
        let ok = |claim: Claim| Claim { verdict: Verdict::Ok, ..claim };
        let failed = || Claim { verdict: Verdict::Failed, ..Claim::exists("y") };
        let x = || ok(Claim::exists("x"));
        let link = Claim { file: Some("x".to_owned()), ..ok(Claim::exists("link")) };
        for other in [ok(Claim::exists(".//x")), link, x().named("other")] {
            let pack = Pack { at_least: Some(2), claims: vec![x(), other, failed()] };
            assert_eq!(pack.verdict(), Verdict::Failed, "{pack:?}");
        }
        let pack = Pack { at_least: Some(2), claims: vec![x(), ok(Claim::file("x")), failed()] };
        assert_eq!(pack.verdict(), Verdict::Ok, "what says more is another claim");
        assert_eq!(Pack::all([x(), x()]).verdict(), Verdict::Ok);
    }
}
