//! Invalidation of steps in graphs with `needs` by a resume: reads the records for
//! [`invalidate`](crate::engine::walk::invalidate).
//!
//! Input: steps with failed evidence or with reopened children, and steps named by a person. Output: for each scope,
//! the position after the invalidation, and the drafts.

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::projection::events::RerunCause;
use crate::record::{Fan, FrontierEntry, Header, Phase, Position, Reason, Record, Try};
use crate::store::{StoreError, StoreExt as _};

use super::begin::Base;
use super::definition::Forget;
use super::reruns::{Target, Transition, redo_draft, to_rerun};
use super::trust::{Judgement, ScopeInForce};
use crate::engine::chain::Draft;
use crate::engine::inspect::position_of;
use crate::engine::time_travel::rollback::{aim, load_with_state, next_epoch, with_state};
use crate::engine::walk::invalidate::{
    InvalidStep, Invalidated, ReusePolicy, downstream, invalidate, invalidated,
};
use crate::engine::walk::rewind::starts;
use crate::engine::walk::trace::pass_in;
use crate::engine::{Engine, ResumeFrom, RunError};

/// The context of an invalidation in a scope.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Invalidation<'a> {
    pub(crate) engine: &'a Engine,
    /// The graph of the run.
    pub(crate) root: &'a Shape,
    /// The verdicts, for the records.
    pub(crate) judgement: &'a Judgement,
    pub(crate) policy: ReusePolicy,
    /// The step of the scope that a person named.
    pub(crate) named: Option<&'a StepId>,
}

/// Invalidates steps of a scope, none downstream of another. Returns the transition of the scope; `None` if all the steps
/// are unfinished already.
///
/// # Errors
/// [`RunError::InDoubt`]: the step opens non-idempotent steps. Errors of reading the scope.
pub(crate) async fn invalidate_targets(
    opening: Invalidation<'_>,
    known: &ScopeInForce,
    targets: &[Target],
) -> Result<Option<Transition>, RunError> {
    let header = known.record.header();
    let scope = &header.scope;
    let Some(shape) = opening.root.of_scope(scope) else { return Ok(None) };
    let (mut drafts, mut forgotten) = (Vec::new(), Vec::new());
    let mut position = known.position.clone();
    let epoch = next_epoch(opening.engine, header, &known.position).await?;
    for is_requested in [true, false] {
        let policy = if is_requested { opening.policy } else { ReusePolicy::Keep };
        let opening = Invalidation { policy, ..opening };
        let (mut invalid, mut restored) = (Vec::new(), Vec::new());
        for target in targets.iter().filter(|target| target.is_requested == is_requested) {
            let Some((step, forget)) = invalid_step(opening, (known, shape), target, epoch).await? else {
                continue;
            };
            let iteration = match sound_end(opening.engine, header, target).await? {
                Some(end) => end.header().at.iteration.clone(),
                None => step.entry.at.iteration.clone(),
            };
            let at = Try { attempt: 0, epoch, iteration };
            drafts.push(redo_draft(header, at, (target, opening.judgement)));
            restored.extend(forget);
            invalid.push(step);
        }
        if !invalid.is_empty() {
            let after = invalidate_in(opening, (scope, shape), &position, invalid);
            forgotten.extend(after.forgotten.into_iter().chain(restored));
            position = after.position;
        }
    }
    if drafts.is_empty() {
        return Ok(None);
    }
    // The evidence of the opener itself failed, and its children produced the claimed files: the children rerun
    // without reuse.
    let own = targets.iter().filter(|target| target.claims.is_some());
    let openers =
        own.filter(|target| shape.step(target.step.as_str()).is_some_and(|step| step.children.is_some()));
    position.rerun_whole.extend(openers.map(|target| target.step.clone()));
    // All that follows a requested rerun runs again, also the hooks of the openers above.
    if opening.policy != ReusePolicy::Keep {
        let above = targets.iter().filter(|target| target.is_requested && target.claims.is_none());
        let hooks = above.filter_map(|target| shape.step(target.step.as_str())?.hooks.as_ref());
        position.rerun_whole.extend(hooks.map(|hooks| hooks.name.clone()));
    }
    Ok(Some(Transition { record: known.record.clone(), position, drafts, basis: None, forgotten }))
}

/// Invalidates steps of a scope. In a pass, a step that has not run yet reads its own output from the pass
/// before; this output leaves the state.
fn invalidate_in(
    opening: Invalidation<'_>,
    (scope, shape): (&ScopePath, &Shape),
    before: &Position,
    invalid: Vec<InvalidStep>,
) -> Invalidated {
    let in_pass = in_pass(opening.root, scope);
    let loops = |place: usize| shape.share_loop(place, place);
    let below = downstream(shape, &invalid);
    let named = invalid.iter().map(|step| step.place).filter(|place| in_pass && !loops(*place));
    let mut stale: Vec<usize> = named.collect();
    let Invalidated { position, forgotten: dropped } = invalidate(shape, before, invalid, opening.policy);
    let has_result = |place: usize| position.has_result(&shape.steps()[place].id);
    stale.extend(below.into_iter().filter(|place| in_pass || (loops(*place) && !has_result(*place))));
    let mut forgotten = Vec::new();
    if opening.policy == ReusePolicy::Keep {
        forgotten.extend(stale.into_iter().map(|place| Forget::Step(shape.steps()[place].id.clone())));
    }
    forgotten.extend(dropped);
    Invalidated { position, forgotten }
}

/// Returns an invalid step with its frontier entry, and the part of the state to remove; `None` if the step is
/// unfinished already.
async fn invalid_step(
    opening: Invalidation<'_>,
    (known, shape): (&ScopeInForce, &Shape),
    target: &Target,
    epoch: u32,
) -> Result<Option<(InvalidStep, Option<Forget>)>, RunError> {
    let engine = opening.engine;
    let header = known.record.header();
    let Some(place) = shape.place(target.step.as_str()) else { return Ok(None) };
    let Some(end) = sound_end(engine, header, target).await? else {
        // A step without a sound end begins with the first pass, in new scopes.
        let at = Try { attempt: 0, epoch, iteration: shape.first_iteration(place, &[]) };
        let entry = FrontierEntry { at, ..FrontierEntry::ready(target.step.clone()) };
        let forgotten = Some(Forget::Step(target.step.clone()));
        return Ok(Some((InvalidStep { place, entry, is_named: true }, forgotten)));
    };
    let end = end.header();
    let open = known.position.frontier.iter().find(|entry| entry.step == target.step);
    let is_passed = open.is_some_and(|entry| entry.at.iteration > end.at.iteration);
    let is_open = Unfinished::of(shape, &known.position).has(place);
    let is_named = opening.named == Some(&target.step);
    if !is_passed && !is_named && (open.is_some() || is_open) {
        return Ok(None);
    }
    let loops = shape.share_loop(place, place);
    let begins = opening.policy != ReusePolicy::Keep && target.claims.is_some();
    // Without the state before the pass, the step begins with the first pass.
    let (iteration, forgotten) = match loops {
        true if begins => (first_pass(shape, place, end), None),
        true => pass_again(engine, (shape, place), end).await?,
        false => (end.at.iteration.clone(), None),
    };
    // A step with rerun children joins these again; any other step opens new scopes.
    let joining = match target.claims {
        _ if iteration == end.at.iteration && target.claims.is_none() => {
            // The fan-out of the pass of the end, for a step with a scope per pass.
            let fan = known.position.fan_of(&target.step).filter(|fan| fan.pass > 0);
            match fan.and_then(|fan| fan.of_pass(pass_in(shape, place, &end.at.iteration))) {
                Some(fan) => Some(fan),
                None => joining(engine, &known.position, &shape.steps()[place], end, loops).await?,
            }
        }
        _ => None,
    };
    let ready = FrontierEntry::ready(target.step.clone());
    let entry = FrontierEntry { at: Try { attempt: 0, epoch, iteration }, fan: joining, ..ready };
    Ok(Some((InvalidStep { place, entry, is_named }, forgotten)))
}

/// Returns the record of the end of a step; `None` for the damaged end of a step that a person named.
async fn sound_end(engine: &Engine, newest: &Header, target: &Target) -> Result<Option<Record>, StoreError> {
    match engine.store.load(&newest.run, &newest.scope, target.seq).await {
        Err(StoreError::Damaged { .. }) if target.is_requested => Ok(None),
        end => end.map(Some),
    }
}

/// Returns whether a scope belongs to a pass, so that its steps may read their own outputs from the pass before.
fn in_pass(shape: &Shape, scope: &ScopePath) -> bool {
    let opener = scope.parent().zip(scope.opened_by()).and_then(|(parent, (name, _))| {
        let shape = shape.of_scope(&parent)?;
        Some((shape, shape.opener(&name)?))
    });
    opener.is_some_and(|(shape, place)| shape.share_loop(place, place))
}

/// Returns the first iteration of a step on a loop, within the outer iteration of an end.
fn first_pass(shape: &Shape, place: usize, end: &Header) -> Vec<u32> {
    let around = end.at.iteration.len().saturating_sub(1);
    shape.first_iteration(place, &end.at.iteration[..around])
}

/// Returns the pass in which a step on a loop reruns, and the part of the state to remove: the pass of its end,
/// or the first pass if the state of the pass before was pruned.
async fn pass_again(
    engine: &Engine,
    (shape, place): (&Shape, usize),
    end: &Header,
) -> Result<(Vec<u32>, Option<Forget>), RunError> {
    let step = &shape.steps()[place].id;
    let first = first_pass(shape, place, end);
    let from_first_pass = (first.clone(), Some(Forget::Step(step.clone())));
    let mut before = end.at.iteration.clone();
    match before.last_mut() {
        Some(pass) if end.at.iteration != first => *pass -= 1,
        _ => return Ok(from_first_pass),
    }
    let ends = |record: &Record| {
        let found = record.header();
        let ended = match &found.phase {
            Phase::Completed(_) => true,
            Phase::Failed(failure) => failure.tolerated,
            _ => false,
        };
        ended && found.step.as_ref() == Some(step) && found.at.iteration == before
    };
    let Some(ended) = engine.store.find_back(&end.run, &end.scope, end.seq, &ends).await? else {
        return Ok(from_first_pass);
    };
    let ended = match engine.store.load(&end.run, &end.scope, ended.header().seq).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(from_first_pass),
        ended => ended?,
    };
    Ok(match with_state(engine, ended).await? {
        Some(then) => (end.at.iteration.clone(), Some(Forget::Since(vec![step.clone()], Box::new(then)))),
        None => from_first_pass,
    })
}

/// Returns the fan-out to join again; `None` if retention dropped its record, so that new scopes open.
///
/// # Errors
/// [`RunError::NoState`]: the record was dropped, and the scopes have steps with `idempotent: false` without a
/// question to a person, as in a step that `loops`.
async fn joining(
    engine: &Engine,
    position: &Position,
    step: &Step,
    end: &Header,
    loops: bool,
) -> Result<Option<Fan>, RunError> {
    match joined_by(engine, position, (&step.id, end)).await {
        Err(RunError::NoState { .. }) if loops || !step.opens_careful() => Ok(None),
        joined => joined.map(Some),
    }
}

/// Returns the fan-out that a step joined, from the end `end` of the step.
///
/// # Errors
/// [`RunError::NoState`]: neither the position nor a retained state has the fan-out.
pub(crate) async fn joined_by(
    engine: &Engine,
    position: &Position,
    (step, end): (&StepId, &Header),
) -> Result<Fan, RunError> {
    if let Some(fan) = position.joined(step) {
        return Ok(fan.clone());
    }
    let (run, scope) = (&end.run, &end.scope);
    let starts = |record: &Record| starts(record.header(), end);
    if let Some(start) = engine.store.find_back(run, scope, end.seq, &starts).await? {
        let start = load_with_state(engine, run, scope, start.header().seq).await?;
        let position = position_of(&start)?;
        let entry = position.frontier.into_iter().find(|entry| entry.step == *step);
        if let Some(fan) = entry.as_ref().and_then(|entry| entry.fan.as_ref()) {
            return Ok(fan.clone());
        }
    }
    let why = format!("the joined scopes of step `{step}` are no longer recorded");
    Err(RunError::NoState { at: end.reference().to_string(), why })
}

/// A step to rerun on request of a person.
#[derive(Clone, Copy)]
pub(crate) struct RequestedRerun<'a> {
    pub(crate) step: &'a StepId,
    pub(crate) policy: ReusePolicy,
    pub(crate) by: Option<&'a str>,
}

/// Returns the position after the invalidation of a step and all downstream steps, on request of a person.
///
/// # Errors
/// [`RunError::InvalidStep`]: the step does not exist. [`RunError::NotFinished`]: an upstream step is not finished.
pub(crate) fn invalidate_named(
    shape: &Shape,
    position: &Position,
    requested: RequestedRerun<'_>,
    epoch: u32,
    run: &RunId,
) -> Result<Invalidated, RunError> {
    let RequestedRerun { step, policy, .. } = requested;
    let place = shape.place(step.as_str()).ok_or_else(|| RunError::InvalidStep(step.clone()))?;
    let unfinished = Unfinished::of(shape, position);
    if shape.needs(place).iter().any(|need| unfinished.has(*need)) {
        let (run, scope, step) = (run.clone(), ScopePath::main(), step.clone());
        return Err(RunError::NotFinished { run, scope, step });
    }
    let at = Try { attempt: 0, epoch, iteration: shape.first_iteration(place, &[]) };
    let entry = FrontierEntry { at, ..FrontierEntry::ready(step.clone()) };
    Ok(invalidate(shape, position, vec![InvalidStep { place, entry, is_named: true }], policy))
}

/// Invalidates a step of the main scope on request of a person.
///
/// # Errors
/// [`RunError::NotFinished`]: the step was never started, or an upstream step is not finished.
pub(crate) async fn from_step(
    engine: &Engine,
    shape: &Shape,
    base: &mut Base,
    requested: RequestedRerun<'_>,
) -> Result<Draft, RunError> {
    let RequestedRerun { step, by, .. } = requested;
    // The step may have begun or ended in the run before the fork.
    let ended =
        shape.place(step.as_str()).is_some_and(|place| !Unfinished::of(shape, &base.position).has(place));
    let is_open = base.position.frontier.iter().any(|entry| entry.step == *step && entry.has_children());
    if !ended && !is_open {
        aim(engine, shape, base, &ResumeFrom::Step(step.clone())).await?;
    }
    let epoch = next_epoch(engine, base.record.header(), &base.position).await?;
    let run = &base.record.header().run;
    let after = invalidate_named(shape, &base.position, requested, epoch, run)?;
    base.redone.extend(after.forgotten);
    let before = std::mem::replace(&mut base.position, after.position);
    let entry = base.position.frontier.iter().find(|entry| entry.step == *step);
    let at = entry.map(|entry| entry.at.clone()).unwrap_or_default();
    let mut draft = Draft::new(Phase::Restored, Reason::Redo, Some(step.clone()), at);
    let requested = RerunCause::Requested { by: by.map(ToOwned::to_owned), by_rollback: false };
    draft.report.notes.push(invalidated(step, &requested));
    let behind = to_rerun(shape, &before, &base.position).into_iter().filter(|other| *other != step);
    let upstream = RerunCause::UpstreamChanged { step: Some(step.clone()) };
    draft.report.notes.extend(behind.map(|behind| invalidated(behind, &upstream)));
    Ok(draft)
}
