//! The position of a scope: its frontier and its ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::choice::{Choice, RerunRequest};
use super::header::Try;
use super::is_default;
use super::ledger::{Ledger, Settled, SettledAs};
use super::trace::EndDigests;
use super::wait::Wait;
use crate::id::{Digest, StepId};

/// The unfinished steps of a scope, and the records of the finished steps' results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The unfinished steps whose needs are met. All steps neither in nor downstream of the frontier are
    /// finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frontier: Vec<FrontierEntry>,
    /// Finished steps that can still matter, with the record in force.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ledger: Ledger,
    /// The entries of the failed steps, for a resume to retry them. The ledger has their ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FrontierEntry>,
    /// The record with the definition in force, if not the run record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<u64>,
    /// The record with the configuration in force, if not the run record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<u64>,
    /// In a child scope: the record of the parent scope that opened its fan-out. If the parent waits for
    /// another fan-out, or none, the child is abandoned and ignored: after a rollback, or in a later pass of
    /// a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<u64>,
    /// The epoch of the newest rerun in this scope: the least epoch of new frontier entries.
    #[serde(default, skip_serializing_if = "is_default")]
    pub epoch: u32,
    /// The highest epoch ever used in this scope, despite rollbacks. The next one is higher. At least 1 if the
    /// scope continued from an older record than its newest, or existed before: children may have records.
    #[serde(default, skip_serializing_if = "is_default")]
    pub epoch_max: u32,
    /// In the main scope: undo commands are running for the steps that finished after this record. Only a
    /// rollback to this record can continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoing: Option<u64>,
    /// The records with copies of the evidence of earlier records of the scope, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<u64>,
    /// In a graph with routes: the digest of the pinned evidence in force of all steps so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins: Option<Digest>,
    /// In a graph with routes after a rewind: the results out of force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Box<ReusableChain>>,
    /// Results out of force, by step and pass (pass 1 for a step without passes). A result counts again if
    /// its step receives the same input. A question about a step has the pass 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reusable: BTreeMap<StepId, BTreeMap<u32, Reusable>>,
    /// Openers that a person reruns as a whole: their children are entered without reuse.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rerun_whole: BTreeSet<StepId>,
    /// The scope was entered again: the state lacks the outputs of reusable ends.
    #[serde(default, skip_serializing_if = "is_default")]
    pub entered_again: bool,
    /// In a child scope whose ends have traces: the digest of the input from the opener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Digest>,
    /// In the scope of an item: the value that a person gave instead of the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<Value>,
    /// In the main scope: requested reruns in scopes that are not entered yet.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub requests: BTreeSet<RerunRequest>,
    /// Choices of a person about unfinished steps. Each choice is applied and removed at the step's turn.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub choices: BTreeMap<StepId, Choice>,
    /// The number of steps started so far in this scope, for the step limit; crashes do not reset the count.
    #[serde(default, skip_serializing_if = "is_default")]
    pub steps_started: u64,
}

impl Position {
    /// Returns whether a finished step had an effect: not skipped, and without an empty fan-out.
    pub(crate) fn did(&self, step: &StepId) -> bool {
        self.ledger.get(step).is_none_or(Settled::did)
    }

    /// Returns the fan-out of a step's work: open, or joined by the end in force.
    pub(crate) fn fan_of(&self, step: &StepId) -> Option<&Fan> {
        let open = self.frontier.iter().find(|entry| entry.step == *step);
        open.and_then(|entry| entry.fan.as_ref()).or_else(|| self.joined(step))
    }

    /// Returns the fan-out that the end in force of a step joined.
    pub fn joined(&self, step: &StepId) -> Option<&Fan> {
        self.ledger.get(step)?.fan.as_deref()
    }

    /// Returns whether a person must confirm a step at its turn: the step is not idempotent, and was finished
    /// or started before an upstream step was invalidated.
    pub fn asks_about(&self, step: &StepId) -> bool {
        let question = self.reusable.get(step).and_then(|results| results.get(&QUESTION));
        question.is_some_and(|question| !matches!(question, Reusable::Effect))
    }

    /// Returns whether a step had an effect that the position lacks, or is asked about.
    pub fn had_effect(&self, step: &StepId) -> bool {
        self.reusable.get(step).is_some_and(|results| results.contains_key(&QUESTION))
    }

    /// Notes the effect of an idempotent step without an end in the position.
    pub(crate) fn note_effect(&mut self, step: &StepId) {
        self.reusable.entry(step.clone()).or_default().insert(QUESTION, Reusable::Effect);
    }

    /// Removes the note of an effect: the step runs again. A question about the step stays.
    pub(crate) fn repeat_effect(&mut self, step: &StepId) {
        if !self.asks_about(step) {
            self.ask_no_more(step);
        }
    }

    /// Returns the entry of a step in doubt: started before an upstream step was invalidated.
    pub fn started_before(&self, step: &StepId) -> Option<&FrontierEntry> {
        match self.reusable.get(step)?.get(&QUESTION)? {
            Reusable::Started(entry) => Some(entry),
            _ => None,
        }
    }

    /// Returns whether a step has a result out of force.
    pub fn has_result(&self, step: &StepId) -> bool {
        self.reusable.get(step).is_some_and(|results| results.keys().any(|pass| *pass != QUESTION))
    }

    /// Returns whether any step except skipped steps has a result out of force. The results of a skipped step count again
    /// only if the condition of the step becomes true.
    pub(crate) fn has_results(&self) -> bool {
        let skipped = [SettledAs::Skipped, SettledAs::PassedOver];
        let is_skipped = |step: &StepId| self.ledger.get(step).is_some_and(|end| skipped.contains(&end.how));
        self.reusable.keys().any(|step| self.has_result(step) && !is_skipped(step))
    }

    /// Removes the steps that a definition lacks: unfinished work, ends, results out of force and decisions.
    pub(crate) fn keep_steps(&mut self, has_step: impl Fn(&StepId) -> bool) {
        self.frontier.retain(|entry| has_step(&entry.step));
        self.failed.retain(|entry| has_step(&entry.step));
        self.ledger.retain(|step, _| has_step(step));
        self.reusable.retain(|step, _| has_step(step));
        self.rerun_whole.retain(&has_step);
        self.choices.retain(|step, _| has_step(step));
    }

    /// Returns whether a result out of force had an effect, and the entry of begun work out of force.
    pub(crate) fn effect_of_results(&self, step: &StepId) -> (bool, Option<FrontierEntry>) {
        let results = || self.reusable.get(step).into_iter().flat_map(BTreeMap::values);
        let was_done = |result: &Reusable| matches!(result, Reusable::Ended { settled, .. } if settled.did());
        let begun = results().find_map(|result| match result {
            Reusable::Begun { entry, .. } => Some((**entry).clone()),
            _ => None,
        });
        (results().any(was_done), begun)
    }

    /// Drops the results out of force of a step. A question about the step stays.
    pub(crate) fn drop_results(&mut self, step: &StepId) {
        self.drop_results_from(step, 1);
    }

    /// Drops the results out of force of a step, from a pass on. A question about the step stays.
    pub(crate) fn drop_results_from(&mut self, step: &StepId, first: u32) {
        if let Some(results) = self.reusable.get_mut(step) {
            results.retain(|pass, _| *pass == QUESTION || *pass < first);
            if results.is_empty() {
                self.reusable.remove(step);
            }
        }
    }

    /// Drops the children of started steps in doubt, unless the children still exist.
    pub(crate) fn drop_children_of_started(&mut self, exist: impl Fn(&FrontierEntry) -> bool) {
        for result in self.reusable.values_mut().flat_map(BTreeMap::values_mut) {
            if let Reusable::Started(entry) = result
                && entry.has_children()
                && !exist(entry)
            {
                entry.drop_children();
                entry.status = Status::Started;
            }
        }
    }

    /// Adds a question about a step, for the step's turn. `entry`: the frontier entry, if the step started
    /// and did not end.
    pub(crate) fn ask_about(&mut self, step: &StepId, entry: Option<FrontierEntry>) {
        if !self.asks_about(step) {
            let question = entry.map_or(Reusable::Confirm, |entry| Reusable::Started(Box::new(entry)));
            self.reusable.entry(step.clone()).or_default().insert(QUESTION, question);
        }
    }

    /// Removes the question about a step; returns the frontier entry, if the step started and did not end.
    pub(crate) fn ask_no_more(&mut self, step: &StepId) -> Option<FrontierEntry> {
        let results = self.reusable.get_mut(step)?;
        let question = results.remove(&QUESTION);
        if results.is_empty() {
            self.reusable.remove(step);
        }
        match question? {
            Reusable::Started(entry) => Some(*entry),
            _ => None,
        }
    }

    /// Returns the unfinished and the failed steps.
    pub fn open_entries(&self) -> impl Iterator<Item = &FrontierEntry> {
        self.frontier.iter().chain(&self.failed)
    }

    /// Returns the position with its failed steps unfinished again. Their entries are back in the frontier,
    /// and the ledger has neither failed nor passed-over ends.
    ///
    /// Ends downstream of a failed step stay. A resume invalidates them, too.
    #[must_use]
    pub fn with_failures_open(mut self) -> Self {
        if !self.failed.is_empty() {
            self.ledger.retain(|_, settled| !settled.is_unsuccessful());
            for entry in &self.failed {
                // The end of the pass before the failed pass is in force again.
                let before = entry.fan.as_ref().and_then(|fan| fan.passes.last());
                self.ledger.extend(before.map(|pass| (entry.step.clone(), pass.settled.clone())));
            }
            self.frontier.append(&mut self.failed);
        }
        self
    }

    /// Returns how many steps ended without success: failed, or passed over after a failure.
    pub fn unsuccessful_count(&self) -> usize {
        self.ledger.unsuccessful()
    }

    /// Returns how many failures the run passed in this scope: failed children that were joined, and
    /// tolerated failures.
    pub fn failures_passed(&self) -> u64 {
        self.ledger.values().map(Settled::failures_passed).sum()
    }

    /// Returns how many children ended as failed and were joined.
    pub fn failed_children(&self) -> u64 {
        self.ledger.values().map(|settled| settled.failures).sum()
    }

    /// Returns the records of the ends in force, with the ends of earlier passes.
    pub(crate) fn end_seqs(&self) -> BTreeSet<u64> {
        let joined = self.ledger.values().filter_map(|settled| settled.fan.as_deref());
        let fans = joined.chain(self.frontier.iter().filter_map(|entry| entry.fan.as_ref()));
        let passes = fans.flat_map(|fan| &fan.passes).map(|pass| pass.settled.seq);
        self.ledger.values().map(|settled| settled.seq).chain(passes).collect()
    }

    /// Returns the earlier passes of a step, before a new pass begins.
    pub(crate) fn passes_before(&self, step: &StepId) -> Vec<PassEnd> {
        let Some((settled, fan)) = self.ledger.get(step).and_then(|end| Some((end, end.fan.as_ref()?)))
        else {
            return Vec::new();
        };
        let end = PassEnd { settled: Settled { fan: None, ..settled.clone() }, since: fan.since };
        fan.passes.iter().cloned().chain([end]).collect()
    }

    /// Gives the end of a reusable pass the current ends of earlier passes. Without a current end of each earlier
    /// pass, the recorded ends stay.
    pub(crate) fn renew_passes_before(&self, step: &StepId, end: &mut Settled) {
        let Some(fan) = &mut end.fan else { return };
        let passes = self.passes_before(step);
        if fan.pass > 0 && passes.len() + 1 == fan.pass as usize {
            fan.passes = passes;
        }
    }

    /// Returns whether children of this scope may already have records.
    pub(crate) fn may_have_children(&self) -> bool {
        self.epoch_max > 0
    }

    /// Notes that steps of this scope run again: children may already have records.
    pub(crate) fn note_rerun(&mut self) {
        self.epoch_max = self.epoch_max.max(1);
    }

    /// Returns the position with each step back at its work, before its hooks:
    /// [`FrontierEntry::back_to_work`].
    #[must_use]
    pub fn back_at_work(mut self) -> Self {
        self.frontier.iter_mut().for_each(FrontierEntry::back_to_work);
        self
    }
}

/// The results out of force of a scope after a rewind, in a graph with routes. The state is opaque, so all downstream
/// results depend on the step. The results are reused together, after an end with the same state and the same pins in
/// force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReusableChain {
    /// The newest record before the rewind. `None`: the results are dropped, and only `careful` remains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<u64>,
    /// The record of the rewind.
    #[serde(default, skip_serializing_if = "is_default")]
    pub since: u64,
    /// The steps begun after the rewind, each with the iteration: the old results are not reused.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub started: BTreeSet<(StepId, Vec<u32>)>,
    /// The finished careful steps, each with the iteration: a person must confirm a rerun.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub careful: BTreeSet<(StepId, Vec<u32>)>,
}

impl ReusableChain {
    /// Returns whether a person must confirm a careful step in this iteration.
    pub(crate) fn asks_about(&self, visit: &(StepId, Vec<u32>)) -> bool {
        self.careful.contains(visit) || self.started.contains(visit)
    }
}

/// A result out of force: an upstream step was invalidated. The result counts again, without an execution, if
/// at the step's turn the trace is the same and the evidence holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reusable {
    /// The end of a finished step.
    Ended {
        /// The record of the end.
        settled: Settled,
        /// Another pass followed.
        #[serde(default, skip_serializing_if = "is_default")]
        follows: bool,
        /// A person keeps the result: the result is reused with any input, if the evidence holds.
        #[serde(default, skip_serializing_if = "is_default")]
        kept: bool,
    },
    /// The entry of an unfinished step with open children, with open waits, or between two passes.
    Begun {
        /// The entry.
        entry: Box<FrontierEntry>,
        /// The end of the pass before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<Settled>,
    },
    /// The step was finished and is not idempotent: a person must confirm, and the end is not reused.
    Confirm,
    /// The entry of a non-idempotent step that started and did not end: a person must confirm.
    Started(Box<FrontierEntry>),
    /// The step was finished or started, and the end is not reused. A person must confirm if the step is not idempotent at
    /// its turn, by the definition of the time.
    Effect,
}

/// The pass number of a question about a step.
const QUESTION: u32 = 0;

impl Reusable {
    /// Creates a result for reuse by an equal trace.
    pub fn ended(settled: Settled, follows: bool) -> Self {
        Self::Ended { settled, follows, kept: false }
    }

    /// Creates a result kept by a person.
    pub fn kept(settled: Settled) -> Self {
        Self::Ended { settled, follows: false, kept: true }
    }
}

/// An unfinished step whose needs are met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontierEntry {
    /// The step.
    pub step: StepId,
    /// The status of the step.
    pub status: Status,
    /// The attempt: for `ready`, the last attempt made (0 if none); else the current one.
    #[serde(default, skip_serializing_if = "Try::is_none")]
    pub at: Try,
    /// Failures counted against the retry budget. A resume by a person resets the count; a crash does not
    /// change it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failures: u32,
    /// Starts in a row without a recorded end: each time, the runner was killed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cuts: u32,
    /// The record in which this status began.
    pub since: u64,
    /// When a delayed attempt or a sleep is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<Timestamp>,
    /// Milliseconds from the start of the delay to `wake_at`. The wait never exceeds this delay, even if the
    /// clock was set back.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delay_ms: u64,
    /// The step's open waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// The number of memoized results of this step in this iteration and epoch: `progress` records with a
    /// key.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memos: u32,
    /// A wait of the attempt has ended: the next start continues the attempt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub continues: bool,
    /// The step was held before its first attempt, and a resume released it: it is not held there again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub passed: bool,
    /// The list of items changed: the records of the earlier fan-outs with the same input. Their children continue
    /// in the next fan-out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relisted: Vec<u64>,
    /// The exit code of an ended attempt with an unknown effect: its evidence did not confirm the effect, or
    /// the check was not done. Kept for non-idempotent steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited: Option<i32>,
    /// The fan-out of the step's work: open, or joined while hooks are open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan: Option<Fan>,
    /// The open fan-out of the step's hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Fan>,
    /// Digest of the trace at the start, if ends have traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Digest>,
}

impl FrontierEntry {
    /// Creates the entry of a step without attempts. The record that carries the entry fills in `since`.
    pub fn ready(step: StepId) -> Self {
        Self {
            step,
            status: Status::Ready,
            at: Try::default(),
            failures: 0,
            cuts: 0,
            since: 0,
            wake_at: None,
            delay_ms: 0,
            waits: Vec::new(),
            memos: 0,
            continues: false,
            passed: false,
            relisted: Vec::new(),
            exited: None,
            fan: None,
            hooks: None,
            input: None,
        }
    }

    /// Begins a wait until a time.
    pub(crate) fn wait_until(&mut self, due: Option<Timestamp>, now: Timestamp) {
        self.wake_at = due;
        self.delay_ms = due.map_or(0, |due| millis_until(due, now));
    }

    /// Ends a wait: the step may start again, in the same attempt.
    pub(crate) fn end_wait(&mut self) {
        (self.status, self.wake_at, self.since) = (Status::Ready, None, 0);
        self.continues = true;
        self.waits.clear();
    }

    /// Takes up a wait of an earlier session. A remaining time longer than the whole delay shows a clock that was set back:
    /// the delay begins again, and a sleeping step is called to set a new time.
    pub(crate) fn continue_wait(&mut self, now: Timestamp) {
        let Some(due) = self.wake_at.filter(|due| millis_until(*due, now) > self.delay_ms) else { return };
        if self.status == Status::Waiting {
            self.end_wait();
        } else {
            self.wake_at = now.checked_add(Duration::from_millis(self.delay_ms)).ok().or(Some(due));
        }
    }

    /// Returns whether the step's effect is unknown: after an interruption, or without confirmation by
    /// evidence.
    pub fn is_unsettled(&self) -> bool {
        match self.status {
            Status::Started => true,
            Status::Failed => self.exited.is_some(),
            Status::Ready | Status::Waiting => false,
        }
    }

    /// Returns the fan-outs of the step's work and hooks.
    pub fn fans(&self) -> impl Iterator<Item = &Fan> {
        self.fan.iter().chain(&self.hooks)
    }

    /// Returns the open fan-out: of the hooks, or of the work.
    pub fn open_fan(&self) -> Option<&Fan> {
        self.hooks.as_ref().or(self.fan.as_ref())
    }

    /// Returns the open fan-out for a change.
    pub(crate) fn open_fan_mut(&mut self) -> Option<&mut Fan> {
        self.hooks.as_mut().or(self.fan.as_mut())
    }

    /// Returns whether the step has opened children.
    pub fn has_children(&self) -> bool {
        self.open_fan().is_some()
    }

    /// Drops the fan-outs of the step.
    pub(crate) fn drop_children(&mut self) {
        (self.fan, self.hooks) = (None, None);
    }

    /// Moves a step with open hooks back to the join of its work's scopes. The hooks then run again. The hooks
    /// of a step without scopes stay open: its work has ended.
    pub fn back_to_work(&mut self) {
        if self.fan.is_none() || self.hooks.take().is_none() {
            return;
        }
        if self.status != Status::Failed {
            (self.status, self.since) = (Status::Ready, 0);
            self.waits.clear();
        }
    }
}

/// The status of an unfinished step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The step may start.
    Ready,
    /// The step was started; without a later record, it was interrupted.
    Started,
    /// The step waits for an answer, a signal, a time or its children.
    Waiting,
    /// The step failed, and its retries are used up.
    Failed,
}

/// The progress of a fan-out: children are opened page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fan {
    /// The frozen items, if the shape does not name the children.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<FrozenItems>,
    /// The total number of children.
    pub total: u64,
    /// The number of children opened so far.
    pub opened: u64,
    /// The record that began the fan-out; its children name it as their origin.
    pub since: u64,
    /// The records of earlier fan-outs with the same input and another list of items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relisted: Vec<u64>,
    /// The number of failed children, set after all have ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u64,
    /// The number of the pass, for a step with a scope per pass; else 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pass: u32,
    /// The earlier passes, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<PassEnd>,
    /// Of hooks: the digests of the work of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_digests: Option<EndDigests>,
}

impl Fan {
    /// Creates a fan-out without opened children. The record that carries the fan-out fills in `since`.
    pub fn new(items: Option<FrozenItems>, total: u64) -> Self {
        let (pass, passes) = (0, Vec::new());
        let relisted = Vec::new();
        Self { items, total, opened: 0, since: 0, relisted, failures: 0, pass, passes, work_digests: None }
    }

    /// Returns the fan-out of this pass or an earlier one, by number.
    pub fn of_pass(&self, pass: u32) -> Option<Self> {
        if pass == self.pass {
            return Some(self.clone());
        }
        let index = usize::try_from(pass.checked_sub(1)?).ok()?;
        let PassEnd { since, settled } = self.passes.get(index)?;
        let since = *since;
        let passes = self.passes[..index].to_vec();
        let before = passes.last().map_or(0, |pass| pass.settled.failures_passed());
        let failures = settled.failures.saturating_sub(before);
        Some(Self { opened: 1, since, failures, pass, passes, ..Self::new(None, 1) })
    }
}

/// The end of a pass that another pass followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassEnd {
    /// The record of the end.
    pub settled: Settled,
    /// The record that opened the pass's scope.
    pub since: u64,
}

/// Items of a fan-out, stored as a blob before the first child is opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrozenItems {
    /// The blob: a line of JSON for each item.
    pub blob: String,
    /// The size of the blob.
    pub bytes: u64,
    /// SHA-256 of the blob.
    pub digest: Digest,
}

fn millis_until(due: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(due.duration_since(now).as_millis()).unwrap_or(0)
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
