//! The executor of registered graphs.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Executor, Left, TaskEnd, Worker};
use crate::engine::{Engine, RunError, StopHandle};
use crate::graph::{GRAPH_NEED, Graph, Graphs, State};
use crate::record::RunStatus;
use crate::store::{ClaimedTask, Lease, Store};

/// Executes the runs of graphs, by the name of the graph.
#[derive(Debug)]
pub struct GraphExecutor {
    engine: Engine,
    graphs: Graphs,
}

impl Worker<GraphExecutor> {
    /// Makes a worker for graphs, one run at a time.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let engine = Engine::new(Arc::clone(&store));
        Self::with_executor(store, GraphExecutor { engine, graphs: Graphs::new() })
    }

    /// Executes the submitted runs of a graph too.
    #[must_use]
    pub fn register<S: State>(mut self, graph: &Graph<S>) -> Self {
        self.executor.graphs = self.executor.graphs.with(graph);
        self
    }
}

#[async_trait]
impl Executor for GraphExecutor {
    fn lacks(&self, needs: &BTreeSet<String>) -> Option<String> {
        let has =
            |need: &&String| need.strip_prefix(GRAPH_NEED).is_some_and(|name| self.graphs.contains(name));
        let lacking: Vec<&str> = needs.iter().filter(|need| !has(need)).map(String::as_str).collect();
        (!lacking.is_empty()).then(|| lacking.join(", "))
    }

    async fn execute(&self, lease: Lease, stop: StopHandle) -> Left {
        match self.graphs.resume_claimed(&self.engine, lease, &stop).await {
            Ok(RunStatus::Interrupted) if stop.is_asked() => Left::Unfinished,
            Err(RunError::Store(error) | RunError::Checkpoint { source: error, .. }) => Left::after(&error),
            Ok(_) | Err(_) => Left::AtRest,
        }
    }

    async fn perform(&self, _: &ClaimedTask, _: StopHandle) -> TaskEnd {
        unreachable!("the steps of graphs are no tasks, and `lacks` refuses all others")
    }

    fn warn(&self, _: &str) {}
}
