//! Reuse: compares the inputs of a reusable result, and puts the result in force or drops it.
//!
//! Input: ready steps with a reusable result, and the records of their ends. Output: the first difference between
//! the recorded trace and the current trace, and a settled step or a dropped result. Reads no store:
//! [`early_cutoff`](super::early_cutoff) reads and verifies.

use serde_json::json;

use crate::id::{CheckpointRef, ScopePath, StepId};
use crate::projection::events::{RerunCause, STEP_REUSED};
use crate::record::{
    EndDigests, FrontierEntry, Note, Phase, Reason, Reusable, Settled, Status, Trace, Try, WaitKind,
};

use super::scheduler::wait_for_children;
use super::trace::trace_of;
use crate::engine::chain::Draft;
use crate::engine::resume::definition::{Forget, forget};
use crate::engine::scope::open_scopes::fan_of;
use crate::engine::scope::{MAIN, Scope, ScopeId};
use crate::engine::session::Session;
use crate::engine::{Follow, Program, RunError};

/// A ready step with a reusable result.
pub(crate) struct Candidate {
    pub(crate) place: usize,
    pub(crate) step: StepId,
    pub(crate) trace: Option<Trace>,
    pub(crate) result: Reusable,
}

impl<P: Program> Session<'_, P> {
    /// Returns whether `--until` permits the start of a step: of the step itself in the main scope, else of its outermost
    /// opener. True without `--until`.
    pub(crate) fn is_selected(&self, id: ScopeId, place: usize) -> bool {
        let Some(until_steps) = &self.until_steps else { return true };
        match self.scopes.get(id).opener {
            Some(opener) => self.is_selected(opener.scope, opener.place),
            None => id != MAIN || until_steps[place],
        }
    }

    /// Returns whether a scope has a ready step whose reuse is undecided.
    pub(crate) fn has_undecided_reuse(&self, id: ScopeId) -> bool {
        let Some(scope) = self.scopes.find_ref(id) else { return false };
        let has_result = |entry: &FrontierEntry| {
            entry.status == Status::Ready
                && scope.result_of(entry).is_some()
                && scope.shape.place(entry.step.as_str()).is_some_and(|place| self.is_selected(id, place))
        };
        scope.end.is_none() && !self.is_stopping() && scope.position.frontier.iter().any(has_result)
    }

    /// Puts the digest of the current trace into the frontier entry of a starting step.
    pub(crate) fn record_input(&mut self, id: ScopeId, place: usize) {
        if !self.keeps_traces || self.scopes.get(id).entry(place).has_children() {
            return;
        }
        let trace = trace_of(self.program, self.scopes.get(id), place);
        self.scopes.get_mut(id).entry_mut(place).input = trace.map(|trace| trace.digest());
    }

    pub(crate) fn next_candidate(&self, id: ScopeId) -> Option<Candidate> {
        let scope = self.scopes.get(id);
        if scope.position.reusable.is_empty() || scope.end.is_some() || self.is_stopping() {
            return None;
        }
        scope.position.frontier.iter().filter(|entry| entry.status == Status::Ready).find_map(|entry| {
            let result = scope.result_of(entry)?.clone();
            let place = scope.shape.place(entry.step.as_str())?;
            if !self.is_selected(id, place) {
                return None;
            }
            let trace = trace_of(self.program, scope, place);
            Some(Candidate { place, step: entry.step.clone(), trace, result })
        })
    }

    /// Settles a ready step with its reusable end, for the next record.
    pub(crate) fn settle_with_result(
        &mut self,
        id: ScopeId,
        candidate: &Candidate,
        digests: Option<EndDigests>,
    ) {
        let scope = self.scopes.get_mut(id);
        let Some(Reusable::Ended { mut settled, follows, .. }) = scope.take_result(candidate.place) else {
            return;
        };
        if let Some(fan) = &settled.fan {
            let before = fan.passes.last().map_or(0, |pass| pass.settled.failures_passed());
            settled.failures =
                settled.failures.saturating_sub(before) + scope.failures_before(candidate.place);
        }
        scope.position.renew_passes_before(&candidate.step, &mut settled);
        let (seq, follow) = (settled.seq, if follows { Follow::To(candidate.place) } else { Follow::Needs });
        scope.settle(candidate.place, Some(settled), follow);
        scope.digests.extend(digests.map(|digests| (candidate.step.clone(), digests)));
        note_reuse(scope, &candidate.step, seq);
        self.mark_dirty(id);
        self.touched.insert(id);
    }

    /// Returns the first difference between the trace of a reusable end and the current trace; of a kept result a changed need.
    pub(crate) fn difference(
        &self,
        id: ScopeId,
        candidate: &Candidate,
        then: Option<&Trace>,
    ) -> Option<RerunCause> {
        if matches!(candidate.result, Reusable::Ended { kept: true, .. }) {
            return self.changed_need(id, then?);
        }
        let (Some(then), Some(now)) = (then, candidate.trace.as_ref()) else {
            return Some(RerunCause::UpstreamChanged { step: None });
        };
        let path = step_path(self.scopes.get(id).path(), &candidate.step);
        let is_accepted = || self.accepted.get(&path).is_some_and(|known| known.contains(&then.definition));
        if then.definition != now.definition && !is_accepted() {
            return Some(RerunCause::DefinitionChanged);
        }
        let is_same =
            (then.input, &then.needs, then.previous_pass) == (now.input, &now.needs, now.previous_pass);
        let changed = || now.needs.iter().find(|(step, digest)| then.needs.get(*step) != Some(digest));
        (!is_same).then(|| RerunCause::UpstreamChanged { step: changed().map(|(step, _)| step.clone()) })
    }

    /// Returns whether the state of a scope lacks the outputs of ends out of force. In passes, steps read outputs
    /// of other steps from the pass before.
    fn lost_state(&self, id: ScopeId) -> bool {
        let scope = self.scopes.get(id);
        scope.position.entered_again || !scope.outer_iteration.is_empty()
    }

    /// Returns whether the output of an end must be restored from the record of the end.
    pub(crate) fn restores_state(&self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get(id);
        let children = scope.shape.steps()[place].children.as_ref();
        let has_passes = children.is_some_and(|c| c.passes) && scope.shape.share_loop(place, place);
        // A skip removed the output of the step from the state.
        let is_lost = || self.program.output_of(scope.step_ref(place), &scope.state).is_none();
        self.lost_state(id) || has_passes || is_lost()
    }

    /// Returns whether the state has the outputs of earlier passes of an unfinished step.
    pub(crate) fn has_state_of(&self, id: ScopeId, entry: &FrontierEntry) -> bool {
        let scope = self.scopes.get(id);
        let step = scope.shape.step(entry.step.as_str());
        !self.lost_state(id) || step.is_none_or(|step| !step.is_later_pass(entry))
    }

    /// Continues an unfinished step with open children or a wait, if the input equals the input at the start.
    pub(crate) fn continue_step(
        &mut self,
        id: ScopeId,
        place: usize,
        begun: FrontierEntry,
        before: Option<Settled>,
    ) -> Result<(), RunError> {
        let scope = self.scopes.get_mut(id);
        let step = scope.step_id(place).clone();
        scope.take_result(place);
        scope.position.ledger.extend(before.map(|settled| (step.clone(), settled)));
        let has_fan = begun.has_children();
        let entry = scope.entry_mut(place);
        *entry = begun;
        // A message for the wait may have come.
        self.may_have_message |= entry.status == Status::Waiting;
        if matches!(entry.status, Status::Started | Status::Failed) {
            (entry.status, entry.failures, entry.wake_at, entry.since) = (Status::Ready, 0, None, 0);
        }
        let is_reused = has_fan || entry.status == Status::Waiting;
        if has_fan {
            if !entry.waits.iter().any(|wait| wait.on == WaitKind::Children) {
                entry.waits = vec![wait_for_children()];
            }
            entry.status = Status::Waiting;
            let fan = fan_of(scope, place)?;
            scope.fans.retain(|fan| fan.place != place);
            scope.fans.push(fan);
        }
        // A step that only starts again has the record of its start.
        if is_reused {
            let at = Try { iteration: scope.outer_iteration.clone(), ..Try::default() };
            scope.drafts.push(Draft::new(Phase::Restored, Reason::Redo, Some(step), at));
        }
        self.mark_dirty(id);
        self.touched.insert(id);
        Ok(())
    }

    /// Drops the reusable result of a step: the step runs, or is in doubt.
    pub(crate) fn drop_result(&mut self, id: ScopeId, candidate: &Candidate) -> Result<(), RunError> {
        let (program, scope) = (self.program, self.scopes.get_mut(id));
        let retries = self.answers.retries(scope.path(), &candidate.step);
        let result = scope.take_result(candidate.place);
        let step = &scope.shape.steps()[candidate.place];
        let (was_done, begun) = match &result {
            Some(Reusable::Ended { settled, .. }) => (settled.did() && step.repeats_effect_of(settled), None),
            Some(Reusable::Begun { entry, .. }) => (false, Some(&**entry)),
            _ => (false, None),
        };
        let begun = begun.filter(|entry| !step.idempotent && step.has_begun(entry));
        if !retries && (was_done || begun.is_some()) {
            scope.position.ask_about(&candidate.step, begun.cloned());
        } else if scope.pass_of(candidate.place) == 1 {
            let path = scope.path().clone();
            forget(program, &path, &[Forget::Step(candidate.step.clone())], &mut scope.state)?;
        }
        Ok(())
    }
}

/// Returns the path of a step in the definition: the openers of its scope without keys, and the step.
pub fn step_path(scope: &ScopePath, step: &StepId) -> String {
    let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    let openers = around.filter_map(|scope| scope.opened_by().map(|(opener, _)| opener.to_string()));
    let mut path: Vec<String> = std::iter::once(step.to_string()).chain(openers).collect();
    path.reverse();
    path.join("/")
}

pub(crate) fn has_same_input(entry: &FrontierEntry, trace: Option<&Trace>) -> bool {
    entry.input.is_some() && entry.input == trace.map(Trace::digest)
}

/// Notes a reuse in the draft of the turn: all reuses of a turn share a record.
fn note_reuse<S>(scope: &mut Scope<'_, S>, step: &StepId, seq: u64) {
    let of = CheckpointRef { run: scope.chain.run.clone(), scope: scope.chain.scope.clone(), seq };
    let reused = json!({ "step": step, "of": of.to_string() });
    if let Some(draft) = scope.drafts.last_mut()
        && let Some(Note::Event { name, data }) = draft.report.notes.last_mut()
        && name == STEP_REUSED
        && let Some(steps) = data["steps"].as_array_mut()
    {
        steps.push(reused);
        return;
    }
    let at = Try { iteration: scope.outer_iteration.clone(), ..Try::default() };
    let mut draft = Draft::new(Phase::Restored, Reason::Redo, Some(step.clone()), at);
    draft.about = Some(seq);
    draft.report.notes.push(Note::Event { name: STEP_REUSED.to_owned(), data: json!({ "steps": [reused] }) });
    scope.drafts.push(draft);
}
