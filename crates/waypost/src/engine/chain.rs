//! The one place that makes records: drafts become sealed links of the chain.

use serde::Serialize;

use crate::id::{BranchPath, Digest, RunId, StepId};
use crate::record::{
    Body, Definition, End, FORMAT, Flaw, Header, Phase, Position, Reason, Record, RunStatus, Start, Try,
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
}

impl Draft {
    pub(super) fn new(phase: Phase, reason: Reason, step: Option<StepId>, at: Try) -> Self {
        let (told, started, end, status, definition) = (Told::default(), Vec::new(), None, None, None);
        Self { phase, reason, step, at, told, started, end, status, definition }
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
    /// Makes records of `drafts`; the last carries position and state. Changes nothing: see [`Chain::advance`].
    pub(super) fn seal<S: Serialize>(
        &self,
        drafts: &[Draft],
        position: &Position,
        state: &S,
        schema: u32,
        now: jiff::Timestamp,
    ) -> Result<Vec<Record>, Flaw> {
        let mut prev = self.prev;
        let mut records = Vec::with_capacity(drafts.len());
        for (index, draft) in drafts.iter().enumerate() {
            let mut header = self.header(draft, index, now);
            header.prev = prev;
            let body =
                (index + 1 == drafts.len()).then(|| Body::json(position, state, schema)).transpose()?;
            let record = Record::seal(header, body)?;
            prev = Some(record.digest());
            records.push(record);
        }
        Ok(records)
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
            labels: std::collections::BTreeMap::new(),
            external: None,
            about: None,
            definition: draft.definition.clone(),
            root: self.root.filter(|_| first),
            children: None,
            token: self.token,
            created_at: now,
        }
    }

    /// Moves the end past records that were acknowledged.
    pub(super) fn advance(&mut self, records: &[Record]) {
        let Some(last) = records.last() else { return };
        self.next = last.header().seq + 1;
        self.prev = Some(last.digest());
        (self.basis, self.root, self.repair, self.resumed) = (None, None, false, false);
    }
}
