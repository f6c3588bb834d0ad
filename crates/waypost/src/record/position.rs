//! The position of a branch: its frontier and its ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::header::Try;
use super::is_default;
use super::wait::Wait;
use crate::id::{Digest, StepId};

/// All that is unfinished on a branch, and where the results of what is finished stand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The unfinished steps whose needs are met. What is neither here nor downstream of it is finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frontier: Vec<FrontierEntry>,
    /// Finished steps that can still matter, with the record that counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ledger: BTreeMap<StepId, Settled>,
    /// The entries of the steps that ended as failed, for a resume to retry them. The ledger has their ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FrontierEntry>,
    /// The record that carries the definition in force, where that is not the one of the run record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<u64>,
    /// The record that carries the configuration in force, where that is not the one of the run record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<u64>,
    /// On a child branch: the record of the parent's branch whose fan-out it belongs to. A child whose parent waits for
    /// another fan-out, or none, was left behind by a rollback or a later pass of a loop, and does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<u64>,
    /// Branches that this one opens may have records already: it was taken up from an older record than its newest, or
    /// was there before itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub revisited: bool,
    /// Children that ended as failed, in all fan-outs so far.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dead: u64,
    /// The fan-outs that steps joined last, where the state keeps apart what each step gave: branches of them can be worked on
    /// again without the states of then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub joined: BTreeMap<StepId, Fan>,
    /// The newest deliberate redo of finished steps on this branch: what comes up from then on is of this epoch, or a
    /// later one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub epoch: u32,
    /// On the main branch: the highest epoch that it ever gave, however far it went back since. The next one is higher.
    #[serde(default, skip_serializing_if = "is_default")]
    pub epoch_max: u32,
    /// On the main branch: the steps that finished after this record of it are being undone, and only who goes back to there
    /// goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoing: Option<u64>,
    /// On a chain, a graph with routes: the digest of the pinned evidence in force of all steps so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins: Option<Digest>,
    /// On a chain after a rewind: the results out of force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Box<ReusableChain>>,
    /// Results out of force that count again if their step is given the same, by step and pass; of a step without passes, as
    /// pass 1. A question about a step has the pass 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reusable: BTreeMap<StepId, BTreeMap<u32, Reusable>>,
    /// Openers that a person said run again as a whole: their children are entered without reuse.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rerun_whole: BTreeSet<StepId>,
    /// The branch was entered again: what its reusable ends gave is not in its state.
    #[serde(default, skip_serializing_if = "is_default")]
    pub entered_again: bool,
    /// On a child branch whose ends have traces: the digest of the input that its opener gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Digest>,
    /// Choices of a person about unfinished steps. A choice is applied at the step's turn, and is removed then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub choices: BTreeMap<StepId, Choice>,
    /// Steps started so far on this branch, for the step limit; crashes do not reset it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub steps_started: u64,
}

impl Position {
    /// Says whether a finished step did something: it was not skipped, and what it opens had branches.
    pub(crate) fn did(&self, step: &StepId) -> bool {
        let is_skipped = matches!(self.ledger.get(step), Some(Settled::Skipped(_)));
        !is_skipped && self.joined.get(step).is_none_or(|fan| fan.total > 0)
    }

    /// Says whether a person is asked about a step at its turn: the step must not be repeated, and was finished or started
    /// before an upstream step was invalidated.
    pub fn asks_about(&self, step: &StepId) -> bool {
        self.reusable.get(step).is_some_and(|results| results.contains_key(&QUESTION))
    }

    /// Returns the entry of a step in doubt: started before an upstream step was invalidated.
    pub fn started_before(&self, step: &StepId) -> Option<&FrontierEntry> {
        match self.reusable.get(step)?.get(&QUESTION)? {
            Reusable::Started(entry) => Some(entry),
            _ => None,
        }
    }

    /// Says whether a step has a result out of force.
    pub fn has_result(&self, step: &StepId) -> bool {
        self.reusable.get(step).is_some_and(|results| results.keys().any(|pass| *pass != QUESTION))
    }

    /// Says whether any step has a result out of force.
    pub(crate) fn has_results(&self) -> bool {
        self.reusable.keys().any(|step| self.has_result(step))
    }

    /// Drops the results out of force of a step. A question about the step stays.
    pub(crate) fn drop_results(&mut self, step: &StepId) {
        if let Some(results) = self.reusable.get_mut(step) {
            results.retain(|pass, _| *pass == QUESTION);
            if results.is_empty() {
                self.reusable.remove(step);
            }
        }
    }

    /// Drops the children of started steps in doubt, unless the children still exist.
    pub(crate) fn drop_children_of_started(&mut self, exist: impl Fn(&FrontierEntry) -> bool) {
        for result in self.reusable.values_mut().flat_map(BTreeMap::values_mut) {
            if let Reusable::Started(entry) = result
                && entry.fan.is_some()
                && !exist(entry)
            {
                (entry.fan, entry.status) = (None, Status::Started);
            }
        }
    }

    /// Adds a question about a step, asked at its turn. `entry`: where the step stood, if it was started and did not end.
    pub(crate) fn ask_about(&mut self, step: &StepId, entry: Option<FrontierEntry>) {
        let question = || entry.map_or(Reusable::Confirm, |entry| Reusable::Started(Box::new(entry)));
        self.reusable.entry(step.clone()).or_default().entry(QUESTION).or_insert_with(question);
    }

    /// Removes the question about a step; returns where the step stood, if it was started and did not end.
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

    /// Returns the unfinished steps and those that ended as failed.
    pub fn open_entries(&self) -> impl Iterator<Item = &FrontierEntry> {
        self.frontier.iter().chain(&self.failed)
    }

    /// Returns the position with its failed steps unfinished again: their entries are back in the frontier, and neither
    /// failed nor passed-over ends are left in the ledger.
    ///
    /// Ends downstream of a failed step stay. A resume takes those out of force too.
    #[must_use]
    pub fn with_failures_open(mut self) -> Self {
        if !self.failed.is_empty() {
            self.ledger.retain(|_, settled| !settled.is_unsuccessful());
            for entry in &self.failed {
                // The pass before a failed one has its end in force again.
                let before = entry.fan.as_ref().and_then(Fan::of_work).and_then(|fan| fan.passes.last());
                self.ledger.extend(before.map(|pass| (entry.step.clone(), pass.settled)));
            }
            self.frontier.append(&mut self.failed);
        }
        self
    }

    /// Returns how many steps ended without success: failed, or passed over after a failure.
    pub fn unsuccessful_count(&self) -> usize {
        self.ledger.values().filter(|settled| settled.is_unsuccessful()).count()
    }

    /// Returns the passes of a step that came before one that is about to begin.
    pub(crate) fn passes_before(&self, step: &StepId) -> Vec<PassEnd> {
        let (Some(fan), Some(settled)) = (self.joined.get(step), self.ledger.get(step)) else {
            return Vec::new();
        };
        let end = PassEnd { settled: *settled, since: fan.since, dead: fan.dead };
        fan.passes.iter().copied().chain([end]).collect()
    }

    /// Returns the fan-out of a reusable pass with the current ends of earlier passes. Without a current end of each earlier
    /// pass, the fan-out keeps the recorded ends.
    pub(crate) fn after_current_passes(&self, step: &StepId, fan: Fan) -> Fan {
        let passes = self.passes_before(step);
        if fan.pass == 0 || passes.len() + 1 != fan.pass as usize {
            return fan;
        }
        let dead_before = passes.iter().map(|pass| pass.dead).sum();
        Fan { passes, dead_before, ..fan }
    }

    /// Returns the same where no step is amid what comes after its work: [`FrontierEntry::back_to_work`].
    #[must_use]
    pub fn back_at_work(mut self) -> Self {
        self.frontier.iter_mut().for_each(FrontierEntry::back_to_work);
        self
    }
}

/// A choice of a person about an unfinished step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The settlement at the step's turn.
    pub settle: SettleBy,
    /// Who chose.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// How a person settles a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettleBy {
    /// The step is skipped: the outputs are null.
    Skip,
    /// The step counts as completed with these outputs.
    Done(Map<String, Value>),
}

/// The results of a chain out of force after a rewind. The state of a chain is opaque: all results downstream of a step depend on
/// the step. The results are reused together, after an end with the same state and the same pins in force.
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
    /// The finished careful steps, each with the iteration: a person is asked before a rerun.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub careful: BTreeSet<(StepId, Vec<u32>)>,
}

impl ReusableChain {
    /// Says whether a person must be asked before a careful step in this iteration.
    pub(crate) fn asks_about(&self, visit: &(StepId, Vec<u32>)) -> bool {
        self.careful.contains(visit) || self.started.contains(visit)
    }
}

/// A result out of force: an upstream step was invalidated. The result counts again, without an execution, if the step's
/// trace is the same when its turn comes and its evidence holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reusable {
    /// The end of a finished step.
    Ended {
        /// The record of the end.
        settled: Settled,
        /// The fan-out that the end joined.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fan: Option<Fan>,
        /// Another pass followed it.
        #[serde(default, skip_serializing_if = "is_default")]
        follows: bool,
        /// A person keeps the result: the result is reused with any input, if the evidence holds.
        #[serde(default, skip_serializing_if = "is_default")]
        kept: bool,
    },
    /// The entry of an unfinished step that was amid its children, or waited, or was between two passes.
    Begun {
        /// The entry.
        entry: Box<FrontierEntry>,
        /// The end of the pass before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<Settled>,
    },
    /// The step was finished and must not be repeated: a person is asked, and the end is not reused.
    Confirm,
    /// The entry of a step that was started, did not end, and must not be repeated: a person is asked.
    Started(Box<FrontierEntry>),
}

/// The pass of a question about a step.
const QUESTION: u32 = 0;

impl Reusable {
    /// Makes a result for reuse by an equal trace.
    pub fn ended(settled: Settled, fan: Option<Fan>, follows: bool) -> Self {
        Self::Ended { settled, fan, follows, kept: false }
    }

    /// Makes a result kept by a person.
    pub fn kept(settled: Settled, fan: Option<Fan>) -> Self {
        Self::Ended { settled, fan, follows: false, kept: true }
    }
}

/// How a finished step was settled, and by which record of the branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settled {
    /// It completed.
    Completed(u64),
    /// It was skipped.
    Skipped(u64),
    /// It failed, and that was tolerated.
    Tolerated(u64),
    /// It failed, and its retries are used up.
    Failed(u64),
    /// It did not run, as a step upstream of it failed.
    PassedOver(u64),
}

impl Settled {
    /// Returns the seq of the record that counts.
    pub fn seq(self) -> u64 {
        match self {
            Self::Completed(seq)
            | Self::Skipped(seq)
            | Self::Tolerated(seq)
            | Self::Failed(seq)
            | Self::PassedOver(seq) => seq,
        }
    }

    /// Says whether the step gave a result: it completed, or its failure was tolerated.
    pub fn gave_result(self) -> bool {
        matches!(self, Self::Completed(_) | Self::Tolerated(_))
    }

    /// Says whether the run fails on account of this end: the step failed, or was passed over after a failure.
    pub fn is_unsuccessful(self) -> bool {
        matches!(self, Self::Failed(_) | Self::PassedOver(_))
    }
}

/// An unfinished step whose needs are met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontierEntry {
    /// The step.
    pub step: StepId,
    /// How far it is.
    pub status: Status,
    /// Which try: of `ready`, the last one made (0 if none); of the others, the one meant.
    #[serde(default, skip_serializing_if = "Try::is_none")]
    pub at: Try,
    /// Failures counted against the retry budget; a user's resume starts it anew, a crash does not touch it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failures: u32,
    /// Starts in a row without a recorded end: each time, the runner was killed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cuts: u32,
    /// The record in which this status began.
    pub since: u64,
    /// When a delayed try or a sleep is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<Timestamp>,
    /// Milliseconds from the start of that delay to `wake_at`. No wait is longer, also if the clock was set back.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delay_ms: u64,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// Durable results kept by this step in this iteration and epoch: `progress` records with a key.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memos: u32,
    /// It was held before its first try, and a resume let it pass: it is not held there again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub passed: bool,
    /// The list of items of an opener changed: items that the fan-out of this record has opened stay, and the others open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relisted: Option<u64>,
    /// The exit code of a try that ended, while it is not known whether it took effect: its evidence did not show that,
    /// or was still being checked. Kept of steps that must not be repeated blindly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited: Option<i32>,
    /// The fan-out it is in the middle of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan: Option<Fan>,
    /// Digest of the trace with which it was started, where ends have traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Digest>,
}

impl FrontierEntry {
    /// Makes the entry of a step that was never started. The record that carries it fills in `since`.
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
            passed: false,
            relisted: None,
            exited: None,
            fan: None,
            input: None,
        }
    }

    /// Begins a wait until a time.
    pub(crate) fn wait_until(&mut self, due: Option<Timestamp>, now: Timestamp) {
        self.wake_at = due;
        self.delay_ms = due.map_or(0, |due| millis_until(due, now));
    }

    /// Ends a wait: the step may start again.
    pub(crate) fn end_wait(&mut self) {
        (self.status, self.wake_at, self.since) = (Status::Ready, None, 0);
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

    /// Says whether it was started and nobody knows whether it took effect: it was cut, or ended and was not believed.
    pub fn is_unsettled(&self) -> bool {
        match self.status {
            Status::Started => true,
            Status::Failed => self.exited.is_some(),
            Status::Ready | Status::Waiting => false,
        }
    }

    /// Stands where the branches that the step opened by its work are about to be joined, or opened, if it stands amid what
    /// comes after that: this is done once more then.
    pub fn back_to_work(&mut self) {
        let Some(fan) = self.fan.take_if(|fan| fan.after) else { return };
        self.fan = fan.work.map(|work| *work);
        if self.status != Status::Failed {
            (self.status, self.since) = (Status::Ready, 0);
            self.waits.clear();
        }
    }
}

/// How far an unfinished step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It may start.
    Ready,
    /// It was started; if nothing follows, it was cut.
    Started,
    /// It waits for an answer, a signal, a time or its children.
    Waiting,
    /// It failed and its retries are used up.
    Failed,
}

/// How far a fan-out is: children are opened page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fan {
    /// The frozen items, where the shape does not name the children itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<FrozenItems>,
    /// How many children there will be.
    pub total: u64,
    /// How many children are open or were.
    pub opened: u64,
    /// The record in which the fan-out began; its children name it as their origin.
    pub since: u64,
    /// How many of them ended as failed, once all have ended and the position counts them as dead.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dead: u64,
    /// How many the position counts of earlier passes of a loop over the step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dead_before: u64,
    /// Of a step whose passes have branches of their own: the number of the pass; 0 of any other.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pass: u32,
    /// The passes before it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<PassEnd>,
    /// It is of what comes after the work of a step that has opened branches by that work:
    /// [`Step::after`](crate::shape::Step::after).
    #[serde(default, skip_serializing_if = "is_default")]
    pub after: bool,
    /// The fan-out of that work, if it came to one: what is done again begins there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Box<Fan>>,
}

impl Fan {
    /// Makes one of which nothing is opened yet. The record that carries it fills in `since`.
    pub fn new(items: Option<FrozenItems>, total: u64) -> Self {
        let (pass, passes) = (0, Vec::new());
        Self {
            items,
            total,
            opened: 0,
            since: 0,
            dead: 0,
            dead_before: 0,
            pass,
            passes,
            after: false,
            work: None,
        }
    }

    /// Returns the fan-out of an earlier pass, or of this one, by its number.
    pub fn of_pass(&self, pass: u32) -> Option<Self> {
        if pass == self.pass {
            return Some(self.clone());
        }
        let index = usize::try_from(pass.checked_sub(1)?).ok()?;
        let PassEnd { since, dead, .. } = *self.passes.get(index)?;
        let passes = self.passes[..index].to_vec();
        let dead_before = passes.iter().map(|pass| pass.dead).sum();
        let one = Self { opened: 1, since, dead, dead_before, pass, passes, ..Self::new(None, 1) };
        Some(one)
    }

    /// Returns how many the position counts as dead in all passes.
    pub fn dead_in_all(&self) -> u64 {
        self.dead + self.dead_before
    }

    /// Returns the fan-out of the step's work: itself, or the one that it comes after.
    pub fn of_work(&self) -> Option<&Self> {
        if self.after { self.work.as_deref() } else { Some(self) }
    }

    /// Returns it, and the one that it comes after.
    pub fn each(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.work.as_deref()].into_iter().flatten()
    }
}

/// How a pass of a step ended that another one followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassEnd {
    /// The record of its end.
    pub settled: Settled,
    /// The record in which its branch was opened.
    pub since: u64,
    /// How many of its children ended as failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dead: u64,
}

/// Items of a fan-out, frozen in the store's blobs before its first child is opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrozenItems {
    /// The blob: one line of JSON for each item.
    pub blob: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of it.
    pub digest: Digest,
}

fn millis_until(due: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(due.duration_since(now).as_millis()).unwrap_or(0)
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
