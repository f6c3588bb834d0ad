//! The graphs of a workflow: that of the file, and those of what is done with each item.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use waypost::shape::{self, Children, FailureLimits, Growth, OnChildFailure, Shape};
use waypost::{Digest, InvalidName, StepId};

use crate::file::{Backoff, Body, Foreach, Hook, HookOn, Mode, OnItemFailure, Step, Workflow};

use super::ProgramError;
use super::hooks::Plan;

/// Names the branch of a group.
const GROUP_KEY: &str = "steps";
/// Names the branch of another file.
const FILE_KEY: &str = "workflow";

/// The steps of one graph.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) steps: Vec<Step>,
    /// By the place of a step: what it works on item by item.
    pub(super) foreach: Vec<Option<Arc<Foreach>>>,
    /// By the place of a step: what is done after it.
    pub(super) hooks: Vec<Arc<[Plan]>>,
    /// By the place of a step: where it runs.
    pub(super) bases: Vec<Arc<Path>>,
}

/// What holds for the steps of one list.
#[derive(Clone, Copy)]
struct Around<'w> {
    file: &'w File<'w>,
    cores: NonZeroUsize,
    /// How many of the files around fail with one of them, from the inmost on.
    fails: usize,
}

/// A file with those that it is run by.
struct File<'w> {
    workflow: &'w Workflow,
    /// Where its steps run.
    base: Arc<Path>,
    outer: Option<&'w Self>,
}

impl<'w> File<'w> {
    /// Returns it and those around it, from the inmost on.
    fn outward(&'w self) -> impl Iterator<Item = &'w Self> + Clone {
        std::iter::successors(Some(self), |file| file.outer)
    }
}

/// Steps that are done after another one, and what is around them.
struct After<'w> {
    key: String,
    on: HookOn,
    body: &'w Body,
    file: &'w File<'w>,
}

impl<'w> Around<'w> {
    /// What is done after a step: its own hooks, and those of the files that fail with it.
    fn after(&self, step: &'w Step) -> Vec<After<'w>> {
        let depth = self.file.outward().count();
        let hook = |(number, file): (usize, &'w File<'w>)| {
            let key = super::hooks::key_of_file(depth - 1 - number);
            Some(After { key, on: HookOn::Failure, body: file.workflow.on_failure()?, file })
        };
        let of_files = self.file.outward().enumerate().take(self.fails).filter_map(hook);
        let own =
            |hook: &'w Hook| After { key: hook.on.key(), on: hook.on, body: &hook.body, file: self.file };
        let mut hooks: Vec<_> = match step.work.body() {
            Some(_) => Vec::new(),
            None => step.hooks.iter().map(own).chain(of_files).collect(),
        };
        // What is meant for one exit code knows best what to do.
        hooks.sort_by_key(|hook| !matches!(hook.on, HookOn::ExitCode(_)));
        hooks
    }
}

/// Makes the graph of a workflow: its `needs`, or each step after the one before.
///
/// # Errors
/// [`ProgramError`], for what the reader of the file should have refused.
pub fn shape_of(workflow: &Workflow, cores: NonZeroUsize) -> Result<Shape, ProgramError> {
    of(workflow, cores, Path::new("")).map(|(shape, _)| shape)
}

/// Makes it, and the steps of each graph by its number.
pub(super) fn of(
    workflow: &Workflow,
    cores: NonZeroUsize,
    base: &Path,
) -> Result<(Shape, Vec<Level>), ProgramError> {
    let mut levels = Vec::new();
    let file = File { workflow, base: base.into(), outer: None };
    let around = Around { file: &file, cores, fails: 1 };
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
        node.claims = super::WorkflowProgram::is_checked_later(step);
        // What waits for something outside has all the time that it takes.
        node.timeout = step.timeout.filter(|_| step.work.command().is_some());
        node.retry = retry(step);
        let each = step.work.foreach();
        if let Some(child) = step.work.child() {
            let first = around.file.outward().last().unwrap_or(around.file);
            let base = first.base.join(child.folder()).into();
            let file = File { workflow: child.workflow(), base, outer: Some(around.file) };
            let inner = Around { file: &file, fails: around.fails + 1, ..around };
            let shape = level(file.workflow.body(), file.workflow.max_parallel(cores), inner, levels)?;
            node.children = Some(one_child(node.id.clone(), FILE_KEY, shape));
        } else if let Some(body) = step.work.body() {
            let inner = match body.mode() {
                Mode::Sequence => NonZeroUsize::MIN,
                Mode::Graph => cores,
            };
            let stops = each.is_none_or(|each| each.on_failure == OnItemFailure::Stop);
            let around = Around { fails: if stops { around.fails } else { 0 }, ..around };
            let shape = level(body, inner, around, levels)?;
            node.children = Some(match each {
                Some(each) => children(node.id.clone(), each, shape, cores),
                None => one_child(node.id.clone(), GROUP_KEY, shape),
            });
        }
        let own = around.after(step);
        let mut plans = Vec::with_capacity(own.len());
        if !own.is_empty() {
            let (shape, starts) = after(&own, around, levels)?;
            node.children = Some(afterwards(node.id.clone(), shape));
            let planned = own.into_iter().zip(starts);
            plans.extend(planned.map(|(hook, start)| super::hooks::plan(hook.key, hook.on, start)));
        }
        hooks.push(plans.into());
        if step.repeat.is_some() {
            node.routes = vec![node.id.clone()];
        }
        foreach.push(each.cloned().map(Arc::new));
        steps.push(node);
    }
    let bases = vec![Arc::clone(&around.file.base); body.steps().len()];
    levels[number] = Some(Level { steps: body.steps().to_vec(), foreach, hooks, bases });
    Ok(Shape::new(steps, parallel_max.get())?.at_level(number))
}

/// Makes one graph of the hooks of a step, in which each is a line of its own, and names where each begins.
fn after(
    hooks: &[After<'_>],
    around: Around<'_>,
    levels: &mut Vec<Option<Level>>,
) -> Result<(Shape, Vec<StepId>), ProgramError> {
    let number = levels.len();
    levels.push(None);
    let (mut nodes, mut steps, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut foreach, mut own, mut bases) = (Vec::new(), Vec::new(), Vec::new());
    for After { key, body, file, .. } in hooks {
        // Each as a list of its own, of which the numbers do not matter: those below it keep theirs.
        let mut inner = Vec::new();
        let around = Around { file, fails: 0, ..around };
        let shape = level(body, NonZeroUsize::MIN, around, &mut inner)?;
        let mut inner = inner.into_iter().flatten();
        let Some(list) = inner.next() else { continue };
        let offset = levels.len();
        levels.extend(inner.map(Some));
        let own_steps: Vec<shape::Step> = match super::hooks::prefix(key) {
            Some(prefix) => {
                shape.steps().iter().map(|step| renamed(step, prefix)).collect::<Result<_, _>>()?
            }
            None => shape.steps().to_vec(),
        };
        starts.extend(own_steps.first().map(|step| step.id.clone()));
        for mut step in own_steps {
            if let Some(children) = &mut step.children {
                // The first of the list was that of the list itself, which has no number any more.
                children.shape.raise_levels(offset - 1);
            }
            nodes.push(step);
        }
        steps.extend(list.steps);
        foreach.extend(list.foreach);
        own.extend(list.hooks);
        bases.extend(list.bases);
    }
    levels[number] = Some(Level { steps, foreach, hooks: own, bases });
    Ok((Shape::new(nodes, 1)?.at_level(number), starts))
}

/// The same step under another id, among others that are called likewise.
fn renamed(step: &shape::Step, prefix: &str) -> Result<shape::Step, InvalidName> {
    let longer = |id: &StepId| StepId::new(&format!("{prefix}-{id}"));
    let all = |ids: &[StepId]| ids.iter().map(longer).collect::<Result<Vec<_>, _>>();
    let mut step = step.clone();
    (step.id, step.needs, step.routes) = (longer(&step.id)?, all(&step.needs)?, all(&step.routes)?);
    if let Some(children) = &mut step.children {
        children.name = step.id.clone();
    }
    Ok(step)
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

/// The branch on which the steps of a group are done, or those of another file.
fn one_child(name: StepId, key: &str, shape: Shape) -> Children {
    Children {
        name,
        shape: Box::new(shape),
        named: vec![(key.to_owned(), None)],
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
