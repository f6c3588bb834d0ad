//! Graphs by name, to resume the runs of several graphs.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::Graph;
use super::level::State;
use crate::engine::StopHandle;
use crate::engine::{Engine, Outcome, RunError, due_runs};
use crate::id::RunId;
use crate::record::RunStatus;
use crate::store::{Lease, StoreError};

/// The begin of the need of a submitted run for its graph; the name of the graph follows.
pub const GRAPH_NEED: &str = "graph:";

/// The graphs of a program, by name: which runs the program can resume.
#[derive(Clone, Default)]
pub struct Graphs {
    by_name: BTreeMap<String, Arc<dyn ResumeRun>>,
}

impl std::fmt::Debug for Graphs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Graphs").field(&self.by_name.keys()).finish()
    }
}

impl Graphs {
    /// Makes an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a graph. Replaces an earlier graph of the same name.
    #[must_use]
    pub fn with<S: State>(mut self, graph: &Graph<S>) -> Self {
        self.by_name.insert(graph.name().to_owned(), Arc::new(graph.clone()));
        self
    }

    /// Returns whether a graph of this name is in the set.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Continues a run under the lease of a claim. Returns the status of the run.
    pub(crate) async fn resume_claimed(
        &self,
        engine: &Engine,
        lease: Lease,
        stop: &StopHandle,
    ) -> Result<RunStatus, RunError> {
        let run = lease.run().clone();
        let name = engine.store().run(&run).await?.record.record().workflow.clone();
        let unknown = || StoreError::Invalid(format!("run {run} belongs to graph `{name}`, not registered"));
        let graph = self.by_name.get(&name).ok_or_else(unknown)?;
        Ok(graph.resume(engine, &run, Some((lease, stop))).await?.status)
    }
}

/// A graph with its state type erased, for resumes.
trait ResumeRun: Send + Sync {
    fn resume<'a>(
        &'a self,
        engine: &'a Engine,
        run: &'a RunId,
        claimed: Option<(Lease, &'a StopHandle)>,
    ) -> BoxFuture<'a, Result<Outcome<()>, RunError>>;
}

impl<S: State> ResumeRun for Graph<S> {
    fn resume<'a>(
        &'a self,
        engine: &'a Engine,
        run: &'a RunId,
        claimed: Option<(Lease, &'a StopHandle)>,
    ) -> BoxFuture<'a, Result<Outcome<()>, RunError>> {
        async move {
            let resume = match claimed {
                Some((lease, stop)) => engine.resume(self, run).stop_handle(stop).claimed(lease),
                None => engine.resume(self, run),
            };
            resume.await.map(|outcome| outcome.map_state(drop))
        }
        .boxed()
    }
}

impl Engine {
    /// Resumes the due runs of these graphs one after the other, oldest first: interrupted runs, and waiting runs with an
    /// answer, a signal or a time in the past. Call this at the start of a program, and again at intervals.
    ///
    /// Returns each resumed run with its outcome. The error of one run does not stop the others: a run that another
    /// process holds has [`StoreError::Held`]. Runs of other graphs, in doubt, failed or damaged are
    /// left alone.
    ///
    /// # Errors
    /// Those of the store, while it lists its runs; then no run was resumed.
    pub async fn resume_due(
        &self,
        graphs: &Graphs,
    ) -> Result<Vec<(RunId, Result<Outcome<()>, RunError>)>, RunError> {
        let mut resumed = Vec::new();
        for run in due_runs(self.store().as_ref(), self.clock().now()).await?.runs {
            // A run deleted since the listing is no error.
            let Ok(entry) = self.store().run(&run).await else { continue };
            if let Some(graph) = graphs.by_name.get(&entry.record.record().workflow) {
                let outcome = graph.resume(self, &run, None).await;
                resumed.push((run, outcome));
            }
        }
        Ok(resumed)
    }
}
