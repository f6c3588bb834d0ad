//! Marks and settles the steps in doubt of a scope.

use crate::id::StepId;
use crate::record::{Ending, FrontierEntry, Note, Pack, Phase, Reason, Settled, SettledAs, Status, Try};

use super::Scope;
use crate::engine::Follow;
use crate::engine::session::completion::inline_outputs;

impl<S> Scope<'_, S> {
    /// Marks a done non-idempotent step as in doubt: its input has changed.
    pub(crate) fn doubt(&mut self, step: &StepId) {
        // The evidence belongs to the earlier attempt, and settles nothing.
        self.position.ask_about(step, None);
        let by = "the step ran before an upstream rerun, a rollback, a fork or a restart";
        self.put_in_doubt(step, by.to_owned());
    }

    /// Returns whether a person must be asked about a ready step in a graph with routes: a careful step, begun before
    /// a rewind.
    pub(crate) fn asks_about(&self, place: usize) -> bool {
        let Some(chain) = self.position.chain.as_deref() else { return false };
        let (step, entry) = (&self.shape.steps()[place], self.entry(place));
        let visit = (entry.step.clone(), entry.at.iteration.clone());
        let opens_new_scopes = !entry.has_children() && step.opens_careful();
        let comes_next = entry.at.attempt == 0 && !entry.passed;
        comes_next && (!step.idempotent || opens_new_scopes) && chain.asks_about(&visit)
    }

    /// Removes the question about a step after a person's decision.
    fn decide_visit(&mut self, place: usize) {
        let entry = self.entry(place);
        let visit = (entry.step.clone(), entry.at.iteration.clone());
        if let Some(chain) = &mut self.position.chain {
            chain.careful.remove(&visit);
            chain.started.remove(&visit);
        }
    }

    /// Marks a step as in doubt that was interrupted in another run, even if the current graph declares the step
    /// idempotent.
    pub(crate) fn doubt_cut(&mut self, step: &StepId, by: String) {
        if self.shape.step(step.as_str()).is_some_and(|step| step.idempotent)
            && let Some(place) = self.shape.place(step.as_str())
        {
            let mut begun = FrontierEntry { status: Status::Started, ..self.entry(place).clone() };
            begun.drop_children();
            self.position.ask_about(step, Some(begun));
        }
        self.put_in_doubt(step, by);
    }

    /// Marks a frontier step as in doubt, with a reason.
    fn put_in_doubt(&mut self, step: &StepId, by: String) {
        let Some(place) = self.shape.place(step.as_str()) else { return };
        let entry = self.entry_mut(place);
        (entry.status, entry.since, entry.wake_at) = (Status::Started, 0, None);
        entry.at.attempt = 1;
        entry.waits.clear();
        let phase = Phase::Interrupted { in_progress: true, by };
        self.draft_of(place, phase, Reason::Redo);
    }

    /// Settles an interrupted or formerly done step as done, by decision of a person: with the outputs known to
    /// the program, and the next step.
    pub(crate) fn settle_as_decided(&mut self, place: usize, (follow, mut phase): (Follow, Phase)) {
        self.decide_visit(place);
        let seq = self.seq_of_next_draft();
        let how = match &mut phase {
            Phase::Failed(failure) => {
                inline_outputs(&mut failure.ending);
                SettledAs::Tolerated
            }
            Phase::Completed(ending) => {
                inline_outputs(ending);
                SettledAs::Completed
            }
            _ => SettledAs::Completed,
        };
        let (step, at) = (self.step_id(place).clone(), self.entry(place).at.clone());
        let failures = self.failures_joined(place);
        self.settle(place, Some(Settled { failures, ..Settled::new(how, seq) }), follow);
        self.draft(phase, Reason::Manual, step, at);
    }

    /// Adds a note to the last draft.
    pub(crate) fn note(&mut self, note: Note) {
        self.drafts.last_mut().expect("the decision was just drafted").report.notes.push(note);
    }

    /// Settles an interrupted step that its evidence proves to be done.
    pub(crate) fn settle_by_evidence(
        &mut self,
        place: usize,
        follow: Follow,
        (ending, pack): (Ending, Pack),
    ) {
        let failures = self.failures_joined(place);
        let settled = Some(Settled { failures, ..Settled::completed(self.seq_of_next_draft()) });
        let (step, at) = (self.step_id(place).clone(), self.entry(place).at.clone());
        self.settle(place, settled, follow);
        let draft = self.draft(Phase::Completed(ending), Reason::Step, step, at);
        draft.report.evidence = Some(pack);
        let text = "its end was unknown, and its evidence holds";
        draft.report.notes.push(Note::Warning(text.to_owned()));
    }

    /// Restores a started step with its scopes, by decision of a person.
    pub(crate) fn resume_as_decided(&mut self, place: usize) {
        let step = self.step_id(place).clone();
        if let Some(begun) = self.position.ask_no_more(&step) {
            // As in a resume of failed steps.
            let status = match begun.status {
                Status::Failed | Status::Started => Status::Ready,
                other => other,
            };
            *self.entry_mut(place) = FrontierEntry { status, failures: 0, wake_at: None, ..begun };
        }
        self.draft_of(place, Phase::Restored, Reason::Manual);
    }

    /// Makes an interrupted step ready for a rerun, by decision of a person: in a new epoch, with new keys.
    pub(crate) fn redo_as_decided(&mut self, place: usize) {
        self.decide_visit(place);
        let newest = self.position.frontier.iter().map(|entry| entry.at.epoch).max().unwrap_or_default();
        let epoch = newest.max(self.position.epoch) + 1;
        let entry = self.entry_mut(place);
        let at = Try { attempt: 0, epoch, iteration: std::mem::take(&mut entry.at.iteration) };
        // A join keeps its scopes. The person has decided, so the step is neither held nor asked about again.
        let (fan, passed) = (entry.fan.take(), true);
        *entry = FrontierEntry { at, fan, passed, ..FrontierEntry::ready(entry.step.clone()) };
        let step = self.step_id(place).clone();
        if self.shape.steps()[place].opens() && !self.shape.is_routed() {
            self.position.rerun_whole.insert(step.clone());
        }
        if self.position.asks_about(&step) {
            if !self.shape.is_routed() {
                let first = self.shape.first_iteration(place, &self.outer_iteration);
                self.entry_mut(place).at.iteration = first;
            }
            self.position.ask_no_more(&step);
        }
        self.draft_of(place, Phase::Restored, Reason::Redo);
    }

    /// Returns whether a non-idempotent step is running or was interrupted.
    pub(crate) fn has_doubt(&self) -> bool {
        let doubtful = |entry: &FrontierEntry| {
            entry.status == Status::Started && self.shape.must_ask(&self.position, &entry.step)
        };
        self.position.frontier.iter().any(doubtful)
    }
}
