//! The graphs of a workflow: that of the file, and those of what is done with each item.

use std::num::NonZeroUsize;
use std::sync::Arc;

use waypost::shape::{self, Children, FailureLimits, Growth, OnChildFailure, Shape};
use waypost::{Digest, StepId};

use crate::file::{Backoff, Body, Foreach, HookOn, Mode, OnItemFailure, Step, Workflow};

use super::ProgramError;
use super::hooks::Plan;

/// Names the branch of a group.
const GROUP_KEY: &str = "steps";

/// The steps of one graph.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) steps: Vec<Step>,
    /// By the place of a step: what it works on item by item.
    pub(super) foreach: Vec<Option<Arc<Foreach>>>,
    /// By the place of a step: what is done after it.
    pub(super) hooks: Vec<Arc<[Plan]>>,
}

/// What holds for the steps of one list.
#[derive(Clone, Copy)]
struct Around<'w> {
    workflow: &'w Workflow,
    cores: NonZeroUsize,
    /// The failure of one of them is that of the run.
    fails_run: bool,
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
    let around = Around { workflow, cores, fails_run: true };
    let shape = level(workflow.body(), workflow.max_parallel(cores), around, &mut levels)?;
    let levels = levels.into_iter().map(|level| level.expect("each is filled in once its steps are known"));
    Ok((shape, levels.collect()))
}

fn level(
    body: &Body,
    parallel_max: NonZeroUsize,
    around: Around<'_>,
    levels: &mut Vec<Option<Level>>,
) -> Result<Shape, ProgramError> {
    let number = levels.len();
    levels.push(None);
    let mut steps: Vec<shape::Step> = Vec::with_capacity(body.steps().len());
    let mut foreach = Vec::with_capacity(body.steps().len());
    let mut hooks = Vec::with_capacity(body.steps().len());
    let cores = around.cores;
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
            let stops = each.is_none_or(|each| each.on_failure == OnItemFailure::Stop);
            let around = Around { fails_run: around.fails_run && stops, ..around };
            let shape = level(body, inner, around, levels)?;
            node.children = Some(match each {
                Some(each) => children(node.id.clone(), each, shape, cores),
                None => one_child(node.id.clone(), shape),
            });
        }
        let own = super::hooks::of(around.workflow, step, around.fails_run);
        let mut plans = Vec::with_capacity(own.len());
        if !own.is_empty() {
            let (shape, starts) = after(&own, around, levels)?;
            node.children = Some(afterwards(node.id.clone(), shape));
            let planned = own.into_iter().zip(starts);
            plans.extend(planned.map(|((key, on, _), start)| super::hooks::plan(key, on, start)));
        }
        hooks.push(plans.into());
        if step.repeat.is_some() {
            node.routes = vec![node.id.clone()];
        }
        foreach.push(each.cloned().map(Arc::new));
        steps.push(node);
    }
    levels[number] = Some(Level { steps: body.steps().to_vec(), foreach, hooks });
    Ok(Shape::new(steps, parallel_max.get())?.at_level(number))
}

/// Makes one graph of the hooks of a step, in which each is a line of its own, and names where each begins.
fn after(
    hooks: &[(String, HookOn, &Body)],
    around: Around<'_>,
    levels: &mut Vec<Option<Level>>,
) -> Result<(Shape, Vec<StepId>), ProgramError> {
    let number = levels.len();
    levels.push(None);
    let (mut nodes, mut steps, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut foreach, mut own) = (Vec::new(), Vec::new());
    for (_, _, body) in hooks {
        // Each as a list of its own, of which the numbers do not matter: those below it keep theirs.
        let mut inner = Vec::new();
        let around = Around { fails_run: false, ..around };
        let shape = level(body, NonZeroUsize::MIN, around, &mut inner)?;
        let mut inner = inner.into_iter().flatten();
        let Some(list) = inner.next() else { continue };
        let offset = levels.len();
        levels.extend(inner.map(Some));
        starts.extend(shape.steps().first().map(|step| step.id.clone()));
        for mut step in shape.steps().iter().cloned() {
            if let Some(children) = &mut step.children {
                // The first of the list was that of the list itself, which has no number any more.
                children.shape.raise_levels(offset - 1);
            }
            nodes.push(step);
        }
        steps.extend(list.steps);
        foreach.extend(list.foreach);
        own.extend(list.hooks);
    }
    levels[number] = Some(Level { steps, foreach, hooks: own });
    Ok((Shape::new(nodes, 1)?.at_level(number), starts))
}

/// The branches of the hooks of a step.
fn afterwards(name: StepId, shape: Shape) -> Children {
    Children {
        name,
        shape: Box::new(shape),
        named: Vec::new(),
        parallel_max: 1,
        on_failure: OnChildFailure::Collect,
        by_work: true,
        limits: FailureLimits::default(),
        afterwards: true,
        whole: false,
    }
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
        afterwards: false,
        whole: true,
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
        afterwards: false,
        whole: true,
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
