//! Graphs of a workflow: of the file, and of the bodies of steps, hooks and included files.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use waypost::id::STEP_ID_BYTES_MAX;
use waypost::shape::{self, Children, FailureLimits, Growth, OnChildFailure, Shape};
use waypost::{Digest, InvalidName, StepId};

use crate::file::{Backoff, Body, Foreach, Hook, HookOn, Mode, OnItemFailure, Parallel, Step, Workflow};

use super::ProgramError;
use super::hooks::Plan;

/// Suffix of the name of hook scopes, for a step with other child scopes.
const HOOKS: &str = "-hooks";
/// Key of the scope of another file.
pub const FILE_KEY: &str = "workflow";

/// Steps of one graph.
#[derive(Debug)]
pub(super) struct Subgraph {
    pub(super) steps: Vec<Step>,
    /// By the place of a step: its `foreach`.
    pub(super) foreach: Vec<Option<Arc<Foreach>>>,
    /// By the place of a step: its hooks.
    pub(super) hooks: Vec<Arc<[Plan]>>,
    /// By the place of a step: its base folder.
    pub(super) bases: Vec<Arc<Path>>,
}

/// Context of a list of steps.
#[derive(Clone, Copy)]
struct Enclosing<'w> {
    file: &'w File<'w>,
    parallel: Parallel,
}

/// File, with the files that run it.
struct File<'w> {
    workflow: &'w Workflow,
    /// Base folder of the steps.
    base: Arc<Path>,
    outer: Option<&'w Self>,
}

impl<'w> File<'w> {
    /// Returns this file and the files around it, innermost first.
    fn outward(&'w self) -> impl Iterator<Item = &'w Self> + Clone {
        std::iter::successors(Some(self), |file| file.outer)
    }
}

/// Hook of a step, with the steps of the hook.
struct AfterStep<'w> {
    key: String,
    on: HookOn,
    body: &'w Body,
}

impl<'w> Enclosing<'w> {
    /// Returns the hooks of a step, those of an exit code first.
    fn after(&self, step: &'w Step) -> Vec<AfterStep<'w>> {
        let own = |hook: &'w Hook| AfterStep { key: hook.on.key(), on: hook.on, body: &hook.body };
        let mut hooks: Vec<_> = step.hooks.iter().map(own).collect();
        // Hooks for an exit code are the most specific and run first.
        hooks.sort_by_key(|hook| !matches!(hook.on, HookOn::ExitCode(_)));
        hooks
    }
}

/// Makes the graph of a workflow: from `needs`, else a sequence.
///
/// # Errors
/// [`ProgramError`], for a file that the reader should have rejected.
pub fn shape_of(workflow: &Workflow, parallel: Parallel) -> Result<Shape, ProgramError> {
    of(workflow, parallel, Path::new("")).map(|(shape, _)| shape)
}

/// Makes the graph of a workflow, and the steps of every graph by number.
pub(super) fn of(
    workflow: &Workflow,
    parallel: Parallel,
    base: &Path,
) -> Result<(Shape, Vec<Subgraph>), ProgramError> {
    let mut levels = Vec::new();
    let file = File { workflow, base: base.into(), outer: None };
    let around = Enclosing { file: &file, parallel };
    let parallel_max = match (workflow.mode(), parallel) {
        (Mode::Graph, Parallel::Run(count)) => count,
        _ => workflow.max_parallel(parallel),
    };
    let shape = subgraph(workflow.body(), parallel_max, around, &mut levels)?;
    let levels =
        levels.into_iter().map(|subgraph| subgraph.expect("each graph is set when its steps are known"));
    Ok((shape, levels.collect()))
}

fn subgraph(
    body: &Body,
    parallel_max: NonZeroUsize,
    around: Enclosing<'_>,
    levels: &mut Vec<Option<Subgraph>>,
) -> Result<Shape, ProgramError> {
    let number = levels.len();
    levels.push(None);
    let mut steps: Vec<shape::Step> = Vec::with_capacity(body.steps().len());
    let mut foreach = Vec::with_capacity(body.steps().len());
    let mut hooks = Vec::with_capacity(body.steps().len());
    for step in body.steps() {
        let needs = match body.mode() {
            Mode::Sequence => {
                let before = Body::before(body.steps(), step.index);
                before.map(|before| steps[before].id.clone()).into_iter().collect()
            }
            Mode::Graph => step.needs.iter().map(|need| StepId::new(need)).collect::<Result<_, _>>()?,
        };
        let fingerprint: Digest = step.fingerprint.parse()?;
        let mut node = shape::Step::new(StepId::new(&step.id)?, needs, fingerprint);
        node.name.clone_from(&step.name);
        node.admission = Some(step.admission.parse()?);
        node.frame = step.frame.as_ref().map(|frame| frame.parse()).transpose()?;
        node.inherited = step.inherited.as_ref().map(|part| part.parse()).transpose()?;
        node.list = step.list.as_ref().map(|list| list.parse()).transpose()?;
        node.skipped_with = skipped_with(step, &node.needs);
        node.idempotent = step.idempotent;
        node.is_for_hooks = step.is_for_hooks();
        node.cuts_max = step.cuts_max.unwrap_or_else(|| around.file.workflow.cuts_max());
        node.claims = super::WorkflowProgram::is_checked_later(step);
        // A wait has no timeout.
        node.timeout = step.timeout.filter(|_| step.work.command().is_some());
        node.retry = retry(step);
        let each = step.work.foreach();
        if let Some(child) = step.work.child() {
            let first = around.file.outward().last().unwrap_or(around.file);
            let base = first.base.join(child.folder()).into();
            let file = File { workflow: child.workflow(), base, outer: Some(around.file) };
            let inner = Enclosing { file: &file, ..around };
            let shape =
                subgraph(file.workflow.body(), file.workflow.max_parallel(around.parallel), inner, levels)?;
            node.children = Some(one_child(node.id.clone(), Some(FILE_KEY), shape));
        } else if let Some(body) = step.work.body() {
            let inner = match body.mode() {
                Mode::Sequence => NonZeroUsize::MIN,
                Mode::Graph => around.parallel.of(body),
            };
            let shape = subgraph(body, inner, around, levels)?;
            node.children = Some(match each {
                Some(each) => children(node.id.clone(), each, shape, around.parallel),
                None => one_child(node.id.clone(), None, shape),
            });
        }
        let own = around.after(step);
        let mut plans = Vec::with_capacity(own.len());
        if !own.is_empty() {
            let (shape, starts) = after(&own, around, levels)?;
            let name = match &node.children {
                None => node.id.clone(),
                Some(_) => hooks_name(&node.id, body)?,
            };
            node.hooks = Some(hook_scopes(name, shape));
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
    levels[number] = Some(Subgraph { steps: body.steps().to_vec(), foreach, hooks, bases });
    // The key of an including file counts for the included file, too.
    let fails_fast = around.file.outward().any(|file| file.workflow.fails_fast());
    Ok(Shape::new(steps, parallel_max.get())?.at_level(number).failing_fast(fails_fast))
}

/// Makes one graph of all hooks of a step, each a chain, and returns the first step of each hook.
fn after(
    hooks: &[AfterStep<'_>],
    around: Enclosing<'_>,
    levels: &mut Vec<Option<Subgraph>>,
) -> Result<(Shape, Vec<StepId>), ProgramError> {
    let number = levels.len();
    levels.push(None);
    let (mut nodes, mut steps, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut foreach, mut own, mut bases) = (Vec::new(), Vec::new(), Vec::new());
    for AfterStep { body, .. } in hooks {
        // Each hook is built as a separate list, numbered from 0; the levels below the list are renumbered.
        let mut inner = Vec::new();
        let shape = subgraph(body, NonZeroUsize::MIN, around, &mut inner)?;
        let mut inner = inner.into_iter().flatten();
        let Some(list) = inner.next() else { continue };
        let offset = levels.len();
        levels.extend(inner.map(Some));
        let own_steps = shape.steps().to_vec();
        starts.extend(own_steps.first().map(|step| step.id.clone()));
        for mut step in own_steps {
            for children in step.children.iter_mut().chain(&mut step.hooks) {
                // The first level was the list itself; merged here, it has no number.
                children.shape.raise_levels(offset - 1);
            }
            nodes.push(step);
        }
        steps.extend(list.steps);
        foreach.extend(list.foreach);
        own.extend(list.hooks);
        bases.extend(list.bases);
    }
    levels[number] = Some(Subgraph { steps, foreach, hooks: own, bases });
    Ok((Shape::new(nodes, 1)?.at_level(number), starts))
}

/// Returns the name of the hook scopes of a step with other child scopes. The other scopes have the
/// name of the step.
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

/// Returns the hook scopes of a step.
fn hook_scopes(name: StepId, shape: Shape) -> Children {
    Children {
        name,
        shape: Box::new(shape),
        named: Vec::new(),
        parallel_max: 1,
        on_failure: OnChildFailure::Collect,
        by_work: true,
        limits: FailureLimits::default(),
        passes: false,
        whole: false,
    }
}

/// Returns the one child scope of a step: another file if `key` is set, else the passes of a group.
fn one_child(name: StepId, key: Option<&str>, shape: Shape) -> Children {
    Children {
        name,
        shape: Box::new(shape),
        named: key.map(|key| (key.to_owned(), None)).into_iter().collect(),
        parallel_max: 1,
        on_failure: OnChildFailure::Stop,
        by_work: false,
        limits: FailureLimits::default(),
        passes: key.is_none(),
        whole: true,
    }
}

fn children(name: StepId, each: &Foreach, shape: Shape, parallel: Parallel) -> Children {
    Children {
        name,
        shape: Box::new(shape),
        named: Vec::new(),
        parallel_max: each.max_parallel.unwrap_or_else(|| parallel.of(&each.body).get()),
        on_failure: match each.on_failure {
            OnItemFailure::Stop => OnChildFailure::Stop,
            OnItemFailure::DeadLetter | OnItemFailure::Skip => OnChildFailure::Collect,
        },
        by_work: true,
        limits: each.limits(),
        passes: false,
        whole: true,
    }
}

/// Returns the needs not considered by the condition of a step; skipping such a need skips the step.
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
