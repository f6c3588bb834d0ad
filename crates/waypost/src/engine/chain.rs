//! The only place that makes records: seals drafts as links of the chain.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::id::{Digest, RunId, ScopePath, StepId};
use crate::record::{
    Body, Definition, End, EndDigests, EvidenceCopies, FORMAT, FailedStep, Flaw, Header, Phase, Position,
    Reason, Record, Repeated, RunStatus, SealedRun, Start, Taken, Trace, Try,
};
use crate::store::FIRST_TOKEN;

use crate::engine::{RunError, StepReport};

/// A record before its place in the chain is known.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) phase: Phase,
    pub(crate) reason: Reason,
    pub(crate) step: Option<StepId>,
    pub(crate) step_name: Option<String>,
    pub(crate) at: Try,
    pub(crate) report: StepReport,
    pub(crate) started: Vec<Start>,
    pub(crate) end: Option<End>,
    pub(crate) failures: u64,
    pub(crate) status: Option<RunStatus>,
    pub(crate) failed: Option<FailedStep>,
    pub(crate) definition: Option<Definition>,
    pub(crate) config: Option<Map<String, Value>>,
    pub(crate) children: Option<Digest>,
    pub(crate) trace: Option<Trace>,
    pub(crate) digests: Option<EndDigests>,
    pub(crate) scope_digests: Option<EndDigests>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) copies: Option<Box<EvidenceCopies>>,
    pub(crate) external: Option<String>,
    pub(crate) about: Option<u64>,
    pub(crate) taken: Option<Box<Taken>>,
    /// The basis, if different from the previous record. For the first draft of a batch, the chain has the basis.
    pub(crate) basis: Option<u64>,
    /// The body of this draft, if a later draft of the batch replaces the state or the position.
    pub(crate) body: Option<Body>,
}

impl Draft {
    pub(crate) fn new(phase: Phase, reason: Reason, step: Option<StepId>, at: Try) -> Self {
        let (report, started, labels) = (StepReport::default(), Vec::new(), BTreeMap::new());
        Self {
            phase,
            reason,
            step,
            step_name: None,
            at,
            report,
            started,
            end: None,
            failures: 0,
            status: None,
            failed: None,
            definition: None,
            config: None,
            children: None,
            trace: None,
            digests: None,
            scope_digests: None,
            labels,
            copies: None,
            external: None,
            about: None,
            taken: None,
            basis: None,
            body: None,
        }
    }

    /// Keeps the status of the run and the scope from the previous record.
    pub(crate) fn keep_status(&mut self, newest: &Record) {
        let header = newest.header();
        (self.end, self.status) = (header.end, header.status);
        self.failed = header.failure().filter(|_| header.status == Some(RunStatus::Failed));
    }
}

/// Returns the body of a record after `newest`, with the state unchanged.
///
/// # Errors
/// [`RunError::NoState`]: retention dropped the state.
pub(crate) fn unchanged_body(newest: &Record, position: &Position) -> Result<Body, RunError> {
    let header = newest.header();
    let trimmed = || RunError::NoState {
        at: header.reference().to_string(),
        why: "retention dropped its state".to_owned(),
    };
    let state = newest.state_bytes().ok_or_else(trimmed)?;
    let (codec, schema) = header.body.as_ref().map_or(("json", 0), |body| (body.codec.as_str(), body.schema));
    Body::opaque(position, state, codec, schema).map_err(|source| RunError::Serialize {
        run: header.run.clone(),
        step: header.step.clone(),
        source,
    })
}

/// The end of a scope's chain, for the next record.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) run: RunId,
    pub(crate) scope: ScopePath,
    pub(crate) token: u64,
    /// The seq of the next record.
    pub(crate) next: u64,
    /// The digest of the newest sound record.
    pub(crate) prev: Option<Digest>,
    /// For the next record only: its basis, if different from the previous record.
    pub(crate) basis: Option<u64>,
    /// For the next record only: true if damage was skipped.
    pub(crate) repair: bool,
    /// For the next record only: the digest of the run record.
    pub(crate) root: Option<Digest>,
    /// For the next record only: the end of the previous session, if a resume begins.
    pub(crate) idle_since: Option<Timestamp>,
    /// The number of the resume, for each record.
    pub(crate) resume: u64,
    /// Written once into the next record: what the newest sound one changed.
    pub(crate) repeated: Option<Box<Repeated>>,
}

impl Chain {
    /// Returns the start of the main scope of a new run.
    pub(crate) fn first(run: &SealedRun) -> Self {
        Self {
            run: run.record().run.clone(),
            scope: ScopePath::main(),
            token: FIRST_TOKEN,
            next: 1,
            prev: None,
            basis: None,
            repair: false,
            root: Some(run.digest()),
            idle_since: None,
            resume: 0,
            repeated: None,
        }
    }

    /// Returns the end of a chain after a record without damage.
    pub(crate) fn after(newest: &Record) -> Self {
        let header = newest.header();
        Self {
            run: header.run.clone(),
            scope: header.scope.clone(),
            token: header.token,
            next: header.seq + 1,
            prev: Some(newest.digest()),
            basis: None,
            repair: false,
            root: None,
            idle_since: None,
            resume: header.resume,
            repeated: header.to_repeat(),
        }
    }

    /// Returns the start of a child scope, under the same lease.
    pub(crate) fn child(parent: &Self, scope: ScopePath) -> Self {
        Self {
            run: parent.run.clone(),
            scope,
            token: parent.token,
            next: 1,
            prev: None,
            basis: None,
            repair: false,
            root: None,
            idle_since: None,
            resume: parent.resume,
            repeated: None,
        }
    }

    /// Seals `drafts` and appends these to `records`. The last record carries `body`; the others carry their own
    /// body, if any. Does not move the chain: see [`Chain::advance`].
    pub(crate) fn seal(
        &self,
        drafts: &[Draft],
        body: Body,
        now: Timestamp,
        records: &mut Vec<Record>,
    ) -> Result<(), Flaw> {
        let mut prev = self.prev;
        let mut body = Some(body);
        let mut repeated = self.repeated.clone();
        for (index, draft) in drafts.iter().enumerate() {
            let mut header = self.header(draft, index, now);
            header.prev = prev;
            header.repeated = std::mem::replace(&mut repeated, header.to_repeat());
            let is_last = index + 1 == drafts.len();
            let body = if is_last { body.take() } else { draft.body.clone() };
            let record = Record::seal(header, body)?;
            prev = Some(record.digest());
            records.push(record);
        }
        Ok(())
    }

    fn header(&self, draft: &Draft, index: usize, now: Timestamp) -> Header {
        let first = index == 0;
        Header {
            v: FORMAT,
            run: self.run.clone(),
            scope: self.scope.clone(),
            seq: self.next + index as u64,
            prev: None,
            basis: if first { self.basis } else { draft.basis },
            reason: if first && self.repair { Reason::Repair } else { draft.reason },
            step: draft.step.clone(),
            step_name: draft.step_name.clone(),
            at: draft.at.clone(),
            phase: draft.phase.clone(),
            started: draft.started.clone(),
            body: None,
            end: draft.end,
            failures: draft.failures,
            idle_since: self.idle_since.filter(|_| first),
            resume: self.resume,
            status: draft.status,
            failed: draft.failed.clone(),
            evidence: draft.report.evidence.clone(),
            copies: draft.copies.clone(),
            usage: draft.report.usage.clone(),
            notes: draft.report.notes.clone(),
            labels: draft.labels.clone(),
            external: draft.external.clone(),
            about: draft.about,
            taken: draft.taken.clone(),
            definition: draft.definition.clone(),
            config: draft.config.clone(),
            repeated: None,
            trace: draft.trace.clone(),
            digests: draft.digests,
            scope_digests: draft.scope_digests,
            root: self.root.filter(|_| first),
            children: draft.children,
            token: self.token,
            created_at: now,
        }
    }

    /// Moves the end of the chain past an acknowledged record.
    pub(crate) fn advance(&mut self, last: &Record) {
        self.next = last.header().seq + 1;
        self.prev = Some(last.digest());
        (self.basis, self.root, self.repair, self.idle_since) = (None, None, false, None);
        self.repeated = last.header().to_repeat();
    }
}
