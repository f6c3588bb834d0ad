//! The graphs of a workflow: that of the file, and those of what is done with each item.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use waypost::id::STEP_ID_BYTES_MAX;
use waypost::shape::{self, Children, FailureLimits, Growth, OnChildFailure, Shape};
use waypost::{Digest, InvalidName, StepId};

use crate::file::{Backoff, Body, Foreach, Hook, HookOn, Mode, OnItemFailure, Step, Workflow};

use super::ProgramError;
use super::hooks::Plan;

/// Ends the name of the branches of the hooks of a step that opens others by its work.
const HOOKS: &str = "-hooks";
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
    /// They are those of the file itself, and not within one of them or after it.
    is_top: bool,
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

/// Steps that are done after another one.
struct After<'w> {
    key: String,
    on: HookOn,
    body: &'w Body,
}

impl<'w> Around<'w> {
    /// What is done after a step: its own hooks, and that of the file, which fails with it.
    fn after(&self, step: &'w Step) -> Vec<After<'w>> {
        let own = |hook: &'w Hook| After { key: hook.on.key(), on: hook.on, body: &hook.body };
        let of_file = self.file.workflow.on_failure().filter(|_| self.is_top).map(|body| {
            let key = super::hooks::key_of_file(self.file.outer.is_none());
            After { key, on: HookOn::Failure, body }
        });
        let mut hooks: Vec<_> = step.hooks.iter().map(own).chain(of_file).collect();
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
    let around = Around { file: &file, cores, is_top: true };
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
        node.frame = step.frame.as_ref().map(|frame| frame.parse()).transpose()?;
        node.list = step.list.as_ref().map(|list| list.parse()).transpose()?;
        node.skipped_with = skipped_with(step, &node.needs);
        node.idempotent = step.idempotent;
        node.cuts_max = step.cuts_max.unwrap_or_else(|| around.file.workflow.cuts_max());
        node.claims = super::WorkflowProgram::is_checked_later(step);
        // What waits for something outside has all the time that it takes.
        node.timeout = step.timeout.filter(|_| step.work.command().is_some());
        node.retry = retry(step);
        let each = step.work.foreach();
        if let Some(child) = step.work.child() {
            let first = around.file.outward().last().unwrap_or(around.file);
            let base = first.base.join(child.folder()).into();
            let file = File { workflow: child.workflow(), base, outer: Some(around.file) };
            let inner = Around { file: &file, is_top: true, ..around };
            let shape = level(file.workflow.body(), file.workflow.max_parallel(cores), inner, levels)?;
            node.children = Some(one_child(node.id.clone(), Some(FILE_KEY), shape));
        } else if let Some(body) = step.work.body() {
            let inner = match body.mode() {
                Mode::Sequence => NonZeroUsize::MIN,
                Mode::Graph => cores,
            };
            let shape = level(body, inner, Around { is_top: false, ..around }, levels)?;
            node.children = Some(match each {
                Some(each) => children(node.id.clone(), each, shape, cores),
                None => one_child(node.id.clone(), None, shape),
            });
        }
        let own = around.after(step);
        let mut plans = Vec::with_capacity(own.len());
        if !own.is_empty() {
            let (shape, starts) = after(&own, around, levels)?;
            match &node.children {
                None => node.children = Some(afterwards(node.id.clone(), shape)),
                Some(_) => node.after = Some(afterwards(hooks_name(&node.id, body)?, shape)),
            }
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
    let fails_fast = around.file.workflow.fails_fast();
    Ok(Shape::new(steps, parallel_max.get())?.at_level(number).failing_fast(fails_fast))
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
    for After { body, .. } in hooks {
        // Each as a list of its own, of which the numbers do not matter: those below it keep theirs.
        let mut inner = Vec::new();
        let shape = level(body, NonZeroUsize::MIN, Around { is_top: false, ..around }, &mut inner)?;
        let mut inner = inner.into_iter().flatten();
        let Some(list) = inner.next() else { continue };
        let offset = levels.len();
        levels.extend(inner.map(Some));
        let own_steps = shape.steps().to_vec();
        starts.extend(own_steps.first().map(|step| step.id.clone()));
        for mut step in own_steps {
            for children in step.children.iter_mut().chain(&mut step.after) {
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

/// Names the branches of the hooks of a step which opens others by its work: those are called after the step itself.
fn hooks_name(id: &StepId, among: &Body) -> Result<StepId, InvalidName> {
    let is_taken = |name: &str| among.steps().iter().any(|step| step.id == name);
    let name = |number: u32| {
        let suffix = if number == 1 { HOOKS.to_owned() } else { format!("{HOOKS}-{number}") };
        let stem = &id.as_str()[..id.as_str().len().min(STEP_ID_BYTES_MAX - suffix.len())];
        format!("{stem}{suffix}")
    };
    let free = (1..).map(name).find(|name| !is_taken(name));
    StepId::new(&free.unwrap_or_default())
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
        passes: false,
        whole: false,
    }
}

/// The branch on which the steps of another file are done; without a key, those of the passes of a group.
fn one_child(name: StepId, key: Option<&str>, shape: Shape) -> Children {
    Children {
        name,
        shape: Box::new(shape),
        named: key.map(|key| (key.to_owned(), None)).into_iter().collect(),
        parallel_max: 1,
        on_failure: OnChildFailure::Stop,
        by_work: false,
        limits: FailureLimits::default(),
        afterwards: false,
        passes: key.is_none(),
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
        limits: each.limits(),
        afterwards: false,
        passes: false,
        whole: true,
    }
}

/// Returns the needs of a step with which it is skipped: those that its condition does not think of.
fn skipped_with(step: &Step, needs: &[StepId]) -> Vec<StepId> {
    let considers = |need: &&StepId| {
        step.condition.as_ref().is_some_and(|condition| condition.considers_skipped(need.as_str()))
    };
    let declared = |need: &&StepId| step.needs.iter().any(|id| id == need.as_str());
    needs.iter().filter(declared).filter(|need| !considers(need)).cloned().collect()
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
