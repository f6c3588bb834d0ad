//! What happened in a run and was not undone.

use jiff::Timestamp;

use super::Graph;
use super::level::State;
use crate::engine::{Engine, RunError};
use crate::id::{BranchPath, CheckpointRef, RunId, StepId};
use crate::record::{Failure, Pack, Phase, Record};
use crate::store::StoreExt as _;

/// One checkpoint of the history of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryEntry {
    record: Record,
}

impl HistoryEntry {
    /// Names it, as people write it: `RUN@SEQ`.
    pub fn at(&self) -> CheckpointRef {
        self.record.header().reference()
    }

    /// Returns the step that it speaks of, if it speaks of one.
    pub fn step(&self) -> Option<&StepId> {
        self.record.header().step.as_ref()
    }

    /// Returns the attempt of that step, from 1; 0 where no attempt is meant.
    pub fn attempt(&self) -> u32 {
        self.record.header().at.attempt
    }

    /// Returns the place in the loops around the step, outermost first, each from 1.
    pub fn iteration(&self) -> &[u32] {
        &self.record.header().at.iteration
    }

    /// Returns the word for what happened: `started`, `completed`, `failed`, `waiting`, `interrupted`, `progress`,
    /// `restored`.
    pub fn status(&self) -> &'static str {
        self.record.header().phase.name()
    }

    /// Returns why the attempt failed, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.record.header().phase {
            Phase::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns the evidence, as it was committed.
    pub fn evidence(&self) -> Option<&Pack> {
        self.record.header().evidence.as_ref()
    }

    /// Returns when it was made, for people.
    pub fn created_at(&self) -> Timestamp {
        self.record.header().created_at
    }

    /// Returns the record, for what is not shown here; without its state.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Reads the state of then; of the main branch only.
    ///
    /// # Errors
    /// As [`Engine::inspect`].
    pub async fn state<S: State>(&self, engine: &Engine, graph: &Graph<S>) -> Result<S, RunError> {
        Ok(engine.inspect(graph, &self.at()).await?.state)
    }
}

impl std::fmt::Display for HistoryEntry {
    /// `r@3 completed write`, with the attempt where it is not the first.
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
    /// Lists what happened on the main branch of a run and was not undone since, oldest first. Takes no lease and changes
    /// nothing; states are read when they are asked for.
    ///
    /// # Errors
    /// Those of the store; [`RunError::InvalidName`] for an id that no run can have.
    pub async fn history(&self, run: &str) -> Result<Vec<HistoryEntry>, RunError> {
        self.history_of(&RunId::new(run)?, &BranchPath::main()).await
    }

    /// As [`history`](Self::history), of one branch.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn history_of(&self, run: &RunId, branch: &BranchPath) -> Result<Vec<HistoryEntry>, RunError> {
        let newest = self.store().newest(run, branch).await?;
        let walk = self.store().history(run, branch, newest.header().seq).await?;
        Ok(walk.into_iter().rev().map(|record| HistoryEntry { record }).collect())
    }
}
