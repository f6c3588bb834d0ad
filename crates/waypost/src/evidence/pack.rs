//! Packs: how claims are made, and what their verdicts come to together.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::id::Digest;
use crate::plan::Bound;
use crate::record::{Claim, Occasion, Pack, Severity, Terms, Verdict};

use super::{ARTIFACT_EXISTS, COMMAND_EXIT, FILE_SHA256};

/// Most claims of one pack: they are kept in the header, which has its own limit; a thousand fit with long paths.
pub const CLAIMS_MAX: usize = 1_000;

/// Most claims that [`Pack::unmet`] tells one by one: a person reads these, and finds the rest in the pack.
pub const UNMET_MAX: usize = 5;
/// Longest expectation or finding shown, in characters: a digest, and a short list.
const VALUE_CHARS_MAX: usize = 120;

/// Why a pack is not taken. Nothing was checked or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPack {
    /// Its rule can never hold, or holds for nothing.
    #[error("at least {at_least} of {claims} claims cannot be asked for: it must be 1 to {claims}")]
    AtLeast {
        /// How many must hold.
        at_least: u32,
        /// How many there are.
        claims: usize,
    },
    /// Its rule can never hold, as claims in it are the same.
    #[error(
        "at least {at_least} of {claims} claims can never hold: {different} of them say something different, and what stands twice counts once"
    )]
    Same {
        /// How many must hold.
        at_least: u32,
        /// How many there are.
        claims: usize,
        /// How many say something that no other does.
        different: usize,
    },
    /// It has no claims.
    #[error("a pack without claims shows nothing, and never holds")]
    Empty,
    /// None of its claims counts.
    #[error("a pack of claims that only warn shows nothing, and never holds: one of them must count")]
    OnlyWarns,
    /// It is too large.
    #[error("a pack has {0} claims, {CLAIMS_MAX} are allowed")]
    TooMany(usize),
}

/// What a pack came to, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Claims in all.
    pub total: usize,
    /// Those that hold.
    pub ok: usize,
    /// Those that do not.
    pub failed: usize,
    /// Those that could not be checked.
    pub unknown: usize,
    /// Those that were not checked on purpose.
    pub skipped: usize,
    /// Part of all claims that holds, 0 to 1; 0 without claims.
    pub rate: f64,
    /// As many hold as the rule asks.
    pub satisfied: bool,
}

impl Pack {
    /// Makes a pack of which every claim must hold.
    pub fn all(claims: impl IntoIterator<Item = Claim>) -> Self {
        Self { at_least: None, claims: claims.into_iter().collect() }
    }

    /// Makes a pack of which one claim must hold.
    pub fn any(claims: impl IntoIterator<Item = Claim>) -> Self {
        Self { at_least: Some(1), ..Self::all(claims) }
    }

    /// Makes a pack of which so many claims must hold.
    ///
    /// # Errors
    /// [`InvalidPack`] if that is none of them, or more than there are that say something different.
    pub fn at_least(count: u32, claims: impl IntoIterator<Item = Claim>) -> Result<Self, InvalidPack> {
        let pack = Self { at_least: Some(count), ..Self::all(claims) };
        pack.check()?;
        Ok(pack)
    }

    /// Sees that it can hold: there are claims, one at least counts, and so many as the rule asks for say something
    /// different.
    ///
    /// The number is compared with all claims that count. On an occasion on which fewer of them are due, all that are due must
    /// hold ([`verdict_at`](Self::verdict_at)).
    ///
    /// # Errors
    /// [`InvalidPack`] says what is wrong.
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

    /// Sees that it has no more claims than can be kept.
    pub(crate) fn check_size(&self) -> Result<(), InvalidPack> {
        match self.claims.len() {
            claims if claims > CLAIMS_MAX => Err(InvalidPack::TooMany(claims)),
            _ => Ok(()),
        }
    }

    /// Says whether the rule asks for one claim at least, and for no more than there are that count.
    fn has_sound_rule(&self) -> bool {
        let claims = self.claims.iter().filter(|claim| claim.counts()).count();
        self.at_least.is_none_or(|at_least| at_least > 0 && at_least as usize <= claims)
    }

    /// Returns what the verdicts of the claims come to: `ok` only if enough of them hold.
    ///
    /// Otherwise `failed` if enough cannot hold any more, `unknown` if that depends on what could not be checked, and
    /// `skipped` if it depends only on what was left out on purpose. Claims that only warn do not count. Without others,
    /// or with a rule that makes no sense, it is `failed`.
    pub fn verdict(&self) -> Verdict {
        self.weighed(self.claims.iter().filter(|claim| claim.counts()).collect())
    }

    /// Returns what they come to on an occasion: those that are checked on others do not count. `skipped` if all are.
    ///
    /// Where so many must hold and fewer are due, all that are due must: `at_least: 2` of one that is checked as the step ends
    /// and one that is not asks for the first alone then.
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

    /// Says of each claim that is not `ok` what was expected and what was found, or why it could not be checked.
    ///
    /// At most [`UNMET_MAX`] are told one by one; a last line counts the others.
    pub fn unmet(&self) -> Vec<String> {
        let is_unmet = |claim: &&Claim| claim.counts() && claim.verdict != Verdict::Ok;
        let unmet: Vec<&Claim> = self.claims.iter().filter(is_unmet).collect();
        let mut lines: Vec<String> = unmet.iter().take(UNMET_MAX).map(|claim| claim.told()).collect();
        if unmet.len() > UNMET_MAX {
            lines.push(format!("and {} more", unmet.len() - UNMET_MAX));
        }
        lines
    }

    /// Says of each claim what was expected and what was found, one line each.
    pub fn told(&self) -> Vec<String> {
        self.claims.iter().map(Claim::told).collect()
    }

    /// Counts the verdicts; it is satisfied as [`verdict_at`](Self::verdict_at) says.
    pub fn summary_at(&self, occasion: Occasion) -> Summary {
        Summary { satisfied: self.verdict_at(occasion) == Verdict::Ok, ..self.summary() }
    }

    /// Counts the verdicts.
    pub fn summary(&self) -> Summary {
        let count = |verdict: Verdict| self.claims.iter().filter(|claim| claim.verdict == verdict).count();
        let (total, ok) = (self.claims.len(), count(Verdict::Ok));
        Summary {
            total,
            ok,
            failed: count(Verdict::Failed),
            unknown: count(Verdict::Unknown),
            skipped: count(Verdict::Skipped),
            rate: if total == 0 { 0.0 } else { ok as f64 / total as f64 },
            satisfied: self.verdict() == Verdict::Ok,
        }
    }
}

impl Claim {
    /// Claims something of `kind` about `subject`; what is expected follows by [`expecting`](Self::expecting) or
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

    /// Claims that a file or folder is there; `path` is relative to the base folder.
    pub fn exists(path: impl Into<String>) -> Self {
        Self::new(ARTIFACT_EXISTS, path)
    }

    /// Claims that a regular file is there.
    pub fn file(path: impl Into<String>) -> Self {
        Self::exists(path).expecting(json!({ "type": "file" }))
    }

    /// Claims that a file has this digest.
    pub fn sha256(path: impl Into<String>, digest: Digest) -> Self {
        Self::new(FILE_SHA256, path).expecting(digest.to_string())
    }

    /// Claims that a file stays as it is when the step commits: its digest is taken then.
    pub fn unchanged(path: impl Into<String>) -> Self {
        Self::new(FILE_SHA256, path).pinning()
    }

    /// Claims that the step recorded this exit code. `command` is for people and is never run.
    pub fn exited(command: impl Into<String>, code: i32) -> Self {
        Self::new(COMMAND_EXIT, command).expecting(code)
    }

    /// Gives the claim a name for people.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Says how and when it is checked, and what it counts for.
    #[must_use]
    pub fn on_terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Holds where the other does not. What is pinned has no opposite.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "it is the word of workflow files")]
    pub fn not(mut self) -> Self {
        self.terms.not = true;
        self
    }

    /// Only warns: it is checked and told, and its pack does not depend on it.
    #[must_use]
    pub fn warns(mut self) -> Self {
        self.terms.severity = Severity::Warn;
        self
    }

    /// Is looked at again, for so long, until it holds.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.terms.within_ms = Some(milliseconds(time));
        self
    }

    /// Says how long one check may take, where the verifier's own limit does not fit.
    #[must_use]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.terms.timeout_ms = Some(milliseconds(time));
        self
    }

    /// Says when it is checked, in place of always.
    #[must_use]
    pub fn at(mut self, occasions: impl IntoIterator<Item = Occasion>) -> Self {
        self.terms.at = occasions.into_iter().collect();
        self
    }

    /// Says that what is expected and found is written down nowhere; so it is checked only when its step ends.
    #[must_use]
    pub fn sensitive(mut self) -> Self {
        self.terms.sensitive = true;
        self
    }

    /// Says whether its pack depends on it.
    pub fn counts(&self) -> bool {
        self.terms.severity == Severity::Fail
    }

    /// Says whether it is checked on an occasion. What is sensitive is not kept, and so not checked later.
    pub fn is_due(&self, occasion: Occasion) -> bool {
        if self.terms.sensitive && occasion != Occasion::Commit {
            return false;
        }
        self.terms.at.is_empty() || self.terms.at.contains(&occasion)
    }

    /// Says what must be found.
    #[must_use]
    pub fn expecting(self, expect: impl Into<Value>) -> Self {
        Self { expect: expect.into(), pinned: false, ..self }
    }

    /// Takes what must be found from the world when the step commits.
    #[must_use]
    pub fn pinning(self) -> Self {
        Self { expect: Value::Null, pinned: true, ..self }
    }

    /// Says what was expected and found, for people.
    pub(crate) fn told(&self) -> String {
        let mut text = self.title();
        let state = match self.verdict {
            Verdict::Ok => ": it holds",
            Verdict::Failed => "",
            Verdict::Unknown => ": it could not be checked",
            Verdict::Skipped => ": it was not checked",
        };
        text.push_str(state);
        if !self.expect.is_null() {
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

    /// Returns the name given to it, else its kind and subject.
    pub fn title(&self) -> String {
        let not = if self.terms.not { "not " } else { "" };
        self.name.clone().unwrap_or_else(|| format!("{not}{} {}", self.kind, self.subject))
    }
}

/// Whole milliseconds, as they are recorded.
fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Returns the claims of which no two say the same of the same file: one that stands twice counts once, however it is spelled.
fn distinct(claims: Vec<&Claim>) -> Vec<&Claim> {
    let mut seen = BTreeSet::new();
    let mut is_new = |claim: &Claim| {
        let is_path = claim.host.is_some() || matches!(&*claim.kind, ARTIFACT_EXISTS | FILE_SHA256);
        let subject = if is_path { Bound::of(claim).name().to_owned() } else { claim.subject.clone() };
        let is_told = !claim.terms.sensitive || claim.checked_at.is_none();
        // What was expected of something sensitive is not known once it was checked: `check` has seen to it before.
        let is_new = seen.insert((claim.kind.clone(), subject, claim.expect.to_string(), claim.terms.not));
        is_new || !is_told
    };
    claims.into_iter().filter(|claim| is_new(claim)).collect()
}

/// Shows a value as JSON, and no more of it than a person reads.
fn clipped(value: &Value) -> String {
    let text = value.to_string();
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
