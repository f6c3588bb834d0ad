//! The steps to rerun first in each scope: the most upstream invalid steps, and the joins above these scopes.
//!
//! Input: the scopes in force, and the finished steps with failed evidence or named by a person. Output: the
//! [`Targets`]. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::id::{CheckpointRef, ScopePath, StepId};
use crate::plan::Broken;
use crate::plan::shape::{Shape, Step, Unfinished};
use crate::projection::events::EVIDENCE_FAILED;
use crate::record::{FrontierEntry, Header, Note, Phase, Position, Reason, Record, Settled, Try};

use super::begin::manual_draft;
use super::definition::Forget;
use super::requested::Requested;
use super::trust::{Judgement, ScopeInForce, ScopesInForce};
use crate::engine::chain::Draft;
use crate::engine::walk::invalidate::Invalidated;

/// The transition of a scope to another position.
#[derive(Debug)]
pub(crate) struct Transition {
    pub(crate) record: Record,
    pub(crate) position: Position,
    /// The drafts of the transition; empty if only the position changes.
    pub(crate) drafts: Vec<Draft>,
    /// The basis in the scope, if `record` belongs to another run; 0 for none.
    pub(crate) basis: Option<u64>,
    /// The parts to remove from the state.
    pub(crate) forgotten: Vec<Forget>,
}

impl Transition {
    /// Continues a scope from its newest record; only the position may change.
    pub(crate) fn in_place(known: &ScopeInForce) -> Self {
        let (record, position) = (known.record.clone(), known.position.clone());
        Self { record, position, drafts: Vec::new(), basis: None, forgotten: Vec::new() }
    }

    /// Continues a child at its position in the next fan-out of its opener, after its newest record.
    pub(crate) fn in_next_fan_out(record: &Record, after: Invalidated) -> Self {
        let position = Position { origin: Some(0), ..after.position };
        let (record, forgotten) = (record.clone(), after.forgotten);
        Self { record, position, drafts: vec![manual_draft()], basis: None, forgotten }
    }
}

/// Returns the finished steps of a scope that must run again: not finished now, and without a reusable result. A step that
/// was skipped has not run.
pub(crate) fn to_rerun<'s>(shape: &'s Shape, before: &Position, after: &Position) -> Vec<&'s StepId> {
    let (was_open, is_open) = (Unfinished::of(shape, before), Unfinished::of(shape, after));
    let is_lost = |(place, step): &(usize, &Step)| {
        let was_done = !was_open.has(*place) && before.did(&step.id);
        was_done && is_open.has(*place) && !after.has_result(&step.id)
    };
    shape.steps().iter().enumerate().filter(is_lost).map(|(_, step)| &step.id).collect()
}

/// A step to rerun first, with the cause.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The record of the end of the step.
    pub(crate) seq: u64,
    pub(crate) step: StepId,
    /// The failed claims of the step itself; `None` for the join of rerun scopes.
    pub(crate) claims: Option<Vec<String>>,
    /// True if a person requested the rerun, of the step or below the step: no downstream result is reused.
    pub(crate) is_requested: bool,
}

impl Target {
    /// Returns whether the step opens new scopes: the step is named, or its own work precedes the scopes.
    /// Other steps with failed evidence join the existing scopes again.
    pub(crate) fn opens_new_scopes(&self, shape: &Shape, scope: &ScopePath) -> bool {
        let is_named = self.claims.as_ref().is_some_and(Vec::is_empty);
        let children = shape.of_scope(scope).and_then(|shape| shape.step(self.step.as_str()));
        let children = children.and_then(|step| step.children.as_ref());
        is_named && children.is_some_and(|children| !children.is_fork())
    }

    /// Moves the entry of the step to its start. A step that joins the scopes of its work also reruns its
    /// hooks.
    pub(crate) fn begin(&self, entry: &mut FrontierEntry) {
        if entry.step == self.step {
            entry.back_to_work();
        }
    }
}

/// The steps to rerun first, in all scopes.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    pub(crate) targets: BTreeMap<ScopePath, Vec<Target>>,
    /// Requested scopes that are abandoned, because an ancestor rewinds further.
    pub(crate) unreached: BTreeSet<ScopePath>,
}

/// Returns the steps to rerun first, by scope: broken steps, and the joins of scopes with reruns. Downstream
/// steps are judgement after these have ended.
///
/// In a graph with routes this is the earliest step; in a graph with `needs`, all steps without another such step
/// upstream. `damaged`: joined scopes without a sound end. `requested`: scopes to continue and to join again. `apart`: a
/// person requests the rerun, and the state has separate outputs.
pub(crate) fn targets(
    shape: &Shape,
    scopes: &ScopesInForce,
    (broken, damaged): (&[Broken], &BTreeSet<ScopePath>),
    (requested, apart): (&Requested, bool),
) -> Targets {
    let wanted = &requested.scopes;
    let mut chooser = Selection { shape, scopes, broken, requested, below: BTreeMap::new() };
    for scope in broken.iter().map(|broken| &broken.scope).chain(wanted).chain(damaged) {
        let way = std::iter::successors(Some(scope.clone()), ScopePath::parent);
        for (below, above) in way.filter_map(|below| below.parent().map(|above| (below, above))) {
            chooser.below.entry(above).or_default().insert(below);
        }
    }
    let mut targets = BTreeMap::new();
    if let Some((_, main)) = scopes.keys().next() {
        chooser.choose(main, &mut targets);
    }
    let is_left = |below: ScopePath| {
        let Some((above, targets)) = below.parent().and_then(|above| targets.get_key_value(&above)) else {
            return false;
        };
        let opener = opener_of(shape, &below);
        // A later pass follows the pass that is joined again.
        let is_later = |target: &Target| {
            let position = &scopes[&(above.depth(), above.clone())].position;
            pass_of(position, &target.step, &below) > pass_of_end(position, target)
        };
        let joins = |target: &Target| {
            target.claims.is_none() && opener.as_ref() == Some(&target.step) && !is_later(target)
        };
        let downstream = || chooser.downstream_of(above, targets.iter().map(|target| &target.step));
        let is_redone = || {
            let place = shape.of_scope(above).zip(opener.as_ref());
            let place = place.and_then(|(shape, step)| shape.place(step.as_str()));
            let is_named = targets.iter().any(|target| opener.as_ref() == Some(&target.step));
            is_named || place.is_none_or(|place| downstream().contains(&place))
        };
        !targets.iter().any(joins) && (!apart || is_redone())
    };
    let is_unreached =
        |scope: &ScopePath| std::iter::successors(Some(scope.clone()), ScopePath::parent).any(is_left);
    let unreached = wanted.iter().filter(|scope| is_unreached(scope)).cloned().collect();
    Targets { targets, unreached }
}

struct Selection<'a> {
    shape: &'a Shape,
    scopes: &'a ScopesInForce,
    broken: &'a [Broken],
    requested: &'a Requested,
    /// By scope: its children with reruns, on the child or below the child.
    below: BTreeMap<ScopePath, BTreeSet<ScopePath>>,
}

impl Selection<'_> {
    /// Returns the places of the steps downstream of these steps.
    fn downstream_of<'s>(
        &self,
        scope: &ScopePath,
        steps: impl Iterator<Item = &'s StepId>,
    ) -> BTreeSet<usize> {
        let Some(shape) = self.shape.of_scope(scope) else { return BTreeSet::new() };
        let places: Vec<usize> = steps.filter_map(|step| shape.place(step.as_str())).collect();
        shape.downstream(&places)
    }

    fn choose(&self, scope: &ScopePath, targets: &mut BTreeMap<ScopePath, Vec<Target>>) {
        // An unknown scope ended together with a descendant, and resumes with the descendant.
        let Some(known) = self.scopes.get(&(scope.depth(), scope.clone())) else { return };
        let own = self.broken.iter().filter(|broken| broken.scope == *scope).map(|broken| {
            let claims = Some(broken.claims.clone());
            let step = broken.step.clone();
            let is_requested = broken.claims.is_empty() && !self.requested.retries(scope, &step);
            Target { seq: broken.seq, step, is_requested, claims }
        });
        let is_routed = self.shape.of_scope(scope).is_none_or(Shape::is_routed);
        let (mut waiting, mut joined) = (Vec::new(), Vec::new());
        for child in self.below.get(scope).into_iter().flatten() {
            let Some(step) = opener_of(self.shape, child) else { continue };
            let waits =
                known.position.frontier.iter().any(|entry| entry.step == step && entry.has_children());
            let is_passed = pass_end(&known.position, &step, child).is_some();
            match known.position.ledger.get(&step) {
                _ if waits && !is_passed => waiting.push(child.clone()),
                Some(settled) => {
                    let seq = pass_end(&known.position, &step, child).unwrap_or(settled).seq;
                    let is_requested = self.requested.is_on_the_way(child);
                    let target = Target { seq, step, claims: None, is_requested };
                    joined.push((target, child.clone()));
                }
                None => {}
            }
        }
        // The first pass of a step: a reused pass may have an older record than an earlier pass.
        let mut first_passes: BTreeMap<StepId, usize> = BTreeMap::new();
        for (target, child) in &joined {
            let pass = pass_of(&known.position, &target.step, child);
            first_passes
                .entry(target.step.clone())
                .and_modify(|first| *first = pass.min(*first))
                .or_insert(pass);
        }
        let is_first = |target: &Target, child: &ScopePath| {
            first_passes[&target.step] == pass_of(&known.position, &target.step, child)
        };
        joined.retain(|(target, child)| is_routed || is_first(target, child));
        // For a single step: a request of a person, then the children, then the evidence of the step itself.
        let mut chosen: BTreeMap<u64, Target> = BTreeMap::new();
        let (requested, failed): (Vec<Target>, Vec<Target>) = own.partition(|target| target.is_requested);
        // A requested rerun of an opener covers all its passes.
        joined.retain(|(join, _)| requested.iter().all(|target| target.step != join.step));
        let joins = joined.iter().map(|(target, _)| target.clone());
        for target in requested.into_iter().chain(joins).chain(failed) {
            let is_requested = target.is_requested;
            chosen.entry(target.seq).or_insert(target).is_requested |= is_requested;
        }
        let downstream = self.downstream_of(scope, chosen.values().map(|target| &target.step));
        let is_behind = |step: &StepId| {
            let place = self.shape.of_scope(scope).and_then(|shape| shape.place(step.as_str()));
            place.is_some_and(|place| downstream.contains(&place))
        };
        if !is_routed {
            // Of the passes of a step, the first.
            let mut steps = BTreeSet::new();
            chosen.retain(|_, target| !is_behind(&target.step) && steps.insert(target.step.clone()));
        } else if let Some(first) = chosen.first_key_value().map(|(first, _)| *first) {
            chosen.retain(|seq, _| *seq == first);
        }
        for (target, child) in joined {
            if chosen.get(&target.seq).is_some_and(|chosen| chosen.claims.is_none()) {
                self.choose(&child, targets);
            }
        }
        for child in waiting {
            let opener = opener_of(self.shape, &child);
            let is_chosen = |step: &StepId| chosen.values().any(|target| target.step == *step);
            let goes_on =
                || opener.as_ref().is_some_and(|step| !is_routed && !is_behind(step) && !is_chosen(step));
            if chosen.is_empty() || goes_on() {
                self.choose(&child, targets);
            }
        }
        if !chosen.is_empty() {
            targets.insert(scope.clone(), chosen.into_values().collect());
        }
    }
}

/// Returns the pass number of a scope; 0 for the scope of an item.
fn pass_of(position: &Position, step: &StepId, scope: &ScopePath) -> usize {
    let fan = position.fan_of(step).filter(|fan| fan.pass > 0);
    fan.and(scope.opened_by()).and_then(|(_, key)| key.parse().ok()).unwrap_or(0)
}

/// Returns the pass number of the end of a target; 0 without passes.
fn pass_of_end(position: &Position, target: &Target) -> usize {
    let Some(fan) = position.fan_of(&target.step) else { return 0 };
    let earlier = fan.passes.iter().position(|pass| pass.settled.seq == target.seq);
    earlier.map_or(fan.pass as usize, |index| index + 1)
}

/// Returns the end of the earlier pass of a step that a scope belongs to.
fn pass_end<'a>(position: &'a Position, step: &StepId, scope: &ScopePath) -> Option<&'a Settled> {
    let fan = position.fan_of(step)?;
    let pass = pass_of(position, step, scope);
    fan.passes.get(pass.checked_sub(1)?).map(|pass| &pass.settled)
}

/// Returns whether a scope has ended and was joined.
pub(crate) fn is_joined(shape: &Shape, scopes: &ScopesInForce, known: &ScopeInForce) -> bool {
    let header = known.record.header();
    let above = header.scope.parent().and_then(|parent| scopes.get(&(parent.depth(), parent)));
    let Some((above, opener)) = above.zip(opener_of(shape, &header.scope)) else { return false };
    header.end.is_some() && above.position.frontier.iter().all(|entry| entry.step != opener)
}

/// Returns the opener of a scope.
pub(crate) fn opener_of(shape: &Shape, scope: &ScopePath) -> Option<StepId> {
    let parent = shape.of_scope(&scope.parent()?)?;
    let place = parent.opener(&scope.opened_by()?.0)?;
    Some(parent.steps()[place].id.clone())
}

/// Makes the draft for the rerun of a step of a scope. `at`: the attempt of its end.
pub(crate) fn redo_draft(newest: &Header, at: Try, (target, judgement): (&Target, &Judgement)) -> Draft {
    let scope = &newest.scope;
    let mut draft = Draft::new(Phase::Restored, Reason::Redo, Some(target.step.clone()), at);
    draft.about = Some(target.seq);
    draft.report.evidence = judgement
        .pack_of(scope, target.seq)
        .filter(|_| target.claims.as_ref().is_some_and(|claims| !claims.is_empty()));
    if let Some(claims) = target.claims.as_ref().filter(|claims| !claims.is_empty()) {
        let ended_at = CheckpointRef { seq: target.seq, ..newest.reference() };
        let data = json!({ "step": target.step, "finished_at": ended_at.to_string(), "claims": claims });
        draft.report.notes.push(Note::Event { name: EVIDENCE_FAILED.to_owned(), data });
    }
    draft
}

/// Returns the failed claims in a record that rewinds its scope, if the record is a rewind.
pub(crate) fn broken_by(header: &Header) -> Option<Vec<String>> {
    let data = header.notes.iter().find_map(|note| match note {
        Note::Event { name, data } if name == EVIDENCE_FAILED => Some(data),
        _ => None,
    })?;
    let claims = data["claims"].as_array()?.iter();
    Some(claims.filter_map(|claim| Some(claim.as_str()?.to_owned())).collect())
}
