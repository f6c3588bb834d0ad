//! The graphs of a workflow: that of the file, and those of what is done with each item.

use std::num::NonZeroUsize;
use std::sync::Arc;

use waypost::shape::{self, Children, FailureLimits, Growth, OnChildFailure, Shape};
use waypost::{Digest, StepId};

use crate::file::{Backoff, Body, Foreach, Mode, OnItemFailure, Step, Workflow};

use super::ProgramError;

/// Names the branch of a group.
const GROUP_KEY: &str = "steps";

/// The steps of one graph.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) steps: Vec<Step>,
    /// By the place of a step: what it works on item by item.
    pub(super) foreach: Vec<Option<Arc<Foreach>>>,
}

/// Makes the graph of a workflow: its `needs`, or each step after the one before.
///
/// # Errors
/// [`ProgramError`], for what the reader of the file should have refused.
pub fn shape_of(workflow: &Workflow, cores: NonZeroUsize) -> Result<Shape, ProgramError> {
    of(workflow, cores).map(|(shape, _)| shape)
}

/// Makes it, and the steps of each graph by its number.
pub(super) fn of(workflow: &Workflow, cores: NonZeroUsize) -> Result<(Shape, Vec<Level>), ProgramError> {
    let mut levels = Vec::new();
    let shape = level(workflow.body(), workflow.max_parallel(cores), cores, &mut levels)?;
    let levels = levels.into_iter().map(|level| level.expect("each is filled in once its steps are known"));
    Ok((shape, levels.collect()))
}

fn level(
    body: &Body,
    parallel_max: NonZeroUsize,
    cores: NonZeroUsize,
    levels: &mut Vec<Option<Level>>,
) -> Result<Shape, ProgramError> {
    let number = levels.len();
    levels.push(None);
    let mut steps: Vec<shape::Step> = Vec::with_capacity(body.steps().len());
    let mut foreach = Vec::with_capacity(body.steps().len());
    for step in body.steps() {
        let needs = match body.mode() {
            Mode::Sequence => steps.last().map(|before| before.id.clone()).into_iter().collect(),
            Mode::Graph => step.needs.iter().map(|need| StepId::new(need)).collect::<Result<_, _>>()?,
        };
        let fingerprint: Digest = step.fingerprint.parse()?;
        let mut node = shape::Step::new(StepId::new(&step.id)?, needs, fingerprint);
        node.idempotent = step.idempotent;
        // What waits for something outside has all the time that it takes.
        node.timeout = step.timeout.filter(|_| step.work.command().is_some());
        node.retry = retry(step);
        let each = step.work.foreach();
        if let Some(body) = step.work.body() {
            let inner = match body.mode() {
                Mode::Sequence => NonZeroUsize::MIN,
                Mode::Graph => cores,
            };
            let shape = level(body, inner, cores, levels)?;
            node.children = Some(match each {
                Some(each) => children(node.id.clone(), each, shape, cores),
                None => one_child(node.id.clone(), shape),
            });
        }
        if step.repeat.is_some() {
            node.routes = vec![node.id.clone()];
        }
        foreach.push(each.cloned().map(Arc::new));
        steps.push(node);
    }
    levels[number] = Some(Level { steps: body.steps().to_vec(), foreach });
    Ok(Shape::new(steps, parallel_max.get())?.at_level(number))
}

/// The branch on which the steps of a group are done.
fn one_child(name: StepId, shape: Shape) -> Children {
    Children {
        name,
        shape: Box::new(shape),
        named: vec![(GROUP_KEY.to_owned(), None)],
        parallel_max: 1,
        on_failure: OnChildFailure::Stop,
        by_work: false,
        limits: FailureLimits::default(),
    }
}

fn children(name: StepId, each: &Foreach, shape: Shape, cores: NonZeroUsize) -> Children {
    Children {
        name,
        shape: Box::new(shape),
        named: Vec::new(),
        parallel_max: each.max_parallel.unwrap_or(cores.get()),
        on_failure: match each.on_failure {
            OnItemFailure::Stop => OnChildFailure::Stop,
            OnItemFailure::DeadLetter | OnItemFailure::Skip => OnChildFailure::Collect,
        },
        by_work: true,
        limits: FailureLimits {
            count: each.max_failures,
            rate: each.failure_rate,
            alike: each.circuit_breaker,
        },
    }
}

fn retry(step: &Step) -> shape::Retry {
    shape::Retry {
        max: step.retry.max,
        delay: step.retry.delay,
        growth: match step.retry.backoff {
            Backoff::Fixed => Growth::Fixed,
            Backoff::Linear => Growth::Linear,
            Backoff::Exponential => Growth::Exponential,
        },
        delay_max: step.retry.max_delay,
        jitter: step.retry.jitter,
    }
}
