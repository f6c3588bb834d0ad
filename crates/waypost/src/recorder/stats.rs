//! Counts over a run, from its headers alone.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::record::{Phase, Record, Verdict};

/// Kinds of evidence counted separately; further kinds are counted together, under the empty name.
const KINDS_MAX: usize = 100;

/// Counts over a run, including steps undone by a rollback.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// All checkpoints: starts, ends, checks, rollbacks.
    pub checkpoints: u64,
    /// Damaged checkpoints; they appear in no other count.
    pub damaged: u64,
    /// Attempts begun.
    pub begun: u64,
    /// Attempts completed.
    pub completed: u64,
    /// Attempts failed, by evidence or by an error.
    pub failed: u64,
    /// Rollbacks.
    pub restored: u64,
    /// Checks of evidence, at commit and later, by verdict.
    pub checks: Checks,
    /// Failed claims, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Total bytes of positions and states as written.
    pub bytes: u64,
    /// Bytes of the largest position and state.
    pub bytes_max: u64,
    /// Time of the first checkpoint.
    pub first_at: Option<Timestamp>,
    /// Time of the newest checkpoint.
    pub last_at: Option<Timestamp>,
}

/// Checks of packs by verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checks {
    /// Checks that held.
    pub ok: u64,
    /// Checks that failed.
    pub failed: u64,
    /// Checks that could not be made.
    pub unknown: u64,
    /// Checks that were skipped on purpose.
    pub skipped: u64,
}

impl Stats {
    /// Returns the fraction of checks that held, 0 to 1; `None` without checks. Skipped checks are excluded.
    pub fn success_rate(&self) -> Option<f64> {
        let made = self.checks.ok + self.checks.failed + self.checks.unknown;
        (made > 0).then(|| self.checks.ok as f64 / made as f64)
    }

    /// Returns the checkpoints per hour between the first and the newest; `None` if no time passed.
    pub fn per_hour(&self) -> Option<f64> {
        let passed = Duration::try_from(self.last_at?.duration_since(self.first_at?)).ok()?.as_secs_f64();
        (passed > 0.0).then(|| self.checkpoints.saturating_sub(1) as f64 * 3_600.0 / passed)
    }

    /// Returns the mean size of a position with its state, in bytes; 0 without checkpoints.
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
        // The pack of a start lists subjects to be written; it is not a check.
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
