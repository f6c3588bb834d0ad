//! The one place that makes records: drafts become sealed links of the chain.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::id::{BranchPath, Digest, RunId, StepId};
use crate::record::{
    Body, Definition, End, FORMAT, Flaw, Header, Phase, Reason, Record, RunStatus, Start, Try,
};

use super::Told;

/// What is to be written, before it has a place in the chain.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) phase: Phase,
    pub(super) reason: Reason,
    pub(super) step: Option<StepId>,
    pub(super) at: Try,
    pub(super) told: Told,
    pub(super) started: Vec<Start>,
    pub(super) end: Option<End>,
    pub(super) status: Option<RunStatus>,
    pub(super) definition: Option<Definition>,
    pub(super) config: Option<Map<String, Value>>,
    pub(super) children: Option<Digest>,
    pub(super) labels: BTreeMap<String, String>,
}

impl Draft {
    pub(super) fn new(phase: Phase, reason: Reason, step: Option<StepId>, at: Try) -> Self {
        let (told, started, labels) = (Told::default(), Vec::new(), BTreeMap::new());
        let (end, status, definition, config, children) = (None, None, None, None, None);
        Self { phase, reason, step, at, told, started, end, status, definition, config, children, labels }
    }
}

/// The end of a branch's chain, where the next record goes.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    pub(super) run: RunId,
    pub(super) branch: BranchPath,
    pub(super) token: u64,
    /// The seq of the next record.
    pub(super) next: u64,
    /// Digest of the newest sound record.
    pub(super) prev: Option<Digest>,
    /// Written once into the next record: what it continues, if not the one before.
    pub(super) basis: Option<u64>,
    /// Written once into the next record: damage was passed over.
    pub(super) repair: bool,
    /// Written once into the next record: digest of the run record.
    pub(super) root: Option<Digest>,
    /// Written once into the next record: a resume begins.
    pub(super) resumed: bool,
}

impl Chain {
    /// The begin of a branch that this one opens, under the same lease.
    pub(super) fn child(parent: &Self, branch: BranchPath) -> Self {
        Self {
            run: parent.run.clone(),
            branch,
            token: parent.token,
            next: 1,
            prev: None,
            basis: None,
            repair: false,
            root: None,
            resumed: false,
        }
    }

    /// Makes records of `drafts`, behind those in `records`; the last carries `body`. Changes nothing: see
    /// [`Chain::advance`].
    pub(super) fn seal(
        &self,
        drafts: &[Draft],
        body: Body,
        now: jiff::Timestamp,
        records: &mut Vec<Record>,
    ) -> Result<(), Flaw> {
        let mut prev = self.prev;
        let mut body = Some(body);
        for (index, draft) in drafts.iter().enumerate() {
            let mut header = self.header(draft, index, now);
            header.prev = prev;
            let body = body.take_if(|_| index + 1 == drafts.len());
            let record = Record::seal(header, body)?;
            prev = Some(record.digest());
            records.push(record);
        }
        Ok(())
    }

    fn header(&self, draft: &Draft, index: usize, now: jiff::Timestamp) -> Header {
        let first = index == 0;
        Header {
            v: FORMAT,
            run: self.run.clone(),
            branch: self.branch.clone(),
            seq: self.next + index as u64,
            prev: None,
            basis: self.basis.filter(|_| first),
            reason: if first && self.repair { Reason::Repair } else { draft.reason },
            step: draft.step.clone(),
            at: draft.at.clone(),
            phase: draft.phase.clone(),
            started: draft.started.clone(),
            body: None,
            end: draft.end,
            resumed: first && self.resumed,
            status: draft.status,
            evidence: draft.told.evidence.clone(),
            usage: draft.told.usage.clone(),
            notes: draft.told.notes.clone(),
            labels: draft.labels.clone(),
            external: None,
            about: None,
            definition: draft.definition.clone(),
            config: draft.config.clone(),
            root: self.root.filter(|_| first),
            children: draft.children,
            token: self.token,
            created_at: now,
        }
    }

    /// Moves the end past records that were acknowledged.
    pub(super) fn advance(&mut self, last: &Record) {
        self.next = last.header().seq + 1;
        self.prev = Some(last.digest());
        (self.basis, self.root, self.repair, self.resumed) = (None, None, false, false);
    }
}
