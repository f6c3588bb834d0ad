//! What happens between two commits, in memory: ends are taken in, starts are decided.

use jiff::Timestamp;

use crate::change::ready;
use crate::id::{Digest, RunId, StepId};
use crate::record::{
    Ending, Failure, FrontierEntry, OUTPUTS_INLINE_BYTES_MAX, Phase, Reason, RunStatus, Settled, Start,
    Status, Try,
};
use crate::store::Progress;

use super::chain::Draft;
use super::session::Session;
use super::stop::StopLevel;
use super::{Admission, Performed, Program, Settlement, Told};

impl<P: Program> Session<'_, P> {
    pub(super) fn entry(&self, place: usize) -> &FrontierEntry {
        let id = &self.shape.steps()[place].id;
        self.position
            .frontier
            .iter()
            .find(|entry| entry.step == *id)
            .expect("a step in flight is in the frontier")
    }

    pub(super) fn entry_mut(&mut self, place: usize) -> &mut FrontierEntry {
        let id = &self.shape.steps()[place].id;
        self.position
            .frontier
            .iter_mut()
            .find(|entry| entry.step == *id)
            .expect("a step in flight is in the frontier")
    }

    /// Takes in how a step ended: state, position and draft change together.
    pub(super) fn take(&mut self, place: usize, performed: Performed<P::Output>) {
        let at = self.entry(place).at.clone();
        let step = self.shape.steps()[place].id.clone();
        match performed {
            Performed::Completed { output, mut ending, told } => {
                inline_outputs(&mut ending);
                let matters =
                    told.evidence.is_some() || !ending.outputs.is_empty() || ending.outputs_bytes.is_some();
                self.program.apply(
                    &mut self.state,
                    &self.shape.steps()[place],
                    Settlement::Completed(output, &ending),
                );
                let settled = matters.then(|| Settled::Completed(self.seq_of_next_draft()));
                self.settle(place, settled);
                self.draft(Phase::Completed(ending), step, at, told);
            }
            Performed::Failed { failure, told } => self.take_failure(place, failure, told),
            Performed::Cut { why } => {
                // Nobody can say that it did not take effect: only a resume, or a person, decides what becomes of it.
                self.options.stop.stop(StopLevel::Graceful, &why);
                let phase = Phase::Interrupted { in_progress: true, by: why };
                self.drafts.push(Draft::new(phase, Reason::Stopped, Some(step), at));
            }
            Performed::Stopped { in_progress } => {
                let by = self.options.stop.asked().map_or_else(|| "a stop".to_owned(), |stop| stop.by);
                if !in_progress {
                    let entry = self.entry_mut(place);
                    entry.status = Status::Ready;
                    entry.at.attempt -= 1;
                    entry.since = 0;
                    self.position.steps_started -= 1;
                }
                let phase = Phase::Interrupted { in_progress, by };
                self.drafts.push(Draft::new(phase, Reason::Stopped, Some(step), at));
            }
        }
    }

    pub(super) fn take_failure(&mut self, place: usize, mut failure: Failure, told: Told) {
        let step = &self.shape.steps()[place];
        let at = self.entry(place).at.clone();
        let verdict = self.program.on_failure(step, &failure);
        let failures = self.entry(place).failures + 1;
        let random = chance(&self.chain.run, &step.id, at.attempt);
        let pause = step.retry.pause(failures, random).filter(|_| verdict.retry);
        inline_outputs(&mut failure.ending);
        let reason = if at.attempt > 1 { Reason::Retry } else { Reason::Step };
        if let Some(pause) = pause {
            failure.retried = true;
            let now = self.engine.clock.now();
            let entry = self.entry_mut(place);
            entry.status = Status::Ready;
            entry.failures = failures;
            entry.since = 0;
            entry.wake_at = (!pause.is_zero()).then(|| now.checked_add(pause).unwrap_or(Timestamp::MAX));
        } else if verdict.tolerate {
            failure.tolerated = true;
            self.program.apply(&mut self.state, step, Settlement::Tolerated(&failure));
            let settled = Some(Settled::Tolerated(self.seq_of_next_draft()));
            self.settle(place, settled);
        } else {
            let entry = self.entry_mut(place);
            entry.status = Status::Failed;
            entry.failures = failures;
            entry.since = 0;
            self.failed.get_or_insert((step.id.clone(), failure.clone()));
        }
        let mut draft = Draft::new(Phase::Failed(failure), reason, Some(step.id.clone()), at);
        draft.told = told;
        self.drafts.push(draft);
    }

    pub(super) fn draft(&mut self, phase: Phase, step: StepId, at: Try, told: Told) {
        let reason = if at.attempt > 1 { Reason::Retry } else { Reason::Step };
        let mut draft = Draft::new(phase, reason, Some(step), at);
        draft.told = told;
        self.drafts.push(draft);
    }

    pub(super) fn seq_of_next_draft(&self) -> u64 {
        self.chain.next + self.drafts.len() as u64
    }

    /// Takes a finished step out of the frontier and puts in what it freed.
    pub(super) fn settle(&mut self, place: usize, settled: Option<Settled>) {
        let id = self.shape.steps()[place].id.clone();
        let epoch = self.entry(place).at.epoch;
        self.position.frontier.retain(|entry| entry.step != id);
        match settled {
            Some(settled) => drop(self.position.ledger.insert(id, settled)),
            None => drop(self.position.ledger.remove(&id)),
        }
        for freed in self.unfinished.settle(self.shape, place) {
            let mut entry = ready(self.shape.steps()[freed].id.clone());
            entry.at.epoch = epoch;
            self.position.frontier.push(entry);
        }
    }

    /// Decides what starts with the next commit: as much as may run at once. Skips are decided here, once.
    pub(super) fn schedule(&mut self) {
        let stopping = self.options.stop.asked().is_some();
        let failed = self.position.frontier.iter().any(|entry| entry.status == Status::Failed);
        if stopping || failed {
            return;
        }
        let now = self.engine.clock.now();
        while self.jobs.len() + self.starting.len() + self.alone.len() < self.shape.parallel_max() {
            let Some(place) = self.next_ready(now) else { return };
            let step = &self.shape.steps()[place];
            match self.program.admit(step, &self.state) {
                Ok(Admission::Skip(cause)) => {
                    self.program.apply(&mut self.state, step, Settlement::Skipped);
                    let at = Try { attempt: 0, ..self.entry(place).at.clone() };
                    let settled = Some(Settled::Skipped(self.seq_of_next_draft()));
                    self.settle(place, settled);
                    let draft = Draft::new(Phase::Skipped(cause), self.reason, Some(step.id.clone()), at);
                    self.drafts.push(draft);
                }
                // A condition that cannot be evaluated fails the step when it starts.
                Ok(Admission::Run) | Err(_) if step.idempotent => {
                    self.mark_started(place);
                    self.starting.push(place);
                }
                Ok(Admission::Run) | Err(_) => self.alone.push(place),
            }
        }
    }

    pub(super) fn next_ready(&self, now: Timestamp) -> Option<usize> {
        let due = |entry: &&FrontierEntry| {
            entry.status == Status::Ready && entry.wake_at.is_none_or(|wake_at| wake_at <= now)
        };
        let place = |entry: &FrontierEntry| self.shape.place(entry.step.as_str());
        let wanted = |place: &usize| {
            !self.alone.contains(place) && self.wanted.as_ref().is_none_or(|wanted| wanted[*place])
        };
        self.position.frontier.iter().filter(due).filter_map(place).find(wanted)
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        if self.options.stop.asked().is_some() {
            return None;
        }
        let ready = self.position.frontier.iter().filter(|entry| entry.status == Status::Ready);
        ready.filter_map(|entry| entry.wake_at).min()
    }

    pub(super) fn mark_started(&mut self, place: usize) -> Start {
        self.position.steps_started += 1;
        let entry = self.entry_mut(place);
        entry.status = Status::Started;
        entry.at.attempt += 1;
        entry.since = 0;
        entry.wake_at = None;
        Start { step: entry.step.clone(), at: entry.at.clone() }
    }

    /// Returns how the run stands if nothing goes on by itself any more.
    pub(super) fn standstill(&self) -> Option<RunStatus> {
        if !self.jobs.is_empty() || !self.starting.is_empty() || !self.alone.is_empty() {
            return None;
        }
        let frontier = &self.position.frontier;
        let has = |status: Status| frontier.iter().any(|entry| entry.status == status);
        if frontier.is_empty() {
            let tolerated =
                self.position.ledger.values().any(|settled| matches!(settled, Settled::Tolerated(_)));
            return Some(if tolerated { RunStatus::CompletedWithFailures } else { RunStatus::Completed });
        }
        if self.doubtful() {
            return Some(RunStatus::InDoubt);
        }
        if has(Status::Failed) {
            return Some(RunStatus::Failed);
        }
        if self.options.stop.asked().is_some() || has(Status::Started) {
            return Some(RunStatus::Interrupted);
        }
        let runnable = |entry: &FrontierEntry| {
            let place = self.shape.place(entry.step.as_str());
            entry.status == Status::Ready
                && self.wanted.as_ref().is_none_or(|wanted| place.is_some_and(|place| wanted[place]))
        };
        if frontier.iter().any(runnable) {
            return None;
        }
        Some(if has(Status::Waiting) { RunStatus::Waiting } else { RunStatus::Interrupted })
    }

    pub(super) fn doubtful(&self) -> bool {
        let doubtful = |entry: &FrontierEntry| {
            entry.status == Status::Started
                && self.shape.step(entry.step.as_str()).is_some_and(|step| !step.idempotent)
        };
        self.position.frontier.iter().any(doubtful)
    }

    pub(super) fn progress(&self) -> Progress {
        let total = self.shape.steps().len();
        Progress { done: (total - self.unfinished.count()) as u64, total: total as u64 }
    }
}

/// Keeps small outputs in the header and only the size of large ones.
fn inline_outputs(ending: &mut Ending) {
    if ending.outputs.is_empty() {
        return;
    }
    let bytes = serde_json::to_vec(&ending.outputs).map_or(usize::MAX, |bytes| bytes.len());
    if bytes > OUTPUTS_INLINE_BYTES_MAX {
        ending.outputs.clear();
        ending.outputs_bytes = Some(bytes as u64);
    }
}

/// A number between 0 and 1 for jitter, different for each run, step and attempt, the same when asked again.
fn chance(run: &RunId, step: &StepId, attempt: u32) -> f64 {
    let digest =
        Digest::of_parts([run.as_str().as_bytes(), step.as_str().as_bytes(), &attempt.to_le_bytes()]);
    let [a, b, c, d, ..] = *digest.as_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX)
}
