//! The finished results of a step that a changed definition affects, in words: how many, and the time of work.

use std::time::Duration;

use waypost::engine::{InnerChange, Snapshot};
use waypost::record::{End, Header, Phase, Record};
use waypost::shape::Shape;
use waypost::store::{Store, StoreExt as _};
use waypost::{ScopePath, StepId};

use super::Chosen;
use crate::error::Error;
use crate::format::time;
use crate::run::dead_letters;
use crate::run::idle_times::IdleTimes;

/// The finished results of a run.
pub(super) struct FinishedResults<'a> {
    store: &'a dyn Store,
    snapshot: &'a Snapshot,
    own: &'a Chosen,
    scopes: Vec<ScopePath>,
    idle: IdleTimes,
}

impl<'a> FinishedResults<'a> {
    pub(super) async fn of(
        store: &'a dyn Store,
        snapshot: &'a Snapshot,
        own: &'a Chosen,
    ) -> Result<Self, Error> {
        let newest = snapshot.newest().header();
        let history = store.history(&newest.run, &newest.scope, newest.seq).await?;
        let idle = IdleTimes::of(history.iter().map(Record::header));
        let scopes = store.scopes(&newest.run).await?.into_iter().collect();
        Ok(Self { store, snapshot, own, scopes, idle })
    }

    /// Returns the results of a step of the main scope in words: the finished items, passes or steps of its scopes, and
    /// the time of their steps. `within`: the changed inner steps; only they and the steps downstream count. Without them,
    /// the whole step counts.
    pub(super) async fn of_step(&self, step: &StepId, within: &[InnerChange]) -> Result<String, Error> {
        let run = &self.snapshot.entry.summary.run;
        let shape = &self.own.shape;
        let opens = |scope: &&ScopePath| {
            let opener = scope.opened_by().filter(|_| scope.depth() == 1).map(|(name, _)| name);
            opener.and_then(|name| shape.opener(&name)).is_some_and(|place| shape.steps()[place].id == *step)
        };
        let (mut finished, mut total, mut work) = (0, 0, FinishedWork::default());
        for scope in self.scopes.iter().filter(opens) {
            let newest = self.store.newest(run, scope).await?;
            if !dead_letters::counts(self.store, run, &newest).await? {
                continue;
            }
            total += 1;
            let own = self.of_scope(scope, within).await?;
            let is_touched =
                within.is_empty() || within.iter().any(|inner| is_at_or_below(&inner.scope, scope));
            finished += usize::from(is_touched && newest.header().end == Some(End::Completed));
            work = work.and(own);
        }
        let is_foreach =
            self.own.workflow.step(step.as_str()).is_some_and(|step| step.work.foreach().is_some());
        if total == 0 {
            work = self.of_records(&ScopePath::main(), &|header| header.step.as_ref() == Some(step)).await?;
        }
        let took = time::lasted(work.took);
        Ok(match (is_foreach, total) {
            (true, 1..) => format!("{finished} of {total} items finished, {took}"),
            (false, 2..) => format!("{finished} of {total} iterations finished, {took}"),
            (false, 1) if finished == 0 || !within.is_empty() => match work.steps {
                1 => format!("1 step finished, {took}"),
                steps => format!("{steps} steps finished, {took}"),
            },
            _ => format!("finished, {took}"),
        })
    }

    /// Returns whether a change inside an opener affects a step: the step or a step around it changed, or is downstream.
    fn affects(&self, within: &[InnerChange], scope: &ScopePath, step: &StepId) -> bool {
        let is_after = |change: &InnerChange, shape: &Shape| {
            let changed = shape.place(change.step.as_str()).map(|place| shape.downstream(&[place]));
            changed.zip(shape.place(step.as_str())).is_some_and(|(after, place)| after.contains(&place))
        };
        let is_affected = |change: &InnerChange| {
            let is_here = change.scope == *scope;
            is_here
                && (change.step == *step
                    || self.own.shape.of_scope(scope).is_some_and(|shape| is_after(change, shape)))
        };
        let above = scope.parent().zip(scope.opened_by());
        within.is_empty()
            || within.iter().any(is_affected)
            || above.is_some_and(|(above, (name, _))| {
                let shape = self.own.shape.of_scope(&above);
                let opener = shape.and_then(|shape| Some(&shape.steps()[shape.opener(&name)?].id));
                !above.is_main() && opener.is_some_and(|opener| self.affects(within, &above, opener))
            })
    }

    /// Returns the affected finished work in a scope and all scopes below.
    async fn of_scope(&self, scope: &ScopePath, within: &[InnerChange]) -> Result<FinishedWork, Error> {
        let mut work = FinishedWork::default();
        for inner in self.scopes.iter().filter(|inner| is_at_or_below(inner, scope)) {
            let counts =
                |header: &Header| header.step.as_ref().is_some_and(|step| self.affects(within, inner, step));
            work = work.and(self.of_records(inner, &counts).await?);
        }
        Ok(work)
    }

    /// Returns the finished work of the steps of a scope without scopes of their own. The newest end of a step counts.
    async fn of_records(
        &self,
        scope: &ScopePath,
        counts: &(dyn Fn(&Header) -> bool + Sync),
    ) -> Result<FinishedWork, Error> {
        let run = &self.snapshot.entry.summary.run;
        let newest = self.store.newest(run, scope).await?;
        let history = self.store.effective_history(run, scope, newest.header().seq).await?;
        let headers = || history.records.iter().map(Record::header);
        let (mut work, mut seen) = (FinishedWork::default(), Vec::new());
        for end in headers().filter(|header| matches!(header.phase, Phase::Completed(_)) && counts(header)) {
            let Some(step) = end.step.as_ref().filter(|step| !seen.contains(step)) else { continue };
            seen.push(step);
            let opens = |header: &Header| header.step.as_ref() == Some(step) && header.phase.opens_work();
            if headers().any(opens) {
                continue;
            }
            let starts = |header: &&Header| header.started.iter().any(|start| start.step == *step);
            let start = headers().find(|header| header.seq < end.seq && starts(header));
            let took = start.map(|start| self.idle.work(start.created_at, end.created_at));
            work = work.and(FinishedWork { steps: 1, took: took.unwrap_or_default() });
        }
        Ok(work)
    }
}

fn is_at_or_below(inner: &ScopePath, scope: &ScopePath) -> bool {
    std::iter::successors(Some(inner.clone()), ScopePath::parent).any(|above| above == *scope)
}

/// A number of finished steps, and the time of their work.
#[derive(Clone, Copy, Default)]
struct FinishedWork {
    steps: usize,
    took: Duration,
}

impl FinishedWork {
    fn and(self, other: Self) -> Self {
        Self { steps: self.steps + other.steps, took: self.took + other.took }
    }
}
