//! The effective history of a run: every checkpoint that a rollback has not abandoned.

use jiff::Timestamp;

use super::Graph;
use super::level::State;
use crate::engine::{Engine, RunError};
use crate::id::{CheckpointRef, RunId, ScopePath, StepId};
use crate::record::{Failure, Pack, Phase, Record};
use crate::store::StoreExt as _;

/// One checkpoint of the history of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryEntry {
    record: Record,
}

impl HistoryEntry {
    /// Returns the reference of the checkpoint: `RUN@SEQ`.
    pub fn at(&self) -> CheckpointRef {
        self.record.header().reference()
    }

    /// Returns the step of the checkpoint, if there is a step.
    pub fn step(&self) -> Option<&StepId> {
        self.record.header().step.as_ref()
    }

    /// Returns the attempt of the step, from 1; 0 for a checkpoint without an attempt.
    pub fn attempt(&self) -> u32 {
        self.record.header().at.attempt
    }

    /// Returns the iterations of the loops around the step, outermost first, each from 1.
    pub fn iteration(&self) -> &[u32] {
        &self.record.header().at.iteration
    }

    /// Returns the phase as a word: `started`, `completed`, `failed`, `waiting`, `interrupted`, `progress`,
    /// `restored`.
    pub fn status(&self) -> &'static str {
        self.record.header().phase.name()
    }

    /// Returns the failure of the attempt, if the attempt failed.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.record.header().phase {
            Phase::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns the evidence as committed.
    pub fn evidence(&self) -> Option<&Pack> {
        self.record.header().evidence.as_ref()
    }

    /// Returns the creation time. For display: `seq` gives the order.
    pub fn created_at(&self) -> Timestamp {
        self.record.header().created_at
    }

    /// Returns the full record, without its state.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Reads the state at this checkpoint. Supports the main scope only.
    ///
    /// # Errors
    /// As [`Engine::inspect`].
    pub async fn state<S: State>(&self, engine: &Engine, graph: &Graph<S>) -> Result<S, RunError> {
        Ok(engine.inspect(graph, &self.at()).await?.state)
    }
}

impl std::fmt::Display for HistoryEntry {
    /// Writes `r@3 completed write`, with the attempt number from the second attempt on.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.at(), self.status())?;
        if let Some(step) = self.step() {
            write!(f, " {step}")?;
        }
        if self.attempt() > 1 {
            write!(f, " (attempt {})", self.attempt())?;
        }
        Ok(())
    }
}

impl Engine {
    /// Lists the effective history of the main scope, oldest first. Takes no lease and changes nothing;
    /// [`HistoryEntry::state`] reads a state on demand.
    ///
    /// # Errors
    /// Those of the store; [`RunError::InvalidName`] for an invalid run id.
    pub async fn history(&self, run: impl AsRef<str>) -> Result<Vec<HistoryEntry>, RunError> {
        self.history_of(&RunId::new(run.as_ref())?, &ScopePath::main()).await
    }

    /// As [`history`](Self::history), for any scope.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn history_of(&self, run: &RunId, scope: &ScopePath) -> Result<Vec<HistoryEntry>, RunError> {
        let newest = self.store().newest(run, scope).await?;
        let walk = self.store().history(run, scope, newest.header().seq).await?;
        Ok(walk.into_iter().rev().map(|record| HistoryEntry { record }).collect())
    }
}
