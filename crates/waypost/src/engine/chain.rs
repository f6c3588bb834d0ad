//! The one place that makes records: drafts become sealed links of the chain.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::id::{BranchPath, Digest, RunId, StepId};
use crate::record::{
    Body, Definition, End, FORMAT, Flaw, Header, Phase, Position, Reason, Record, RunStatus, Start, Try,
};

use super::Told;

/// What is to be written, before it has a place in the chain.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) phase: Phase,
    pub(crate) reason: Reason,
    pub(crate) step: Option<StepId>,
    pub(crate) at: Try,
    pub(crate) told: Told,
    pub(crate) started: Vec<Start>,
    pub(crate) end: Option<End>,
    pub(crate) status: Option<RunStatus>,
    pub(crate) definition: Option<Definition>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) external: Option<String>,
    pub(crate) about: Option<u64>,
}

impl Draft {
    pub(crate) fn new(phase: Phase, reason: Reason, step: Option<StepId>, at: Try) -> Self {
        Self {
            phase,
            reason,
            step,
            at,
            told: Told::default(),
            started: Vec::new(),
            end: None,
            status: None,
            definition: None,
            labels: BTreeMap::new(),
            external: None,
            about: None,
        }
    }
}

/// The end of a branch's chain, where the next record goes.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) run: RunId,
    pub(crate) branch: BranchPath,
    pub(crate) token: u64,
    /// The seq of the next record.
    pub(crate) next: u64,
    /// Digest of the newest sound record.
    pub(crate) prev: Option<Digest>,
    /// Written once into the next record: what it continues, if not the one before.
    pub(crate) basis: Option<u64>,
    /// Written once into the next record: damage was passed over.
    pub(crate) repair: bool,
    /// Written once into the next record: digest of the run record.
    pub(crate) root: Option<Digest>,
    /// Written once into the next record: a resume begins.
    pub(crate) resumed: bool,
}

impl Chain {
    /// Makes records of `drafts`; the last carries position and state. Changes nothing: see [`Chain::advance`].
    pub(crate) fn seal<S: Serialize>(
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
            labels: draft.labels.clone(),
            external: draft.external.clone(),
            about: draft.about,
            definition: draft.definition.clone(),
            root: self.root.filter(|_| first),
            children: None,
            token: self.token,
            created_at: now,
        }
    }

    /// Moves the end past records that were acknowledged.
    pub(crate) fn advance(&mut self, records: &[Record]) {
        let Some(last) = records.last() else { return };
        self.next = last.header().seq + 1;
        self.prev = Some(last.digest());
        (self.basis, self.root, self.repair, self.resumed) = (None, None, false, false);
    }
}
