//! What happened in a run, counted from its headers and from nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::record::{Phase, Record, Verdict};

/// Kinds of evidence that are counted apart; further ones are counted together, under the empty name.
const KINDS_MAX: usize = 100;

/// A run in numbers. What a rollback undid counts: it happened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Checkpoints in all: starts, ends, checks, rollbacks.
    pub checkpoints: u64,
    /// Damaged ones, of which nothing else is known.
    pub damaged: u64,
    /// Tries that were begun.
    pub begun: u64,
    /// Tries that completed.
    pub completed: u64,
    /// Tries that failed, by evidence or by themselves.
    pub failed: u64,
    /// Rollbacks.
    pub restored: u64,
    /// Checks of evidence, at commit and later, by what they came to.
    pub checks: Checks,
    /// Claims that did not hold, by their kind.
    pub failures: BTreeMap<String, u64>,
    /// Bytes of positions and states as they were written.
    pub bytes: u64,
    /// The largest of them.
    pub bytes_max: u64,
    /// When the first checkpoint was made.
    pub first_at: Option<Timestamp>,
    /// When the newest was made.
    pub last_at: Option<Timestamp>,
}

/// Checks of packs by verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checks {
    /// They held.
    pub ok: u64,
    /// They did not.
    pub failed: u64,
    /// They could not be made.
    pub unknown: u64,
    /// They were left out on purpose.
    pub skipped: u64,
}

impl Stats {
    /// Returns the part of all checks made that held, 0 to 1; none without checks. What was skipped was not made.
    pub fn success_rate(&self) -> Option<f64> {
        let made = self.checks.ok + self.checks.failed + self.checks.unknown;
        (made > 0).then(|| self.checks.ok as f64 / made as f64)
    }

    /// Returns how many checkpoints were made an hour, between the first and the newest; none where no time passed.
    pub fn per_hour(&self) -> Option<f64> {
        let passed = Duration::try_from(self.last_at?.duration_since(self.first_at?)).ok()?.as_secs_f64();
        (passed > 0.0).then(|| self.checkpoints.saturating_sub(1) as f64 * 3_600.0 / passed)
    }

    /// Returns the mean size of a position and its state, in bytes; 0 without checkpoints.
    pub fn bytes_mean(&self) -> u64 {
        self.bytes.checked_div(self.checkpoints).unwrap_or(0)
    }

    pub(super) fn take(&mut self, record: &Record) {
        let header = record.header();
        self.checkpoints += 1;
        self.begun += header.started.len() as u64;
        match &header.phase {
            Phase::Completed(_) => self.completed += 1,
            Phase::Failed(_) => self.failed += 1,
            Phase::Restored => self.restored += 1,
            _ => {}
        }
        // What a start carries is what its step is about to claim, not a check.
        if let Some(pack) = header.evidence.as_ref().filter(|_| header.phase != Phase::Started) {
            match pack.verdict_at(header.occasion()) {
                Verdict::Ok => self.checks.ok += 1,
                Verdict::Failed => self.checks.failed += 1,
                Verdict::Unknown => self.checks.unknown += 1,
                Verdict::Skipped => self.checks.skipped += 1,
            }
            for claim in pack.claims.iter().filter(|claim| claim.verdict == Verdict::Failed) {
                self.fail(&claim.kind);
            }
        }
        if let Some(body) = &header.body {
            self.bytes += body.bytes;
            self.bytes_max = self.bytes_max.max(body.bytes);
        }
        self.first_at = self.first_at.or(Some(header.created_at));
        self.last_at = Some(header.created_at);
    }

    fn fail(&mut self, kind: &str) {
        let known = self.failures.contains_key(kind) || self.failures.len() < KINDS_MAX;
        *self.failures.entry(if known { kind } else { "" }.to_owned()).or_default() += 1;
    }
}
