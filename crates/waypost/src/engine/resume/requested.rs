//! Reruns that a person requests below the main scope: a step of a scope, or failed scopes.
//!
//! Input: the request. Output: the named scopes, and in each scope above them the openers on the path.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{ScopePath, StepId};
use crate::plan::shape::{Shape, Unfinished};
use crate::projection::events::RerunCause;
use crate::record::{FrontierEntry, Position, RequestCause, RerunKind, RerunRequest, Reusable, Settled, Try};

use super::definition::Forget;
use super::reruns::{Target, Targets, Transition, opener_of};
use super::trust::{ScopesInForce, is_step_on};
use crate::engine::ResumeFrom;
use crate::engine::walk::invalidate::{InvalidStep, Invalidated, ReusePolicy, invalidate};

/// The requested reruns, and the paths to the named scopes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requested {
    /// A step to rerun, with all downstream steps.
    pub(crate) step: Option<(ScopePath, StepId)>,
    /// The person with the request.
    pub(crate) by: Option<String>,
    /// Finished steps of child scopes with a changed definition, to rerun.
    pub(crate) changed: Vec<(ScopePath, StepId)>,
    /// Steps with a tolerated failure, to retry.
    pub(crate) retried: Vec<(ScopePath, StepId)>,
    /// Scopes to continue from their newest record, and to join again.
    pub(crate) scopes: BTreeSet<ScopePath>,
    /// The named scopes and the scopes above them, each with the openers on the path.
    ways: BTreeMap<ScopePath, BTreeSet<StepId>>,
}

impl Requested {
    /// Takes the requests below the main scope from `from`. `edited`: the edited scopes.
    pub(crate) fn take<'a>(
        from: &mut Option<ResumeFrom>,
        edited: impl Iterator<Item = &'a ScopePath>,
        shape: &Shape,
    ) -> Self {
        match from.take_if(|from| matches!(from, ResumeFrom::StepOn(..) | ResumeFrom::Scopes)) {
            Some(ResumeFrom::StepOn(scope, step)) => Self::step_below(scope, step, shape),
            Some(ResumeFrom::Scopes) => {
                let named = edited.filter(|scope| !scope.is_main()).cloned().collect();
                Self::scopes(&named, shape)
            }
            _ => Self::default(),
        }
    }

    /// Requests the rerun of a step below the main scope.
    pub(crate) fn step_below(scope: ScopePath, step: StepId, shape: &Shape) -> Self {
        let mut requested = Self::default();
        requested.find_way(&scope, shape);
        requested.step = Some((scope, step));
        requested
    }

    /// Requests the continuation of scopes, and new joins in the openers above.
    pub(crate) fn scopes(scopes: &BTreeSet<ScopePath>, shape: &Shape) -> Self {
        let mut requested = Self { scopes: scopes.clone(), ..Self::default() };
        scopes.iter().for_each(|scope| requested.find_way(scope, shape));
        requested
    }

    /// Adds finished steps of child scopes with a changed definition.
    pub(crate) fn rerun_changed<'a>(&mut self, all: impl Iterator<Item = &'a RerunRequest>, shape: &Shape) {
        for RerunRequest { scope, step, .. } in all.filter(|request| request.kind.reruns()) {
            self.find_way(scope, shape);
            self.changed.push((scope.clone(), step.clone()));
        }
    }

    /// Adds steps with a tolerated failure.
    pub(crate) fn retry(&mut self, tolerated: Vec<(ScopePath, StepId)>, shape: &Shape) {
        tolerated.iter().for_each(|(scope, _)| self.find_way(scope, shape));
        self.retried.extend(tolerated);
    }

    /// Returns whether the rerun of a step is the retry of its tolerated failure: downstream results stay reusable.
    pub(crate) fn retries(&self, scope: &ScopePath, step: &StepId) -> bool {
        self.retried.iter().any(|(on, retried)| (on, retried) == (scope, step))
    }

    fn find_way(&mut self, named: &ScopePath, shape: &Shape) {
        let mut below = named.clone();
        self.ways.entry(below.clone()).or_default();
        while let Some(above) = below.parent() {
            let opener = opener_of(shape, &below);
            let is_known = self.ways.contains_key(&above);
            let news = opener.is_some_and(|step| self.ways.entry(above.clone()).or_default().insert(step));
            if is_known && !news {
                break;
            }
            below = above;
        }
    }

    /// Returns the other requests than that of a named step.
    pub(crate) fn without_named(&self) -> Self {
        Self { step: None, ..self.clone() }
    }

    /// Defers a requested rerun until its scope is entered, if the adopted definition invalidated the opener. Returns
    /// the parts to remove from the state; `None` if the opener is in force.
    pub(crate) fn defer_named(
        &self,
        shape: &Shape,
        main: &mut Position,
        policy: ReusePolicy,
    ) -> Option<Vec<Forget>> {
        let (scope, step) = self.step.clone().filter(|(scope, step)| is_step_on(shape, scope, step))?;
        let cause = RequestCause::Requested { by: self.by.clone() };
        let request = RerunRequest { scope, step, kind: RerunKind::Rerun, cause };
        let below = below_on(shape, &ScopePath::main(), &request)?;
        if !is_out_of_force(shape, main, &below.step) {
            return None;
        }
        main.requests.insert(request);
        Some(exclude(shape, main, &below, policy))
    }

    /// Excludes the results of requested steps that cannot rerun yet, because failed evidence reopens an upstream
    /// step; also the results of their downstream steps. The scopes below apply the request when these are
    /// entered.
    pub(crate) fn defer(
        &self,
        shape: &Shape,
        Targets { targets, unreached }: &Targets,
        moves: &mut BTreeMap<ScopePath, Transition>,
        policy: ReusePolicy,
    ) {
        let is_target = |scope: &ScopePath, step: &StepId| {
            let is_step =
                |target: &Target| target.step == *step && (target.is_requested || self.retries(scope, step));
            targets.get(scope).is_some_and(|targets| targets.iter().any(is_step))
        };
        let steps = self.with_causes().filter(|((scope, step), _)| !is_target(scope, step));
        let steps = steps.map(|((scope, step), cause)| {
            let kind = if self.retries(scope, step) { RerunKind::Retry } else { RerunKind::Rerun };
            RerunRequest { scope: scope.clone(), step: step.clone(), kind, cause }
        });
        // The opener of a failed scope enters its scopes again.
        let openers = unreached.iter().filter_map(|scope| {
            let (scope, step) = (scope.parent()?, opener_of(shape, scope)?);
            let cause = RequestCause::Requested { by: self.by.clone() };
            Some(RerunRequest { scope, step, kind: RerunKind::Retry, cause })
        });
        for request in steps.chain(openers) {
            let mut path: Vec<ScopePath> =
                std::iter::successors(Some(request.scope.clone()), ScopePath::parent).collect();
            path.reverse();
            for on in path {
                let below = below_on(shape, &on, &request);
                let Some((own, below)) = shape.of_scope(&on).zip(below) else { break };
                let moved =
                    moves.get_mut(&on).filter(|moved| is_out_of_force(own, &moved.position, &below.step));
                let Some(moved) = moved else { continue };
                moved.forgotten.extend(exclude(own, &mut moved.position, &below, policy));
                if let Some(main) = moves.get_mut(&ScopePath::main()) {
                    main.position.requests.insert(request);
                }
                break;
            }
        }
    }

    /// Excludes from reuse the results after an open opener on the path to a requested step: later passes, hooks and
    /// downstream steps.
    pub(crate) fn exclude_after_open(
        &self,
        shape: &Shape,
        scopes: &ScopesInForce,
        moves: &mut BTreeMap<ScopePath, Transition>,
        policy: ReusePolicy,
    ) {
        let reruns = self.with_causes().filter(|((scope, step), _)| !self.retries(scope, step));
        for ((scope, step), _) in reruns {
            let request = RerunRequest::new(scope.clone(), step.clone());
            for on in std::iter::successors(scope.parent(), ScopePath::parent) {
                let (known, own) = (scopes.get(&(on.depth(), on.clone())), shape.of_scope(&on));
                let Some((known, own)) = known.zip(own) else { continue };
                let Some(below) = below_on(shape, &on, &request) else { continue };
                let is_open = |entry: &FrontierEntry| entry.step == below.step && entry.has_children();
                let Some(place) = own.place(below.step.as_str()) else { continue };
                if !known.position.frontier.iter().any(is_open) {
                    continue;
                }
                let moved = moves.entry(on).or_insert_with(|| Transition::in_place(known));
                moved.forgotten.extend(exclude(own, &mut moved.position, &below, policy));
                if own.share_loop(place, place) {
                    moved.position.rerun_whole.insert(below.step);
                }
            }
        }
    }

    /// Returns the causes of the reruns in a scope.
    pub(crate) fn causes_on(&self, scope: &ScopePath) -> impl Iterator<Item = (&StepId, RerunCause)> {
        let own = self.with_causes().filter(move |((on, _), _)| on == scope);
        own.map(|((_, step), cause)| (step, cause.into()))
    }

    /// Returns the named and the changed steps, each with its cause.
    fn with_causes(&self) -> impl Iterator<Item = (&(ScopePath, StepId), RequestCause)> {
        let named = self.step.iter().chain(&self.retried);
        let named = named.map(|named| (named, RequestCause::Requested { by: self.by.clone() }));
        named.chain(self.changed.iter().map(|changed| (changed, RequestCause::DefinitionChanged)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// Returns whether a scope is named, or an ancestor of a named scope.
    pub(crate) fn is_on_the_way(&self, scope: &ScopePath) -> bool {
        self.ways.contains_key(scope)
    }

    /// Returns the openers of a scope on the paths to the named scopes.
    pub(crate) fn ways_on(&self, scope: &ScopePath) -> impl Iterator<Item = &StepId> {
        self.ways.get(scope).into_iter().flatten()
    }
}

/// The step of a scope on the path to a requested step.
#[derive(Debug)]
struct StepOnPath {
    step: StepId,
    kind: RerunKind,
    /// True for the requested step itself; false for an opener above.
    is_named: bool,
    /// True for a requested step with a changed definition: a person has not asked for the rerun itself.
    is_changed: bool,
    /// The first pass of the step to rerun: that of the next scope on the path.
    pass: u32,
}

/// Returns whether a step of a scope is invalid: unfinished, and without open children.
fn is_out_of_force(shape: &Shape, position: &Position, step: &StepId) -> bool {
    let amid_children = |entry: &FrontierEntry| entry.step == *step && entry.has_children();
    let is_unfinished = || {
        let place = shape.place(step.as_str());
        place.is_some_and(|place| Unfinished::of(shape, position).has(place))
    };
    position.has_result(step) || is_unfinished() && !position.frontier.iter().any(amid_children)
}

/// Excludes the reuse of a step and, unless the step is retried, of all downstream steps, whose results are out of
/// force; returns the results to remove from the state. With [`ReusePolicy::Drop`], a changed or downstream step with
/// `idempotent: false` is in doubt.
fn exclude(
    shape: &Shape,
    position: &mut Position,
    requested: &StepOnPath,
    policy: ReusePolicy,
) -> Vec<Forget> {
    let Some(place) = shape.place(requested.step.as_str()) else { return Vec::new() };
    let (is_retry, mut forgotten) = (requested.kind == RerunKind::Retry, Vec::new());
    let downstream = if is_retry { BTreeSet::new() } else { shape.downstream(&[place]) };
    for at in downstream.into_iter().chain([place]) {
        let step = &shape.steps()[at];
        if !position.has_result(&step.id) {
            continue;
        }
        if (at != place || requested.is_changed) && policy == ReusePolicy::Drop {
            step.note_effect(position, true, None);
        }
        position.drop_results_from(&step.id, if at == place { requested.pass } else { 1 });
        if (at != place || requested.is_named) && step.opens() && !is_retry {
            position.rerun_whole.insert(step.id.clone());
        } else if let Some(hooks) = step.hooks.as_ref().filter(|_| !is_retry) {
            position.rerun_whole.insert(hooks.name.clone());
        }
        // An open step continues in its state: a pass reads the outputs of the pass before.
        let is_open = position.frontier.iter().any(|entry| entry.step == step.id && entry.has_children());
        if !is_open && !position.has_result(&step.id) {
            forgotten.push(Forget::Step(step.id.clone()));
        }
    }
    forgotten
}

/// Returns the step of a scope on the path to a requested step: the opener of the next scope, or the requested
/// step. `None` if the scope is not on the path.
fn below_on(shape: &Shape, on: &ScopePath, request: &RerunRequest) -> Option<StepOnPath> {
    if *on == request.scope {
        let step = request.step.clone();
        let is_changed = request.cause == RequestCause::DefinitionChanged;
        return Some(StepOnPath { step, kind: request.kind, is_named: true, is_changed, pass: 1 });
    }
    let mut around = std::iter::successors(Some(request.scope.clone()), ScopePath::parent);
    let next = around.find(|below| below.parent().as_ref() == Some(on))?;
    let (step, opener) = (opener_of(shape, &next)?, next.opened_by()?);
    let is_pass = shape.of_scope(on)?.children_named(&opener.0)?.1.passes;
    let pass = opener.1.parse().ok().filter(|_| is_pass).unwrap_or(1);
    Some(StepOnPath { step, kind: request.kind, is_named: false, is_changed: false, pass })
}

/// Defers the reruns below openers whose scopes are entered again: the scopes apply the requests when these are entered.
pub(crate) fn defer_below(openers: &[StepId], requests: &[RerunRequest], shape: &Shape, main: &mut Position) {
    for request in requests {
        let Some(below) = below_on(shape, &ScopePath::main(), request) else { continue };
        if !openers.contains(&below.step) {
            continue;
        }
        main.requests.insert(request.clone());
        let hooks = shape.step(below.step.as_str()).and_then(|step| step.hooks.as_ref());
        if let Some(hooks) = hooks.filter(|_| request.kind.reruns()) {
            main.rerun_whole.insert(hooks.name.clone());
        }
    }
}

/// A child that continues in another fan-out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContinuedChild<'a> {
    pub(crate) root: &'a Shape,
    pub(crate) scope: &'a ScopePath,
    pub(crate) requests: &'a BTreeSet<RerunRequest>,
    /// The newest ends of the steps, if a request keeps results.
    pub(crate) ends: &'a BTreeMap<StepId, Settled>,
    /// The epoch and the outer iteration of the reruns.
    pub(crate) at: &'a Try,
    pub(crate) policy: ReusePolicy,
}

impl ContinuedChild<'_> {
    /// Applies the deferred requests: invalidates the requested steps and all downstream steps. The open children of the
    /// scope, and the children with requests, continue in another fan-out, too.
    pub(crate) fn invalidate_requested(&self, mut position: Position) -> Invalidated {
        let Self { root, scope, requests, ends, policy, .. } = *self;
        let Some(shape) = root.of_scope(scope) else {
            return Invalidated { position, forgotten: Vec::new() };
        };
        position.ledger.retain(|step, _| shape.place(step.as_str()).is_some());
        let unfinished = Unfinished::of(shape, &position);
        let mut kinds: BTreeMap<usize, (RerunKind, bool)> = BTreeMap::new();
        let reruns = requests.iter().filter(|request| request.kind != RerunKind::Confirm);
        for below in reruns.filter_map(|request| below_on(root, scope, request)) {
            if let Some(place) = shape.place(below.step.as_str()) {
                let is_rerun = below.is_named && below.kind.reruns();
                let (kind, reruns) = kinds.entry(place).or_insert((below.kind, is_rerun));
                (*kind, *reruns) = (below.kind.min(*kind), *reruns || is_rerun);
            }
        }
        for (place, step) in shape.steps().iter().enumerate() {
            let is_open = unfinished.has(place) && position.fan_of(&step.id).is_some();
            if is_open {
                kinds.entry(place).or_insert((RerunKind::Relist, false));
            }
        }
        let places: Vec<usize> = kinds.keys().copied().collect();
        let downstream = shape.downstream(&places);
        let mut invalid: BTreeMap<bool, Vec<InvalidStep>> = BTreeMap::new();
        for (place, (kind, reruns)) in kinds {
            let relisted = if reruns { Vec::new() } else { self.fan_outs(shape, place, &position) };
            if !downstream.contains(&place) && (!unfinished.has(place) || !relisted.is_empty()) {
                let open = position.frontier.iter().find(|entry| entry.step == shape.steps()[place].id);
                // The open pass continues, not the first one.
                let pass = open.filter(|_| !relisted.is_empty()).map(|open| open.at.iteration.clone());
                let invalid_step = self.invalid_step(shape, place, (pass, relisted));
                invalid.entry(kind == RerunKind::Insert).or_default().push(invalid_step);
            }
        }
        let mut forgotten = Vec::new();
        for (keeps, invalid) in invalid {
            let named: Vec<StepId> =
                invalid.iter().map(|step| shape.steps()[step.place].id.clone()).collect();
            if keeps {
                let is_known = |step: &StepId, end: &Settled| {
                    let is_new = !position.ledger.contains_key(step) && shape.place(step.as_str()).is_some();
                    is_new && end.has_result()
                };
                let known = ends.iter().filter(|(step, end)| is_known(step, end));
                let known: Vec<_> = known.map(|(step, end)| (step.clone(), end.clone())).collect();
                position.ledger.extend(known);
            }
            let after = invalidate(shape, &position, invalid, if keeps { ReusePolicy::Keep } else { policy });
            position = after.position;
            forgotten.extend(after.forgotten);
            if keeps {
                named.iter().for_each(|step| keep_downstream(shape, &mut position, step));
            }
        }
        trust_new_steps(requests, scope, &mut position);
        Invalidated { position, forgotten }
    }

    /// Returns the fan-outs of a step whose children continue; empty for a step with open hooks.
    fn fan_outs(&self, shape: &Shape, place: usize, position: &Position) -> Vec<u64> {
        let step = &shape.steps()[place].id;
        let is_in_hooks = position.frontier.iter().any(|entry| entry.step == *step && entry.hooks.is_some());
        let fan = position.fan_of(step).filter(|_| !is_in_hooks);
        fan.into_iter().flat_map(|fan| fan.relisted.iter().copied().chain([fan.since])).collect()
    }

    fn invalid_step(
        &self,
        shape: &Shape,
        place: usize,
        (pass, relisted): (Option<Vec<u32>>, Vec<u64>),
    ) -> InvalidStep {
        let iteration = pass.unwrap_or_else(|| shape.first_iteration(place, &self.at.iteration));
        let at = Try { iteration, ..self.at.clone() };
        let entry = FrontierEntry { at, relisted, ..FrontierEntry::ready(shape.steps()[place].id.clone()) };
        InvalidStep { place, entry, is_named: false }
    }
}

/// Applies the deferred requests to an entered scope: excludes the requested steps and all downstream steps from
/// reuse.
pub(crate) fn apply(
    root: &Shape,
    requests: &BTreeSet<RerunRequest>,
    scope: &ScopePath,
    position: &mut Position,
    policy: ReusePolicy,
) {
    let Some(shape) = root.of_scope(scope) else { return };
    for request in requests {
        let Some(below) = below_on(root, scope, request) else { continue };
        match below.kind {
            RerunKind::Rerun | RerunKind::Add | RerunKind::Retry => {
                drop(exclude(shape, position, &below, policy))
            }
            RerunKind::Insert => keep_downstream(shape, position, &below.step),
            // The trace of an item excludes the list. Confirmations are noted as effects.
            RerunKind::Relist | RerunKind::Confirm => {}
        }
    }
    trust_new_steps(requests, scope, position);
}

/// Returns the steps of a scope that have begun in the run before the fork.
pub(crate) fn begun_before_fork(requests: &BTreeSet<RerunRequest>, scope: &ScopePath) -> BTreeSet<StepId> {
    let is_own = |request: &&RerunRequest| request.kind == RerunKind::Confirm && request.scope == *scope;
    requests.iter().filter(is_own).map(|request| request.step.clone()).collect()
}

/// Removes the questions about new steps of a scope: these have no earlier effect.
fn trust_new_steps(requests: &BTreeSet<RerunRequest>, scope: &ScopePath, position: &mut Position) {
    let is_new = |kind| matches!(kind, RerunKind::Add | RerunKind::Insert);
    let new = requests.iter().filter(|request| request.scope == *scope && is_new(request.kind));
    new.for_each(|request| drop(position.ask_no_more(&request.step)));
}

/// Keeps the reusable results downstream of a step, with any input.
fn keep_downstream(shape: &Shape, position: &mut Position, step: &StepId) {
    let places: Vec<usize> = shape.place(step.as_str()).into_iter().collect();
    for place in shape.downstream(&places) {
        let results = position.reusable.get_mut(&shape.steps()[place].id);
        for result in results.into_iter().flat_map(BTreeMap::values_mut) {
            if let Reusable::Ended { kept, .. } = result {
                *kept = true;
            }
        }
    }
}
