//! Builders for forks and fan-outs that need a join.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use super::builder::{Builder, FanOutKind, Other};
use super::context::Context;
use super::edges::{describe_fork, targets_of};
use super::error::{GraphError, StepError};
use super::join::{BranchEnd, Branches, Child, ItemEnds};
use super::level::{ChildFn, Held, JoinFn, OpenFn, Opens, State, StepAction, item_value};
use crate::engine::Joined;
use crate::id::StepId;
use crate::plan::shape::{OnChildFailure, Retry};
use crate::record::Pack;

/// A fork without its join.
#[derive(Debug)]
#[must_use = "a fork needs its join"]
pub struct Fork<S, Resources = ()> {
    pub(super) builder: Builder<S, Resources>,
    pub(super) after: String,
    pub(super) starts: Vec<String>,
    pub(super) on_failure: OnChildFailure,
    pub(super) parallel_max: usize,
}

impl<S: State, Resources: Send + Sync + 'static> Fork<S, Resources> {
    /// Keeps the other branches running when a branch fails; the join gets the error. By default the run fails
    /// and the other branches are cancelled.
    pub fn collect(mut self) -> Self {
        self.on_failure = OnChildFailure::Collect;
        self
    }

    /// Limits how many branches run in parallel. The default is all branches.
    pub fn max_parallel(mut self, count: usize) -> Self {
        self.parallel_max = count.max(1);
        self
    }

    /// Adds the join: a step that takes the state before the fork and the end of each branch, in the order of
    /// `starts`.
    #[must_use]
    pub fn join<F, Fut, E>(self, id: impl AsRef<str>, join: F) -> Builder<S, Resources>
    where
        F: Fn(S, Branches<S>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        E: Into<StepError>,
    {
        let Self { builder, after, starts, on_failure, parallel_max } = self;
        let id = id.as_ref();
        let after_id = match StepId::new(&after) {
            Ok(id) => id,
            Err(why) => return builder.wrong(GraphError::BadName { edge: describe_fork(&after), why }),
        };
        let starts = match targets_of(&starts, || describe_fork(&after)) {
            Ok(starts) => starts,
            Err(problem) => return builder.wrong(problem),
        };
        let decode = Arc::clone(&builder.decode);
        let join = Arc::new(join);
        let action: JoinFn<S> = Arc::new(move |state, joined: Joined, context| {
            let (decode, join) = (Arc::clone(&decode), Arc::clone(&join));
            async move {
                let mut branches = Vec::new();
                let mut ends = joined.outcomes().await?;
                while let Some(end) = ends.next().await? {
                    branches.push(BranchEnd::of(&end, |bytes, schema| {
                        decode.get().expect("a graph that runs was built")(bytes, schema)
                    })?);
                }
                join(state, Branches(branches), context).await.map_err(Into::into)
            }
            .boxed()
        });
        let fan = FanOutKind::Fork { after: after_id, starts };
        let mut builder = builder.add(id, StepAction::Join(action), Some(fan)).fork_way(&after, id);
        if let Some(step) = builder.steps.last_mut() {
            (step.parallel_max, step.on_failure) = (parallel_max, on_failure);
        }
        builder
    }
}

/// A fan-out over items without its join.
#[must_use = "the branches need their join"]
pub struct Each<S, T, R, Resources = ()> {
    pub(super) builder: Builder<S, Resources>,
    pub(super) id: String,
    pub(super) items: OpenFn<S>,
    pub(super) inner: Builder<Child<T, R>>,
    pub(super) parallel_max: usize,
    pub(super) on_failure: OnChildFailure,
}

impl<S, T, R, Resources> std::fmt::Debug for Each<S, T, R, Resources> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Each").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<S: State, T: State, R: State, Resources: Send + Sync + 'static> Each<S, T, R, Resources> {
    /// Limits how many items run in parallel. The default is [`PARALLEL_DEFAULT`](super::PARALLEL_DEFAULT).
    pub fn max_parallel(mut self, count: usize) -> Self {
        self.parallel_max = count.max(1);
        self
    }

    /// Keeps the other items running when an item fails; the join gets the error. By default the run fails and
    /// the running items are cancelled.
    pub fn collect(mut self) -> Self {
        self.on_failure = OnChildFailure::Collect;
        self
    }

    /// Retries the work on an item after a failure, within the limits of `retry`.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.inner = self.inner.retry(retry);
        self
    }

    /// Retries only after errors for which `when` returns true.
    pub fn retry_when(mut self, when: impl Fn(&StepError) -> bool + Send + Sync + 'static) -> Self {
        self.inner = self.inner.retry_when(when);
        self
    }

    /// Fails an attempt on an item that takes longer than `timeout`, as [`Builder::timeout`] does for a step.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner = self.inner.timeout(timeout);
        self
    }

    /// Marks the work on an item as not idempotent, as [`Builder::not_idempotent`] does for a step.
    pub fn not_idempotent(mut self) -> Self {
        self.inner = self.inner.not_idempotent();
        self
    }

    /// Adds evidence to the work on an item, as [`Builder::evidence`] does for a step.
    pub fn evidence(mut self, evidence: impl Fn(&T, &R) -> Pack + Send + Sync + 'static) -> Self {
        self.inner = self.inner.evidence(move |child| match &child.result {
            Some(result) => evidence(&child.item, result),
            // Without a result there is no claim to make.
            None => Pack::all([]),
        });
        self
    }

    /// Adds the join: a step that takes the state before the fan-out and a reader of the item ends. The reader
    /// yields the ends in item order and holds only the current end in memory.
    #[must_use]
    pub fn join<F, Fut, E>(self, join: F) -> Builder<S, Resources>
    where
        F: Fn(S, ItemEnds<T, R>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        E: Into<StepError>,
    {
        let Self { builder, id, items, inner, parallel_max, on_failure } = self;
        let inner = match inner.build() {
            Ok(inner) => inner,
            Err(problem) => return builder.wrong(problem),
        };
        let child: ChildFn<S> = Arc::new(|_, item| {
            let child = Child::<T, R> { index: item.index, item: item_value(item)?, result: None };
            Ok(Box::new(child) as Held)
        });
        let join = Arc::new(join);
        let action: JoinFn<S> = Arc::new(move |state, joined: Joined, context| {
            let join = Arc::clone(&join);
            async move {
                let ends = ItemEnds::new(joined.total(), joined.outcomes().await?);
                join(state, ends, context).await.map_err(Into::into)
            }
            .boxed()
        });
        let shape = Arc::unwrap_or_clone(inner.shape);
        let opens = Opens { items: Some(items), child };
        let other = Other { shape, levels: inner.levels.to_vec(), named: Vec::new(), opens };
        let mut builder =
            builder.add(&id, StepAction::Join(action), Some(FanOutKind::Other(Box::new(other))));
        if let Some(step) = builder.steps.last_mut() {
            (step.parallel_max, step.on_failure) = (parallel_max, on_failure);
        }
        builder
    }
}
