//! One branch under way, in memory: its chain, state and position, and what is to be written of it next.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::future::AbortHandle;
use jiff::Timestamp;

use crate::id::{BranchPath, StepId};
use crate::record::{
    End, EndDigests, Failure, Fan, FrontierEntry, Note, Phase, Position, Reason, Reusable, RunStatus,
    STATE_BYTES_WARN, Settled, SettledAs, Start, Status, Try, Wait, WaitKind,
};
use crate::shape::{Shape, Unfinished};

use super::chain::{Chain, Draft};
use super::escalation::Dying;
use super::fan_out::{FanOut, Item, JoinedDigests};
use super::pending_wait::PendingWait;
use super::signals::StopHandle;
use super::trace::pass_in;
use super::{StepFailure, StepRef, StepReport};

mod in_doubt;

/// Names a branch among those that a session has in memory.
pub(super) type LineId = usize;

/// The main branch.
pub(super) const MAIN: LineId = 0;

/// A step in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) place: usize,
    /// Unique in the session.
    pub(super) job: u64,
    pub(super) abort: AbortHandle,
    /// It is being suspended, until one of these has an end.
    pub(super) waits: Vec<Wait>,
    /// Waits for messages, beside other work of the step.
    pub(super) pending: Vec<Arc<PendingWait>>,
    /// One of them was given its message.
    pub(super) was_given: bool,
}

impl Flight {
    pub(super) fn new(place: usize, job: u64, abort: AbortHandle) -> Self {
        Self { place, job, abort, waits: Vec::new(), pending: Vec::new(), was_given: false }
    }
}

/// Who opened a branch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opener {
    pub(super) line: LineId,
    /// The place of the step that did.
    pub(super) place: usize,
    /// Its place among the children.
    pub(super) index: u64,
}

/// What a step opens, until it is opened.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) place: usize,
    pub(super) items: Vec<Item>,
    pub(super) told: StepReport,
    /// They come after the branches that its work opened.
    pub(super) after: bool,
    /// What the step came to if they cannot be opened: that it failed before.
    pub(super) failure: Option<Failure>,
    /// The digests of the branches that the work opened, where the step has joined them.
    pub(super) joined: Option<JoinedDigests>,
}

/// A step that has failed amid its branches, until they have come to rest, and what comes after it is opened.
#[derive(Debug)]
pub(super) struct Caught {
    pub(super) place: usize,
    pub(super) failure: Failure,
    pub(super) items: Vec<Item>,
    pub(super) told: StepReport,
}

/// A branch under way.
pub(super) struct Line<'a, S> {
    pub(super) chain: Chain,
    pub(super) shape: &'a Shape,
    pub(super) state: S,
    pub(super) position: Position,
    /// What is not done yet, once somebody asked: of a branch whose steps choose what comes next, nobody does.
    unfinished: Option<Unfinished>,
    pub(super) opener: Option<Opener>,
    /// Place of the whole branch in loops around it.
    pub(super) around: Vec<u32>,
    pub(super) drafts: Vec<Draft>,
    /// Places that the next commit starts.
    pub(super) starting: Vec<usize>,
    /// Places whose start needs a commit of its own.
    pub(super) alone: Vec<usize>,
    pub(super) flights: Vec<Flight>,
    pub(super) fans: Vec<FanOut>,
    /// What steps have found out that they open, until it is opened.
    pub(super) found: Vec<Found>,
    /// Steps that have failed amid their branches, and of which something comes after that.
    pub(super) caught: Vec<Caught>,
    /// It is seen for the first time since a person resumed the run: what was cut, failed or held on it goes on.
    pub(super) reopens: bool,
    /// Steps that were under way when the session before this one ended.
    pub(super) cut: Vec<StepId>,
    /// Steps that had failed amid their branches: how those ended may not have been counted.
    pub(super) uncounted: Vec<StepId>,
    /// Failures of its steps, and of steps of branches below that it failed with, while nothing tolerates them.
    pub(super) failures: Vec<StepFailure>,
    /// Steps that a resume retries: whether they run is decided once more.
    pub(super) redecided: BTreeSet<StepId>,
    /// Through which only this branch is stopped.
    pub(super) cancel: StopHandle,
    /// It ends as failed once nothing below it is in flight.
    pub(super) dying: Option<Dying>,
    /// It ends with the next commit.
    pub(super) end: Option<End>,
    /// It lacks only room, and its opener knows.
    pub(super) is_hungry: bool,
    /// As of its newest records, a step is under way that must not be repeated blindly.
    pub(super) is_doubtful: bool,
    /// Its opener knows that it has ended.
    pub(super) is_counted_out: bool,
    /// It was opened without room for it, and is let go after the commit.
    pub(super) parked: bool,
    /// It counts among those of its siblings that may be at work at once; one that only waits does not.
    pub(super) has_room: bool,
    /// Everything on it is done, but the run is held after its last step.
    pub(super) is_held_at_end: bool,
    /// The size of its state when that was last warned of.
    pub(super) warned_bytes: usize,
    /// When it is due, as the session has noted it.
    pub(super) timer: Option<Timestamp>,
    /// The reason of records that begin something, until the next commit.
    pub(super) reason: Reason,
    /// Notes for the record that is written next.
    pub(super) notes: Vec<Note>,
    /// Of ends in force, as far as they were asked for: the digests of what they made. Where ends have traces.
    pub(super) digests: HashMap<StepId, EndDigests>,
}

impl<'a, S> Line<'a, S> {
    pub(super) fn new(chain: Chain, shape: &'a Shape, position: Position, state: S) -> Self {
        Self {
            chain,
            shape,
            state,
            position,
            unfinished: None,
            opener: None,
            around: Vec::new(),
            // Most often, one thing is written at a time.
            drafts: Vec::with_capacity(1),
            starting: Vec::new(),
            alone: Vec::new(),
            flights: Vec::new(),
            fans: Vec::new(),
            found: Vec::new(),
            caught: Vec::new(),
            reopens: false,
            cut: Vec::new(),
            uncounted: Vec::new(),
            failures: Vec::new(),
            redecided: BTreeSet::new(),
            cancel: StopHandle::default(),
            dying: None,
            end: None,
            is_hungry: false,
            is_doubtful: false,
            is_counted_out: false,
            parked: false,
            has_room: false,
            is_held_at_end: false,
            warned_bytes: 0,
            timer: None,
            reason: Reason::Step,
            notes: Vec::new(),
            digests: HashMap::new(),
        }
    }

    pub(super) fn branch(&self) -> &BranchPath {
        &self.chain.branch
    }

    pub(super) fn spot(&self, place: usize) -> StepRef<'_> {
        let step = &self.shape.steps()[place];
        StepRef { branch: &self.chain.branch, level: self.shape.level(), place, step }
    }

    pub(super) fn step_id(&self, place: usize) -> &'a StepId {
        &self.shape.steps()[place].id
    }

    pub(super) fn entry(&self, place: usize) -> &FrontierEntry {
        let id = self.step_id(place);
        let found = self.position.frontier.iter().find(|entry| entry.step == *id);
        found.expect("a step under way is in the frontier")
    }

    pub(super) fn entry_mut(&mut self, place: usize) -> &mut FrontierEntry {
        let id = self.step_id(place);
        let found = self.position.frontier.iter_mut().find(|entry| entry.step == *id);
        found.expect("a step under way is in the frontier")
    }

    /// Returns the pass at which a step stands: 1, but of one whose passes have branches of their own.
    pub(super) fn pass_of(&self, place: usize) -> u32 {
        pass_in(self.shape, place, &self.entry(place).at.iteration)
    }

    pub(super) fn has(&self, status: Status) -> bool {
        self.position.frontier.iter().any(|entry| entry.status == status)
    }

    /// Says whether something of it is under way or about to start.
    pub(super) fn is_active(&self) -> bool {
        !self.flights.is_empty() || !self.starting.is_empty() || !self.alone.is_empty()
    }

    /// Returns how many steps of it are under way or about to start.
    pub(super) fn active(&self) -> usize {
        self.flights.len() + self.starting.len() + self.alone.len()
    }

    /// Returns how many failures were come past: of branches that were joined, and of steps where that was tolerated.
    pub(super) fn failures_passed(&self) -> u64 {
        self.position.failures_passed()
    }

    /// Says whether a step of it ended as failed.
    pub(super) fn has_failed_end(&self) -> bool {
        !self.position.failed.is_empty()
    }

    /// Ends a step as failed with the newest draft: its entry is kept for a retry, and what it frees is ready.
    pub(super) fn end_as_failed(&mut self, place: usize) {
        let entry = self.entry(place).clone();
        let settled = Settled::new(SettledAs::Failed, self.seq_of_next_draft() - 1);
        self.settle(place, Some(settled), super::Follow::Needs);
        self.position.failed.push(entry);
    }

    /// Returns the status of a run whose main branch this is, and which has come to its end.
    pub(super) fn status_at_end(&self) -> RunStatus {
        if self.has_failed_end() {
            RunStatus::Failed
        } else if self.failures_passed() > 0 {
            RunStatus::CompletedWithFailures
        } else {
            RunStatus::Completed
        }
    }

    /// Makes what was written last the end of the branch; returns by how much that raises the failures that the branch
    /// which opened this one comes past.
    pub(super) fn end_with_last_draft(&mut self, end: End) -> u64 {
        let failures = if end == End::Completed { self.failures_passed() } else { 0 };
        let last = self.drafts.last_mut().expect("what ended was written");
        (last.end, last.failures) = (Some(end), failures);
        failures + u64::from(end == End::Failed)
    }

    pub(super) fn seq_of_next_draft(&self) -> u64 {
        self.chain.next + self.drafts.len() as u64
    }

    /// Adds what is to be written about a step.
    pub(super) fn draft(&mut self, phase: Phase, reason: Reason, step: StepId, at: Try) -> &mut Draft {
        self.drafts.push(Draft::new(phase, reason, Some(step), at));
        self.drafts.last_mut().expect("one was just added")
    }

    /// Adds what is to be written about a step that is in the frontier.
    pub(super) fn draft_of(&mut self, place: usize, phase: Phase, reason: Reason) -> &mut Draft {
        let entry = self.entry(place);
        let (step, at) = (entry.step.clone(), entry.at.clone());
        self.draft(phase, reason, step, at)
    }

    /// Makes sure that something is written, with the starts of the next commit on the last of it.
    ///
    /// `by`: who stopped the run, where nothing else happened.
    pub(super) fn complete_drafts(&mut self, status: Option<RunStatus>, by: impl FnOnce() -> String) {
        let starts: Vec<Start> = self.starting.iter().map(|place| self.start_of(*place)).collect();
        if self.drafts.is_empty() {
            let draft = match (status, starts.first()) {
                (Some(_), None) if !self.position.frontier.is_empty() => {
                    let phase = Phase::Interrupted { in_progress: false, by: by() };
                    Draft::new(phase, Reason::Stopped, None, Try::default())
                }
                (_, first) => {
                    let (step, at) = first.map(|start| (start.step.clone(), start.at.clone())).unzip();
                    Draft::new(Phase::Started, self.reason, step, at.unwrap_or_default())
                }
            };
            self.drafts.push(draft);
        }
        let last = self.drafts.last_mut().expect("there is one by now");
        last.told.notes.append(&mut self.notes);
        for start in starts {
            // A checkpoint that was lost may have said it: the one written instead says it once.
            if !last.started.contains(&start) {
                last.started.push(start);
            }
        }
    }

    /// Takes a finished step out of the frontier and puts in what it freed.
    pub(super) fn settle(&mut self, place: usize, settled: Option<Settled>, follow: super::Follow) {
        let id = self.step_id(place).clone();
        let at = self.entry(place).at.clone();
        if follow == super::Follow::Needs {
            self.unfinished();
        }
        self.position.frontier.retain(|entry| entry.step != id);
        self.position.failed.retain(|entry| entry.step != id);
        self.redecided.remove(&id);
        self.position.ask_no_more(&id);
        if follow != super::Follow::To(place) {
            self.position.rerun_whole.remove(&id);
            if !settled
                .is_some_and(|settled| matches!(settled.how, SettledAs::Skipped | SettledAs::PassedOver))
            {
                // No later pass follows: drop the results of later passes.
                self.position.reusable.remove(&id);
            }
        }
        self.fans.retain(|fan| fan.place != place);
        if self.shape.steps()[place].children.is_some() && !self.position.requests.is_empty() {
            let root = self.shape;
            self.position.requests.retain(|request| !is_below(root, &request.branch, &id));
        }
        match settled {
            Some(settled) => drop(self.position.ledger.insert(id, settled)),
            None => drop(self.position.ledger.remove(&id)),
        }
        let freed = match follow {
            super::Follow::Needs => {
                let shape = self.shape;
                self.unfinished().settle(shape, place)
            }
            super::Follow::To(next) => {
                self.follow(place, Some(next));
                vec![next]
            }
            super::Follow::End => {
                self.follow(place, None);
                Vec::new()
            }
        };
        for next in freed {
            let mut entry = FrontierEntry::ready(self.step_id(next).clone());
            // Whichever need ended last: a step that was finished before never has an epoch twice.
            entry.at.epoch = at.epoch.max(self.position.epoch);
            entry.at.iteration = self.shape.iteration(place, next, &at.iteration, self.around.len());
            self.position.frontier.push(entry);
        }
    }

    /// Returns how many children failed in a pass that is about to end, and in the passes before it.
    pub(super) fn failures_joined(&self, place: usize) -> u64 {
        let fan = self.entry(place).fan.as_ref().and_then(Fan::of_work);
        fan.map_or(0, |fan| fan.failures) + self.failures_before(place)
    }

    /// Returns how many children failed in the passes before the one of a step.
    pub(super) fn failures_before(&self, place: usize) -> u64 {
        let entry = self.entry(place);
        let is_later_pass = entry.at.iteration.last().is_some_and(|pass| *pass > 1);
        let fan = entry.fan.as_ref().and_then(Fan::of_work).filter(|fan| fan.pass > 0);
        let before = match fan {
            Some(fan) => fan.passes.last().map(|pass| pass.settled),
            None => self.position.ledger.get(self.step_id(place)).copied().filter(|_| is_later_pass),
        };
        before.map_or(0, |settled| settled.failures)
    }

    /// Returns which of its steps are unfinished; from the first call on that is kept up to date.
    pub(super) fn unfinished(&mut self) -> &mut Unfinished {
        self.unfinished.get_or_insert_with(|| Unfinished::of(self.shape, &self.position))
    }

    /// Returns how many of its steps are unfinished.
    pub(super) fn unfinished_count(&self) -> usize {
        match &self.unfinished {
            Some(unfinished) => unfinished.count(),
            None => Unfinished::of(self.shape, &self.position).count(),
        }
    }

    fn follow(&mut self, from: usize, to: Option<usize>) {
        if let Some(unfinished) = &mut self.unfinished {
            unfinished.follow(self.shape, from, to, std::iter::empty());
        }
    }

    /// Returns the result out of force of a ready step, of the pass at which it stands.
    pub(super) fn result_of(&self, entry: &FrontierEntry) -> Option<&Reusable> {
        let results = self.position.reusable.get(&entry.step).filter(|_| entry.fan.is_none())?;
        results.get(&self.pass_of(self.shape.place(entry.step.as_str())?))
    }

    /// Takes it away.
    pub(super) fn take_result(&mut self, place: usize) -> Option<Reusable> {
        let (step, pass) = (self.step_id(place).clone(), self.pass_of(place));
        let results = self.position.reusable.get_mut(&step)?;
        let result = results.remove(&pass);
        if results.is_empty() {
            self.position.reusable.remove(&step);
        }
        result
    }

    /// Finds what may start now.
    pub(super) fn next_ready(
        &self,
        now: Timestamp,
        wanted: Option<&[bool]>,
        free: impl Fn(&usize) -> bool,
    ) -> Option<usize> {
        let due = |entry: &&FrontierEntry| {
            entry.status == Status::Ready && entry.wake_at.is_none_or(|wake_at| wake_at <= now)
        };
        let place = |entry: &FrontierEntry| self.shape.place(entry.step.as_str());
        let free = |place: &usize| {
            free(place) && !self.alone.contains(place) && wanted.is_none_or(|wanted| wanted[*place])
        };
        // Whether the result of one that has some is reused is decided before it may start.
        let due = |entry: &&FrontierEntry| due(entry) && self.result_of(entry).is_none();
        self.position.frontier.iter().filter(due).filter_map(place).find(free)
    }

    /// Returns when the next delayed try or sleep is due.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let timed = |entry: &&FrontierEntry| matches!(entry.status, Status::Ready | Status::Waiting);
        self.position.frontier.iter().filter(timed).filter_map(|entry| entry.wake_at).min()
    }

    pub(super) fn mark_started(&mut self, place: usize) -> Start {
        self.position.steps_started += 1;
        let step = self.step_id(place).clone();
        self.redecided.remove(&step);
        let tries = self.tries_at(place);
        let visit = (step, self.entry(place).at.iteration.clone());
        if let Some(chain) = self.position.chain.as_mut().filter(|chain| chain.head.is_some()) {
            chain.started.insert(visit);
        }
        let entry = self.entry_mut(place);
        entry.status = Status::Started;
        entry.at.attempt += tries;
        entry.exited = None;
        entry.since = 0;
        entry.wake_at = None;
        entry.waits.clear();
        self.start_of(place)
    }

    fn start_of(&self, place: usize) -> Start {
        let entry = self.entry(place);
        Start { step: entry.step.clone(), at: entry.at.clone(), joins: entry.fan.is_some() }
    }

    /// How many tries a start is: the join of what came after a step belongs to the try before it.
    fn tries_at(&self, place: usize) -> u32 {
        u32::from(!self.comes_after(place))
    }

    /// Says whether a step is amid what comes after its work, or about to join that.
    pub(super) fn comes_after(&self, place: usize) -> bool {
        let fan = self.entry(place).fan.as_ref();
        fan.and_then(|fan| self.shape.steps()[place].opened(fan)).is_some_and(|children| children.afterwards)
    }

    /// Ends what comes after the work of a step: what is done again begins with that work, and what comes after it may have
    /// been there before.
    pub(super) fn end_afterwards(&mut self, place: usize) {
        self.position.revisited = true;
        self.fans.retain(|fan| fan.place != place);
        let entry = self.entry_mut(place);
        entry.fan = entry.fan.take().and_then(|fan| fan.work).map(|work| *work);
    }

    /// Takes a start back: as if it had not been.
    pub(super) fn unmark_started(&mut self, place: usize) {
        let tries = self.tries_at(place);
        let entry = self.entry_mut(place);
        entry.status = Status::Ready;
        entry.at.attempt -= tries;
        entry.since = 0;
        self.position.steps_started -= 1;
    }

    /// Puts a warning on what is written next if its state has become large, and again each time that it has doubled.
    pub(super) fn warn_of_size(&mut self, bytes: usize) -> Option<String> {
        if bytes < STATE_BYTES_WARN.max(2 * self.warned_bytes) {
            return None;
        }
        self.warned_bytes = bytes;
        let draft = self.drafts.last_mut()?;
        let at = draft.step.as_ref().map_or(String::new(), |step| format!(" at step `{step}`"));
        let text = format!(
            "the state of branch `{}`{at} has {bytes} bytes, and every checkpoint writes it again: keep large data in files and their hashes in the state",
            self.chain.branch
        );
        draft.told.notes.push(Note::Warning(text.clone()));
        Some(text)
    }

    /// Says whether it was held before or after a step, for a resume to go on.
    pub(super) fn is_held(&self) -> bool {
        let held = |entry: &FrontierEntry| entry.waits.iter().any(|wait| wait.on == WaitKind::Resume);
        self.position.frontier.iter().any(held)
    }

    /// Says whether a step of it waits for a time.
    pub(super) fn sleeps(&self) -> bool {
        self.waiting_for(&|wait| wait.due().is_some()).is_some()
    }

    /// Returns the steps that wait for something outside the run.
    pub(super) fn asking_places(&self) -> Vec<usize> {
        let outside =
            |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_) | WaitKind::Until(_));
        let asking =
            |entry: &&FrontierEntry| entry.status == Status::Waiting && entry.waits.iter().any(outside);
        let entries = self.position.frontier.iter().filter(asking);
        entries.filter_map(|entry| self.shape.place(entry.step.as_str())).collect()
    }

    /// Finds a step with such a wait.
    pub(super) fn waiting_for(&self, matches: &dyn Fn(&Wait) -> bool) -> Option<usize> {
        let waits =
            |entry: &&FrontierEntry| entry.status == Status::Waiting && entry.waits.iter().any(matches);
        let entry = self.position.frontier.iter().find(waits)?;
        self.shape.place(entry.step.as_str())
    }

    /// Asks again, where damage took away what came after a question: its answer may have been taken in by what is gone,
    /// and each time that something is asked it has an answer of its own.
    pub(super) fn ask_again(&mut self) {
        for place in self.asking_places() {
            let entry = self.entry_mut(place);
            entry.since = 0;
            let waits = entry.waits.clone();
            self.draft_of(place, Phase::Waiting(waits), Reason::Repair);
        }
    }

    /// Readies sleepers that are due.
    pub(super) fn wake(&mut self, now: Timestamp) {
        for entry in &mut self.position.frontier {
            if entry.status == Status::Waiting && entry.wake_at.is_some_and(|due| due <= now) {
                entry.end_wait();
            }
        }
    }

    /// Says whether nothing of it goes on before something outside happens.
    pub(super) fn rests(&self) -> bool {
        let rests = |entry: &FrontierEntry| {
            let joins = entry.waits.iter().any(|wait| wait.on == WaitKind::Children);
            let place = self.shape.place(entry.step.as_str()).filter(|_| joins);
            let fan = self.fans.iter().find(|fan| Some(fan.place) == place);
            entry.status == Status::Waiting && (!joins || fan.is_some_and(FanOut::rests))
        };
        !self.is_active() && self.position.frontier.iter().all(rests)
    }

    pub(super) fn fan_mut(&mut self, place: usize) -> &mut FanOut {
        let found = self.fans.iter_mut().find(|fan| fan.place == place);
        found.expect("a step with open children has a fan-out")
    }
}

/// Says whether a branch is below a step of the main branch.
fn is_below(root: &Shape, branch: &BranchPath, step: &StepId) -> bool {
    let outermost = std::iter::successors(Some(branch.clone()), BranchPath::parent)
        .find(|around| around.parent().is_some_and(|parent| parent.is_main()));
    outermost.and_then(|outermost| super::reruns::opener_of(root, &outermost)).as_ref() == Some(step)
}
